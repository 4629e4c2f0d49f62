//! Requests in pieces, refused after each piece. No server may see a body twice, partly or in another order:
//! a body that ends is whole, any other is a beginning, and each further attempt has all of it.
//!
//! Time between pieces is measured in round trips of other calls, so no assertion depends on it.

use bytes::Bytes;
use h2::Reason;
use tokio::task::JoinHandle;

use crate::peers::{self, Arrival, Client, Server, grpc, message, read, read_some, status, within};
use crate::{Running, outbound, proxy};

/// Ends of the pieces: within the prefix, in the first frame, after several frames.
const ENDS: [usize; 3] = [3, 7_000, 40_000];
const MISSES: [usize; 3] = [0, 1, 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// UNAVAILABLE in headers alone.
    Status,
    /// REFUSED_STREAM.
    Stream,
    /// The connection is closed.
    Cut,
}
use Refusal::{Cut, Status, Stream};

fn whole() -> Bytes {
    let payload: Vec<u8> = (0..60_000_u32).map(|place| (place % 251) as u8).collect();
    message(&payload)
}

/// What a server has seen of one attempt.
type Seen = Result<Vec<u8>, (Vec<u8>, h2::Error)>;

/// A proxy, its callee and a call whose request is in pieces.
struct Case {
    server: Server,
    running: Running,
    client: Client,
}

impl Case {
    async fn start() -> Self {
        let server = Server::start().await;
        let running = proxy("shop", &outbound(server.address)).await;
        let client = Client::connect(running.addresses.outbound[0]).await;
        Self { server, running, client }
    }

    /// Refuses an attempt, and returns all that its server will have seen of the body.
    fn refuse(&self, arrival: Arrival, seen: Vec<u8>, refusal: Refusal) -> JoinHandle<Seen> {
        let Arrival { mut body, mut respond, .. } = arrival;
        match refusal {
            Status => {
                respond.send_response(peers::trailers_only(14), true).unwrap();
            }
            Stream => respond.send_reset(Reason::REFUSED_STREAM),
            Cut => self.server.cut(),
        }
        tokio::spawn(async move {
            let join = |rest| [seen, rest].concat();
            match read(&mut body).await {
                Ok(rest) => Ok(join(rest)),
                Err((rest, error)) => Err((join(rest), error)),
            }
        })
    }

    /// Lets time pass: calls of their own connection and proxy, in the same runtime.
    async fn pass(&self, round_trips: usize) {
        if round_trips == 0 {
            return;
        }
        let mut other = Server::start().await;
        let running = proxy("shop", &outbound(other.address)).await;
        let mut client = Client::connect(running.addresses.outbound[0]).await;
        for _ in 0..round_trips {
            let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
            other.next().await.serve(b"");
            within(response).await.unwrap();
        }
    }
}

#[track_caller]
fn assert_is_a_beginning(seen: &Seen, what: &str) {
    let whole = whole();
    match seen {
        Ok(seen) => assert!(*seen == whole, "{what}: a request of {} bytes looks complete", seen.len()),
        Err((seen, _)) => assert!(whole.starts_with(seen), "{what}: not as it was sent"),
    }
}

/// The caller sends the rest as soon as the server has refused: it may be kept or not.
async fn refused_while_it_arrives(after: usize, refusal: Refusal, missing: usize) {
    let what = format!("{refusal:?} after {after} bytes, {missing} round trips");
    let (mut case, body) = (Case::start().await, whole());
    let (response, mut send) = case.client.begin(grpc().body(()).unwrap(), false).await;
    send.send_data(body.slice(..after), false).unwrap();
    let mut first = case.server.next().await;
    let seen = read_some(&mut first.body, after).await;
    let first = case.refuse(first, seen, refusal);
    case.pass(missing).await;
    // The proxy may have ended the call.
    _ = send.send_data(body.slice(after..), true);
    let mut response = Box::pin(within(response));
    let (response, again) = tokio::select! {
        response = &mut response => (response, None),
        mut again = case.server.next() => {
            assert_eq!(read(&mut again.body).await.unwrap(), body, "{what}");
            again.serve(b"done");
            (response.await, Some(again))
        }
    };
    assert_is_a_beginning(&first.await.unwrap(), &what);
    let response = response.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    match again {
        Some(again) => {
            assert_eq!(again.field("grpc-previous-rpc-attempts").is_some(), refusal != Stream, "{what}");
            assert_eq!(read(&mut response.into_body()).await.unwrap(), message(b"done"), "{what}");
        }
        None => assert_eq!(status(&response), Some("14"), "{what}"),
    }
    assert!(case.server.arrived().is_none(), "{what}: one attempt too many");
}

#[tokio::test]
async fn request_that_is_refused_in_pieces_stays_one_request() {
    for refusal in [Status, Stream, Cut] {
        for after in ENDS {
            for missing in MISSES {
                refused_while_it_arrives(after, refusal, missing).await;
            }
        }
    }
}

#[tokio::test]
async fn request_that_arrived_before_its_refusal_is_repeated() {
    for refusal in [Status, Stream] {
        let (mut case, body) = (Case::start().await, whole());
        let (response, mut send) = case.client.begin(grpc().body(()).unwrap(), false).await;
        let mut from = 0;
        let mut first = None;
        for end in ENDS.into_iter().chain([body.len()]) {
            send.send_data(body.slice(from..end), end == body.len()).unwrap();
            let (mut arrival, mut seen) = match first.take() {
                Some(first) => first,
                None => (case.server.next().await, Vec::new()),
            };
            seen.extend(read_some(&mut arrival.body, end - from).await);
            first = Some((arrival, seen));
            from = end;
        }
        let (mut first, seen) = first.unwrap();
        assert!(within(first.body.data()).await.is_none());
        let first = case.refuse(first, seen, refusal);
        let mut again = case.server.next().await;
        assert_eq!(read(&mut again.body).await.unwrap(), body);
        again.serve(b"done");
        let response = within(response).await.unwrap();
        assert_eq!(read(&mut response.into_body()).await.unwrap(), message(b"done"));
        assert_is_a_beginning(&first.await.unwrap(), "first attempt");
        assert!(case.server.arrived().is_none());
    }
}

#[tokio::test]
async fn request_whose_rest_never_arrives_is_sent_once() {
    for refusal in [Status, Stream, Cut] {
        for after in ENDS {
            let (mut case, body) = (Case::start().await, whole());
            let (response, mut send) = case.client.begin(grpc().body(()).unwrap(), false).await;
            send.send_data(body.slice(..after), false).unwrap();
            let mut first = case.server.next().await;
            let seen = read_some(&mut first.body, after).await;
            let first = case.refuse(first, seen, refusal);
            let response = within(response).await;
            let response = response.unwrap_or_else(|error| panic!("{refusal:?} after {after}: {error:?}"));
            assert_eq!(status(&response), Some("14"), "{refusal:?} after {after}");
            let seen = first.await.unwrap();
            assert!(seen.is_err(), "{refusal:?} after {after}: it looks complete");
            assert_is_a_beginning(&seen, "first attempt");
            assert!(case.server.arrived().is_none());
            drop((send, case.running));
        }
    }
}

/// The status is all there is, though the proxy resets the rest of the request.
#[tokio::test]
async fn error_before_the_end_of_a_request_passes_as_it_is() {
    for code in [5, 14] {
        let (mut case, body) = (Case::start().await, whole());
        let (response, mut send) = case.client.begin(grpc().body(()).unwrap(), false).await;
        send.send_data(body.slice(..7_000), false).unwrap();
        let mut first = case.server.next().await;
        read_some(&mut first.body, 7_000).await;
        first.refuse(code);
        let response = within(response).await.unwrap();
        assert_eq!(status(&response), Some(code.to_string().as_str()));
        assert!(response.into_body().is_end_stream());
        assert_eq!(first.reset().await, Reason::CANCEL);
    }
}
