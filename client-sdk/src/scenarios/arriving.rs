//! Requests that arrive in pieces while the first attempt forwards them, on a paused clock.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::*;

const PIECES: [&str; 4] = ["one ", "two ", "three ", "four"];
const MIB: usize = 1 << 20;

/// What a server saw of one attempt.
#[derive(Clone, Debug, Default, PartialEq)]
struct Attempted {
    body: String,
    /// The body ended. Otherwise its stream was reset or the server stopped to read it.
    whole: bool,
    failed: bool,
    retry: bool,
}

/// What the server does with one attempt.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// Refuses it after this number of pieces, and drops the request.
    Refuses(usize),
    /// As above, but continues to read it.
    RefusesAndReads(usize),
    /// Reads it to its end and accepts it.
    Accepts,
    /// Begins its response after this number of pieces, and never ends it.
    Begins(usize),
    /// Keeps the request and reads no more after this number of pieces.
    Stalls(usize),
}

#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<VecDeque<Does>>>,
    seen: Arc<Mutex<Vec<Attempted>>>,
}

impl Server {
    fn new(script: impl IntoIterator<Item = Does>) -> Self {
        let server = Self::default();
        server.script.lock().unwrap().extend(script);
        server
    }

    fn seen(&self) -> Vec<Attempted> {
        self.seen.lock().unwrap().clone()
    }

    /// Reads up to this number of frames.
    async fn read(&self, place: usize, body: &mut Body, frames: usize) {
        for _ in 0..frames {
            let frame = body.frame().await;
            let seen = &mut self.seen.lock().unwrap()[place];
            match frame {
                Some(Ok(frame)) => {
                    seen.body.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
                }
                Some(Err(_)) => seen.failed = true,
                None => seen.whole = true,
            }
            if seen.failed || seen.whole {
                return;
            }
        }
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        let does = server.script.lock().unwrap().pop_front().expect("the script is long enough");
        let place = {
            let mut seen = server.seen.lock().unwrap();
            let retry = request.headers().contains_key("damper-retry");
            seen.push(Attempted { retry, ..Attempted::default() });
            seen.len() - 1
        };
        let mut body = request.into_body();
        Box::pin(async move {
            let refusal = || Ok(Response::builder().header("grpc-status", "14").body(Body::empty()).unwrap());
            match does {
                Does::Refuses(pieces) => {
                    server.read(place, &mut body, pieces).await;
                    refusal()
                }
                Does::RefusesAndReads(pieces) => {
                    server.read(place, &mut body, pieces).await;
                    tokio::spawn(async move { server.read(place, &mut body, usize::MAX).await });
                    refusal()
                }
                Does::Accepts => {
                    server.read(place, &mut body, usize::MAX).await;
                    Ok(Response::builder().header("grpc-status", "0").body(Body::empty()).unwrap())
                }
                Does::Begins(pieces) => {
                    server.read(place, &mut body, pieces).await;
                    tokio::spawn(async move { server.read(place, &mut body, usize::MAX).await });
                    Ok(Response::new(Body::new(super::peer::ScriptedBody::stalling([]))))
                }
                Does::Stalls(pieces) => {
                    server.read(place, &mut body, pieces).await;
                    std::future::pending().await
                }
            }
        })
    }
}

/// Sends the pieces of a request.
struct Pieces(mpsc::Sender<Result<Frame<Bytes>, tonic::Status>>);

impl Pieces {
    /// Returns false if the request was dropped.
    async fn send(&self, piece: &'static str) -> bool {
        self.0.send(Ok(Frame::data(Bytes::from_static(piece.as_bytes())))).await.is_ok()
    }
}

/// A request whose pieces the test sends.
fn piecewise() -> (Pieces, Request<Body>) {
    let (sender, pieces) = mpsc::channel(16);
    let body = Body::new(StreamBody::new(ReceiverStream::new(pieces)));
    (Pieces(sender), Request::post(METHOD).body(body).unwrap())
}

fn begin(engine: &Arc<Runtime>, server: &Server, request: Request<Body>) -> JoinHandle<String> {
    let mut service = governed(engine, server.clone());
    tokio::spawn(async move { call(&mut service, request).await.unwrap().status().to_owned() })
}

/// Sends the pieces of a request, with this time between them, and returns the status of the call.
async fn play(policy: Policy, server: &Server, gap: u64) -> (String, Arc<Runtime>) {
    let engine = engine(policy);
    let (sender, request) = piecewise();
    let calling = begin(&engine, server, request);
    tokio::task::yield_now().await;
    for (place, piece) in PIECES.into_iter().enumerate() {
        if place > 0 && gap > 0 {
            tokio::time::sleep(ms(gap)).await;
        }
        // A call that has ended has dropped the request.
        _ = sender.send(piece).await;
    }
    drop(sender);
    let status = calling.await.unwrap();
    // What is still in flight ends.
    tokio::time::sleep(ms(1_000)).await;
    (status, engine)
}

#[tokio::test(start_paused = true)]
async fn no_server_sees_a_request_twice_partly_or_reordered() {
    let (mut repeated, mut given_up) = (0, 0);
    for gap in [0, 1, 15, 25] {
        for pieces in 0..=PIECES.len() {
            for does in [Does::Refuses(pieces), Does::RefusesAndReads(pieces)] {
                let server = Server::new([does, Does::Accepts]);
                let (status, engine) = play(enforce(), &server, gap).await;
                let seen = server.seen();
                let whole = PIECES.concat();
                for attempt in &seen {
                    assert!(whole.starts_with(&attempt.body), "{does:?} {gap} {attempt:?}");
                    assert!(!attempt.whole || attempt.body == whole, "{does:?} {gap} {attempt:?}");
                }
                let refused_at = gap * pieces.saturating_sub(1) as u64;
                let in_time = 3 * gap <= refused_at + 20;
                let expected = if in_time { ("0", 2) } else { ("14", 1) };
                assert_eq!((status.as_str(), seen.len()), expected, "{does:?} {gap}");
                if in_time {
                    assert_eq!(seen[1], Attempted { body: whole, whole: true, failed: false, retry: true });
                    repeated += 1;
                } else {
                    given_up += 1;
                }
                let fate = if in_time { "ok_after_retry" } else { "not_replayable" };
                ended(&engine, &[(fate, 1)]);
                assert_eq!(engine.memory().in_use(), 0);
            }
        }
    }
    assert_eq!((repeated, given_up), (26, 14));
}

#[tokio::test(start_paused = true)]
async fn attempt_that_loses_the_request_to_the_call_is_reset() {
    let server = Server::new([Does::RefusesAndReads(2), Does::Accepts]);
    let (status, _) = play(enforce(), &server, 5).await;
    let seen = server.seen();
    assert_eq!((status.as_str(), seen.len()), ("0", 2));
    assert_eq!(seen[0], Attempted { body: PIECES[..2].concat(), whole: false, failed: true, retry: false });
}

#[tokio::test(start_paused = true)]
async fn pieces_reach_the_first_attempt_at_once() {
    let (engine, server) = (engine(enforce()), Server::new([Does::Accepts]));
    let (sender, request) = piecewise();
    let calling = begin(&engine, &server, request);
    for sent in 1..=PIECES.len() {
        assert!(sender.send(PIECES[sent - 1]).await);
        tokio::time::sleep(ms(30)).await;
        assert_eq!(server.seen()[0].body, PIECES[..sent].concat());
    }
    drop(sender);
    assert_eq!(calling.await.unwrap(), "0");
    ended(&engine, &[("ok", 1)]);
}

#[tokio::test(start_paused = true)]
async fn request_beyond_the_limit_is_forwarded_whole_and_once() {
    let whole = PIECES.concat();
    for (limit, sends) in [(whole.len(), 2), (whole.len() - 1, 1), (0, 1)] {
        let policy = Policy { replay_limit: u32::try_from(limit).unwrap(), ..enforce() };
        let server = Server::new([Does::Refuses(9), Does::Accepts]);
        let (_, engine) = play(policy, &server, 1).await;
        let seen = server.seen();
        assert_eq!(seen.len(), sends, "{limit}");
        assert!(seen.iter().all(|attempt| attempt.body == whole && attempt.whole));
        ended(&engine, &[(if sends == 2 { "ok_after_retry" } else { "not_replayable" }, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn hedge_waits_until_the_request_is_whole() {
    use damper_core::{Hedge, HedgeDelay};
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 });
    let policy = Policy { retry: None, hedge, ..enforce() };
    let server = Server::new([Does::Stalls(9), Does::Accepts]);
    let engine = engine(policy);
    let (sender, request) = piecewise();
    let calling = begin(&engine, &server, request);
    for piece in PIECES {
        tokio::time::sleep(ms(100)).await;
        assert!(sender.send(piece).await);
    }
    let began = tokio::time::Instant::now();
    drop(sender);
    assert_eq!(calling.await.unwrap(), "0");
    assert_eq!(began.elapsed(), ms(50));
    assert!(server.seen().iter().all(|seen| seen.whole && seen.body == PIECES.concat()));
    ended(&engine, &[("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn held_response_of_an_arriving_request_goes_through() {
    let (engine, server) = (held::holding(65_536), Server::new([Does::Begins(1)]));
    let (sender, request) = piecewise();
    assert!(sender.send("one ").await);
    let mut service = governed(&engine, server.clone());
    let response = service.call(request).await.unwrap();
    assert_eq!(engine.memory().in_use(), 0, "the response has begun");
    assert!(sender.send("two ").await);
    drop(sender);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(server.seen()[0], Attempted { body: "one two ".into(), whole: true, ..Attempted::default() });
    drop(response);
    ended(&engine, &[("cancelled", 1)]);
}

#[tokio::test(start_paused = true)]
async fn observed_request_is_forwarded_and_its_fate_known() {
    for (does, fate) in [(Does::Refuses(9), "would_retry"), (Does::Refuses(2), "would_not_replayable")] {
        let server = Server::new([does]);
        let (status, engine) = play(observe(), &server, 1).await;
        assert_eq!((status.as_str(), server.seen().len()), ("14", 1));
        ended(&engine, &[(fate, 1)]);
        assert_eq!(engine.memory().in_use(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn failing_source_of_a_request_ends_the_call_with_its_error() {
    let (engine, server) = (engine(enforce()), Server::new([Does::Refuses(1), Does::Accepts]));
    let (sender, request) = piecewise();
    let calling = begin(&engine, &server, request);
    assert!(sender.send("one ").await);
    tokio::time::sleep(ms(5)).await;
    sender.0.send(Err(tonic::Status::internal("cannot encode"))).await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(calling.await.unwrap(), "14");
    assert_eq!((began.elapsed(), server.seen().len()), (ms(0), 1), "nothing is waited for");
    ended(&engine, &[("not_replayable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn abandoned_calls_give_their_bytes_back() {
    let engine = engine(enforce());
    for pieces in [0, 1, 2] {
        // The transport keeps the body of the attempt, which it does not read.
        let server = Server::new([Does::Stalls(pieces)]);
        let (sender, request) = piecewise();
        assert!(sender.send("one ").await);
        let calling = begin(&engine, &server, request);
        tokio::task::yield_now().await;
        _ = sender.send("two ").await;
        tokio::time::sleep(ms(1)).await;
        assert_eq!(engine.memory().in_use(), 4 << 10);
        calling.abort();
        assert!(calling.await.is_err());
        assert_eq!(engine.memory().in_use(), 0);
    }
    // While the call itself reads the request.
    let server = Server::new([Does::Refuses(1)]);
    let (sender, request) = piecewise();
    assert!(sender.send("one ").await);
    let calling = begin(&engine, &server, request);
    tokio::time::sleep(ms(5)).await;
    assert_eq!((server.seen().len(), engine.memory().in_use()), (1, 4 << 10));
    calling.abort();
    assert!(calling.await.is_err());
    assert_eq!(engine.memory().in_use(), 0);
    assert!(!sender.send("two ").await, "the request is dropped");
    ended(&engine, &[("cancelled", 4)]);
}

#[tokio::test(start_paused = true)]
async fn calls_that_arrive_keep_a_bounded_number_of_bytes() {
    const CALLS: usize = 10_000;
    let engine = engine(enforce());
    let server = Server::new([Does::Accepts; CALLS]);
    let mut calls = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..CALLS {
        let (sender, request) = piecewise();
        calls.push(begin(&engine, &server, request));
        senders.push(sender);
    }
    tokio::task::yield_now().await;
    for _ in 0..4 {
        for sender in &senders {
            assert!(sender.send("x").await);
        }
        tokio::time::sleep(ms(1)).await;
        assert_eq!(engine.memory().in_use(), 16 * MIB, "4096 calls are kept, the others sent once");
    }
    drop(senders);
    for call in calls {
        assert_eq!(call.await.unwrap(), "0");
    }
    assert!(server.seen().iter().all(|seen| seen.body == "xxxx" && seen.whole));
    assert_eq!(engine.memory().in_use(), 0);
    ended(&engine, &[("ok", CALLS as u64)]);
}
