//! Serves a peer: all clients and their totals at first, then changes.
//!
//! Changes wait in an outbox ([`crate::push::outbox::Outbox`]) and are sent at most every [`SEND_EVERY`], so
//! that many changes of a client become one message. Messages have a size limit. A peer that does not read in
//! time, or whose outbox is full, is disconnected and reconnects.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, key};
use damper_proto::v1;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tonic::{Status, Streaming};

use crate::cluster::Cluster;
use crate::push::outbox::{Outbox, Waiting};
use crate::push::watching::WatchingElsewhere;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;

/// The time over which changes are collected.
const SEND_EVERY: Duration = Duration::from_millis(30);
/// The longest time between two messages.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// The time that a peer may leave a message unread.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of one message; a single part may be larger.
const MESSAGE_BYTES: usize = 512 << 10;

type Out = mpsc::Sender<Result<v1::FollowResponse, Status>>;

/// One peer.
struct PeerSender {
    cluster: Arc<Cluster>,
    /// The epoch of the store when the stream began.
    epoch: Arc<str>,
    outbox: Arc<Outbox>,
    out: Out,
}

/// Serves one peer until one of the two leaves.
pub(crate) async fn serve(cluster: Arc<Cluster>, mut inbound: Streaming<v1::FollowRequest>, out: Out) {
    let ended = match timeout(FIRST_WITHIN, inbound.message()).await {
        Ok(Ok(Some(first))) => stream_to_peer(cluster, first, inbound, &out).await,
        Ok(Ok(None)) => return,
        Ok(Err(status)) => Err(status),
        Err(_) => Err(ApiError::TooLate(FIRST_WITHIN).into()),
    };
    if let Err(status) = ended {
        tracing::debug!(%status, "stream to a peer ended");
        // A peer that does not read gets no error.
        let _ = timeout(ALIVE_EVERY, out.send(Err(status))).await;
    }
}

/// Sends until the peer or this replica leaves, which is no error.
async fn stream_to_peer(
    cluster: Arc<Cluster>,
    first: v1::FollowRequest,
    mut inbound: Streaming<v1::FollowRequest>,
    out: &Out,
) -> Result<(), Status> {
    let table = cluster.fleet.table();
    check(&cluster, &table, &first)?;
    let following = format!("{}/{:016x}", first.replica, fastrand::u64(..));
    let elsewhere = WatchingElsewhere::nothing(&cluster.fleet, following.into());
    elsewhere.is(first.watched.unwrap_or_default());
    let outbox = cluster
        .fleet
        .hub
        .followed()
        .ok_or_else(|| Status::resource_exhausted("too many peers are connected to this replica"))?;
    let sender =
        PeerSender { epoch: table.epoch().clone(), outbox, out: out.clone(), cluster: cluster.clone() };
    let sending = sender.send_all();
    tokio::pin!(sending);
    loop {
        tokio::select! {
            ended = &mut sending => return ended,
            message = inbound.message() => match message? {
                Some(request) => elsewhere.is(request.watched.unwrap_or_default()),
                None => return Ok(()),
            },
            () = cluster.ended.cancelled() => return Ok(()),
        }
    }
}

fn check(cluster: &Cluster, table: &Snapshot, first: &v1::FollowRequest) -> Result<(), Status> {
    let mut faults = Faults::none();
    key::check_name("replica", &first.replica, &mut faults);
    faults.or(()).map_err(ApiError::Faults)?;
    if *first.replica == **cluster.peers.id() {
        return Err(Status::failed_precondition("a replica cannot connect to itself"));
    }
    if *first.epoch != **table.epoch() {
        let epoch = table.epoch();
        return Err(Status::failed_precondition(format!(
            "the store's epoch is {epoch} here, and another there"
        )));
    }
    Ok(())
}

impl PeerSender {
    async fn send_all(&self) -> Result<(), Status> {
        let own = self.cluster.peers.own();
        self.send(v1::FollowResponse {
            replica: own.id.clone(),
            version: own.version.clone(),
            started_at: own.started_at,
            epoch: self.epoch.to_string(),
            ..self.head()
        })
        .await?;
        self.pass_on(self.outbox.take()).await?;
        self.send_totals().await?;
        self.send(v1::FollowResponse { complete: true, ..self.head() }).await?;
        let mut alive = interval(ALIVE_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = Instant::now();
        let mut tables = self.cluster.fleet.state.table.clone();
        let mut sent = tables.borrow_and_update().held().clone();
        loop {
            tokio::select! {
                _ = alive.tick() => self.send(self.head_with_kills()).await?,
                changed = tables.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let held = tables.borrow_and_update().held().clone();
                    if held != sent {
                        sent = held;
                        self.send(self.head_with_kills()).await?;
                    }
                }
                () = self.outbox.news() => {
                    sleep_until(next).await;
                    self.pass_on(self.outbox.take()).await?;
                    next = Instant::now() + SEND_EVERY;
                }
            }
        }
    }

    /// Sends the totals of all clients that were connected when the stream began. Changes are sent in
    /// between, so that the outbox stays small.
    async fn send_totals(&self) -> Result<(), Status> {
        let mut packer = Packer::new(self);
        let mut next = Instant::now() + SEND_EVERY;
        // After all totals, so that the totals of clients that left meanwhile have an owner.
        let mut gone = Vec::new();
        for session in self.cluster.fleet.hub.own() {
            if !self.outbox.wants_totals(session.id()) {
                continue;
            }
            let (reports, age) = self.cluster.fleet.stats.totals(&session);
            for report in reports {
                packer.report(session.id(), report, age).await?;
            }
            if Instant::now() >= next {
                packer.flush().await?;
                let mut waiting = self.outbox.take();
                gone.append(&mut waiting.gone);
                self.pass_on(waiting).await?;
                next = Instant::now() + SEND_EVERY;
            }
        }
        packer.flush().await?;
        packer.message.gone = gone;
        packer.flush().await
    }

    /// Sends the waiting changes: new and changed clients, reports, clients that left.
    async fn pass_on(&self, waiting: Waiting) -> Result<(), Status> {
        if waiting.overflown {
            return Err(Status::resource_exhausted("the receiving replica reads too slowly; it reconnects"));
        }
        let table = self.cluster.fleet.table();
        let mut packer = Packer::new(self);
        for (session, is_new) in waiting.clients.into_values() {
            packer.client(session.follow_message(&table, is_new)).await?;
        }
        // Clients before reports, so that the client of each report is known.
        packer.flush().await?;
        for (number, came, report) in waiting.reports {
            packer.report(number, v1::Report::clone(&report), came.elapsed()).await?;
        }
        packer.message.gone = waiting.gone;
        packer.flush().await
    }

    /// Returns the message that is sent at least every second: also the clock, and kills that the store could
    /// not take.
    fn head_with_kills(&self) -> v1::FollowResponse {
        let table = self.cluster.fleet.table();
        v1::FollowResponse {
            held_kills: table.held().iter().map(|held| held.wire.clone()).collect(),
            sent_at: Some(SystemTime::now().into()),
            unaccepted_store: table.unaccepted.as_ref().map(|found| found.reported(&table)),
            ..self.head()
        }
    }

    fn head(&self) -> v1::FollowResponse {
        v1::FollowResponse {
            revision: self.cluster.fleet.table().revision(),
            last_export_at: self.cluster.peers.last_export().map(Into::into),
            ..v1::FollowResponse::default()
        }
    }

    async fn send(&self, message: v1::FollowResponse) -> Result<(), Status> {
        if *self.cluster.fleet.table().epoch() != self.epoch {
            return Err(Status::unavailable(
                "the store of the replica that sends the changes was replaced; the receiving replica reconnects automatically",
            ));
        }
        match timeout(READ_WITHIN, self.out.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the peer closed the stream")),
            Err(_) => {
                Err(Status::resource_exhausted("the receiving replica did not read in time; it reconnects"))
            }
        }
    }
}

/// Fills messages up to their size.
struct Packer<'a> {
    sender: &'a PeerSender,
    message: v1::FollowResponse,
    bytes: usize,
}

impl<'a> Packer<'a> {
    fn new(sender: &'a PeerSender) -> Self {
        Self { sender, message: v1::FollowResponse::default(), bytes: 0 }
    }

    async fn client(&mut self, client: v1::FollowedClient) -> Result<(), Status> {
        self.make_room(client.encoded_len()).await?;
        self.message.clients.push(client);
        Ok(())
    }

    async fn report(&mut self, number: u64, report: v1::Report, age: Duration) -> Result<(), Status> {
        let age = prost_types::Duration::try_from(age).ok();
        let report = v1::FollowedReport { number, report: Some(report), age };
        self.make_room(report.encoded_len()).await?;
        self.message.reports.push(report);
        Ok(())
    }

    async fn make_room(&mut self, bytes: usize) -> Result<(), Status> {
        if self.bytes > 0 && self.bytes + bytes > MESSAGE_BYTES {
            self.flush().await?;
        }
        self.bytes += bytes;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Status> {
        let message = std::mem::take(&mut self.message);
        let is_empty = self.bytes == 0 && message.gone.is_empty();
        self.bytes = 0;
        if is_empty {
            return Ok(());
        }
        let revision = self.sender.head().revision;
        self.sender.send(v1::FollowResponse { revision, ..message }).await
    }
}
