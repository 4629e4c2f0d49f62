//! A callee that changes its limit of streams while calls are in flight.

use damper_sdk::balance::Targets;
use damper_sdk::{Balanced, balanced};
use damper_tests::hop::call;
use damper_tests::peer::raw::{Raw, RawPeer};
use tokio::task::JoinHandle;
use tonic::{Code, Request, Response, Status};

use super::world::within;

fn begin(channel: &Balanced) -> JoinHandle<Result<Response<String>, Status>> {
    tokio::spawn(call(channel.clone(), Request::new("one".to_owned())))
}

async fn code(call: JoinHandle<Result<Response<String>, Status>>) -> Code {
    within("the call ends", call).await.expect("no panic").expect_err("nothing is served").code()
}

/// Ends a call with NOT_FOUND.
async fn refuse(connection: &mut Raw, stream: u32) {
    let fields: [(&str, &[u8]); 3] =
        [(":status", b"200"), ("content-type", b"application/grpc"), ("grpc-status", b"5")];
    connection.headers(stream, &fields, true).await;
}

/// Calls in flight go on. Further ones go to another connection, are not sent if there is none, and go to the
/// first one again once it allows them.
#[tokio::test]
async fn limit_of_zero_stops_new_calls_alone_until_it_is_raised() {
    let peer = RawPeer::listen().await;
    let channel = balanced(Targets::new("http://stock").at([peer.address()])).expect("good targets");
    let early = begin(&channel);
    let mut first = peer.accept().await;
    let in_flight = first.request().await;
    first.allow(0).await;

    let elsewhere = begin(&channel);
    let mut second = peer.accept().await;
    let stream = second.request().await;
    second.allow(0).await;
    refuse(&mut second, stream).await;
    assert_eq!(code(elsewhere).await, Code::NotFound);

    drop(peer);
    for _ in 0..3 {
        assert_eq!(code(begin(&channel)).await, Code::Unavailable);
    }
    refuse(&mut first, in_flight).await;
    assert_eq!(code(early).await, Code::NotFound);

    first.allow(1).await;
    let late = begin(&channel);
    let stream = first.request().await;
    refuse(&mut first, stream).await;
    assert_eq!(code(late).await, Code::NotFound);
}
