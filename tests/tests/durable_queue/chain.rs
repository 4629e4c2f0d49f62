//! A delivered job in a chain of services, and kill switches that stop it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use damper_proto::v1;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::queues_client::QueuesClient;
use damper_sdk::queue::{Delivery, HandlerError, NewJob};
use damper_sdk::{Damper, Options};
use damper_tests::hop::{Hop, METHOD, call};
use prost::Message as _;
use tokio::sync::{Semaphore, mpsc};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::proxy::Proxy;
use crate::servers::Servers;

const PATIENCE: Duration = Duration::from_secs(120);

const QUEUE: &str = "
kind: Queue
name: later
policy:
  mode: enforce
  retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } }
workers: [orders]
hold_after: 1000
";

/// For every hop: three attempts at once, no breaker.
const RULE: &str = "---
kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }
";

const REPEAT_LIMIT: &str = "---
kind: Guard
key: { caller_service: '*', caller_cluster: '*', callee_service: stock, callee_method: '*' }
ceiling: { repeat_limit: { mode: enforce, ratio: 0.1, min: 2 } }
";

/// A server with a queue, and its clients.
struct World {
    servers: Servers,
    queues: QueuesClient<Channel>,
    kills: KillsClient<Channel>,
}

impl World {
    async fn start(manifest: &str) -> Self {
        let servers = Servers::with_redb();
        servers.apply(manifest);
        let channel = Channel::from_shared(servers.url(0).to_owned()).unwrap().connect().await.unwrap();
        let (queues, kills) = (QueuesClient::new(channel.clone()), KillsClient::new(channel));
        Self { servers, queues, kills }
    }

    /// Connects a service.
    async fn damper(&self, service: &str) -> Damper {
        connect(self.servers.url(0), service).await
    }

    /// Serves a service that calls the next one and passes its answer on.
    async fn relay(&self, service: &str, next: &Hop, next_service: &str) -> Hop {
        let damper = self.damper(service).await;
        let next = next.governed_channel(&damper.client_layer(next_service).unwrap()).await;
        Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
            let (next, damper) = (next.clone(), damper.clone());
            async move {
                let answer = call(next, Request::new(request.into_inner())).await;
                drop(damper);
                answer
            }
        })
        .await
    }

    /// Waits until a job is so.
    async fn job(&mut self, job_id: &str, is_so: impl Fn(&v1::Job) -> bool) -> v1::Job {
        let since = Instant::now();
        loop {
            let request = v1::GetJobRequest { job_id: job_id.to_owned() };
            let job = self.queues.get_job(request).await.unwrap().into_inner();
            if is_so(&job) {
                return job;
            }
            assert!(since.elapsed() < PATIENCE, "the job stays so: {job:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Makes all waiting jobs due now.
    async fn run_now(&mut self) {
        let filter = Some(v1::JobFilter { queue: "later".to_owned(), ..Default::default() });
        let change = v1::JobChange::Run.into();
        let request = v1::ChangeJobsRequest { filter, change, ..Default::default() };
        self.queues.change_jobs(request).await.unwrap();
    }

    /// Waits until the lane is held for this reason.
    async fn held(&mut self, why: &str) {
        let waiting = async {
            loop {
                let request = v1::GetQueueStatsRequest { queue: "later".to_owned() };
                let stats = self.queues.get_queue_stats(request).await.unwrap().into_inner();
                if stats.queues[0].lanes.iter().any(|lane| lane.held == why) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the lane is held");
    }

    async fn kill(&mut self) {
        let options = Some(v1::WriteOptions { reason: "INC-7".to_owned(), ..Default::default() });
        let kill = v1::KillRequest { key: of_stock(), calls: true, options, ..Default::default() };
        self.kills.kill(kill).await.unwrap();
    }

    async fn unkill(&mut self) {
        self.kills.unkill(v1::UnkillRequest { key: of_stock(), ..Default::default() }).await.unwrap();
    }
}

async fn connect(url: &str, service: &str) -> Damper {
    let options = Options::new([url]).service(service).environment(|_| None);
    let damper = Damper::connect(options).unwrap();
    damper.ready(PATIENCE).await.unwrap();
    damper
}

fn of_stock() -> Option<v1::Pattern> {
    let any = || "*".to_owned();
    Some(v1::Pattern {
        caller_service: any(),
        caller_cluster: any(),
        callee_service: "stock".to_owned(),
        callee_method: any(),
    })
}

/// Submits a job that is a call of this service.
async fn submit(damper: &Damper, callee: &str, key: &str) -> String {
    let job = NewJob::new("later", key, callee, METHOD).body(String::new().encode_to_vec());
    damper.jobs().submit(job).await.unwrap().job_id
}

/// Waits until a service has this number of kills.
async fn has_kills(damper: &Damper, kills: usize) {
    let waiting = async {
        while damper.status().kills != kills {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the kills arrive");
}

async fn failing(damper: &Damper) -> Hop {
    Hop::serve(Some(damper.server_layer()), |_| async { Err(Status::unavailable("out of stock")) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_delivery_is_one_attempt_at_each_hop() {
    // Each delivery waits to be asked for, or the state after it could pass between two looks.
    let queue = QUEUE.replace("10ms", "1h");
    let mut world = World::start(&format!("{queue}{RULE}")).await;
    let bottom = world.damper("d").await;
    let d = failing(&bottom).await;
    let c = world.relay("c", &d, "d").await;
    let b = world.relay("b", &c, "c").await;
    let a = world.relay("a", &b, "b").await;
    let orders = world.damper("orders").await;
    let job = submit(&orders, "a", "order-1").await;
    let worker = orders.worker("later").forward("a", a.channel().await).start().unwrap();
    // The first delivery is an ordinary call, so the hop next to the fault repeats it.
    for (attempts, handled) in [(1, [1, 1, 1, 3]), (2, [2, 2, 2, 4]), (3, [3, 3, 3, 5])] {
        let job =
            world.job(&job, |job| job.attempts == attempts && job.state() != v1::JobState::Leased).await;
        assert_eq!([&a, &b, &c, &d].map(Hop::handled), handled, "attempt {attempts}: {job:?}");
        world.run_now().await;
    }
    let dead = world.job(&job, |job| job.state() == v1::JobState::Dead).await;
    assert_eq!((dead.attempts, dead.ended.as_str()), (3, "attempts_exhausted"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_limit_of_the_callee_counts_deliveries() {
    const JOBS: u64 = 8;
    let mut world = World::start(&format!("{QUEUE}{REPEAT_LIMIT}")).await;
    let callee = world.damper("stock").await;
    let stock = failing(&callee).await;
    let orders = world.damper("orders").await;
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        jobs.push(submit(&orders, "stock", &number.to_string()).await);
    }
    let worker = orders.worker("later").forward("stock", stock.channel().await).start().unwrap();
    for job in jobs {
        world.job(&job, |job| job.attempts >= 2).await;
    }
    worker.stop().await;
    let (mut first, mut shed) = (0, 0);
    callee.for_each_served(|_, served| (first, shed) = (first + served.first_sends(), shed + served.shed()));
    assert_eq!(first, JOBS);
    assert!(shed >= JOBS - 3, "{shed} of the repeats were refused");
    assert!(stock.handled() >= JOBS + 2, "the others were not: {}", stock.handled());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_stops_jobs_that_wait_and_jobs_that_are_due() {
    let mut world = World::start(QUEUE).await;
    let stock = Hop::serve(None, |_| async { Ok(Response::new(String::new())) }).await;
    let orders = world.damper("orders").await;
    let later = NewJob::new("later", "waits", "stock", METHOD).after(Duration::from_secs(3_600));
    let waits = orders.jobs().submit(later).await.unwrap().job_id;
    let due = submit(&orders, "stock", "due").await;
    world.kill().await;
    has_kills(&orders, 1).await;
    // Now the first one is due too, and a worker is there.
    world.run_now().await;
    let worker = orders.worker("later").forward("stock", stock.channel().await).start().unwrap();
    world.held("killed").await;
    assert_eq!(stock.handled(), 0);
    world.unkill().await;
    for job in [&waits, &due] {
        let done = world.job(job, |job| job.state() == v1::JobState::Done).await;
        assert_eq!(done.attempts, 1, "the kill used none: {done:?}");
    }
    assert_eq!(stock.handled(), 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_stops_a_delivery_of_a_worker_that_is_cut_off() {
    let mut world = World::start(QUEUE).await;
    let stock = Hop::serve(None, |_| async { Ok(Response::new(String::new())) }).await;
    let proxy = Proxy::start().await;
    proxy.lead_to(world.servers.url(0));
    let orders = connect(&format!("http://{}", proxy.address()), "orders").await;
    let channel = stock.governed_channel(&orders.client_layer("stock").unwrap()).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (ended, mut ends) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let handle = {
        let gate = gate.clone();
        move |_: Delivery| {
            let (channel, gate, begun, ended) = (channel.clone(), gate.clone(), begun.clone(), ended.clone());
            async move {
                begun.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
                let called = call(channel, Request::new(String::new())).await;
                ended.send(called.as_ref().err().map(|status| status.message().to_owned())).unwrap();
                called.map(drop).map_err(HandlerError::from)
            }
        }
    };
    let worker = orders.worker("later").handle(handle).start().unwrap();
    let job = submit(&orders, "stock", "order-1").await;
    begins.recv().await.unwrap();
    world.kill().await;
    has_kills(&orders, 1).await;
    proxy.cut();
    gate.add_permits(1);
    let refused = tokio::time::timeout(PATIENCE, ends.recv()).await.expect("the call ends").unwrap();
    assert!(refused.as_ref().is_some_and(|message| message.contains("INC-7")), "{refused:?}");
    assert_eq!(stock.handled(), 0, "the callee was not called");
    // While the kill is in force, so that no lease runs out.
    proxy.lead_to(world.servers.url(0));
    world.unkill().await;
    has_kills(&orders, 0).await;
    world.job(&job, |job| job.attempts == 1 && job.state() == v1::JobState::Waiting).await;
    // The call was not to be repeated: the job waits for a minute.
    world.run_now().await;
    gate.add_permits(1);
    let done = world.job(&job, |job| job.state() == v1::JobState::Done).await;
    assert_eq!((stock.handled(), done.state()), (1, v1::JobState::Done));
    worker.stop().await;
}
