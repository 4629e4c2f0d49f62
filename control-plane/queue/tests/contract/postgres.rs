//! The suite on PostgreSQL, and what only several servers can show.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use damper_core::job::Wall;
use damper_queue::store::postgres::{PostgresStore, Settings};
use damper_queue::store::{
    After, Batch, Body, Change, ChangeTo, Committed, Error, Filter, JobId, LeaseClaim, LeaseRequest, Record,
    ServerId, Settled, SettledBy, Settlement, State, Store, Submitted,
};

use crate::cluster::{Cluster, Session};
use crate::model::Model;
use crate::operations::{QUEUES, World};
use crate::suite::{self, Bench};

/// A database of its own.
struct InDatabase(String);

pub(crate) fn settings(url: &str) -> Settings {
    Settings { url: url.to_owned(), password: None, tls: None, dead_after: Duration::from_millis(300) }
}

pub(crate) async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(settings(url)).await.unwrap())
}

impl Bench for InDatabase {
    async fn open(&mut self) -> Arc<dyn Store> {
        open(&self.0).await
    }
}

/// Returns a job that is due, with a key of its own.
pub(crate) fn job(world: &mut World, number: u64) -> (Record, Body) {
    let (mut job, body) = world.submission(&Model::default());
    job.id = JobId(u128::from(number).to_be_bytes());
    job.key = number.to_string();
    job.at = world.now;
    job.order_key = None;
    (job, body)
}

pub(crate) fn lease_of(job: &Record, server: ServerId, seed: u64) -> LeaseRequest {
    LeaseRequest {
        lane: job.lane.clone(),
        count: 1,
        max_bytes: 1,
        first_only: false,
        bounds: None,
        server,
        now: Wall(job.at.0 + 60_000),
        seed,
    }
}

pub(crate) fn done(job: &Record, by: SettledBy) -> Settlement {
    let State::Leased { token, .. } = job.state else { panic!("{job:?}") };
    Settlement {
        id: job.id,
        delivery: job.job.deliveries,
        token,
        by,
        to: After::Done,
        at: job.at,
        job: job.job,
        ended: String::new(),
        failure: None,
        evidence: None,
    }
}

pub(crate) async fn submit(store: &dyn Store, job: (Record, Body)) -> Submitted {
    let batch = Batch { submissions: vec![job], ..Batch::default() };
    store.commit(batch).await.unwrap().submissions.remove(0)
}

pub(crate) async fn lease(store: &dyn Store, request: LeaseRequest) -> Vec<Record> {
    let batch = Batch { leases: vec![request], ..Batch::default() };
    store.commit(batch).await.unwrap().leases.remove(0).into_iter().map(|(job, _)| job).collect()
}

pub(crate) async fn settle(store: &dyn Store, settlement: Settlement) -> Settled {
    let batch = Batch { settlements: vec![settlement], ..Batch::default() };
    store.commit(batch).await.unwrap().settlements.remove(0)
}

/// A database whose server is killed and started again before each opening.
struct InKilled {
    cluster: Cluster,
    url: String,
}

impl Bench for InKilled {
    async fn open(&mut self) -> Arc<dyn Store> {
        self.cluster.restart(&[]).await;
        open(&self.url).await
    }
}

#[tokio::test]
async fn postgres_store_equals_model_over_random_batches() {
    let cluster = Cluster::shared().await;
    suite::run(&mut InDatabase(cluster.database().await), 10, 120).await;
}

#[tokio::test]
async fn postgres_store_equals_model_over_kills_of_its_server() {
    let cluster = Cluster::start(&[]).await;
    let url = cluster.database().await;
    suite::run(&mut InKilled { cluster, url }, 11, 120).await;
}

#[tokio::test]
async fn postgres_full_lane_does_not_hide_a_scarce_one() {
    let cluster = Cluster::shared().await;
    suite::scarce_lane(&mut InDatabase(cluster.database().await)).await;
}

#[tokio::test]
async fn unsafe_settings_are_refused() {
    let cluster = Cluster::shared().await;
    for (setting, problem) in [
        ("synchronous_commit = off", "synchronous_commit: is off (required: on or remote_apply)"),
        ("default_transaction_read_only = on", "transaction_read_only: is on (required: off)"),
    ] {
        let url = cluster.database().await;
        let name = url.rsplit('/').next().unwrap();
        cluster.execute("postgres", &format!("alter database {name} set {setting}")).await;
        match PostgresStore::open(settings(&url)).await {
            Err(Error::Open(why)) => assert_eq!(why, problem),
            other => panic!("{setting}: {:?}", other.err()),
        }
    }
}

#[tokio::test]
async fn database_without_fsync_is_refused() {
    let cluster = Cluster::start(&["fsync=off"]).await;
    match PostgresStore::open(settings(&cluster.database().await)).await {
        Err(Error::Open(why)) => assert_eq!(why, "fsync: is off (required: on)"),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn database_of_a_newer_format_is_not_opened() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    drop(open(&url).await);
    cluster.execute(&url, "update damper_queue.meta set value = 99 where name = 'oldest_reader'").await;
    match PostgresStore::open(settings(&url)).await {
        Err(Error::Open(why)) => assert!(why.contains("needs a server that reads format 99"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn tls_connection_checks_the_certificate() {
    let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let foreign = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let cluster = Cluster::start_with_tls(&own.cert.pem(), &own.signing_key.serialize_pem()).await;
    let url = format!("{}?sslmode=require", cluster.database().await);
    let trusting = |certificate: &rcgen::Certificate| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_root_certificates(roots).with_no_client_auth();
        Settings { tls: Some(tls), ..settings(&url) }
    };
    let store = PostgresStore::open(trusting(&own.cert)).await.unwrap();
    assert_eq!(store.lanes().await.unwrap(), []);
    let error = PostgresStore::open(trusting(&foreign.cert)).await.err().unwrap();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("certificate")), "{error:?}");
    let error = PostgresStore::open(settings(&url)).await.err().unwrap();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn leases_under_a_former_number_are_refused() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let store = open(&url).await;
    let before = store.beat(Vec::new()).await.unwrap().server;
    let job = job(&mut World::new(1), 1);
    submit(&*store, job.clone()).await;
    let request = lease_of(&job.0, before, 7);
    // Another server takes this one for dead.
    cluster.execute(&url, "delete from damper_queue.server").await;
    let now = store.beat(Vec::new()).await.unwrap().server;
    assert_ne!(before, now);
    let lease =
        async |request: LeaseRequest| store.commit(Batch { leases: vec![request], ..Batch::default() }).await;
    assert!(matches!(lease(request.clone()).await, Err(Error::Unavailable(_))));
    let record = lease(LeaseRequest { server: now, ..request }).await.unwrap().leases.remove(0).remove(0).0;
    let State::Leased { token, .. } = record.state else { panic!("{record:?}") };
    let claim = async |server| {
        let claim = LeaseClaim { id: record.id, delivery: record.job.deliveries, token, server };
        store.commit(Batch { claims: vec![claim], ..Batch::default() }).await
    };
    assert!(matches!(claim(before).await, Err(Error::Unavailable(_))));
    assert!(claim(now).await.unwrap().claims.remove(0).is_some());
}

#[tokio::test]
async fn open_transaction_of_the_database_is_seen() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let store = open(&url).await;
    submit(&*store, job(&mut World::new(1), 1)).await;
    let other = Session::open(&url).await;
    other.run("begin; select txid_current()").await;
    // Its age, in ms.
    let is_old = "select extract(epoch from clock_timestamp() - now()) * 1000 >= $1::int";
    other.until(is_old, 50).await;
    let burden = store.burden().await.unwrap();
    assert!(burden.oldest_transaction >= Duration::from_millis(50), "{burden:?}");
}

/// Three servers with random batches at the same time, on few keys and order keys.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_servers_keep_all_invariants() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let first = open(&url).await;
    let servers = (0..3).map(|number| {
        let url = url.clone();
        tokio::spawn(async move { run_server(&*open(&url).await, number).await })
    });
    let servers: Vec<_> = servers.collect();
    let mut all = Totals::default();
    for server in servers {
        let totals = server.await.unwrap();
        all.stored += totals.stored;
        all.deleted += totals.deleted;
        for (delivery, token) in totals.leased {
            assert_eq!(all.leased.insert(delivery, token), None, "delivery {delivery:?} was leased twice");
        }
        for delivery in totals.settled {
            assert!(all.settled.insert(delivery), "delivery {delivery:?} was settled twice");
        }
    }
    assert_eq!(first.check().await.unwrap(), Vec::<String>::new());
    let mut present = 0;
    for queue in QUEUES {
        let filter = Filter { queue: queue.to_owned(), ..Filter::default() };
        present += first.list(filter, None, 100_000).await.unwrap().jobs.len();
    }
    assert_eq!(all.stored, present + all.deleted, "submitted = present + deleted");
    assert!(all.stored > 100 && all.settled.len() > 50, "too little happened: {} stored", all.stored);
}

#[derive(Default)]
struct Totals {
    stored: usize,
    deleted: usize,
    leased: HashMap<(JobId, u32), u64>,
    settled: HashSet<(JobId, u32)>,
}

async fn run_server(store: &dyn Store, number: u64) -> Totals {
    let mut world = World::new(100 + number).numbered(number + 1);
    let mut totals = Totals::default();
    for _ in 0..100 {
        let mut known = Model::default();
        for queue in QUEUES {
            let filter = Filter { queue: queue.to_owned(), ..Filter::default() };
            let jobs = store.list(filter, None, 1_000).await.unwrap().jobs;
            known.jobs.extend(jobs.into_iter().map(|job| (job.id, (job, None))));
        }
        let operations = world.rng.usize(4..20);
        let batch = world.batch(&known, operations);
        let committed = store.commit(batch.clone()).await.unwrap();
        totals.add(&batch, &committed);
        world.leased(&committed.leases);
    }
    totals
}

impl Totals {
    fn add(&mut self, batch: &Batch, committed: &Committed) {
        let stored = committed.submissions.iter().filter(|result| matches!(result, Submitted::Stored(_)));
        self.stored += stored.count();
        let changes = batch.changes.iter().zip(&committed.changes);
        let deletes = |change: &Change| matches!(change.to, ChangeTo::Deleted | ChangeTo::Removed);
        let deleted = |(change, done): &(&Change, &bool)| **done && deletes(change);
        self.deleted += changes.filter(deleted).count();
        for (job, _) in committed.leases.iter().flatten() {
            let State::Leased { token, .. } = job.state else { panic!("{job:?}") };
            assert_eq!(self.leased.insert((job.id, job.job.deliveries), token), None, "leased twice");
        }
        for (settlement, result) in batch.settlements.iter().zip(&committed.settlements) {
            if *result == Settled::Applied {
                assert!(self.settled.insert((settlement.id, settlement.delivery)), "settled twice");
            }
        }
    }
}

/// Three servers submit, lease and end jobs of one order key: each ends at the moment at which another is
/// submitted, so that a turn can be given to the wrong job, to two, or to none.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_one_order_key_take_turns_over_servers() {
    const EACH: u64 = 40;
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let is_leased = Arc::new(AtomicBool::new(false));
    let servers = (0..3).map(|server| {
        let (url, is_leased) = (url.clone(), is_leased.clone());
        tokio::spawn(async move {
            let store = open(&url).await;
            let mut world = World::new(server);
            let lane = world.lanes[0].clone();
            let mut ended = 0;
            for number in 0..EACH {
                let (mut job, body) = job(&mut world, server * EACH + number);
                job.lane = lane.clone();
                job.order_key = Some("one".to_owned());
                let request = lease_of(&job, ServerId(server), job.at.0 + number);
                submit(&*store, (job, body)).await;
                for leased in lease(&*store, request).await {
                    assert!(!is_leased.swap(true, Ordering::SeqCst), "two leases of one order key");
                    is_leased.store(false, Ordering::SeqCst);
                    assert_eq!(settle(&*store, done(&leased, SettledBy::Worker)).await, Settled::Applied);
                    ended += 1;
                }
            }
            ended
        })
    });
    let servers: Vec<_> = servers.collect();
    let mut ended = 0;
    for server in servers {
        ended += server.await.unwrap();
    }
    let store = open(&url).await;
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
    let (any, _) = job(&mut World::new(1), 0);
    let request = LeaseRequest { lane: World::new(1).lanes[0].clone(), ..lease_of(&any, ServerId(1), 1) };
    while let [leased] = &*lease(&*store, LeaseRequest { seed: ended, ..request.clone() }).await {
        settle(&*store, done(leased, SettledBy::Worker)).await;
        ended += 1;
    }
    assert_eq!(ended, 3 * EACH, "a job never got its turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn same_key_at_two_servers_is_one_job() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let (one, other) = (open(&url).await, open(&url).await);
    let mut world = World::new(1);
    for number in 0..40 {
        let (job, body) = job(&mut world, number);
        let mut again = job.clone();
        again.id = JobId(u128::from(number + 1_000).to_be_bytes());
        let results = tokio::join!(submit(&*one, (job, body.clone())), submit(&*other, (again, body)));
        let stored =
            [&results.0, &results.1].into_iter().filter(|result| matches!(result, Submitted::Stored(_)));
        let existing =
            [&results.0, &results.1].into_iter().filter(|result| matches!(result, Submitted::Existing(_)));
        assert_eq!((stored.count(), existing.count()), (1, 1), "{results:?}");
    }
}

#[tokio::test]
async fn leases_of_a_silent_server_are_adopted() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    // Longer than a pause of the machine between the first beat and the lease.
    let settings = || Settings { dead_after: Duration::from_secs(6), ..settings(&url) };
    let open = async || Arc::new(PostgresStore::open(settings()).await.unwrap());
    let (silent, observer) = (open().await, open().await);
    let old = silent.beat(Vec::new()).await.unwrap().server;
    let (job, body) = job(&mut World::new(3), 1);
    submit(&*silent, (job.clone(), body)).await;
    let leased = lease(&*silent, lease_of(&job, old, 1)).await.remove(0);
    let adopting = async {
        loop {
            let beat = observer.beat(b"here".to_vec()).await.unwrap();
            if !beat.adopted.is_empty() {
                return beat;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let beat = tokio::time::timeout(Duration::from_secs(120), adopting).await.unwrap();
    assert_ne!(beat.server, old);
    assert_eq!(beat.servers, [(beat.server, b"here".to_vec())]);
    assert_eq!(beat.adopted.iter().map(|job| job.id).collect::<Vec<_>>(), [job.id]);
    assert_eq!(observer.leases_of(beat.server).await.unwrap(), beat.adopted);
    assert_eq!(observer.leases_of(old).await.unwrap(), []);
    assert_eq!(observer.check().await.unwrap(), Vec::<String>::new());
    // Before it learns of that, the silent one leases nothing: its leases would be watched by none.
    let (other, body) = self::job(&mut World::new(4), 2);
    submit(&*silent, (other.clone(), body)).await;
    let request = Batch { leases: vec![lease_of(&other, old, 2)], ..Batch::default() };
    let refused = silent.commit(request).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Unavailable(why) if why.contains("taken this one for dead")),
        "{refused}"
    );
    // The silent one is back: it has lost its number, and what it books as lost no longer counts.
    let back = silent.beat(Vec::new()).await.unwrap();
    assert!(back.server != old && back.server != beat.server, "{back:?}");
    assert_eq!(settle(&*silent, done(&leased, SettledBy::Server(old))).await, Settled::Lost);
    // Its worker names the lease, and settles it.
    let State::Leased { token, .. } = leased.state else { panic!("{leased:?}") };
    let claims = vec![LeaseClaim { id: job.id, delivery: 1, token, server: back.server }];
    let claimed = silent.commit(Batch { claims, ..Batch::default() }).await.unwrap().claims.remove(0);
    assert_eq!(claimed.map(|job| job.state), Some(State::Leased { server: back.server, token }));
    assert_eq!(settle(&*observer, done(&leased, SettledBy::Worker)).await, Settled::Applied);
}

#[tokio::test]
async fn due_job_wakes_the_other_servers() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let (one, other) = (open(&url).await, open(&url).await);
    // The first wake-up comes with the connection.
    other.woken().await;
    one.beat(Vec::new()).await.unwrap();
    let (job, body) = job(&mut World::new(4), 1);
    submit(&*one, (job, body)).await;
    tokio::time::timeout(Duration::from_secs(60), other.woken()).await.expect("a wake-up");
}

#[tokio::test]
async fn killed_database_keeps_commits_and_is_used_again() {
    let mut cluster = Cluster::start(&[]).await;
    let store = open(&cluster.database().await).await;
    let mut world = World::new(5);
    let (kept, body) = job(&mut world, 1);
    assert!(matches!(submit(&*store, (kept.clone(), body)).await, Submitted::Stored(_)));
    cluster.kill();
    let batch = Batch { submissions: vec![job(&mut world, 2)], ..Batch::default() };
    let error = store.commit(batch).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let error = store.get(kept.id).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    cluster.restart(&[]).await;
    let found = store.get(kept.id).await.unwrap().map(|job| job.key);
    assert_eq!(found, Some(kept.key));
    assert!(matches!(submit(&*store, job(&mut world, 3)).await, Submitted::Stored(_)));
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
}
