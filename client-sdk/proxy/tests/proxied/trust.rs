//! Flags and keys at the borders of the trusted services.

use http::HeaderValue;

use crate::peers::{Arrival, Client, Server, grpc, status, trailers_only, within};
use crate::{TRACE, outbound, proxy};

const KEY: &str = "0123456789abc";

async fn arrives(config: &str, server: &mut Server, head: http::request::Builder) -> Arrival {
    let running = proxy("shop", config).await;
    let address = running.addresses.inbound.unwrap_or_else(|| running.addresses.outbound[0]);
    let mut client = Client::connect(address).await;
    let (response, _) = client.begin(head.body(()).unwrap(), true).await;
    let mut arrival = server.next().await;
    arrival.refuse(5);
    within(response).await.unwrap();
    arrival
}

/// Returns the first member of a list.
fn first<'a>(arrival: &'a Arrival, name: &str) -> &'a str {
    arrival.field(name).unwrap().split(',').next().unwrap()
}

#[tokio::test]
async fn keys_that_arrive_are_replaced() {
    let mut server = Server::start().await;
    let config = format!("inbound: {{ listen: '127.0.0.1:0', to: '{}' }}", server.address);
    let head = grpc()
        .header("traceparent", TRACE)
        .header("tracestate", format!("a=1,damper={KEY}"))
        .header("tracestate", format!("damper={KEY},b=2"))
        .header("baggage", format!("c=3,damper.ctx={KEY};p=1,d=4"));
    let arrival = arrives(&config, &mut server, head).await;
    let state = first(&arrival, "tracestate").to_owned();
    assert_eq!(arrival.head.headers.get_all("tracestate").iter().count(), 1);
    assert_eq!(arrival.field("tracestate"), Some(format!("{state},a=1,b=2").as_str()));
    let baggage = first(&arrival, "baggage").to_owned();
    assert_eq!(arrival.field("baggage"), Some(format!("{baggage},c=3,d=4").as_str()));
    let key = state.strip_prefix("damper=").unwrap();
    assert_eq!((key.len(), baggage.strip_prefix("damper.ctx=")), (13, Some(key)));
    assert_ne!(key, KEY);
    assert_eq!(arrival.field("traceparent"), Some(TRACE));
}

#[tokio::test]
async fn keys_are_taken_off_calls_and_no_trace_is_made() {
    for external in [false, true] {
        let mut server = Server::start().await;
        let address = server.address;
        let config = format!(
            "outbound: [{{ callee: c, listen: '127.0.0.1:0', to: '{address}', external: {external} }}]"
        );
        let head = grpc().header("tracestate", format!("damper={KEY},a=1"));
        let head = head.header("baggage", format!("damper.ctx={KEY}"));
        let arrival = arrives(&config, &mut server, head).await;
        assert_eq!((arrival.field("tracestate"), arrival.field("baggage")), (Some("a=1"), None));
        assert_eq!(arrival.field("traceparent"), None);
    }
}

#[tokio::test]
async fn edge_drops_flags_and_certificates_that_arrive() {
    for edge in [false, true] {
        let mut server = Server::start().await;
        let config = format!("inbound: {{ listen: '127.0.0.1:0', to: '{}', edge: {edge} }}", server.address);
        let head = grpc()
            .header("damper-retry", "1")
            .header("grpc-previous-rpc-attempts", "1")
            .header("x-forwarded-client-cert", "URI=spiffe://shop/admin")
            .header("baggage", "damper.retry=1-9999999999999,a=1");
        let arrival = arrives(&config, &mut server, head).await;
        let fields = ["damper-retry", "grpc-previous-rpc-attempts", "x-forwarded-client-cert"];
        assert_eq!(fields.map(|name| arrival.field(name).is_some()), [!edge; 3]);
        assert_eq!(arrival.field("baggage").unwrap().contains("damper.retry"), !edge);
        assert!(arrival.field("baggage").unwrap().ends_with(",a=1"));
    }
}

/// The flag that arrives is at the calls of the request too, or at none.
#[tokio::test]
async fn edge_calls_are_first_attempts() {
    for edge in [false, true] {
        let (mut service, mut callee) = (Server::start().await, Server::start().await);
        let inbound =
            format!("inbound: {{ listen: '127.0.0.1:0', to: '{}', edge: {edge} }}\n", service.address);
        let running = proxy("shop", &(inbound + &outbound(callee.address))).await;
        let mut caller = Client::connect(running.addresses.inbound.unwrap()).await;
        let mut calls = Client::connect(running.addresses.outbound[0]).await;
        let (response, _) = caller.begin(grpc().header("damper-retry", "1").body(()).unwrap(), true).await;
        let mut request = service.next().await;
        let head = grpc().header("baggage", request.field("baggage").unwrap()).body(()).unwrap();
        let (called, _) = calls.begin(head, true).await;
        let mut call = callee.next().await;
        assert_eq!(call.field("damper-retry").is_some(), !edge);
        call.refuse(5);
        within(called).await.unwrap();
        request.refuse(5);
        within(response).await.unwrap();
    }
}

/// An external callee sees no flag, and cannot stop retries.
#[tokio::test]
async fn external_callee_gets_no_flags_and_sets_none() {
    for external in [false, true] {
        let mut server = Server::start().await;
        let address = server.address;
        let config = format!(
            "outbound: [{{ callee: c, listen: '127.0.0.1:0', to: '{address}', external: {external} }}]"
        );
        let running = proxy("shop", &config).await;
        let mut client = Client::connect(running.addresses.outbound[0]).await;
        let head = grpc().header("damper-retry", "1").header("baggage", "damper.retry=1-9999999999999,a=1");
        let (response, _) = client.begin(head.body(()).unwrap(), true).await;
        let mut arrival = server.next().await;
        let marks = [arrival.field("damper-retry"), arrival.field("grpc-previous-rpc-attempts")];
        assert_eq!(marks.iter().any(Option::is_some), !external, "{marks:?}");
        assert_eq!(arrival.field("baggage").unwrap().contains("damper.retry"), !external);
        arrival.refuse(5);
        within(response).await.unwrap();

        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        let mut stop = trailers_only(14);
        stop.headers_mut().insert("damper-no-more-retry", HeaderValue::from_static("1"));
        let mut attempts = 0;
        let mut response = Box::pin(within(response));
        let response = loop {
            tokio::select! {
                response = &mut response => break response.unwrap(),
                mut arrival = server.next() => {
                    attempts += 1;
                    arrival.respond.send_response(stop.clone(), true).unwrap();
                }
            }
        };
        assert_eq!((attempts, status(&response)), (if external { 3 } else { 1 }, Some("14")));
        assert!(response.headers().get("damper-no-more-retry").is_none());
    }
}

/// The service's own client may have a retry policy: its repeats are sent once, as retries.
#[tokio::test]
async fn repeat_of_the_services_own_client_is_sent_once() {
    let mut server = Server::start().await;
    let running = proxy("shop", &outbound(server.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let head = grpc().header("grpc-previous-rpc-attempts", "2").body(()).unwrap();
    let (response, _) = client.begin(head, true).await;
    let mut arrival = server.next().await;
    assert_eq!(arrival.field("damper-retry"), Some("2"));
    arrival.refuse(14);
    assert_eq!(status(&within(response).await.unwrap()), Some("14"));
    assert!(server.arrived().is_none());
    assert_eq!((running.counters)().own_client_repeats, 1);
}
