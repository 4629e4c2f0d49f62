//! Resets of streams, in both directions.

use bytes::Bytes;
use h2::{Reason, RecvStream};

use crate::peers::{Client, Server, begun, grpc, message, read, read_some, status, within};
use crate::{Running, inbound, outbound, proxy, proxy_without_rule};

/// The ways through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Inbound,
    UnderRule,
    WithoutRule,
}

const WAYS: [Way; 3] = [Way::Inbound, Way::UnderRule, Way::WithoutRule];

async fn start(way: Way) -> (Server, Running, Client) {
    let server = Server::start().await;
    let running = match way {
        Way::Inbound => proxy("shop", &inbound(server.address)).await,
        Way::UnderRule => proxy("shop", &outbound(server.address)).await,
        Way::WithoutRule => proxy_without_rule(&outbound(server.address)).await,
    };
    let address = running.addresses.inbound.unwrap_or_else(|| running.addresses.outbound[0]);
    let client = Client::connect(address).await;
    (server, running, client)
}

#[tokio::test]
async fn reset_before_the_response_has_its_code_at_the_caller() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        for reason in [Reason::INTERNAL_ERROR, Reason::ENHANCE_YOUR_CALM, Reason::CANCEL] {
            let (response, _send) = client.begin(grpc().body(()).unwrap(), false).await;
            server.next().await.respond.send_reset(reason);
            let error = within(response).await.unwrap_err();
            assert_eq!((error.is_reset(), error.reason()), (true, Some(reason)), "{way:?}");
        }
    }
}

#[tokio::test]
async fn reset_within_the_response_has_its_code_at_the_caller() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        for reason in [Reason::INTERNAL_ERROR, Reason::ENHANCE_YOUR_CALM, Reason::CANCEL] {
            let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
            let mut arrival = server.next().await;
            let mut body = arrival.respond.send_response(begun(), false).unwrap();
            body.send_data(message(b"one"), false).unwrap();
            let mut response = within(response).await.unwrap().into_body();
            assert_eq!(read_some(&mut response, 8).await, message(b"one"));
            body.send_reset(reason);
            let (rest, error) = read(&mut response).await.unwrap_err();
            assert_eq!((rest.len(), error.reason()), (0, Some(reason)), "{way:?}");
        }
    }
}

/// A stock client would send the request once more, below the rules.
#[tokio::test]
async fn refused_stream_becomes_a_status() {
    for way in [Way::Inbound, Way::WithoutRule] {
        let (mut server, _running, mut client) = start(way).await;
        let (response, _send) = client.begin(grpc().body(()).unwrap(), false).await;
        server.next().await.respond.send_reset(Reason::REFUSED_STREAM);
        let response = within(response).await.unwrap();
        assert_eq!(status(&response), Some("14"), "{way:?}");
        assert!(response.headers().get("damper-no-more-retry").is_none());
    }
}

/// The caller resets while its request is whole, open, and larger than the window of the callee.
#[tokio::test]
async fn cancellation_before_the_response_resets_the_callee() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        for bytes in [None, Some(10), Some(1 << 20)] {
            let (response, mut send) = client.begin(grpc().body(()).unwrap(), bytes.is_none()).await;
            if let Some(bytes) = bytes {
                send.send_data(Bytes::from(vec![7; bytes]), false).unwrap();
            }
            let mut arrival = server.next().await;
            send.send_reset(Reason::CANCEL);
            assert_eq!(arrival.reset().await, Reason::CANCEL, "{way:?}, {bytes:?}");
            drop(response);
        }
    }
}

/// The caller resets a response that it reads, and one whose window is full.
#[tokio::test]
async fn cancellation_within_the_response_resets_the_callee() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        for bytes in [10, 1 << 20] {
            let (response, mut send) = client.begin(grpc().body(()).unwrap(), false).await;
            let mut arrival = server.next().await;
            let mut body = arrival.respond.send_response(begun(), false).unwrap();
            body.send_data(Bytes::from(vec![7; bytes]), false).unwrap();
            let mut response: RecvStream = within(response).await.unwrap().into_body();
            assert!(within(response.data()).await.unwrap().is_ok());
            send.send_reset(Reason::CANCEL);
            let reason = within(std::future::poll_fn(|cx| body.poll_reset(cx))).await.unwrap();
            assert_eq!(reason, Reason::CANCEL, "{way:?}, {bytes}");
        }
    }
}

#[tokio::test]
async fn connection_that_its_caller_closes_resets_all_its_calls() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        let mut kept = Vec::new();
        let mut arrivals = Vec::new();
        for _ in 0..3 {
            kept.push(client.begin(grpc().body(()).unwrap(), false).await);
            arrivals.push(server.next().await);
        }
        client.connection.abort();
        for mut arrival in arrivals {
            // The whole connection to the service may be closed instead.
            let reset = within(std::future::poll_fn(|cx| arrival.respond.poll_reset(cx))).await;
            let is_reset = reset.as_ref().map_or(way == Way::Inbound, |reason| *reason == Reason::CANCEL);
            assert!(is_reset, "{way:?}: {reset:?}");
        }
    }
}

/// hyper takes such a reset for the end of the body.
#[tokio::test]
async fn request_that_is_reset_without_an_error_is_not_complete() {
    for way in WAYS {
        let (mut server, _running, mut client) = start(way).await;
        for is_begun in [false, true] {
            let (response, mut send) = client.begin(grpc().body(()).unwrap(), false).await;
            send.send_data(message(b"one"), false).unwrap();
            let mut arrival = server.next().await;
            read_some(&mut arrival.body, 8).await;
            let mut begun = is_begun.then(|| arrival.respond.send_response(begun(), false).unwrap());
            let mut kept = Some(response);
            let response = match kept.take_if(|_| is_begun) {
                Some(response) => Some(within(response).await.unwrap()),
                None => None,
            };
            send.send_reset(Reason::NO_ERROR);
            let (rest, error) = read(&mut arrival.body).await.unwrap_err();
            assert_eq!((rest.len(), error.reason()), (0, Some(Reason::CANCEL)), "{way:?}, {is_begun}");
            drop((begun.take(), kept, response));
        }
    }
}
