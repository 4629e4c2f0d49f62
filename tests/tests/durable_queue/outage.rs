//! Outage drill: the callee of many waiting jobs is down, then up again and cold.
//!
//! `DAMPER_OUTAGE_SECONDS` sets the length of the outage, with 10,000 jobs; by default it is 4 probes, with
//! 1,000 jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use damper_proto::v1;
use damper_proto::v1::queues_client::QueuesClient;
use damper_sdk::queue::NewJob;
use damper_sdk::{Damper, Options};
use damper_tests::hop::{Hop, METHOD, call};
use prost::Message as _;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::servers::Servers;

const PATIENCE: Duration = Duration::from_secs(300);
/// Requests that the cold callee bears at once; one more for each that it has served.
const COLD: u32 = 4;
const WARM: u32 = 64;

const MANIFEST: &str = "
kind: Queue
name: later
policy:
  mode: enforce
  retry: { backoff: { fixed: { delay: 100ms } } }
workers: [orders]
---
kind: Rule
key: { caller_service: shop, caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } } }
";

/// A callee that is down, then up with a capacity that grows with its use.
struct Stock {
    is_up: AtomicBool,
    in_flight: AtomicU32,
    capacity: AtomicU32,
    /// Requests that were deliveries.
    deliveries: watch::Sender<u64>,
}

impl Stock {
    async fn serve(self: Arc<Self>, request: Request<String>) -> Result<Response<String>, Status> {
        if request.metadata().contains_key("damper-job") {
            self.deliveries.send_modify(|count| *count += 1);
        }
        if !self.is_up.load(Ordering::SeqCst) {
            return Err(Status::unavailable("down"));
        }
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        let has_room = others < self.capacity.load(Ordering::SeqCst);
        if has_room {
            // What it does takes this long.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let _ = self
                .capacity
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < WARM).then_some(now + 1));
        }
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        if has_room { Ok(Response::new(String::new())) } else { Err(Status::unavailable("overloaded")) }
    }
}

/// Calls the callee until the jobs have ended; returns the number of calls, and of good ones.
async fn live_traffic(shop: Damper, stock: Channel, is_over: Arc<AtomicBool>) -> (u32, u32) {
    let stock = shop.client_layer("stock").unwrap().layer(stock);
    let (mut calls, mut good) = (0, 0);
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    while !is_over.load(Ordering::SeqCst) {
        pace.tick().await;
        calls += 1;
        good += u32::from(call(stock.clone(), Request::new(String::new())).await.is_ok());
    }
    (calls, good)
}

/// Waits until the statistics are so.
async fn stats(
    queues: &mut QueuesClient<Channel>,
    are_so: impl Fn(&v1::QueueStats) -> bool,
) -> v1::QueueStats {
    let waiting = async {
        loop {
            let request = v1::GetQueueStatsRequest { queue: "later".to_owned() };
            let stats = queues.get_queue_stats(request).await.unwrap().into_inner().queues.remove(0);
            if are_so(&stats) {
                return stats;
            }
            // They change once a second.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the statistics show it")
}

async fn submit(damper: &Damper, count: u64) {
    let body = String::new().encode_to_vec();
    let job = |number: u64| NewJob::new("later", number.to_string(), "stock", METHOD).body(body.clone());
    for submitted in damper.jobs().submit_all((0..count).map(job)).await {
        submitted.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_costs_one_probe_a_second_and_no_job() {
    let long = std::env::var("DAMPER_OUTAGE_SECONDS").ok().map(|text| text.parse::<u64>().unwrap());
    let (probes, jobs) = long.map_or((4, 1_000), |seconds| (seconds, 10_000));
    let servers = Servers::with_redb();
    servers.apply(MANIFEST);
    let stock = Arc::new(Stock {
        is_up: AtomicBool::new(false),
        in_flight: AtomicU32::new(0),
        capacity: AtomicU32::new(COLD),
        deliveries: watch::Sender::new(0),
    });
    let hop = Hop::serve(None, {
        let stock = stock.clone();
        move |request| stock.clone().serve(request)
    });
    let hop = hop.await;
    let connect = |service: &str| {
        let options = Options::new([servers.url(0)]).service(service).environment(|_| None);
        Damper::connect(options).unwrap()
    };
    let (orders, shop) = (connect("orders"), connect("shop"));
    shop.ready(PATIENCE).await.unwrap();
    submit(&orders, jobs).await;
    let worker =
        orders.worker("later").forward("stock", hop.channel().await).concurrency(64).start().unwrap();
    let mut queues = QueuesClient::connect(servers.url(0).to_owned()).await.unwrap();
    stats(&mut queues, |stats| stats.lanes.iter().any(|lane| lane.held == "callee_failing")).await;

    let (before, began) = (*stock.deliveries.borrow(), Instant::now());
    let reached = stock.deliveries.subscribe();
    let outage = async move { *{ reached }.wait_for(|count| *count >= before + probes).await.unwrap() };
    let deliveries = tokio::time::timeout(PATIENCE, outage).await.expect("it is probed") - before;
    let seconds = began.elapsed().as_secs_f64();
    assert!(deliveries as f64 <= 1.25 * seconds + 2.0, "{deliveries} deliveries in {seconds:.1} s");
    // Those in flight with the 20th failure in a row, and a probe while the statistics were read.
    assert!(before <= 20 + 10 + seconds as u64 + 5, "{before} deliveries until the callee was held");
    let held = stats(&mut queues, |_| true).await;
    assert_eq!((held.dead, held.waiting + held.leased), (0, jobs), "{held:?}");

    stock.is_up.store(true, Ordering::SeqCst);
    let up = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let live = tokio::spawn(live_traffic(shop.clone(), hop.channel().await, is_over.clone()));
    let after = stats(&mut queues, |stats| stats.waiting + stats.leased == 0).await;
    is_over.store(true, Ordering::SeqCst);
    let (calls, good) = live.await.unwrap();
    println!(
        "{deliveries} deliveries in {seconds:.1} s of outage; {jobs} jobs done {:?} after it, {} deliveries \
         failed in all; {good} of {calls} live calls good",
        up.elapsed(),
        after.failed
    );
    assert_eq!((after.done, after.dead, after.died), (jobs, 0, 0), "{after:?}");
    assert!(calls >= 20 && good * 100 >= calls * 95, "{good} of {calls} live calls were good");
    worker.stop().await;
}
