//! Whole job servers on one PostgreSQL: what their workers receive together.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{Queue, QueueSettings, ServiceName};
use damper_core::{Backoff, Code, Failure, Faults, Jitter, Mode, Waits};
use damper_queue::store::postgres::PostgresStore;
use damper_queue::store::{Body, Store};
use damper_queue::{
    Delivery, FromWorker, JobServer, NewJob, Queues, Settle, SubmitResult, Submitter, SystemClock, ToWorker,
    WorkerIdentity,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::bounds::{freeze, pass};
use crate::cluster::{Cluster, Session};
use crate::postgres::open;

const QUEUE: &str = "later";
const SERVERS: usize = 3;
/// A delivery that must come arrives within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three servers with a worker each.
struct Fleet {
    cluster: Arc<Cluster>,
    url: String,
    servers: Vec<JobServer>,
    /// Settlements and credits of each worker.
    events: Vec<mpsc::Sender<FromWorker>>,
    /// Deliveries of all workers, with the number of the server.
    deliveries: mpsc::UnboundedReceiver<(usize, Delivery)>,
    observer: Arc<PostgresStore>,
    session: Session,
    _queues: watch::Sender<Arc<Queues>>,
}

fn service(name: &str) -> ServiceName {
    ServiceName::parse("", name, &mut Faults::none())
}

fn policy(change: impl FnOnce(&mut QueueSettings)) -> Queues {
    let mut settings = QueueSettings::new(Mode::Enforce);
    let mut retry = settings.retry();
    let second = Duration::from_secs(1);
    retry.backoff = Backoff::Always(Waits::Fixed { delay: second, jitter: Jitter::None });
    settings.policy.retry = Some(retry);
    settings.workers = vec![service("orders")];
    settings.submitters = vec![service("*")];
    change(&mut settings);
    let queue = Queue::new(QUEUE.to_owned(), settings, String::new(), 1).unwrap();
    Queues::new([Arc::new(queue)], Vec::new())
}

impl Fleet {
    async fn open(change: impl FnOnce(&mut QueueSettings)) -> Self {
        let cluster = Cluster::shared().await;
        let url = cluster.database().await;
        let queues = watch::channel(Arc::new(policy(change))).0;
        let (sender, deliveries) = mpsc::unbounded_channel();
        let (mut servers, mut events) = (Vec::new(), Vec::new());
        for number in 0..SERVERS {
            let store: Arc<dyn Store> = open(&url).await;
            let (server, running) =
                JobServer::open(store, queues.subscribe(), Arc::new(SystemClock)).await.unwrap();
            tokio::spawn(running);
            let identity = WorkerIdentity {
                service: "orders".to_owned(),
                cluster: "eu".to_owned(),
                instance: format!("orders-{number}"),
            };
            let credits = vec![(QUEUE.to_owned(), 500)];
            let mut work = server.connect_worker(identity, credits, Vec::new()).await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Some(message) = work.deliveries.recv().await {
                    if let ToWorker::Delivery(delivery) = message {
                        let _ = sender.send((number, *delivery));
                    }
                }
            });
            servers.push(server);
            events.push(work.events);
        }
        let (observer, session) = (open(&url).await, Session::open(&url).await);
        Self { cluster, url, servers, events, deliveries, observer, session, _queues: queues }
    }

    async fn submit(&self, count: usize) {
        let job = |number: usize| NewJob {
            queue: QUEUE.to_owned(),
            key: format!("key {number}"),
            callee_service: "stock".to_owned(),
            callee_method: "stock.Stock/Reserve".to_owned(),
            body: Body { content: b"one".to_vec(), metadata: Vec::new() },
            ..NewJob::default()
        };
        let by = Submitter { service: "shop".to_owned(), cluster: "eu".to_owned() };
        let results = self.servers[0].submit(&by, (0..count).map(job).collect()).await.unwrap();
        assert!(results.iter().all(|result| matches!(result, SubmitResult::Stored { .. })), "{results:?}");
    }

    async fn next(&mut self) -> (usize, Delivery) {
        timeout(PATIENCE, self.deliveries.recv()).await.expect("a delivery in time").unwrap()
    }

    /// Returns the deliveries in flight.
    async fn leased(&self) -> u64 {
        self.observer.lanes().await.unwrap().iter().map(|lane| lane.leased).sum()
    }

    /// Waits until the store has counted this many failures in a row.
    async fn settled(&self, failures: usize) {
        let sql = "select coalesce(max(failures), 0) >= $1::int from damper_queue.callee_flow";
        self.session.until(sql, i32::try_from(failures).unwrap()).await;
    }

    async fn settle(&self, (server, delivery): (usize, Delivery), how: Settle) {
        self.events[server].send(FromWorker::Settle(delivery.lease, how)).await.unwrap();
    }
}

/// Each server has deliveries in flight or stands in line.
const ALL_HAVE_ASKED: &str = "with holder as (select distinct server from damper_queue.job where state = 'l') \
     select (select count(*) from holder) + (select count(*) from damper_queue.queue_flow, unnest(line_servers) s \
     where s not in (select server from holder)) >= $1::int";

#[tokio::test(flavor = "multi_thread")]
async fn three_schedulers_keep_max_in_flight_and_take_turns() {
    const JOBS: usize = 40;
    const MOST: usize = 4;
    let mut fleet = Fleet::open(|settings| settings.max_in_flight = MOST as u32).await;
    fleet.submit(JOBS).await;
    let (mut in_flight, mut by_server) = (Vec::new(), [0; SERVERS]);
    for received in 1..=JOBS {
        let next = fleet.next().await;
        by_server[next.0] += 1;
        in_flight.push(next);
        let leased = fleet.leased().await;
        assert!(leased <= MOST as u64, "{leased} in flight");
        if received == MOST {
            fleet.session.until(ALL_HAVE_ASKED, SERVERS as i32).await;
        }
        // The next one can come only after one has ended.
        if in_flight.len() == MOST || received == JOBS {
            fleet.settle(in_flight.remove(0), Settle::Done).await;
        }
    }
    assert!(by_server.iter().all(|count| *count > 0), "{by_server:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_schedulers_send_one_probe_at_a_time() {
    const JOBS: usize = 60;
    let mut fleet = Fleet::open(|_| {}).await;
    // Nothing becomes possible by time alone.
    freeze(&fleet.cluster, &fleet.url).await;
    fleet.submit(JOBS).await;
    let failed = || Settle::Failed {
        failure: Failure::new(Code::Unavailable),
        took: Duration::from_millis(5),
        detail: "down".to_owned(),
    };
    let mut failures = 0;
    while failures < 20 || fleet.leased().await > 0 {
        // After 20 failures those that are in flight remain.
        let next = fleet.next().await;
        fleet.settle(next, failed()).await;
        failures += 1;
        if failures >= 20 {
            fleet.settled(failures).await;
        }
    }
    assert!(failures < 20 + 10, "{failures}: more than the pace was in flight with the last one");
    for _ in 0..3 {
        pass(&fleet.cluster, &fleet.url, 1_000_000).await;
        let probe = fleet.next().await;
        assert_eq!(fleet.leased().await, 1, "one probe in all");
        fleet.settle(probe, failed()).await;
        failures += 1;
        fleet.settled(failures).await;
        assert_eq!(fleet.leased().await, 0);
    }
    pass(&fleet.cluster, &fleet.url, 1_000_000).await;
    for _ in 0..JOBS {
        let next = fleet.next().await;
        fleet.settle(next, Settle::Done).await;
    }
}
