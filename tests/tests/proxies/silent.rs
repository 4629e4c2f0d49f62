//! A callee that stops: it accepts a connection, sends its settings, and reads nothing more.

use std::net::SocketAddr;

use bytes::Bytes;
use damper_tests::peer::framed;
use damper_tests::peer::raw::RawPeer;
use futures_util::stream::{self, StreamExt as _};
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{ANY_PORT, NOWHERE, PATIENCE, Proxy};

const CALLS: usize = 20_000;
const AT_A_TIME: usize = 400;
/// The requests that are in flight fit the window of their connection.
const LENGTH: usize = 8 << 10;
/// Calls before memory is measured first.
const FIRST: usize = 1_000;
/// The windows of a caller's connection and of an endpoint's, requests that are kept for repeats, and what an
/// allocator needs. All requests together have 156 MiB.
const MOST_KIB: u64 = 32 << 10;

/// Sends one call with 100 ms to live, and returns its status.
async fn late(caller: &SendRequest<Bytes>, message: Bytes) -> String {
    let head = Request::post("http://stock.test/test.Hop/Call")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "100m");
    let mut ready = caller.clone().ready().await.expect("the proxy keeps the connection");
    let sent = ready.send_request(head.body(()).expect("a head"), false);
    let (response, mut body) = sent.expect("the proxy keeps the connection");
    // The call may have ended already, and its stream with it.
    let _ = body.send_data(message, true);
    let response = timeout(PATIENCE, response).await.expect("the call ends").expect("a status");
    response.headers()["grpc-status"].to_str().expect("a number").to_owned()
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("the proxy listens");
    let (caller, connection) = h2::client::handshake(stream).await.expect("the proxy greets");
    tokio::spawn(connection);
    caller
}

/// Sends calls, which all end by their deadline.
async fn send(caller: &SendRequest<Bytes>, count: usize) {
    let message = framed(&"x".repeat(LENGTH));
    let calls = (0..count).map(|_| late(caller, message.clone()));
    let ended: Vec<_> = stream::iter(calls).buffer_unordered(AT_A_TIME).collect().await;
    assert!(ended.iter().all(|status| status == "4"), "{:?}", ended.iter().find(|status| *status != "4"));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_silent_callee_end_in_time_and_are_not_kept() {
    let (callee, service) = (RawPeer::listen().await, RawPeer::listen().await);
    let proxy = Proxy::start(NOWHERE, ANY_PORT, service.address(), callee.address());
    let caller = connect(proxy.addresses.outbound()).await;
    let (_kept, ()) = tokio::join!(callee.accept(), send(&caller, FIRST));
    let before = proxy.process.memory_kib();
    send(&caller, CALLS - FIRST).await;
    let more = proxy.process.memory_kib().saturating_sub(before);
    assert!(more <= MOST_KIB, "{more} KiB are kept");
}
