//! kill -9 of `damper serve` while jobs are submitted and worked on: the ledger holds.
//!
//! A service submits jobs and works on them with the SDK; every second attempt fails. The server is killed
//! with SIGKILL at random moments and started again on the same files. Then every acknowledged job has ended:
//! it was handled, or it is dead after its attempts. None was tried more often than its queue allows, and the
//! store's invariants hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::queues_client::QueuesClient;
use damper_queue::store::Store as _;
use damper_queue::store::redb::RedbStore;
use damper_sdk::queue::{Delivery, HandlerError, NewJob};
use damper_sdk::{Damper, Options};
use damper_tests::binary::{Served, run};
use tonic::Status;
use tonic::transport::Channel;

const ROUNDS: u32 = 8;
const PRODUCERS: u64 = 4;
const MAX_ATTEMPTS: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that loses a lease finds out after 5 s; the callee is never held.
const QUEUE: &str = "
kind: Queue
name: later
policy:
  mode: enforce
  retry:
    max_attempts: 5
    per_attempt_timeout: 10s
    backoff: { fixed: { delay: 20ms } }
workers: [orders]
lease: 5s
hold_after: 1000
max_in_flight: 1000
";

/// What the handlers saw of each job, by its body.
#[derive(Debug, Default)]
struct Seen {
    begun: u32,
    handled: bool,
}

type Ledger = Arc<Mutex<HashMap<String, Seen>>>;

/// Fails every second attempt.
async fn handle(ledger: Ledger, delivery: Delivery) -> Result<(), HandlerError> {
    let key = String::from_utf8(delivery.body().to_vec()).expect("the body is a key");
    ledger.lock().expect("no panic").entry(key.clone()).or_default().begun += 1;
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
    if fastrand::bool() {
        return Err(Status::unavailable("down").into());
    }
    ledger.lock().expect("no panic").entry(key).or_default().handled = true;
    Ok(())
}

/// Submits jobs until the end; returns the ids of the acknowledged ones by key.
async fn produce(
    damper: Damper,
    producer: u64,
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> HashMap<String, String> {
    let mut ids = HashMap::new();
    for number in 0_u64.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{producer}-{number}");
        let job = NewJob::new("later", &key, "stock", "stock.Stock/Take").body(key.clone());
        if let Ok(submitted) = damper.jobs().submit(job).await {
            ids.insert(key, submitted.job_id);
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
    ids
}

/// Returns the job once it has ended.
async fn ended(queues: &mut QueuesClient<Channel>, job_id: &str) -> v1::Job {
    let ended = async {
        loop {
            let request = v1::GetJobRequest { job_id: job_id.to_owned() };
            let job = queues.get_job(request).await.expect("an acknowledged job is there").into_inner();
            if matches!(job.state(), v1::JobState::Done | v1::JobState::Dead) {
                return job;
            }
            // Until the next delivery.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("every job ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_jobs_survive_killed_servers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = format!("sled:{}", folder.path().join("store").display());
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut server = Served::start(&store);
    let url = server.url().to_owned();
    let listen = url.trim_start_matches("http://").to_owned();
    let manifest = folder.path().join("queue.yaml");
    std::fs::write(&manifest, QUEUE).expect("the manifest is written");
    let applied = run(&url, &["apply", "-f", manifest.to_str().expect("a path")]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));

    let options = Options::new([url.clone()]).service("orders").environment(|_| None);
    let damper = Damper::connect(options).expect("good options");
    let ledger = Ledger::default();
    let handler = {
        let ledger = ledger.clone();
        move |delivery| handle(ledger.clone(), delivery)
    };
    let worker = damper.worker("later").handle(handler).concurrency(32).start().expect("a worker");
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|n| tokio::spawn(produce(damper.clone(), n, is_over.clone(), acknowledged.clone())))
        .collect();
    for _ in 0..ROUNDS {
        let before = acknowledged.load(Ordering::Relaxed);
        let progress = async {
            while acknowledged.load(Ordering::Relaxed) < before + 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, progress).await.expect("jobs are accepted again");
        tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
        server.kill();
        server = Served::start_on(&listen, &store);
    }
    is_over.store(true, Ordering::Relaxed);
    let mut ids = HashMap::new();
    for producer in producers {
        ids.extend(producer.await.expect("a producer does not panic"));
    }

    let mut queues = QueuesClient::connect(url).await.expect("the server is there");
    for (key, id) in &ids {
        let job = ended(&mut queues, id).await;
        let ledger = ledger.lock().expect("no panic");
        let seen = ledger.get(key).expect("an ended job was delivered");
        match job.state() {
            v1::JobState::Done => assert!(seen.handled, "{key} is done and was not handled: {job:?}"),
            _ => assert_eq!(job.attempts, MAX_ATTEMPTS, "{key} is dead too early: {job:?}"),
        }
    }
    for (key, seen) in ledger.lock().expect("no panic").iter() {
        assert!(seen.begun <= MAX_ATTEMPTS, "{key} was tried {} times", seen.begun);
    }
    assert!(ids.len() as u64 >= u64::from(ROUNDS) * 20, "too few jobs to mean anything: {}", ids.len());
    worker.stop().await;
    damper.shutdown().await;
    server.kill();
    let file = folder.path().join("store").join("jobs.redb");
    let store = RedbStore::open(file).await.expect("the job store opens");
    assert_eq!(store.check().await.expect("the store is read"), Vec::<String>::new());
}
