//! Proxies between real clients and services, over sockets.
#![allow(clippy::unwrap_used, reason = "test helpers, which clippy does not recognize")]

mod callers_tls;
#[path = "../../../tests/control_plane/certificates.rs"]
#[allow(dead_code, reason = "shared with the tests of the SDK")]
mod certificates;
mod connecting;
mod draining;
mod following;
mod keys;
mod limits;
mod lost;
mod peers;
mod pieces;
mod resets;
mod restarts;
mod streams;
mod tls;
mod trust;
mod unchanged;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use damper_proxy::{Addresses, Config, Proxy, ReadConfig, Snapshot};
use damper_sdk::Damper;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const PATIENCE: Duration = Duration::from_secs(60);
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const RULE: &str = "
kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }
policy:
  mode: enforce
  retry: { max_attempts: 3, backoff: { fixed: { delay: 1ms } } }
  retry_breaker: { enabled: false }
";

/// A service that knows nothing of Damper. With a callee it copies what OpenTelemetry would.
#[derive(Clone, Default)]
struct Foreign {
    calls: Arc<AtomicU32>,
    callee: Option<HealthClient<Channel>>,
    refuses: bool,
    /// Copies nothing to its calls.
    is_silent: bool,
}

#[tonic::async_trait]
impl Health for Foreign {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let (metadata, _, message) = request.into_parts();
        if let Some(mut callee) = self.callee.clone() {
            let mut call = Request::new(message);
            let names: &[_] = if self.is_silent { &[] } else { &["traceparent", "tracestate", "baggage"] };
            for name in names.iter().copied() {
                if let Some(value) = metadata.get(name) {
                    call.metadata_mut().insert(name, value.clone());
                }
            }
            return callee.check(call).await.map_err(|error| Status::new(error.code(), error.message()));
        }
        let mut back = MetadataMap::new();
        if let Some(value) = metadata.get("x-sent") {
            back.insert("x-seen", value.clone());
        }
        if self.refuses {
            return Err(Status::with_metadata(Code::Unavailable, "refused", back));
        }
        let mut response = Response::new(HealthCheckResponse { status: 1 });
        *response.metadata_mut() = back;
        Ok(response)
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let messages = (0..3).map(|status| Ok(HealthCheckResponse { status }));
        let end = [Err(Status::data_loss("the end"))];
        Ok(Response::new(Box::pin(tokio_stream::iter(messages.chain(end).collect::<Vec<_>>()))))
    }
}

async fn start(service: Foreign) -> SocketAddr {
    serve(service, Server::builder()).await
}

async fn serve(service: Foreign, mut server: Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = server.add_service(HealthServer::new(service));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

fn client(address: SocketAddr) -> HealthClient<Channel> {
    HealthClient::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
}

struct Running {
    addresses: Addresses,
    /// The proxy is stopped when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    counters: Box<dyn Fn() -> Snapshot + Send + Sync>,
}

impl Running {
    fn stop(&mut self) {
        self.stop.take();
    }
}

async fn proxy(service: &str, text: &str) -> Running {
    run(Damper::fixed(service, RULE).unwrap(), text).await
}

async fn proxy_without_rule(text: &str) -> Running {
    run(Damper::off(), text).await
}

async fn run(damper: Damper, text: &str) -> Running {
    let text = format!("admin: 127.0.0.1:0\n{text}");
    start_proxy(damper, Config::read(&text, ReadConfig::default()).unwrap()).await
}

async fn start_proxy(damper: Damper, config: Config) -> Running {
    let proxy = Proxy::bind(config, damper).await.unwrap();
    let (addresses, (stop, stopped)) = (proxy.addresses().clone(), oneshot::channel::<()>());
    let counters = Box::new(proxy.counters());
    let task = tokio::spawn(proxy.run(async { _ = stopped.await }));
    Running { addresses, stop: Some(stop), task, counters }
}

fn outbound(to: SocketAddr) -> String {
    format!("outbound: [{{ callee: callee, listen: '127.0.0.1:0', to: '{to}' }}]\n")
}

fn inbound(to: SocketAddr) -> String {
    format!("inbound: {{ listen: '127.0.0.1:0', to: '{to}' }}\n")
}

async fn check(
    client: &mut HealthClient<Channel>,
    fields: &[(&'static str, &'static str)],
) -> Result<MetadataMap, Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    for (name, value) in fields {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    let answer = timeout(PATIENCE, client.check(request)).await.expect("the call ends");
    answer.map(|response| response.metadata().clone())
}

#[tokio::test]
async fn unary_call_passes_with_its_metadata() {
    let service = Foreign::default();
    let running = proxy("shop", &outbound(start(service.clone()).await)).await;
    let seen = check(&mut client(running.addresses.outbound[0]), &[("x-sent", "a")]).await.unwrap();
    assert_eq!(
        (seen.get("x-seen").unwrap().to_str().unwrap(), service.calls.load(Ordering::SeqCst)),
        ("a", 1)
    );
}

#[tokio::test]
async fn refused_call_is_repeated_and_its_error_passes() {
    let service = Foreign { refuses: true, ..Foreign::default() };
    let running = proxy("shop", &outbound(start(service.clone()).await)).await;
    let error = check(&mut client(running.addresses.outbound[0]), &[("x-sent", "a")]).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "refused"));
    assert_eq!(error.metadata().get("x-seen").unwrap(), "a");
    assert_eq!(service.calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn stream_passes_with_its_trailers() {
    let running = proxy("shop", &outbound(start(Foreign::default()).await)).await;
    let mut client = client(running.addresses.outbound[0]);
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    for status in 0..3 {
        assert_eq!(timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap().status, status);
    }
    let error = timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::DataLoss, "the end"));
}

#[tokio::test]
async fn absent_service_is_unavailable_without_the_flag() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let running = proxy("shop", &inbound(address)).await;
    let error = check(&mut client(running.addresses.inbound.unwrap()), &[]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let metadata = error.metadata();
    assert!(
        metadata.get("damper-no-more-retry").is_none() && metadata.get("grpc-retry-pushback-ms").is_none()
    );
}

/// Requests of one caller wait for one connect of 5 s, not for one each.
#[tokio::test]
async fn requests_share_a_connect_that_hangs() {
    // Its backlog is full, so that a connect hangs.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut backlog = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(50), TcpStream::connect(address)).await {
        backlog.push(stream);
    }
    let running = proxy("shop", &inbound(address)).await;
    let client = client(running.addresses.inbound.unwrap());
    let calls: JoinSet<_> = (0..20)
        .map(|_| {
            let mut client = client.clone();
            async move { check(&mut client, &[]).await.unwrap_err().code() }
        })
        .collect();
    assert_eq!(calls.join_all().await, vec![Code::Unavailable; 20]);
}

/// A service whose proxy has both directions. Its listener opens first, so that the proxy can name it.
async fn governed(name: &str, callee: SocketAddr, is_silent: bool) -> (Running, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap();
    let running = proxy(name, &(inbound(own) + &outbound(callee))).await;
    let calls = client(running.addresses.outbound[0]);
    let service = HealthServer::new(Foreign { callee: Some(calls), is_silent, ..Foreign::default() });
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let address = running.addresses.inbound.unwrap();
    (running, address)
}

/// Calls through three services with proxies, and returns the requests at the bottom, which refuses them.
async fn chain(is_silent: bool) -> u32 {
    let bottom = Foreign { refuses: true, ..Foreign::default() };
    let mut address = start(bottom.clone()).await;
    let mut kept = Vec::new();
    for name in ["c", "b", "a"] {
        let (running, inbound) = governed(name, address, is_silent).await;
        kept.push(running);
        address = inbound;
    }
    let error = check(&mut client(address), &[("traceparent", TRACE)]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    bottom.calls.load(Ordering::SeqCst)
}

#[tokio::test]
async fn chain_sends_no_request_more_than_its_attempts() {
    assert_eq!(chain(false).await, 3);
}

#[tokio::test]
async fn chain_of_services_that_copy_nothing_multiplies() {
    assert_eq!(chain(true).await, 27);
}

#[tokio::test]
async fn requests_of_one_trace_keep_their_own_flags() {
    let bottom = Foreign { refuses: true, ..Foreign::default() };
    let (running, address) = governed("a", start(bottom.clone()).await, false).await;
    let client = client(address);
    let calls = (0..200).map(|index| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let flag: &[_] = if index % 2 == 0 { &[("damper-retry", "1")] } else { &[] };
            check(&mut client, &[flag, &[("traceparent", TRACE)]].concat()).await.unwrap_err()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().code(), Code::Unavailable);
    }
    assert_eq!(bottom.calls.load(Ordering::SeqCst), 100 + 3 * 100);
    let counted = (running.counters)();
    assert_eq!((counted.by_tracestate, counted.without), (200, 0));
}

#[tokio::test]
async fn head_beyond_its_limit_is_refused() {
    let service = Foreign::default();
    let running = proxy("shop", &outbound(start(service.clone()).await)).await;
    let mut client = client(running.addresses.outbound[0]);
    let long: &'static str = "v".repeat(70 << 10).leak();
    check(&mut client, &[("x-sent", long)]).await.unwrap_err();
    assert_eq!(service.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn proxy_ends_when_it_is_stopped() {
    let mut running = proxy("shop", &inbound(start(Foreign::default()).await)).await;
    check(&mut client(running.addresses.inbound.unwrap()), &[]).await.unwrap();
    running.stop();
    timeout(PATIENCE, running.task).await.expect("the proxy ends").unwrap();
}

#[tokio::test]
async fn name_that_leads_back_to_its_listener_is_no_endpoint() {
    let listen = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let to = format!("localhost:{}", listen.port());
    let callee = format!("outbound: [{{ callee: callee, listen: '{listen}', to: '{to}' }}]\n");
    let running = proxy_without_rule(&callee).await;
    let failed = check(&mut client(running.addresses.outbound[0]), &[]).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("not sent"), "{failed}");
}
