//! Hedging: a second attempt is sent while the first one is slow, and the first success wins.
//!
//! `cargo run -p damper-sdk --features manifest --example hedging`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use damper_sdk::Damper;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::WatchStream;

/// In production the control plane delivers the rule.
const RULE: &str = r#"
kind: Rule
key: { caller_service: shop, caller_cluster: "*", callee_service: stock, callee_method: "*" }
policy:
  mode: enforce
  hedge: { delay: { fixed: 20ms }, max_hedges: 1 }
"#;
const SLOW: Duration = Duration::from_secs(10);

/// Hangs on its first request.
#[derive(Default)]
struct Stock(Arc<AtomicU32>);

#[tonic::async_trait]
impl Health for Stock {
    type WatchStream = WatchStream;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            tokio::time::sleep(SLOW).await;
        }
        Ok(Response::new(HealthCheckResponse::default()))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("stock cannot be watched"))
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let damper = Damper::fixed("shop", RULE)?;
    let stock = HealthServer::new(Stock::default());
    let mut client = HealthClient::new(damper.client_layer("stock")?.layer(stock));

    let begun = Instant::now();
    client.check(HealthCheckRequest::default()).await?;
    let took = begun.elapsed();

    let mut hedges = 0;
    damper.for_each_route(|_, _, counters| hedges += counters.hedges());
    println!("answered after {took:?} with {hedges} hedge");
    assert!(took < SLOW && hedges == 1);
    Ok(())
}
