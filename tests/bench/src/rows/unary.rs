//! Real unary calls of tonic over loopback, 64 in flight on one connection, with the layer and without.
//!
//! Server and client are processes of their own. The client makes calls for a while through each variant in turn, on the
//! same connection, and answers with the rounds: throughput and the latency that 99 % of the calls did not exceed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use damper_sdk::Damper;
use damper_tests::spread::quantile;
use http::{Request, Response};
use serde::{Deserialize, Serialize};
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Service;

use super::Size;
use crate::calls::{self, CALLEE};
use crate::figure::{Figure, Row, Target};
use crate::patience::{PATIENCE, within};
use crate::process::{Conversation, answer, output, sibling, tethered};
use crate::rounds::interleaved;

const IN_FLIGHT: usize = 64;
const RAW: &str = "tonic without the layer";

/// What the calling process is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Calls {
    /// The server that is called
    #[arg(long)]
    server: SocketAddr,
    /// The control plane that has the rule
    #[arg(long)]
    control_plane: String,
    /// How many rounds
    #[arg(long)]
    rounds: usize,
    /// How long each variant is called in a round
    #[arg(long)]
    milliseconds: u64,
    /// Only this variant, for a profiler
    #[arg(long)]
    only: Option<Variant>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Variant {
    Raw,
    NoRule,
    Rule,
}

/// Rounds of each variant.
#[derive(Debug, Serialize, Deserialize)]
struct Rounds {
    per_second: Vec<Vec<f64>>,
    p99_us: Vec<Vec<f64>>,
}

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    // Many and short: a single one says little, whatever its length, for the machine has better and worse moments.
    let rounds = size.pick(1, 31, 151);
    let milliseconds = size.pick(100, 250, 250);
    let control_plane = calls::control_plane().await?;
    let mut server = Conversation::start(&["serve-unary"], [])?;
    let address = server.read("the address of the unary server").await?;
    let mut caller = tethered(sibling("bench"));
    caller.args(["call-unary", "--server", &address, "--control-plane", control_plane.url()]).args([
        "--rounds",
        &rounds.to_string(),
        "--milliseconds",
        &milliseconds.to_string(),
    ]);
    let loaded = Duration::from_millis(milliseconds) * 3 * (rounds as u32 + 1);
    let measured = output("the unary calls", caller, PATIENCE + 2 * loaded).await?;
    let Rounds { per_second, p99_us } = serde_json::from_str(&measured)?;
    let mut row = Row::new("unary", "Real tonic unary over loopback").note(format!(
        "{IN_FLIGHT} calls in flight on one connection; caller, server and control plane are three processes on the same \
         cores. Each round calls for {milliseconds} ms through each variant.",
    ));
    for (name, index) in [("no rule for the route", 1), ("under a rule", 2)] {
        let beside = |what: &str, unit, of: &[Vec<f64>]| -> Result<Figure> {
            let [ours, raw] = [index, 0].map(|index: usize| of.get(index));
            let (ours, raw) = (ours.context("three variants")?, raw.context("three variants")?);
            Ok(Figure::beside(format!("{what}, {name}"), unit, ours, RAW, raw))
        };
        row = row
            .with(beside("throughput", "calls/s", &per_second)?.aim(Target::RatioAtLeast(0.98)))
            .with(beside("p99", "µs", &p99_us)?.aim(Target::RatioAtMost(1.05)));
    }
    Ok((rounds, row))
}

/// Serves a unary method until it is killed; prints where.
///
/// # Errors
/// There is no free port.
pub async fn serve() -> Result<()> {
    // What a server is told of no-delay does not reach connections that somebody else accepts.
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    answer(&incoming.local_addr()?.to_string())?;
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    Ok(Server::builder().add_service(health).serve_with_incoming(incoming).await?)
}

/// Calls it, and prints the rounds.
///
/// # Errors
/// A call fails.
pub async fn call(calls: Calls) -> Result<()> {
    let damper: Damper = calls::service(&calls.control_plane).await?;
    let endpoint = Endpoint::from_shared(format!("http://{}", calls.server))?.tcp_nodelay(true);
    let channel = within(PATIENCE, "a connection to the unary server", endpoint.connect()).await??;
    let no_rule = damper.client_layer("stock-without-a-rule")?.layer(channel.clone());
    let rule = damper.client_layer(CALLEE)?.layer(channel.clone());
    let time = Duration::from_millis(calls.milliseconds);
    let runtime = tokio::runtime::Handle::current();
    let mut p99_us = vec![Vec::new(); 3];
    let variants = calls.only.map_or_else(|| Variant::value_variants().to_vec(), |only| vec![only]);
    let mut measure = |variant: Variant| {
        let loaded = match variant {
            Variant::Raw => runtime.block_on(load(channel.clone(), time)),
            Variant::NoRule => runtime.block_on(load(no_rule.clone(), time)),
            Variant::Rule => runtime.block_on(load(rule.clone(), time)),
        }?;
        p99_us.get_mut(variant as usize).context("three variants")?.push(quantile(&loaded, 0.99));
        Ok::<_, anyhow::Error>(loaded.len() as f64 / time.as_secs_f64())
    };
    let per_second = tokio::task::block_in_place(|| {
        for &variant in &variants {
            measure(variant)?;
        }
        interleaved(calls.rounds, &variants, &mut measure)
    })?;
    // The first of each was to warm up.
    for rounds in &mut p99_us {
        rounds.drain(..rounds.len().min(1));
    }
    println!("{}", serde_json::to_string(&Rounds { per_second, p99_us })?);
    Ok(())
}

/// Calls for so long, and answers with how long each call took, in ascending microseconds.
async fn load<S, B>(service: S, time: Duration) -> Result<Vec<f64>>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + std::fmt::Debug,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let until = Instant::now() + time;
    let callers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let mut client = HealthClient::new(service.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                loop {
                    let begun = Instant::now();
                    if begun >= until {
                        return Ok::<_, tonic::Status>(took);
                    }
                    client.check(HealthCheckRequest::default()).await?;
                    took.push(begun.elapsed().as_nanos() as f64 / 1e3);
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for caller in callers {
        all.extend(within(time + PATIENCE, "the end of the calls in flight", caller).await???);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}
