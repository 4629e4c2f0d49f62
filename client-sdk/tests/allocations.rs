//! Allocations per call. Without a rule: none once the route is known, and one for a deadline. Under a rule
//! without observers: those that buffer the request, none for spans and metrics. Per served request: its
//! context, none for counting. Per operation: none, with or without a rule. Requests that arrive in small
//! pieces hold no more memory than what is counted for them.
//!
//! A single test in its own binary without a harness, whose threads would allocate during the test: the
//! counting allocator counts the whole process.

use std::alloc::System;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use damper_core::chain::Repeater;
use damper_core::{Backoff, Jitter, MAX_ROUTES, Mode, OTHER_METHOD, Pattern, Policy, Retry, Waits};
use damper_proto::v1;
use damper_proto::v1::distribution_server::{Distribution, DistributionServer};
use damper_sdk::{ClientService, Damper, Options};
use http::{Extensions, HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as _, Frame};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::net::TcpListener;
use tokio::sync::mpsc as channel;
use tokio_stream::wrappers::ReceiverStream;
use tonic::GrpcMethod;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tower::service_fn;
use tower_layer::Layer as _;
use tower_service::Service;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Responds at once and records how much of the request body had been read before.
#[derive(Clone)]
struct Stock {
    reads: Arc<AtomicUsize>,
    read_before: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for Stock {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Answer>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.read_before.fetch_add(self.reads.load(Ordering::Relaxed), Ordering::Relaxed);
        drop(request);
        ready(Ok(Response::new(Answer { sent: 0 })))
    }
}

/// One message, then the status.
struct Answer {
    sent: u8,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.sent += 1;
        Poll::Ready(match self.sent {
            1 => Some(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\0")))),
            2 => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            _ => None,
        })
    }
}

/// A request body that counts its reads.
struct Message(Arc<AtomicUsize>);

impl http_body::Body for Message {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(None)
    }
}

/// Allocations for buffering a request: a body that reads the buffered message, a copy of the headers (table
/// and entries), and the path, which is shared afterwards. The extension of a generated client needs none.
const GOVERNED: usize = 4;
const TAKE: &str = "/stock.v1.Stock/Take";

fn request(reads: &Arc<AtomicUsize>, path: &str) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/grpc")
        .extension(GrpcMethod::new("stock.v1.Stock", "Take"))
        .body(Body::new(Message(Arc::clone(reads))))
        .expect("a path and constants")
}

/// Makes a call, reads its response and returns the number of allocations.
fn cost<S, B>(service: &mut S, request: Request<Body>) -> usize
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes>,
{
    let mut cx = Context::from_waker(Waker::noop());
    let region = Region::new(ALLOCATOR);
    assert!(service.poll_ready(&mut cx).is_ready());
    let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else {
        panic!("the service responds at once")
    };
    let mut body = pin!(response.into_body());
    let mut frames = 0;
    while let Poll::Ready(Some(Ok(_))) = body.as_mut().poll_frame(&mut cx) {
        frames += 1;
    }
    assert_eq!(frames, 2);
    let change = region.change();
    change.allocations + change.reallocations
}

type Layered = ClientService<Stock>;

/// Checks the additional allocations of a call through the layer, each time.
#[track_caller]
fn costs_more_by(extra: usize, bare: &mut Stock, layered: &mut Layered, path: &str) {
    let reads = Arc::clone(&bare.reads);
    for _ in 0..1_000 {
        let without = cost(bare, request(&reads, path));
        let with = cost(layered, request(&reads, path));
        assert_eq!(with, without + extra, "{path}");
    }
}

/// Returns the context that the server layer gives a request with a timeout of 30 s.
fn context_with_a_deadline(damper: &Damper) -> damper_sdk::Context {
    let (sender, receiver) = mpsc::channel();
    let handler = service_fn(move |_: Request<()>| {
        sender.send(damper_sdk::Context::current()).expect("the test listens");
        ready(Ok::<_, Infallible>(Response::new(Answer { sent: 0 })))
    });
    let request = Request::post("/orders.v1.Orders/Place").header("grpc-timeout", "30S").body(());
    let request = request.expect("a request of constants");
    drop(damper.server_layer().layer(handler).call(request));
    receiver.recv().expect("the handler was called").expect("a handler has a context")
}

/// A served request allocates its context and the space for it in the extensions: for any method, retry or
/// not.
#[track_caller]
fn serving_costs_the_context(
    damper: &Damper,
    bare: &mut Stock,
    marks: &[(&'static str, &'static str)],
    path: &str,
) {
    let mut layered = damper.server_layer().layer(bare.clone());
    let reads = Arc::clone(&bare.reads);
    let marked = || {
        let mut request = request(&reads, path);
        *request.extensions_mut() = Extensions::new();
        for (name, value) in marks {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        request
    };
    cost(&mut layered, marked());
    for _ in 0..1_000 {
        let without = cost(bare, marked());
        // The context, and a map with its table and an entry.
        assert_eq!(cost(&mut layered, marked()), without + 4, "{path} {marks:?}");
    }
}

/// A control plane that sends one rule for all calls.
struct OneRule;

#[tonic::async_trait]
impl Distribution for OneRule {
    type SubscribeStream = ReceiverStream<Result<v1::ServerMessage, tonic::Status>>;

    async fn subscribe(
        &self,
        request: tonic::Request<tonic::Streaming<v1::ClientMessage>>,
    ) -> Result<tonic::Response<Self::SubscribeStream>, tonic::Status> {
        let every = Pattern::parse("*", "*", "*", "*").expect("a sound pattern");
        let waits = Waits::Fixed { delay: Duration::from_secs(30), jitter: Jitter::None };
        let retry = Retry { backoff: Backoff::Always(waits), ..Retry::default() };
        let ungated = Policy { retry_breaker: None, budget: None, ..Policy::new(Mode::Enforce) };
        let policy = Policy { retry: Some(retry), ..ungated };
        let kind = Some(v1::distributed_rule::Kind::Policy((&policy).into()));
        let rules = vec![v1::DistributedRule { key: Some((&every).into()), revision: 1, kind }];
        let snapshot = v1::Snapshot { rules, last: true, ..v1::Snapshot::default() };
        let kind = Some(v1::server_message::Kind::Snapshot(snapshot));
        let message =
            v1::ServerMessage { epoch: "e".to_owned(), revision: 1, nonce: 1, kind, kills: None, commit: 0 };
        let (sender, receiver) = channel::channel(1);
        sender.send(Ok(message)).await.expect("its other end is here");
        tokio::spawn(async move {
            let mut from_client = request.into_inner();
            while let Ok(Some(_)) = from_client.message().await {}
            drop(sender);
        });
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

/// A service under a rule.
async fn governed() -> Damper {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it listens"));
    let server = tonic::transport::Server::builder().add_service(DistributionServer::new(OneRule));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let damper = Damper::connect(Options::new([url]).service("orders")).expect("sound options");
    damper.ready(Duration::from_secs(30)).await.expect("the rule arrives");
    damper
}

/// Polls a future to its end without other tasks, which would allocate.
fn drive<F: Future>(future: F) -> F::Output {
    let (mut future, mut cx) = (pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// An operation that succeeds allocates nothing, also under a rule with retries.
fn operations_allocate_nothing(under_a_rule: &Damper) {
    let waiting = async |_| {
        let mut polls = 0;
        std::future::poll_fn(|_| {
            polls += 1;
            if polls > 1 { Poll::Ready(Ok::<_, std::io::Error>(1)) } else { Poll::Pending }
        })
        .await
    };
    for damper in [Damper::off(), under_a_rule.clone()] {
        let insert = damper.operation("orders-db", "orders/insert").expect("sound names");
        assert_eq!(drive(insert.call(waiting)).expect("it succeeds"), 1);
        let region = Region::new(ALLOCATOR);
        for _ in 0..1_000 {
            assert!(drive(insert.call(|_| ready(Ok::<_, std::io::Error>(1)))).is_ok());
            assert!(drive(insert.call(waiting)).is_ok());
            assert!(drive(insert.call_mut(waiting)).is_ok());
        }
        let change = region.change();
        assert_eq!(change.allocations + change.reallocations, 0, "{:?}", damper.status().source);
    }
    assert_eq!(calls(under_a_rule, "orders/insert"), 3_001);
}

/// A governed operation that waits for its retry, with its future and its timer.
fn waiting_operation_is_small(under_a_rule: &Damper) {
    const CALLS: usize = 1_000;
    let insert = under_a_rule.operation("orders-db", "orders/insert").expect("sound names").retry_all();
    let mut waiting = Vec::with_capacity(CALLS);
    let region = Region::new(ALLOCATOR);
    for _ in 0..CALLS {
        let mut call = Box::pin(insert.call(|_| ready(Err::<(), _>(0))));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiting.push(call);
    }
    let change = region.change();
    let bytes = (change.bytes_allocated - change.bytes_deallocated) / CALLS;
    println!("a waiting operation has {bytes} bytes");
    assert!(bytes <= 1 << 10, "{bytes}");
}

/// A request that arrives in pieces of one byte, each cut from a buffer of its own, and does not end.
struct Dribble {
    polls: usize,
}

impl http_body::Body for Dribble {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.polls += 1;
        if self.polls.is_multiple_of(2) && self.polls <= 8 {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; 16 << 10]).slice(..1)))));
        }
        Poll::Pending
    }
}

/// Forwards requests and does not respond.
#[derive(Clone)]
struct Silence;

impl Service<Request<Body>> for Silence {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Forwarding;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Forwarding {
        Forwarding(request.into_body())
    }
}

struct Forwarding(Body);

impl Future for Forwarding {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut self.0).poll_frame(cx) {}
        Poll::Pending
    }
}

/// Many requests that arrive together hold at most the bound of what is kept, and 16 MiB for the calls.
fn arriving_requests_stay_within_their_bound(under_a_rule: &Damper) {
    const CALLS: usize = 10_000;
    const MIB: usize = 1 << 20;
    let mut layered = under_a_rule.client_layer("stock").expect("a sound name").layer(Silence);
    let mut cx = Context::from_waker(Waker::noop());
    let mut calling = Vec::with_capacity(CALLS);
    let region = Region::new(ALLOCATOR);
    for _ in 0..CALLS {
        let request = Request::post(TAKE).body(Body::new(Dribble { polls: 0 })).expect("constants");
        assert!(layered.poll_ready(&mut cx).is_ready());
        calling.push(Box::pin(layered.call(request)));
    }
    for _ in 0..4 {
        for call in &mut calling {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
    }
    let change = region.change();
    let held = change.bytes_allocated - change.bytes_deallocated;
    println!("{CALLS} requests that arrive hold {} KiB", held >> 10);
    assert!(held > 16 * MIB, "{held} bytes: nothing was kept");
    assert!(held <= 32 * MIB, "{held} bytes");
    // The list itself was allocated before the region.
    calling.clear();
    let change = region.change();
    let left = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
    assert!(left <= MIB, "{left} bytes of calls that ended");
}

fn served(damper: &Damper, method: &str) -> (u64, u64) {
    let mut all = (0, 0);
    damper.for_each_served(|name, served| {
        if name == method {
            all = (served.first_sends(), served.repeats(Repeater::Damper));
        }
    });
    all
}

fn calls(damper: &Damper, method: &str) -> u64 {
    let mut calls = 0;
    damper.for_each_route(|_, name, counters| calls += if name == method { counters.calls() } else { 0 });
    calls
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(check_allocations());
    println!("allocations per call and request are within their limits");
}

async fn check_allocations() {
    let (reads, read_before) = (Arc::default(), Arc::default());
    let mut bare = Stock { reads: Arc::clone(&reads), read_before: Arc::clone(&read_before) };
    // Without a listener no rule arrives; the background task runs only when this one yields.
    let damper =
        Damper::connect(Options::new(["http://127.0.0.1:1"]).service("orders")).expect("sound options");
    let mut layered = damper.client_layer("stock").expect("a sound name").layer(bare.clone());
    cost(&mut bare, request(&reads, TAKE));
    let first = cost(&mut layered, request(&reads, TAKE));
    costs_more_by(0, &mut bare, &mut layered, TAKE);
    assert!(first > cost(&mut bare, request(&reads, TAKE)), "the counter works: a new route allocates");
    assert_eq!(calls(&damper, "stock.v1.Stock/Take"), 1_001);

    // The deadline costs one header value, which owns its bytes.
    let context = context_with_a_deadline(&damper);
    context.scope(async { costs_more_by(1, &mut bare, &mut layered, TAKE) }).await;

    // Without a route: a path without a method, and methods beyond the limit.
    costs_more_by(0, &mut bare, &mut layered, "/nothing");
    for number in 0..=MAX_ROUTES {
        cost(&mut layered, request(&reads, &format!("/stock.v1.Stock/Take{number}")));
    }
    let beyond = calls(&damper, OTHER_METHOD);
    assert_eq!(beyond, 1_000 + 2);
    costs_more_by(0, &mut bare, &mut layered, "/stock.v1.Stock/Give");
    assert_eq!(calls(&damper, OTHER_METHOD), beyond + 1_000);
    assert_eq!(read_before.load(Ordering::Relaxed), 0);

    let under_a_rule = governed().await;
    let mut layered = under_a_rule.client_layer("stock").expect("a sound name").layer(bare.clone());
    cost(&mut layered, request(&reads, TAKE));
    costs_more_by(GOVERNED, &mut bare, &mut layered, TAKE);
    assert_eq!(calls(&under_a_rule, "stock.v1.Stock/Take"), 1_001);

    operations_allocate_nothing(&under_a_rule);
    waiting_operation_is_small(&under_a_rule);
    arriving_requests_stay_within_their_bound(&under_a_rule);

    let repeat = &[("damper-retry", "1"), ("grpc-previous-rpc-attempts", "1")];
    serving_costs_the_context(&damper, &mut bare, &[], TAKE);
    serving_costs_the_context(&damper, &mut bare, repeat, TAKE);
    assert_eq!(served(&damper, "stock.v1.Stock/Take"), (1_001, 1_001));
    serving_costs_the_context(&damper, &mut bare, &[], "/nothing");
    let mut layered = damper.server_layer().layer(bare.clone());
    for number in 0..=MAX_ROUTES {
        cost(&mut layered, request(&reads, &format!("/stock.v1.Stock/Take{number}")));
    }
    serving_costs_the_context(&damper, &mut bare, repeat, "/stock.v1.Stock/Give");
    // One method was known before, so the last two are beyond the limit.
    assert_eq!(served(&damper, OTHER_METHOD), (1_001 + 2, 1_001));
}
