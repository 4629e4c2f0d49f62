//! Failures that only a transport causes: connections that are refused, lost or closed with GOAWAY, and
//! streams that are reset.
//!
//! The peer is a scripted HTTP/2 server, with a few raw bytes for one frame that its library never sends.

use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use super::wire::{Caller as _, connect};
use super::*;

#[tokio::test]
async fn a_failed_connection_is_retried_after_a_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let engine = engine(enforce());
    let error = governed(&engine, connect(address)).reserve("x".to_owned()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    ended(&engine, &[("attempts_exhausted", 1)]);
    assert_eq!(counted(&engine), Sends { attempts: 3, retries: 2, resends: 0 });
}

#[derive(Debug, PartialEq)]
struct Sends {
    attempts: u64,
    retries: u64,
    resends: u64,
}

fn counted(engine: &Runtime) -> Sends {
    let mut sends = Sends { attempts: 0, retries: 0, resends: 0 };
    engine.for_each_route(|_, _, route| {
        let counters = &route.state().counters;
        sends.attempts += counters.attempts();
        sends.retries += counters.retries();
        sends.resends += counters.transparent_resends();
    });
    sends
}

/// Reaction of a scripted HTTP/2 peer to a request.
enum Act {
    Reset(h2::Reason),
    /// Closes the connection.
    HangUp,
    Answer,
}

/// Serves connections in sequence by the script and returns the requests' headers.
async fn scripted(script: Vec<Act>) -> (SocketAddr, Arc<Mutex<Vec<HeaderMap>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        let mut script = script.into_iter();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            connection(socket, &mut script, &log).await;
        }
    });
    (address, seen)
}

async fn connection(socket: TcpStream, script: &mut impl Iterator<Item = Act>, log: &Mutex<Vec<HeaderMap>>) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        log.lock().unwrap().push(request.headers().clone());
        match script.next() {
            None | Some(Act::HangUp) => return,
            Some(Act::Reset(reason)) => respond.send_reset(reason),
            Some(Act::Answer) => answer(&mut respond),
        }
    }
}

fn answer(respond: &mut h2::server::SendResponse<Bytes>) {
    let response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut stream = respond.send_response(response, false).unwrap();
    stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    stream.send_trailers(trailers).unwrap();
}

#[tokio::test]
async fn a_refused_stream_is_resent_once_without_a_flag() {
    let script = vec![Act::Reset(h2::Reason::REFUSED_STREAM), Act::Answer];
    let (address, seen) = scripted(script).await;
    let engine = engine(enforce());
    governed(&engine, connect(address)).reserve("x".to_owned()).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(counted(&engine), Sends { attempts: 2, retries: 0, resends: 1 });
    ended(&engine, &[("ok", 1)]);
}

#[tokio::test]
async fn a_connection_lost_in_flight_is_an_ordinary_failure() {
    let (address, seen) = scripted(vec![Act::HangUp, Act::Answer]).await;
    let engine = engine(enforce());
    governed(&engine, connect(address)).reserve("x".to_owned()).await.unwrap();
    assert_eq!(seen.lock().unwrap()[1]["damper-retry"], "1");
    assert_eq!(counted(&engine), Sends { attempts: 2, retries: 1, resends: 0 });
}

#[tokio::test]
async fn resets_are_distinguished() {
    let cases = [
        (h2::Reason::ENHANCE_YOUR_CALM, damper_core::Code::ResourceExhausted),
        (h2::Reason::INADEQUATE_SECURITY, damper_core::Code::PermissionDenied),
        (h2::Reason::CANCEL, damper_core::Code::Cancelled),
        (h2::Reason::PROTOCOL_ERROR, damper_core::Code::Internal),
    ];
    for (reason, code) in cases {
        let (address, _) = scripted(vec![Act::Reset(reason)]).await;
        let engine = engine(enforce());
        governed(&engine, connect(address)).reserve("x".to_owned()).await.unwrap_err();
        engine.for_each_route(|_, _, route| {
            assert_eq!(route.state().counters.code(code), 1, "{reason:?}");
        });
        ended(&engine, &[("not_retryable", 1)]);
    }
}

#[tokio::test]
async fn the_first_attempt_has_the_headers_that_plain_tonic_sends() {
    let (address, seen) = scripted(vec![Act::Answer, Act::Answer, Act::Answer]).await;
    let channel = connect(address);
    channel.clone().reserve("x".to_owned()).await.unwrap();
    governed(&engine(None), channel.clone()).reserve("x".to_owned()).await.unwrap();
    governed(&engine(enforce()), channel).reserve("x".to_owned()).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

/// An HTTP/2 frame without padding or priority.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

/// Accepts a connection and rejects all its streams once a request arrived.
async fn goes_away(socket: &mut TcpStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    socket.read_exact(&mut [0; PREFACE]).await.unwrap();
    socket.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        socket.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).await.unwrap();
        if head[3] == HEADERS {
            // Last processed stream 0, no error.
            return socket.write_all(&frame(GOAWAY, 0, &[0; 8])).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_goaway_that_leaves_the_request_out_makes_it_resent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut going, _) = listener.accept().await.unwrap();
        goes_away(&mut going).await;
        let (socket, _) = listener.accept().await.unwrap();
        let mut script = std::iter::repeat_with(|| Act::Answer);
        connection(socket, &mut script, &Mutex::default()).await;
    });
    let engine = engine(enforce());
    governed(&engine, connect(address)).reserve("x".to_owned()).await.unwrap();
    assert_eq!(counted(&engine).resends, 1);
}
