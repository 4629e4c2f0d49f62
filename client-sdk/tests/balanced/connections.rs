//! Endpoints that limit the streams of a connection.

use std::net::SocketAddr;

use bytes::Bytes;
use damper_sdk::balance::Targets;
use damper_sdk::{Balanced, balanced};
use h2::RecvStream;
use h2::server::SendResponse;
use http::Response;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::instance::Instance;
use crate::{Call as _, PATIENCE, governed, plain};

/// An endpoint that keeps its requests until the test responds.
struct Limited {
    address: SocketAddr,
    arrivals: mpsc::UnboundedReceiver<Held>,
    /// Connections that are open.
    open: watch::Receiver<u32>,
    listening: JoinHandle<()>,
}

impl Limited {
    async fn start(streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let (address, (count, open)) = (listener.local_addr().unwrap(), watch::channel(0));
        let listening = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(converse(stream, streams, arrived.clone(), count.clone()));
            }
        });
        Self { address, arrivals, open, listening }
    }

    /// Starts one that closes each further connection as soon as it is open.
    async fn with_one_connection(streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let (address, (count, open)) = (listener.local_addr().unwrap(), watch::channel(0));
        let listening = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(converse(stream, streams, arrived, count.clone()));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                _ = h2::server::handshake(stream).await;
                // Never less: all that were opened are counted.
                count.send_modify(|open| *open += 1);
            }
        });
        Self { address, arrivals, open, listening }
    }

    /// Returns the next request.
    async fn next(&mut self) -> Held {
        timeout(PATIENCE, self.arrivals.recv()).await.expect("a request arrives").unwrap()
    }

    /// Begins this many calls one by one, because a call waits only briefly for a further connection.
    async fn fill(
        &mut self,
        client: &HealthClient<Balanced>,
        count: usize,
    ) -> (Vec<JoinHandle<Result<(), Status>>>, Vec<Held>) {
        let (mut calls, mut held) = (Vec::new(), Vec::new());
        for _ in 0..count {
            calls.push(begin(client));
            held.push(self.next().await);
        }
        (calls, held)
    }

    /// Returns this many requests.
    async fn hold(&mut self, count: usize) -> Vec<Held> {
        let mut held = Vec::new();
        for _ in 0..count {
            held.push(self.next().await);
        }
        held
    }

    fn open(&self) -> u32 {
        *self.open.borrow()
    }

    /// Accepts no more connections.
    async fn close(&mut self) {
        self.listening.abort();
        _ = (&mut self.listening).await;
    }
}

async fn converse(
    stream: TcpStream,
    streams: u32,
    arrived: mpsc::UnboundedSender<Held>,
    count: watch::Sender<u32>,
) {
    let mut server = h2::server::Builder::new();
    let Ok(mut connection) = server.max_concurrent_streams(streams).handshake(stream).await else { return };
    count.send_modify(|open| *open += 1);
    while let Some(Ok((request, respond))) = connection.accept().await {
        _ = arrived.send(Held { body: request.into_body(), respond });
    }
    count.send_modify(|open| *open -= 1);
}

/// A request that was not responded to.
struct Held {
    body: RecvStream,
    respond: SendResponse<Bytes>,
}

impl Held {
    /// Waits for the end of the request, after which the client can count its stream as free.
    async fn until_whole(mut self) -> Self {
        while let Some(Ok(_)) = self.body.data().await {}
        self
    }

    /// Responds with headers alone.
    fn serve(mut self) {
        let response = Response::builder().header("content-type", "application/grpc");
        let response = response.header("grpc-status", "5").body(()).unwrap();
        self.respond.send_response(response, true).unwrap();
    }
}

fn at(endpoints: &[&Limited]) -> HealthClient<Balanced> {
    let addresses = endpoints.iter().map(|endpoint| endpoint.address);
    HealthClient::new(balanced(Targets::new("http://stock").at(addresses)).unwrap())
}

fn begin(client: &HealthClient<Balanced>) -> JoinHandle<Result<(), Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { client.check(HealthCheckRequest::default()).await.map(|_| ()) })
}

async fn ended(call: JoinHandle<Result<(), Status>>) -> Status {
    timeout(PATIENCE, call).await.expect("the call ends").unwrap().unwrap_err()
}

#[tokio::test]
async fn endpoint_gets_as_many_connections_as_its_limit_needs() {
    let mut endpoint = Limited::start(2).await;
    let client = at(&[&endpoint]);
    let (calls, held) = endpoint.fill(&client, 5).await;
    assert_eq!(endpoint.open(), 3);
    held.into_iter().for_each(Held::serve);
    for call in calls {
        assert_eq!(ended(call).await.code(), Code::NotFound);
    }
    // Calls in turns need no further connection.
    for _ in 0..10 {
        let call = begin(&client);
        endpoint.next().await.serve();
        ended(call).await;
    }
    assert_eq!(endpoint.open(), 3);
}

#[tokio::test]
async fn endpoint_without_a_limit_keeps_one_connection() {
    let mut endpoint = Limited::start(u32::MAX).await;
    let client = at(&[&endpoint]);
    let calls: Vec<_> = (0..60).map(|_| begin(&client)).collect();
    let _held = endpoint.hold(calls.len()).await;
    assert_eq!(endpoint.open(), 1);
}

#[tokio::test]
async fn call_beyond_eight_connections_is_not_sent() {
    let mut endpoint = Limited::start(1).await;
    let client = at(&[&endpoint]);
    let (calls, mut held) = endpoint.fill(&client, 8).await;
    for _ in 0..3 {
        let status = ended(begin(&client)).await;
        let expected = "all streams that the endpoints allow are in use";
        assert_eq!((status.code(), status.message()), (Code::Unavailable, expected));
    }
    assert!(endpoint.arrivals.try_recv().is_err() && endpoint.open() == 8);
    // A stream that has ended is free for the next call.
    held.pop().unwrap().serve();
    let mut ends = calls.into_iter();
    let first = ends.by_ref().map(ended);
    let first = futures_util::future::select_all(first.map(Box::pin)).await.0;
    assert_eq!(first.code(), Code::NotFound);
    let call = begin(&client);
    endpoint.next().await.serve();
    assert_eq!(ended(call).await.code(), Code::NotFound);
}

/// As many calls at once as 8 connections have streams, each begun when another one has ended.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_or_hangs_while_the_streams_suffice() {
    let mut endpoint = Limited::start(2).await;
    let client = at(&[&endpoint]);
    let calls = (0..16).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let status = ended(begin(&client)).await;
                assert_eq!(status.code(), Code::NotFound, "{status:?}");
            }
        })
    });
    let calls: Vec<_> = calls.collect();
    let serving = tokio::spawn(async move {
        loop {
            let held = endpoint.next().await;
            tokio::spawn(async move { held.until_whole().await.serve() });
        }
    });
    for call in calls {
        call.await.unwrap();
    }
    serving.abort();
}

#[tokio::test]
async fn call_goes_from_a_full_endpoint_to_another() {
    let (mut one, mut other) = (Limited::start(1).await, Limited::start(1).await);
    let client = at(&[&one, &other]);
    let (mut calls, mut held) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        calls.push(begin(&client));
        held.push(tokio::select! {
            arrived = one.next() => arrived,
            arrived = other.next() => arrived,
        });
    }
    assert_eq!(ended(begin(&client)).await.code(), Code::Unavailable);
    assert_eq!((one.open(), other.open()), (8, 8));
    held.into_iter().for_each(Held::serve);
    for call in calls {
        assert_eq!(ended(call).await.code(), Code::NotFound);
    }
}

#[tokio::test]
async fn load_is_spread_although_endpoints_get_more_connections() {
    let (mut one, mut other) = (Limited::start(10).await, Limited::start(10).await);
    let client = at(&[&one, &other]);
    let mut held = Vec::new();
    let mut counts = [0, 0];
    let mut calls = Vec::new();
    for _ in 0..60 {
        calls.push(begin(&client));
        let arrived = tokio::select! {
            arrived = one.next() => { counts[0] += 1; arrived }
            arrived = other.next() => { counts[1] += 1; arrived }
        };
        held.push(arrived);
    }
    // Of two that are drawn, the one with fewer requests is taken.
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
    assert!(one.open() <= 4 && other.open() <= 4);
}

#[tokio::test]
async fn idle_connections_close_but_for_the_first() {
    let mut endpoint = Limited::start(1).await;
    let client = at(&[&endpoint]);
    let (calls, mut held) = endpoint.fill(&client, 4).await;
    assert_eq!(endpoint.open(), 4);
    // One stays in use.
    let long = held.pop().unwrap();
    held.into_iter().for_each(Held::serve);
    tokio::time::pause();
    endpoint.open.wait_for(|open| *open <= 2).await.unwrap();
    assert!(endpoint.open() >= 1);
    long.serve();
    endpoint.open.wait_for(|open| *open == 1).await.unwrap();
    let begun = tokio::time::Instant::now();
    while begun.elapsed().as_secs() < 600 {
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(endpoint.open(), 1);
    }
    tokio::time::resume();
    let call = begin(&client);
    endpoint.next().await.serve();
    assert_eq!(ended(call).await.code(), Code::NotFound);
    for call in calls {
        assert_eq!(ended(call).await.code(), Code::NotFound);
    }
}

#[tokio::test]
async fn call_is_not_sent_if_no_connection_can_be_added() {
    let mut endpoint = Limited::start(1).await;
    let client = at(&[&endpoint]);
    let first = begin(&client);
    let held = endpoint.next().await;
    endpoint.close().await;
    assert_eq!(ended(begin(&client)).await.code(), Code::Unavailable);
    held.serve();
    assert_eq!(ended(first).await.code(), Code::NotFound);
    let call = begin(&client);
    endpoint.next().await.serve();
    assert_eq!(ended(call).await.code(), Code::NotFound);
}

/// Without a pause each call would open one.
#[tokio::test]
async fn further_connections_that_close_at_once_are_opened_rarely() {
    let mut endpoint = Limited::with_one_connection(1).await;
    let client = at(&[&endpoint]);
    let first = begin(&client);
    let held = endpoint.next().await;
    for _ in 0..100 {
        assert_eq!(ended(begin(&client)).await.code(), Code::Unavailable);
    }
    let opened = endpoint.open() - 1;
    assert!((1..=10).contains(&opened), "{opened} further connections");
    held.serve();
    assert_eq!(ended(first).await.code(), Code::NotFound);
    let call = begin(&client);
    endpoint.next().await.serve();
    assert_eq!(ended(call).await.code(), Code::NotFound);
}

#[tokio::test]
async fn peer_that_sends_no_settings_gets_no_request() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let instance = Instance::start().await;
    let targets = Targets::new("http://stock").at([instance.address, silent.local_addr().unwrap()]);
    let mut client = plain(targets);
    let (_kept, _) = timeout(PATIENCE, silent.accept()).await.unwrap().unwrap();
    for _ in 0..20 {
        client.call().await.unwrap();
    }
}

/// To the engine such a call is one that found no connection.
#[tokio::test]
async fn governed_call_fails_if_no_attempt_finds_a_stream() {
    let mut endpoint = Limited::start(1).await;
    let targets = Targets::new("http://stock").at([endpoint.address]);
    let mut client = governed(targets);
    let mut held = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let mut client = client.clone();
        calls.push(tokio::spawn(async move { client.call().await }));
        held.push(endpoint.next().await);
    }
    assert_eq!(client.call().await.unwrap_err().code(), Code::Unavailable);
    assert!(endpoint.arrivals.try_recv().is_err());
    held.into_iter().for_each(Held::serve);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::NotFound);
    }
}
