//! Bounds of a queue over several servers on one database: `max_in_flight`, `rate`, hold and pace.
//!
//! The database reads its time from a table, so that nothing depends on how fast a test runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use damper_core::job::{HoldReason, Outcome, SharedBounds};
use damper_core::{Code, Failure, Ratio};
use damper_queue::store::postgres::PostgresStore;
use damper_queue::store::{
    After, Batch, Error, Evidence, LeaseRequest, Record, Refused, ServerId, Settled, SettledBy, Settlement,
    Store,
};

use crate::cluster::{Cluster, Session};
use crate::operations::World;
use crate::postgres::{done, job, lease_of, open, settle, submit};

const BOUNDS: SharedBounds = SharedBounds { max_in_flight: 5, rate: None, hold_after: 20 };
const SECOND: u64 = 1_000_000;

/// Three servers on one database, with due jobs of one lane.
struct Servers {
    cluster: Arc<Cluster>,
    url: String,
    stores: Vec<Arc<PostgresStore>>,
    first: Record,
    seed: AtomicUsize,
}

impl Servers {
    async fn with_jobs(count: u64) -> Self {
        let cluster = Cluster::shared().await;
        let url = cluster.database().await;
        let stores = vec![open(&url).await, open(&url).await, open(&url).await];
        let mut world = World::new(7);
        let lane = world.lanes[0].clone();
        let mut first = None;
        for number in 0..count {
            let (mut job, body) = job(&mut world, number);
            job.lane = lane.clone();
            submit(&*stores[0], (job.clone(), body)).await;
            first.get_or_insert(job);
        }
        for store in &stores {
            // A server learns of a new lane by its reading of all lanes.
            assert_eq!(store.lanes().await.unwrap().len(), 1);
        }
        let servers = Self { cluster, url, stores, first: first.unwrap(), seed: AtomicUsize::new(0) };
        freeze(&servers.cluster, &servers.url).await;
        servers
    }

    async fn pass(&self, us: u64) {
        pass(&self.cluster, &self.url, us).await;
    }

    /// Requests due jobs at a server.
    async fn ask(&self, server: usize, count: u32, bounds: SharedBounds) -> (Vec<Record>, Option<Refused>) {
        let seed = self.seed.fetch_add(1, Ordering::Relaxed) as u64;
        let request = lease_of(&self.first, ServerId(server as u64 + 1), seed);
        let request = LeaseRequest { count, max_bytes: 1 << 20, bounds: Some(bounds), ..request };
        let batch = Batch { leases: vec![request], ..Batch::default() };
        let mut committed = self.stores[server].commit(batch).await.unwrap();
        let jobs = committed.leases.remove(0).into_iter().map(|(job, _)| job);
        (jobs.collect(), committed.refused.remove(0))
    }

    /// Requests jobs at all servers at the same time.
    async fn ask_all(&self, count: u32, bounds: SharedBounds) -> Vec<Record> {
        let asked = (self.ask(0, count, bounds), self.ask(1, count, bounds), self.ask(2, count, bounds));
        let (one, two, three) = tokio::join!(asked.0, asked.1, asked.2);
        [one.0, two.0, three.0].concat()
    }

    /// Ends a delivery at a server with this evidence.
    async fn end(&self, server: usize, job: &Record, outcome: Outcome) {
        let evidence = Some(Evidence { bounds: BOUNDS, outcome });
        let end = Settlement { evidence, to: After::Waiting, ..done(job, SettledBy::Worker) };
        assert_eq!(settle(&*self.stores[server], end).await, Settled::Applied);
    }
}

/// Stops the clock of a database.
pub(crate) async fn freeze(cluster: &Cluster, url: &str) {
    let sql = "create table damper_queue.test_clock as select damper_queue.store_time() as us; create or replace \
               function damper_queue.store_time() returns bigint language sql volatile as 'select us from \
               damper_queue.test_clock'";
    cluster.execute(url, sql).await;
}

/// Moves the stopped clock of a database.
pub(crate) async fn pass(cluster: &Cluster, url: &str, us: u64) {
    cluster.execute(url, &format!("update damper_queue.test_clock set us = us + {us}")).await;
}

fn failed() -> Outcome {
    Outcome::Failed(Failure::new(Code::Unavailable))
}

fn why(refused: Option<Refused>) -> Option<HoldReason> {
    refused.map(|refused| refused.why)
}

#[tokio::test]
async fn refused_servers_get_places_in_order_over_servers() {
    let servers = Servers::with_jobs(20).await;
    let full = Some(HoldReason::MaxInFlight);
    let (mut first, refused) = servers.ask(0, 4, BOUNDS).await;
    assert_eq!((first.len(), refused), (4, None));
    let (second, refused) = servers.ask(1, 4, BOUNDS).await;
    assert_eq!((second.len(), why(refused)), (1, full), "five in all");
    let (third, refused) = servers.ask(2, 4, BOUNDS).await;
    assert_eq!((third.len(), why(refused)), (0, full));
    servers.end(0, &first.remove(0), Outcome::Unknown).await;
    for (server, count) in [(0, 0), (2, 0), (1, 1), (2, 0)] {
        let (jobs, refused) = servers.ask(server, 1, BOUNDS).await;
        assert_eq!(jobs.len(), count, "server {server}");
        assert_eq!(why(refused), full.filter(|_| count == 0), "server {server}");
    }
    servers.end(0, &first.remove(0), Outcome::Unknown).await;
    for (server, count) in [(1, 0), (0, 0), (2, 1)] {
        assert_eq!(servers.ask(server, 1, BOUNDS).await.0.len(), count, "server {server}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn max_in_flight_holds_over_concurrent_servers() {
    const JOBS: usize = 60;
    let servers = Arc::new(Servers::with_jobs(JOBS as u64).await);
    let (in_flight, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = (0..3).map(|server| {
        let (servers, in_flight, ended) = (servers.clone(), in_flight.clone(), ended.clone());
        tokio::spawn(async move {
            let mut held = Vec::new();
            while ended.load(Ordering::SeqCst) < JOBS {
                let (jobs, _) = servers.ask(server, 3, BOUNDS).await;
                let now = in_flight.fetch_add(jobs.len(), Ordering::SeqCst) + jobs.len();
                assert!(now <= BOUNDS.max_in_flight as usize, "{now} in flight");
                held.extend(jobs);
                if let Some(job) = held.pop() {
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    let settled = settle(&*servers.stores[server], done(&job, SettledBy::Worker)).await;
                    assert_eq!(settled, Settled::Applied);
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(ended.load(Ordering::SeqCst), JOBS);
    assert_eq!(servers.stores[0].check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn callee_that_is_down_gets_one_probe_from_all_servers() {
    let servers = Servers::with_jobs(40).await;
    let mut failures = 0;
    while failures < BOUNDS.hold_after {
        for server in 0..3 {
            for job in servers.ask(server, 1, BOUNDS).await.0 {
                servers.end((server + 1) % 3, &job, failed()).await;
                failures += 1;
            }
        }
    }
    assert_eq!(failures, BOUNDS.hold_after, "counted over all servers");
    for server in 0..3 {
        let (jobs, refused) = servers.ask(server, 5, BOUNDS).await;
        let held = Refused { why: HoldReason::CalleeFailing, wait: Some(Duration::from_secs(1)) };
        assert_eq!((jobs.len(), refused), (0, Some(held)), "server {server}");
    }
    for _ in 0..4 {
        servers.pass(SECOND - 1).await;
        assert_eq!(servers.ask_all(5, BOUNDS).await, [], "not before a second");
        servers.pass(1).await;
        let probes = servers.ask_all(5, BOUNDS).await;
        assert_eq!(probes.len(), 1, "one in all");
        assert_eq!(servers.ask_all(5, BOUNDS).await, [], "it is in flight");
        servers.end(1, &probes[0], failed()).await;
    }
    servers.pass(SECOND).await;
    let probe = servers.ask_all(5, BOUNDS).await.remove(0);
    servers.end(2, &probe, Outcome::Done { took: Duration::ZERO }).await;
    let paced = servers.ask_all(5, BOUNDS).await;
    assert_eq!(paced.len(), 2, "the pace rises from one, for all");
    servers.end(0, &paced[0], Outcome::Done { took: Duration::ZERO }).await;
    assert_eq!(servers.ask_all(5, BOUNDS).await.len(), 2, "three in flight");
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_is_kept_over_all_servers() {
    let servers = Servers::with_jobs(40).await;
    let bounds = SharedBounds { max_in_flight: 10_000, rate: Some(Ratio::from_bp(100_000)), ..BOUNDS };
    let mut sent = 0;
    for _ in 0..40 {
        let jobs = servers.ask_all(3, bounds).await;
        sent += jobs.len();
        for job in jobs {
            servers.end(0, &job, Outcome::Done { took: Duration::ZERO }).await;
        }
        servers.pass(SECOND / 20).await;
    }
    // Two seconds at ten per second, and the one that may leave at once.
    assert_eq!(sent, 21);
    servers.pass(SECOND / 20).await;
    assert_eq!(servers.ask(1, 1, bounds).await.0.len(), 1);
    let (jobs, refused) = servers.ask(0, 1, bounds).await;
    let held = Refused { why: HoldReason::Rate, wait: Some(Duration::from_millis(100)) };
    assert_eq!((jobs.len(), refused), (0, Some(held)));
}

#[tokio::test]
async fn successes_at_full_pace_take_no_lock() {
    let servers = Servers::with_jobs(3).await;
    let (jobs, _) = servers.ask(0, 2, BOUNDS).await;
    // The first one sets the pace to `max_in_flight`.
    let done = Outcome::Done { took: Duration::ZERO };
    servers.end(0, &jobs[0], done).await;
    let other = Session::open(&servers.url).await;
    let queue = &servers.first.lane.queue;
    let number =
        format!("('x' || encode(substring(sha256('damper queue {queue}'), 1, 8), 'hex'))::bit(64)::bigint");
    other.run(&format!("begin; select pg_advisory_xact_lock({number})")).await;
    servers.end(1, &jobs[1], done).await;
    let blocked = async { servers.ask(2, 1, BOUNDS).await };
    let (asked, ()) = tokio::join!(blocked, async {
        other.blocks_another().await;
        other.run("rollback").await;
    });
    assert_eq!(asked.0.len(), 1, "a request does");
}

#[tokio::test]
async fn full_disk_of_the_database_refuses_jobs() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let store = open(&url).await;
    let sql = "create function damper_queue.no_space() returns trigger language plpgsql as $$ begin raise exception \
               'could not extend file: No space left on device' using errcode = '53100'; end $$; create trigger no_space \
               before insert on damper_queue.job for each row execute function damper_queue.no_space()";
    cluster.execute(&url, sql).await;
    let batch = Batch { submissions: vec![job(&mut World::new(1), 1)], ..Batch::default() };
    let error = store.commit(batch.clone()).await.unwrap_err();
    let full = matches!(&error, Error::Full(why) if why.starts_with("PostgreSQL has no disk space left (SQLSTATE 53100)"));
    assert!(full, "{error:?}");
    cluster.execute(&url, "drop trigger no_space on damper_queue.job").await;
    assert!(store.commit(batch).await.is_ok(), "there is space again");
}
