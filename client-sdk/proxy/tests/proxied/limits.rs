//! Callees that limit their streams, and callers that stop reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::SendStream;
use h2::server::Builder;
use tokio::task::JoinHandle;

use crate::peers::{Client, Server, begun, grpc, message, read, status, within};
use crate::{outbound, proxy_without_rule};

/// Responses that stand still; one more would fill the window of their connection.
const STALLED: usize = 15;
/// Receive window of a stream in the proxy.
const WINDOW: usize = 256 << 10;
const CHUNK: usize = 16 << 10;
/// Limit of what is on the way of all stalled responses: their windows, that of their caller, and the frames
/// between.
const ON_THE_WAY: usize = (STALLED + 2) * WINDOW;

#[tokio::test]
async fn long_streams_of_a_callee_do_not_stop_further_calls() {
    let mut builder = Builder::new();
    builder.max_concurrent_streams(2);
    let mut callee = Server::with(builder).await;
    let running = proxy_without_rule(&outbound(callee.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let mut long = Vec::new();
    for _ in 0..16 {
        let (response, send) = client.begin(grpc().body(()).unwrap(), false).await;
        long.push((callee.next().await, response, send));
    }
    // Beyond 8 connections a call is not sent.
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    let response = within(response).await.unwrap();
    assert_eq!(status(&response), Some("14"));
    let text = response.headers()["grpc-message"].to_str().unwrap();
    assert!(
        text.starts_with("damper%20proxy:%20not%20sent") || text.starts_with("damper proxy: not sent"),
        "{text}"
    );
    assert!(callee.arrived().is_none());
    // Nor a request that is not gRPC.
    let get = http::Request::get("http://callee.test/").body(()).unwrap();
    let (response, _) = client.begin(get, true).await;
    assert_eq!(within(response).await.unwrap().status(), 503);

    let (mut arrival, response, mut send) = long.pop().unwrap();
    send.send_data(Bytes::new(), true).unwrap();
    arrival.refuse(5);
    assert_eq!(status(&within(response).await.unwrap()), Some("5"));
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    callee.next().await.refuse(5);
    assert_eq!(status(&within(response).await.unwrap()), Some("5"));
}

/// Sends as fast as its receiver reads, without an end.
fn send(mut stream: SendStream<Bytes>, sent: Arc<AtomicUsize>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            stream.reserve_capacity(CHUNK);
            let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let Some(Ok(capacity)) = capacity else { return };
            stream.send_data(Bytes::from(vec![0; capacity.min(CHUNK)]), false).unwrap();
            sent.fetch_add(capacity.min(CHUNK), Ordering::SeqCst);
        }
    })
}

#[tokio::test]
async fn stalled_responses_leave_room_for_others() {
    let mut callee = Server::start().await;
    let running = proxy_without_rule(&outbound(callee.address)).await;
    let mut stalls = Client::connect(running.addresses.outbound[0]).await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let (response, _) = stalls.begin(grpc().body(()).unwrap(), true).await;
        let mut arrival = callee.next().await;
        let sent = Arc::<AtomicUsize>::default();
        let sending = send(arrival.respond.send_response(begun(), false).unwrap(), Arc::clone(&sent));
        stalled.push((within(response).await.unwrap(), sending, sent));
    }
    // Each has filled its window.
    within(async {
        while stalled.iter().any(|(_, _, sent)| sent.load(Ordering::SeqCst) < WINDOW) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let payload = vec![1; 64 << 10];
    for _ in 0..100 {
        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        callee.next().await.serve(&payload);
        let mut body = within(response).await.unwrap().into_body();
        assert!(read(&mut body).await.unwrap() == message(&payload));
    }
    let sent: usize = stalled.iter().map(|(_, _, sent)| sent.load(Ordering::SeqCst)).sum();
    assert!(sent <= ON_THE_WAY, "{sent} bytes are kept");
    assert_eq!(callee.connections(), 1, "all share a connection");
    stalled.iter().for_each(|(_, sending, _)| sending.abort());
}
