//! The admin port, and a drain with requests in flight.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::peers::{Client, Server, grpc, message, read, status, within};
use crate::{Running, inbound, outbound, proxy};

/// Sends a request to the admin port, and returns status and body.
pub(crate) async fn ask(admin: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Waits until the proxy is ready, or is not.
async fn until_ready(running: &Running, expected: u16) {
    within(async {
        while ask(running.addresses.admin, "GET /readyz").await.0 != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A service that is serving a request and making a call for it.
struct Busy {
    service: Server,
    callee: Server,
    running: Running,
    caller: Client,
    calls: Client,
}

impl Busy {
    async fn start() -> Self {
        let (service, callee) = (Server::start().await, Server::start().await);
        let running = proxy("shop", &(inbound(service.address) + &outbound(callee.address))).await;
        let caller = Client::connect(running.addresses.inbound.unwrap()).await;
        let calls = Client::connect(running.addresses.outbound[0]).await;
        until_ready(&running, 200).await;
        Self { service, callee, running, caller, calls }
    }

    /// Begins a drain while a request is in flight. The request makes a call only then, and both are served.
    async fn drains(mut self, begin: impl AsyncFnOnce(&mut Running)) -> (Running, Server) {
        let (response, mut send) = self.caller.begin(grpc().body(()).unwrap(), false).await;
        let mut request = self.service.next().await;
        begin(&mut self.running).await;
        until_ready(&self.running, 503).await;
        // A GOAWAY: further requests go elsewhere.
        within(async {
            while self.caller.send.clone().ready().await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await;

        let (called, _) = self.calls.begin(grpc().body(()).unwrap(), true).await;
        self.callee.next().await.serve(b"stock");
        let called = within(called).await.unwrap();
        assert_eq!(read(&mut called.into_body()).await.unwrap(), message(b"stock"));
        send.send_data(message(b"rest"), true).unwrap();
        assert_eq!(read(&mut request.body).await.unwrap(), message(b"rest"));
        request.serve(b"done");
        let response = within(response).await.unwrap();
        assert_eq!(read(&mut response.into_body()).await.unwrap(), message(b"done"));
        // The connection ends with its last request.
        _ = within(self.caller.connection).await.unwrap();
        (self.running, self.service)
    }
}

#[tokio::test]
async fn drained_proxy_serves_what_is_in_flight_and_still_calls() {
    let busy = Busy::start().await;
    let (running, mut service) = busy
        .drains(async |running: &mut Running| {
            let drained = ask(running.addresses.admin, "POST /drain").await;
            assert_eq!(drained, (200, "draining\n".to_owned()));
        })
        .await;
    // A caller that does not know of the drain is served.
    let mut late = Client::connect(running.addresses.inbound.unwrap()).await;
    let (response, _) = late.begin(grpc().body(()).unwrap(), true).await;
    service.next().await.serve(b"late");
    within(response).await.unwrap();
    // Outbound stays until the proxy is stopped.
    let mut calls = Client::connect(running.addresses.outbound[0]).await;
    assert_eq!(ask(running.addresses.admin, "GET /livez").await.0, 200);
    calls.send = within(calls.send.ready()).await.unwrap();
    drop((running.stop, calls, late));
    within(running.task).await.unwrap();
}

#[tokio::test]
async fn stopped_proxy_serves_what_is_in_flight_and_ends() {
    let busy = Busy::start().await;
    let (running, _service) = busy.drains(async |running: &mut Running| running.stop()).await;
    within(running.task).await.unwrap();
    assert!(TcpStream::connect(running.addresses.inbound.unwrap()).await.is_err());
}

/// A request that never ends does not keep the proxy.
#[tokio::test]
async fn drain_ends_after_its_time() {
    let mut service = Server::start().await;
    let running = proxy("shop", &format!("drain: 50ms\n{}", inbound(service.address))).await;
    let mut caller = Client::connect(running.addresses.inbound.unwrap()).await;
    let _kept = caller.begin(grpc().body(()).unwrap(), false).await;
    let _request = service.next().await;
    drop(running.stop);
    within(running.task).await.unwrap();
}

#[tokio::test]
async fn service_that_ends_gracefully_ends_so_for_its_callers() {
    let mut service = Server::start().await;
    let running = proxy("shop", &inbound(service.address)).await;
    let mut caller = Client::connect(running.addresses.inbound.unwrap()).await;
    let (response, _) = caller.begin(grpc().body(()).unwrap(), true).await;
    let mut request = service.next().await;
    request.serve(b"done");
    within(response).await.unwrap();
    service.cut();
    // The caller's connection ends too; a new one has a new connection to the service.
    _ = within(caller.connection).await.unwrap();
    let mut caller = Client::connect(running.addresses.inbound.unwrap()).await;
    let (response, _) = caller.begin(grpc().body(()).unwrap(), true).await;
    service.next().await.refuse(5);
    assert_eq!(status(&within(response).await.unwrap()), Some("5"));
}

#[tokio::test]
async fn proxy_is_ready_once_its_service_is_reached() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    drop(held);
    let running = proxy("shop", &inbound(address)).await;
    let admin = running.addresses.admin;
    assert_eq!(ask(admin, "GET /readyz").await, (503, "the service is not reached\n".to_owned()));
    assert_eq!(ask(admin, "GET /livez").await, (200, "alive\n".to_owned()));
    let _service = std::net::TcpListener::bind(address).unwrap();
    until_ready(&running, 200).await;
}

#[tokio::test]
async fn proxy_without_inbound_is_ready_without_its_callees() {
    let running = proxy("shop", "outbound: [{ callee: c, listen: '127.0.0.1:0', to: '127.0.0.1:1' }]").await;
    assert_eq!(ask(running.addresses.admin, "GET /readyz").await.0, 200);
}

#[tokio::test]
async fn metrics_count_calls_by_how_their_request_was_found() {
    let mut callee = Server::start().await;
    let running = proxy("shop", &outbound(callee.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    for flag in [None, Some("1")] {
        let mut head = grpc();
        if let Some(flag) = flag {
            head = head.header("damper-retry", flag);
        }
        let (response, _) = client.begin(head.body(()).unwrap(), true).await;
        callee.next().await.refuse(5);
        within(response).await.unwrap();
    }
    let (code, text) = ask(running.addresses.admin, "GET /metrics").await;
    assert_eq!(code, 200);
    for (by, count) in
        [("tracestate", 0), ("baggage", 0), ("header", 1), ("id", 0), ("ambiguous", 0), ("none", 1)]
    {
        let line = format!("damper_proxy_context_total{{by=\"{by}\"}} {count}");
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn admin_port_refuses_other_requests() {
    let running = proxy("shop", "outbound: [{ callee: c, listen: '127.0.0.1:0', to: '127.0.0.1:1' }]").await;
    for (request, code) in
        [("GET /drain", 405), ("POST /readyz", 405), ("GET /", 404), ("GET /metrics/x", 404)]
    {
        assert_eq!(ask(running.addresses.admin, request).await.0, code, "{request}");
    }
}
