//! kill -9 of producers, workers, servers and the database, and cuts of the network, while jobs are submitted
//! and worked on.
//!
//! Then every acknowledged job has ended: it was handled, or it is dead after its attempts. None was tried
//! more often than its queue allows, each attempt was counted, and the store's invariants hold.
//!
//! What is killed and when follows from a seed: after a number of events, not after a time.
//! `DAMPER_LEDGER_SECONDS` sets the length, 4 by default; `DAMPER_LEDGER_SEED` repeats a run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use damper_proto::v1;
use damper_proto::v1::queues_client::QueuesClient;
use tonic::Code;
use tonic::transport::Channel;

use crate::peers::{Peer, Record};
use crate::proxy::Proxy;
use crate::servers::Servers;

const PRODUCERS: usize = 2;
const WORKERS: usize = 3;
const MAX_ATTEMPTS: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(300);

/// A server that loses a lease finds out after 5 s; the callee is never held; no job is dead for its losses
/// alone.
const QUEUE: &str = "
kind: Queue
name: later
policy:
  mode: enforce
  retry:
    max_attempts: 8
    per_attempt_timeout: 10s
    backoff: { fixed: { delay: 20ms } }
workers: [orders]
lease: 5s
hold_after: 1000
max_lost: 1000
max_in_flight: 1000
";

/// What was killed, and how often.
#[derive(Debug, Default)]
struct Kills {
    producers: u32,
    workers: u32,
    servers: u32,
    databases: u32,
    networks: u32,
}

/// All processes of a run.
struct World {
    servers: Servers,
    /// The way of the peers to each server.
    proxies: Vec<Proxy>,
    record: Record,
    producers: Vec<Peer>,
    workers: Vec<Peer>,
    /// Processes started so far: each has names of its own.
    started: u32,
    kills: Kills,
}

impl World {
    async fn new(servers: Servers) -> Self {
        let mut proxies = Vec::new();
        for number in 0..servers.count() {
            let proxy = Proxy::start().await;
            proxy.lead_to(servers.url(number));
            proxies.push(proxy);
        }
        let (producers, workers) = (Vec::new(), Vec::new());
        let (record, kills) = (Record::new(), Kills::default());
        let mut world = Self { servers, proxies, record, producers, workers, started: 0, kills };
        world.workers = (0..WORKERS).map(|_| world.start("worker")).collect();
        world.producers = (0..PRODUCERS).map(|_| world.start("producer")).collect();
        world
    }

    fn start(&mut self, role: &str) -> Peer {
        self.started += 1;
        let urls: Vec<String> =
            self.proxies.iter().map(|proxy| format!("http://{}", proxy.address())).collect();
        Peer::start(role, &urls.join(","), &self.started.to_string(), &self.record)
    }

    /// Returns the number of kinds of strikes.
    fn kinds(&self) -> u32 {
        if self.servers.has_database() { 5 } else { 4 }
    }

    /// Kills something and starts it again.
    async fn strike(&mut self, kind: u32, random: &mut fastrand::Rng) {
        match kind {
            0 => {
                let number = random.usize(..WORKERS);
                self.workers[number].kill();
                self.workers[number] = self.start("worker");
                self.kills.workers += 1;
            }
            1 => {
                self.servers.restart(random.usize(..self.servers.count()));
                self.kills.servers += 1;
            }
            2 => {
                let number = random.usize(..self.servers.count());
                self.proxies[number].cut();
                self.proxies[number].lead_to(self.servers.url(number));
                self.kills.networks += 1;
            }
            3 => {
                let number = random.usize(..PRODUCERS);
                self.producers[number].kill();
                self.producers[number] = self.start("producer");
                self.kills.producers += 1;
            }
            _ => {
                self.servers.restart_database().await;
                self.kills.databases += 1;
            }
        }
    }
}

async fn queues(servers: &Servers) -> QueuesClient<Channel> {
    QueuesClient::connect(servers.url(0).to_owned()).await.unwrap()
}

/// Waits until all jobs have ended and returns them.
async fn all_ended(queues: &mut QueuesClient<Channel>, within: Duration) -> HashMap<String, v1::Job> {
    let states = [v1::JobState::Waiting, v1::JobState::Behind, v1::JobState::Leased];
    let states = states.map(i32::from).to_vec();
    let filter = Some(v1::JobFilter { queue: "later".to_owned(), states, ..Default::default() });
    let live = v1::ListJobsRequest { filter, page_size: 1, ..Default::default() };
    let ended = async {
        loop {
            while !list(queues, &live).await.jobs.is_empty() {
                // Until the next delivery.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // A list is no snapshot: a job can move from one state to the other behind its reader.
            let jobs = jobs(queues).await;
            let has_ended = |job: &v1::Job| matches!(job.state(), v1::JobState::Done | v1::JobState::Dead);
            if jobs.values().all(has_ended) {
                return jobs;
            }
        }
    };
    tokio::time::timeout(within, ended).await.expect("every job ends")
}

/// Lists jobs, again while the server has no connection to the database that was killed.
async fn list(queues: &mut QueuesClient<Channel>, request: &v1::ListJobsRequest) -> v1::ListJobsResponse {
    loop {
        match queues.list_jobs(request.clone()).await {
            Ok(listed) => return listed.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns all jobs by their keys.
async fn jobs(queues: &mut QueuesClient<Channel>) -> HashMap<String, v1::Job> {
    let filter = Some(v1::JobFilter { queue: "later".to_owned(), ..Default::default() });
    let mut request = v1::ListJobsRequest { filter, page_size: 1_000, ..Default::default() };
    let mut jobs = HashMap::new();
    loop {
        let page = list(queues, &request).await;
        jobs.extend(page.jobs.into_iter().map(|job| (job.key.clone(), job)));
        if page.next_page_token.is_empty() {
            return jobs;
        }
        request.page_token = page.next_page_token;
    }
}

async fn run(store: &str, servers: Servers) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("DAMPER_LEDGER_SECONDS").unwrap_or(4);
    let seed = number("DAMPER_LEDGER_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{store}: DAMPER_LEDGER_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    servers.apply(QUEUE);
    let mut world = World::new(servers).await;
    world.record.further(0, 20).await;
    let end = Instant::now() + Duration::from_secs(seconds);
    let kinds = world.kinds();
    let mut round = 0;
    while round < 2 * kinds || Instant::now() < end {
        let further = world.record.further(random.u64(..300), random.u64(..40));
        tokio::time::timeout(PATIENCE, further).await.expect("jobs are accepted and worked on");
        // Each kind once, then by the seed.
        let kind = if round < kinds { round } else { random.u32(..kinds) };
        world.strike(kind, &mut random).await;
        round += 1;
    }
    world.producers.iter_mut().for_each(Peer::kill);
    let mut queues = queues(&world.servers).await;
    // Producers can be faster than workers that are killed.
    let jobs = all_ended(&mut queues, PATIENCE + Duration::from_secs(seconds)).await;
    world.workers.iter_mut().for_each(Peer::kill);
    check(&world, &jobs);
    assert_eq!(world.servers.end().await, Vec::<String>::new());
}

fn check(world: &World, jobs: &HashMap<String, v1::Job>) {
    let seen = world.record.jobs();
    let (mut acknowledged, mut begun, mut dead, mut most) = (0, 0, 0, 0);
    let mut faults = Vec::new();
    for (key, seen) in seen.iter() {
        let Some(job) = jobs.get(key) else {
            faults.push(format!("{key} is lost: {seen:?}"));
            continue;
        };
        match job.state() {
            v1::JobState::Done if seen.handled > 0 => {}
            v1::JobState::Dead if job.attempts == MAX_ATTEMPTS => dead += 1,
            _ => faults.push(format!("{key} ended too early: {seen:?}, {job:?}")),
        }
        if seen.begun > job.attempts || job.attempts > MAX_ATTEMPTS {
            faults.push(format!("{key} was tried more often than counted or allowed: {seen:?}, {job:?}"));
        }
        acknowledged += u32::from(seen.job_id.is_some());
        begun += seen.begun;
        most = most.max(seen.begun);
    }
    let unseen = jobs.len().saturating_sub(seen.len());
    println!(
        "{acknowledged} jobs acknowledged, {} stored; {begun} handlers begun, at most {most} of a job; {dead} \
         dead; killed: {:?}",
        jobs.len(),
        world.kills
    );
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(unseen, 0, "each job that was stored has ended, so a worker has reported it");
    assert!(acknowledged >= 50, "too few jobs to mean anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_balances_over_kills_on_redb() {
    run("redb", Servers::with_redb()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_balances_over_kills_on_postgres() {
    run("postgres", Servers::with_postgres().await).await;
}
