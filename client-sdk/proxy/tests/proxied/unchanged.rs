//! What a proxy does not change.

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Method, Request, Response};

use crate::peers::{Arrival, Client, Server, grpc, message, read, status, within};
use crate::{Running, inbound, outbound, proxy};

/// A service behind a proxy, or a callee.
async fn both() -> Vec<(Server, Running, Client)> {
    let mut ways = Vec::new();
    for config in [inbound, outbound] {
        let server = Server::start().await;
        let running = proxy("shop", &config(server.address)).await;
        let address = running.addresses.inbound.unwrap_or_else(|| running.addresses.outbound[0]);
        let client = Client::connect(address).await;
        ways.push((server, running, client));
    }
    ways
}

/// Fields of gRPC that a proxy could break: binary values, duplicates in order, compression, own fields.
fn fields() -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in [
        ("grpc-encoding", "gzip"),
        ("grpc-accept-encoding", "gzip, identity"),
        ("trace-bin", "AAECAw"),
        ("trace-bin", "AAECAw==,BAUG"),
        ("x-tenant", "b"),
        ("x-tenant", "a"),
        ("x-tenant", "b"),
        ("x-empty", ""),
    ] {
        fields.append(name, value.parse().unwrap());
    }
    fields.append("x-opaque", HeaderValue::from_bytes(b"caf\xe9 \t").unwrap());
    fields
}

#[track_caller]
fn assert_has_fields(arrived: &HeaderMap) {
    for name in fields().keys() {
        let sent = fields();
        let sent: Vec<_> = sent.get_all(name).iter().collect();
        assert_eq!(arrived.get_all(name).iter().collect::<Vec<_>>(), sent, "{name}");
    }
}

/// A message whose first byte marks it as compressed.
fn compressed() -> Bytes {
    let mut bytes = message(&[7; 40]).to_vec();
    bytes[0] = 1;
    bytes.into()
}

#[tokio::test]
async fn head_body_and_trailers_pass_unchanged() {
    for (mut server, _running, mut client) in both().await {
        let mut head = grpc().uri("http://stock.test:7702/shop.Stock/Reserve?a=b%20c").body(()).unwrap();
        head.headers_mut().extend(fields());
        head.headers_mut().insert("user-agent", HeaderValue::from_static("grpc-go/1.70"));
        head.headers_mut().insert("grpc-timeout", HeaderValue::from_static("99999999u"));
        let (response, mut send) = client.begin(head, false).await;
        send.send_data(compressed(), true).unwrap();
        let mut arrival = server.next().await;
        assert_eq!(arrival.head.uri, "http://stock.test:7702/shop.Stock/Reserve?a=b%20c");
        assert_has_fields(&arrival.head.headers);
        assert_eq!(
            (arrival.field("te"), arrival.field("user-agent")),
            (Some("trailers"), Some("grpc-go/1.70"))
        );
        assert!(arrival.field("grpc-timeout").is_some() && arrival.field("content-length").is_none());
        assert_eq!(read(&mut arrival.body).await.unwrap(), compressed());

        let mut head = crate::peers::begun();
        head.headers_mut().extend(fields());
        let mut body = arrival.respond.send_response(head, false).unwrap();
        body.send_data(compressed(), false).unwrap();
        let mut trailers = fields();
        trailers.insert("grpc-status", 5.into());
        trailers.insert("grpc-message", HeaderValue::from_static("not%20here"));
        trailers.insert("grpc-status-details-bin", HeaderValue::from_static("CAUSBG5vcGU"));
        body.send_trailers(trailers.clone()).unwrap();

        let response = within(response).await.unwrap();
        assert_has_fields(response.headers());
        assert!(
            response.headers().get("date").is_none() && response.headers().get("content-length").is_none()
        );
        let mut body = response.into_body();
        assert_eq!(read(&mut body).await.unwrap(), compressed());
        assert_eq!(within(body.trailers()).await.unwrap().unwrap(), trailers);
    }
}

#[tokio::test]
async fn response_of_headers_alone_stays_so() {
    for (mut server, _running, mut client) in both().await {
        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        let mut head = crate::peers::trailers_only(5);
        head.headers_mut().extend(fields());
        server.next().await.respond.send_response(head, true).unwrap();
        let response = within(response).await.unwrap();
        assert!(response.body().is_end_stream() && status(&response) == Some("5"));
        assert_has_fields(response.headers());
    }
}

async fn answered(server: &mut Server, response: Response<()>) -> Arrival {
    let mut arrival = server.next().await;
    arrival.respond.send_response(response, true).unwrap();
    arrival
}

#[tokio::test]
async fn request_that_is_not_grpc_is_never_repeated() {
    for (mut server, _running, mut client) in both().await {
        for method in [Method::GET, Method::POST] {
            let head =
                || Request::builder().method(&method).uri("http://callee.test/page?a=b").body(()).unwrap();
            for code in [200, 404, 503] {
                let (response, _) = client.begin(head(), true).await;
                let arrival = answered(&mut server, Response::builder().status(code).body(()).unwrap()).await;
                assert_eq!((&arrival.head.method, arrival.head.uri.path()), (&method, "/page"));
                assert_eq!(within(response).await.unwrap().status(), code);
            }
            for reason in [Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR] {
                let (response, _) = client.begin(head(), true).await;
                server.next().await.respond.send_reset(reason);
                assert_eq!(within(response).await.unwrap_err().reason(), Some(reason));
            }
            assert!(server.arrived().is_none(), "a request was repeated");
        }
    }
}

#[tokio::test]
async fn body_and_trailers_that_are_not_grpc_pass() {
    for (mut server, _running, mut client) in both().await {
        let head = Request::put("http://callee.test/file").header("content-length", 5).body(()).unwrap();
        let (response, mut send) = client.begin(head, false).await;
        send.send_data("hello".into(), true).unwrap();
        let mut arrival = server.next().await;
        assert_eq!(arrival.field("content-length"), Some("5"));
        assert_eq!(read(&mut arrival.body).await.unwrap(), b"hello");
        let mut body = arrival.respond.send_response(Response::new(()), false).unwrap();
        body.send_data("bye".into(), false).unwrap();
        body.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), 3.into())])).unwrap();
        let mut body = within(response).await.unwrap().into_body();
        assert_eq!(read(&mut body).await.unwrap(), b"bye");
        assert_eq!(within(body.trailers()).await.unwrap().unwrap()["x-sum"], "3");
    }
}
