//! One process of a service as the server sees it: a connection, a stream, answers to what it is sent, and reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use damper_core::feature;
use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::{self, client_message, server_message};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;

use super::raw::TRIGGER;
use super::{Door, Fleet, Tell};
use crate::patience::{PATIENCE, within};

/// How many services the clients are processes of.
pub(super) const SERVICES: usize = 100;
const METHODS: usize = 5;
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Calls of a route between two reports.
const CALLS: u64 = 50;
/// The buckets that a route's latencies fall into.
const BUCKETS: std::ops::Range<u32> = 40..46;

/// The service that a process of this place in the fleet is of.
pub(super) fn service_at(place: usize) -> String {
    format!("service-{:03}", place % SERVICES)
}

/// One of the services that are called.
pub(super) fn callee_at(place: usize) -> String {
    format!("callee-{place:03}")
}

/// Tells the raw server to send its delta.
pub(super) async fn trigger(door: &Door) -> Result<()> {
    let identity = v1::Identity { instance: TRIGGER.to_owned(), ..Default::default() };
    let hello = v1::Hello { identity: Some(identity), ..Default::default() };
    let said = tokio_stream::iter([message(client_message::Kind::Hello(hello))]);
    let mut raw = DistributionClient::new(door.channel().await?);
    within(PATIENCE, "the raw server's delta", raw.subscribe(said)).await??;
    Ok(())
}

/// One process.
pub(super) struct Client {
    place: usize,
    door: Door,
    connected: watch::Sender<usize>,
    tell: watch::Receiver<Option<Tell>>,
    reported_routes: watch::Receiver<usize>,
    failed: watch::Sender<Option<String>>,
    reported: AtomicU64,
}

impl Client {
    pub(super) fn new(place: usize, door: Door, fleet: &Fleet) -> Self {
        Self {
            place,
            door,
            connected: fleet.connected.clone(),
            tell: fleet.tell.subscribe(),
            reported_routes: fleet.reported_routes.subscribe(),
            failed: fleet.failed.clone(),
            reported: AtomicU64::new(0),
        }
    }

    /// Connects and goes on until the fleet is gone.
    pub(super) async fn run(mut self, slot: OwnedSemaphorePermit) {
        if let Err(error) = self.serve(slot).await {
            self.failed.send_replace(Some(format!("client {}: {error}", self.place)));
        }
    }

    async fn serve(&mut self, slot: OwnedSemaphorePermit) -> Result<()> {
        let (say, said) = mpsc::channel(4);
        say.send(message(client_message::Kind::Hello(self.hello()))).await?;
        let channel = self.door.channel().await?;
        let request = self.door.agent(ReceiverStream::new(said));
        let mut answers = DistributionClient::new(channel).subscribe(request).await?.into_inner();
        let mut slot = Some(slot);
        // Spread over the interval, as processes that started at different times are.
        let first = REPORT_EVERY.mul_f64(fastrand::f64());
        let mut report = interval_at(tokio::time::Instant::now() + first, REPORT_EVERY);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                answer = answers.message() => {
                    let answer = answer?.context("the server has ended the stream")?;
                    if let Some(ack) = self.take(answer, &mut slot) {
                        say.send(message(client_message::Kind::Ack(ack))).await?;
                    }
                }
                _ = report.tick() => if let Some(report) = self.report() {
                    say.send(message(client_message::Kind::Report(report))).await?;
                },
                () = self.fleet_is_gone() => return Ok(()),
            }
        }
    }

    async fn fleet_is_gone(&self) {
        let mut tell = self.tell.clone();
        while tell.changed().await.is_ok() {}
    }

    /// The answer to what the server sent, if it wants one.
    fn take(&self, sent: v1::ServerMessage, slot: &mut Option<OwnedSemaphorePermit>) -> Option<v1::Ack> {
        if let Some(server_message::Kind::Delta(_)) = &sent.kind
            && let Some(told) = &*self.tell.borrow()
        {
            let _nobody_waits_any_more = told.send(Instant::now());
        }
        if sent.nonce == 0 {
            return None;
        }
        if slot.take().is_some() {
            self.connected.send_modify(|connected| *connected += 1);
        }
        Some(v1::Ack { nonce: sent.nonce, revision: sent.revision, refused: Vec::new() })
    }

    fn hello(&self) -> v1::Hello {
        let identity = v1::Identity {
            service: service_at(self.place),
            cluster: "default".to_owned(),
            instance: format!("instance-{}", self.place),
        };
        v1::Hello {
            identity: Some(identity),
            sdk_version: env!("CARGO_PKG_VERSION").to_owned(),
            features: feature::ALL.iter().map(|&name| name.to_owned()).collect(),
            source: v1::Source::BuiltIn.into(),
            serves: true,
            ..Default::default()
        }
    }

    /// Nothing where nothing is called.
    fn report(&self) -> Option<v1::Report> {
        let routes = Some(*self.reported_routes.borrow()).filter(|routes| *routes > 0)?;
        let calls = self.reported.fetch_add(CALLS, Ordering::Relaxed) + CALLS;
        let failures = calls / 100;
        let route = |route: usize| v1::RouteReport {
            callee_service: callee_at(route),
            callee_method: format!("load.v1.Callee/Method{}", route % METHODS),
            calls,
            attempts: calls + failures,
            retries: failures,
            fates: vec![
                v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: calls - failures },
                v1::FateCount { fate: v1::Fate::OkAfterRetry.into(), would: false, count: failures },
            ],
            codes: vec![
                v1::CodeCount { code: v1::Code::Ok.into(), count: calls },
                v1::CodeCount { code: v1::Code::Unavailable.into(), count: failures },
            ],
            latency: BUCKETS
                .map(|bucket| v1::BucketCount {
                    bucket,
                    count: calls / u64::from(BUCKETS.end - BUCKETS.start),
                })
                .collect(),
            ..Default::default()
        };
        Some(v1::Report {
            routes: (0..routes).map(route).collect(),
            governed_calls: calls * routes as u64,
            source: v1::Source::Live.into(),
            ..Default::default()
        })
    }
}

fn message(kind: client_message::Kind) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}
