//! A service with Damper in it: it asks the service below for its health, and answers as that does.
//!
//! The numbered lines are all that Damper adds. Run it next to a control plane:
//! `cargo run -p damper-sdk --example adopt`.

use damper_sdk::{ClientService, Damper, Options}; // 1
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::WatchStream;

struct Orders {
    inventory: HealthClient<ClientService<Channel>>, // 2
}

#[tonic::async_trait]
impl Health for Orders {
    type WatchStream = WatchStream;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        // Made in serving a request, so it stays within that one's deadline, and is not retried if the
        // request itself is a repeat.
        self.inventory.clone().check(request.into_inner()).await
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("orders are not watched"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let damper = Damper::connect(Options::new(["http://127.0.0.1:7600"]).service("orders"))?; // 3

    let channel = Channel::from_static("http://127.0.0.1:7702").connect_lazy();
    let channel = damper.client_layer("inventory")?.layer(channel); // 4
    let orders = Orders { inventory: HealthClient::new(channel) };

    Server::builder()
        .layer(damper.server_layer()) // 5
        .add_service(HealthServer::new(orders))
        .serve_with_shutdown("127.0.0.1:7701".parse()?, async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    damper.shutdown().await; // 6
    Ok(())
}
