//! A callee that ends with calls in flight, and starts again.

use crate::peers::{Client, Server, grpc, message, read, status, within};
use crate::{outbound, proxy};

#[tokio::test]
async fn calls_of_a_callee_that_restarts_fail_and_then_pass() {
    let mut callee = Server::start().await;
    let running = proxy("shop", &outbound(callee.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let mut in_flight = Vec::new();
    for _ in 0..10 {
        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        in_flight.push((response, callee.next().await));
    }
    callee.end().await;
    for (response, _) in in_flight {
        assert_eq!(status(&within(response).await.unwrap()), Some("14"));
    }
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    assert_eq!(status(&within(response).await.unwrap()), Some("14"), "nothing listens");

    callee.start_again().await;
    // Until the proxy has connected again, calls fail.
    let served = loop {
        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        let mut response = std::pin::pin!(within(response));
        tokio::select! {
            failed = &mut response => assert_eq!(status(&failed.unwrap()), Some("14")),
            mut arrival = callee.next() => {
                arrival.serve(b"back");
                break response.await.unwrap();
            }
        }
    };
    assert_eq!(read(&mut served.into_body()).await.unwrap(), message(b"back"));
    assert!(!client.connection.is_finished(), "the service does not notice");
}
