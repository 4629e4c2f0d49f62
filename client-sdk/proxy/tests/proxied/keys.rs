//! The context by key, with many requests of one trace in flight, half of them retries.
//!
//! The service holds the requests of a wave until all have arrived, and then calls for all of them at once.
//! The callee compares the flag of each call with what the request was.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Pending, pending};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::{TRACE, check, client, inbound, outbound, proxy};

const IN_FLIGHT: usize = 200;
/// Calls, unless the variable has another number.
const CALLS: usize = 2_000;
const CALLS_VARIABLE: &str = "DAMPER_KEY_CALLS";
/// What the request was. Only the service copies it.
const WAS: &str = "x-was";
const COPIED: [&str; 4] = ["traceparent", "tracestate", "baggage", WAS];

/// The service: it copies what OpenTelemetry would.
struct Gathers {
    callee: HealthClient<Channel>,
    together: Barrier,
}

/// The callee.
#[derive(Default)]
struct Compares {
    calls: [AtomicUsize; 2],
    wrong: AtomicUsize,
}

#[tonic::async_trait]
impl Health for Gathers {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let mut call = Request::new(message);
        for name in COPIED {
            if let Some(value) = metadata.get(name) {
                call.metadata_mut().insert(name, value.clone());
            }
        }
        self.together.wait().await;
        self.callee.clone().check(call).await
    }

    type WatchStream = Pin<Box<Pending<Result<HealthCheckResponse, Status>>>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(pending())))
    }
}

#[tonic::async_trait]
impl Health for Compares {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let was_retry = request.metadata().get(WAS).unwrap() == "retry";
        let is_retry = request.metadata().contains_key("damper-retry");
        self.calls[usize::from(was_retry)].fetch_add(1, Ordering::SeqCst);
        self.wrong.fetch_add(usize::from(was_retry != is_retry), Ordering::SeqCst);
        Ok(Response::new(HealthCheckResponse { status: 1 }))
    }

    type WatchStream = Pin<Box<Pending<Result<HealthCheckResponse, Status>>>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(pending())))
    }
}

async fn serve(listener: TcpListener, service: Arc<impl Health>) {
    let service = HealthServer::from_arc(service);
    Server::builder()
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn key_gives_each_call_the_flag_of_its_request() {
    let calls: usize = match std::env::var(CALLS_VARIABLE) {
        Ok(number) => number.parse().expect("a number of calls"),
        Err(_) => CALLS,
    };
    let waves = calls.div_ceil(IN_FLIGHT);
    let listeners = (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
    let (own, other) = (listeners.0.unwrap(), listeners.1.unwrap());
    let listeners = inbound(own.local_addr().unwrap()) + &outbound(other.local_addr().unwrap());
    let running = proxy("shop", &listeners).await;
    let callee = Arc::<Compares>::default();
    tokio::spawn(serve(other, Arc::clone(&callee)));
    let gathers =
        Gathers { callee: client(running.addresses.outbound[0]), together: Barrier::new(IN_FLIGHT) };
    tokio::spawn(serve(own, Arc::new(gathers)));

    let caller = client(running.addresses.inbound.unwrap());
    for _ in 0..waves {
        let requests: JoinSet<_> = (0..IN_FLIGHT)
            .map(|index| {
                let mut caller = caller.clone();
                let is_retry = index % 2 == 0;
                async move {
                    let fields: &[_] = if is_retry {
                        &[("traceparent", TRACE), (WAS, "retry"), ("damper-retry", "1")]
                    } else {
                        &[("traceparent", TRACE), (WAS, "first")]
                    };
                    check(&mut caller, fields).await.unwrap();
                }
            })
            .collect();
        requests.join_all().await;
    }
    let half = waves * IN_FLIGHT / 2;
    assert_eq!(callee.calls.each_ref().map(|count| count.load(Ordering::SeqCst)), [half; 2]);
    assert_eq!(callee.wrong.load(Ordering::SeqCst), 0, "calls with the flag of another request");
    let counted = (running.counters)();
    assert_eq!((counted.by_tracestate, counted.without), (2 * half as u64, 0));
}
