//! A gateway at the edge of the services that trust each other.
//!
//! It ignores the retry flags of clients outside and sends none to a callee outside. Its calls are retried.
//!
//! `cargo run -p damper-sdk --features manifest --example edge_gateway`

use std::sync::atomic::{AtomicBool, Ordering};

use damper_sdk::{ClientService, Context, Damper};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::WatchStream;
use tower::Layer as _;

/// In production the control plane delivers the rule, and its breaker pays for retries by successes.
const RULE: &str = r#"
kind: Rule
key: { caller_service: gateway, caller_cluster: "*", callee_service: weather, callee_method: "*" }
policy: { mode: enforce, retry: { max_attempts: 2 }, retry_breaker: { enabled: false } }
"#;

struct Gateway {
    weather: HealthClient<ClientService<HealthServer<Weather>>>,
}

#[tonic::async_trait]
impl Health for Gateway {
    type WatchStream = WatchStream;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        assert_eq!(Context::current().map(|context| context.is_retry()), Some(false));
        self.weather.clone().check(HealthCheckRequest::default()).await
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("the gateway cannot be watched"))
    }
}

/// A service of another company, which fails once.
#[derive(Default)]
struct Weather(AtomicBool);

#[tonic::async_trait]
impl Health for Weather {
    type WatchStream = WatchStream;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        assert!(request.metadata().get("damper-retry").is_none());
        let failed_before = self.0.swap(true, Ordering::Relaxed);
        let response = Response::new(HealthCheckResponse::default());
        if failed_before { Ok(response) } else { Err(Status::unavailable("restarting")) }
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("the weather cannot be watched"))
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let damper = Damper::fixed("gateway", RULE)?;
    let weather = damper.client_layer("weather")?.external().layer(HealthServer::new(Weather::default()));
    let gateway = Gateway { weather: HealthClient::new(weather) };
    // `tonic::transport::Server::builder().layer(damper.server_layer().edge())` in a real gateway.
    let server = damper.server_layer().edge().layer(HealthServer::new(gateway));

    let mut request = Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("damper-retry", "1".parse()?);
    HealthClient::new(server).check(request).await?;
    println!("the weather failed once; the client from outside got a response");
    Ok(())
}
