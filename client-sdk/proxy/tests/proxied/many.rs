//! More calls to an endpoint than one connection may have streams.

use bytes::Bytes;
use h2::server::Builder;
use h2::{Reason, RecvStream, SendStream};
use http::Response;

use crate::peers::{Arrival, Client, Server, begun, grpc, status, within};
use crate::{outbound, proxy};

const STREAMS: u32 = 2;
const CONNECTIONS: usize = 8;

/// Begins a call and its response. All of it is kept: a dropped response would end the call.
async fn begin(
    client: &mut Client,
    server: &mut Server,
) -> (Arrival, SendStream<Bytes>, Response<RecvStream>) {
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    let mut arrival = server.next().await;
    let body = arrival.respond.send_response(begun(), false).unwrap();
    (arrival, body, within(response).await.unwrap())
}

#[tokio::test]
async fn calls_beyond_a_stream_limit_get_further_connections() {
    let mut builder = Builder::new();
    builder.max_concurrent_streams(STREAMS);
    let mut server = Server::with(builder).await;
    let running = proxy("shop", &outbound(server.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let mut calls = Vec::new();
    for number in 0..CONNECTIONS * STREAMS as usize {
        calls.push(begin(&mut client, &mut server).await);
        assert_eq!(server.connections(), number / STREAMS as usize + 1);
    }

    // All are full: the call was not sent.
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    assert_eq!(status(&within(response).await.unwrap()), Some("14"));
    assert!(server.arrived().is_none());

    // The end of one leaves room for another.
    calls.remove(3).1.send_reset(Reason::INTERNAL_ERROR);
    within(async {
        loop {
            let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
            let mut response = Box::pin(within(response));
            tokio::select! {
                response = &mut response => assert_eq!(status(&response.unwrap()), Some("14")),
                mut arrival = server.next() => {
                    arrival.refuse(5);
                    assert_eq!(status(&response.await.unwrap()), Some("5"));
                    return;
                }
            }
        }
    })
    .await;
    assert_eq!(server.connections(), CONNECTIONS);
}
