//! Services that come back after the control plane was killed and started again.
//!
//! They are real SDKs, many in one process, with their own waits between attempts. The server is killed at once, so that
//! all connections break, and started again when all SDKs have noticed; it is the only one. As soon as it answers a rule is
//! changed that concerns all of them: current is who has that. What is read from the store is counted by etcd itself, and
//! beside it what the server alone reads when it is started again.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use damper_sdk::{Damper, Options};
use damper_tests::etcd::Etcd;
use damper_tests::spread::{Spread, quantile};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Size;
use crate::figure::{Figure, Row, Target};
use crate::fleet::{Door, Server, Settings, put_late, write_rules};
use crate::patience::within;
use crate::process::{Conversation, answer, tethered};
use crate::rounds::pairwise;

const RULES: usize = 1_000;
const SERVICES: usize = 100;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// At most so many begin to connect at once, as they would when they are started one after the other.
const CONNECTING: usize = 200;
const PATIENCE: Duration = Duration::from_secs(300);

/// Which services.
#[derive(Clone, Debug, clap::Args)]
pub struct Services {
    /// Where the control plane is
    #[arg(long)]
    url: String,
    /// The certificate of its authority
    #[arg(long)]
    authority: PathBuf,
    /// How many
    #[arg(long)]
    count: usize,
}

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let count = size.pick(20, 1_000, 10_000);
    let rounds = size.pick(1, 3, 3);
    let mut plane = Plane::start(size.pick(10, RULES, RULES)).await?;
    let mut alone = Vec::new();
    for _ in 0..rounds {
        alone.push(plane.restart_alone().await?);
    }
    let mut services = start(plane.server.door(), count).await?;
    let (mut last, mut most, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let restarted = plane.restart_under(&mut services).await?;
        let current = restarted.current_s;
        ensure!(current.len() == count, "{} of {count} are current", current.len());
        last.push(quantile(&current, 1.0));
        most.push(quantile(&current, 0.99));
        reads.push(restarted.reads);
    }
    let more = pairwise(&reads, &alone, |reads, alone| reads - alone);
    let row = Row::new("reconnect", "Services reconnecting after a restart")
        .note(format!(
            "{count} SDKs in one process, TLS and tokens, {RULES} rules in etcd; everything on the same cores. From starting \
             the server until a change made at once has arrived. Reads are range requests that etcd counted meanwhile: the \
             server itself makes some when it starts and when a rule is changed, and how many more the services cause is \
             the figure that has a target.",
        ))
        .with(Figure::new(format!("until all {count} are current"), "s", Spread::of(last)).aim(Target::AtMost(45.0)))
        .with(Figure::new("until 99 % are", "s", Spread::of(most)))
        .with(Figure::new("reads from the store that services cause", "", Spread::of(more)).aim(Target::AtMost(3.0)))
        .with(Figure::beside("reads from the store in all", "", &reads, "a restart without services", &alone));
    Ok((rounds, row))
}

/// The control plane and its store.
struct Plane {
    etcd: Etcd,
    server: Server,
}

/// What came of a restart.
struct Restarted {
    /// How long after it each service was current, in ascending seconds.
    current_s: Vec<f64>,
    reads: f64,
}

impl Plane {
    async fn start(rules: usize) -> Result<Self> {
        let etcd = Etcd::start_by(tethered).await;
        let store = format!("etcd://{}/damper", etcd.endpoint());
        let server = Server::start(Settings { store: Some(store), ..Settings::default() }).await?;
        write_rules(server.door(), rules).await?;
        Ok(Self { etcd, server })
    }

    /// Answers with the reads.
    async fn restart_alone(&mut self) -> Result<f64> {
        self.server.kill();
        let before = reads_of(&self.etcd).await?;
        self.server.restart().await?;
        put_late(self.server.door()).await?;
        Ok(reads_of(&self.etcd).await? - before)
    }

    async fn restart_under(&mut self, services: &mut Conversation) -> Result<Restarted> {
        self.server.kill();
        services.ask("lost", "all services' notice that the control plane is gone").await?;
        let before = reads_of(&self.etcd).await?;
        let begun = Instant::now();
        self.server.restart().await?;
        let revision = put_late(self.server.door()).await?;
        let written_s = begun.elapsed().as_secs_f64();
        let current = services.ask(&revision.to_string(), "the change in all services").await?;
        let mut current_s: Vec<f64> = serde_json::from_str(&current)?;
        current_s.iter_mut().for_each(|seconds| *seconds += written_s);
        Ok(Restarted { current_s, reads: reads_of(&self.etcd).await? - before })
    }
}

async fn start(door: &Door, count: usize) -> Result<Conversation> {
    let authority = door.authority().context("the server has TLS")?.display().to_string();
    let arguments =
        ["hold-services", "--url", door.url(), "--authority", &authority, "--count", &count.to_string()];
    let mut services = Conversation::start(&arguments, door.tokens())?;
    let said = services.read("all services' first rules").await?;
    ensure!(said == "ready", "the services say {said:?}");
    Ok(services)
}

/// The range requests that etcd has answered, and those within transactions.
async fn reads_of(etcd: &Etcd) -> Result<f64> {
    let metrics = within(PATIENCE, "etcd's metrics", metrics_of(etcd)).await??;
    let lines = metrics.lines().filter(|line| line.starts_with("etcd_debugging_mvcc_range_total"));
    let counted = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counted.sum())
}

async fn metrics_of(etcd: &Etcd) -> Result<String> {
    let mut connection = TcpStream::connect(etcd.endpoint()).await?;
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut metrics = String::new();
    connection.read_to_string(&mut metrics).await?;
    Ok(metrics)
}

/// Holds many SDKs; says `ready`, then answers `lost` when all have lost the control plane, and a revision with how long
/// after that each had it, in ascending seconds.
///
/// # Errors
/// They do not come up.
pub async fn hold(services: Services) -> Result<()> {
    let door = Door::told(&services.url, Some(services.authority.clone()))?;
    let mut held = Vec::with_capacity(services.count);
    for place in 0..services.count {
        let mut options = Options::new([door.url()])
            .service(format!("service-{:03}", place % SERVICES))
            .instance_id(format!("instance-{place}"))
            .ca_file(&services.authority)
            .server_name("localhost");
        if let Some(token) = door.agent_token() {
            options = options.token(token);
        }
        held.push(Damper::connect(options)?);
        if held.len().is_multiple_of(CONNECTING) {
            ready(&held).await?;
        }
    }
    ready(&held).await?;
    answer("ready")?;
    for order in std::io::stdin().lock().lines() {
        match order?.as_str() {
            "lost" => {
                each(&held, |damper| !damper.status().connected).await?;
                answer("lost")?;
            }
            revision => {
                let revision: u64 = revision.parse()?;
                let newest = each(&held, |damper| damper.status().revision >= revision).await?;
                answer(&serde_json::to_string(&newest)?)?;
            }
        }
    }
    Ok(())
}

async fn ready(held: &[Damper]) -> Result<()> {
    for damper in held.iter().rev().take(CONNECTING) {
        damper.ready(PATIENCE).await?;
    }
    Ok(())
}

/// Waits until it holds for each; answers when it first did, in ascending seconds.
async fn each(held: &[Damper], holds: impl Fn(&Damper) -> bool) -> Result<Vec<f64>> {
    let begun = Instant::now();
    let mut missing: Vec<&Damper> = held.iter().collect();
    let mut seconds = Vec::with_capacity(held.len());
    while !missing.is_empty() {
        ensure!(begun.elapsed() < PATIENCE, "{} are missing", missing.len());
        missing.retain(|damper| !holds(damper));
        seconds.resize(held.len() - missing.len(), begun.elapsed().as_secs_f64());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(seconds)
}
