//! A service with Damper in it: it asks the service below for its health and returns the response.
//!
//! The numbered lines are all that Damper adds. Run it next to a control plane:
//! `cargo run -p damper-sdk --example adopt`.

use damper_sdk::{ClientService, Damper, Options}; // 1
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::WatchStream;

type Error = Box<dyn std::error::Error>;

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
        // Made in serving a request, so it stays within that request's deadline, and is not retried if the
        // request itself is a retry.
        self.inventory.clone().check(request.into_inner()).await
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("orders cannot be watched"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let damper = Damper::connect(Options::new(["http://127.0.0.1:7600"]).service("orders"))?; // 3
    let inventory = Channel::from_static("http://127.0.0.1:7702").connect_lazy();
    let listener = TcpIncoming::bind("127.0.0.1:7701".parse()?)?;
    let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    serve(&damper, inventory, listener, stop).await?;
    damper.shutdown().await; // 4
    Ok(())
}

/// Serves until `stop` is ready.
pub(crate) async fn serve(
    damper: &Damper,
    channel: Channel,
    listener: TcpIncoming,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let channel = damper.client_layer("inventory")?.layer(channel); // 5
    let orders = Orders { inventory: HealthClient::new(channel) };
    Server::builder()
        .layer(damper.server_layer()) // 6
        .add_service(HealthServer::new(orders))
        .serve_with_incoming_shutdown(listener, stop)
        .await?;
    Ok(())
}
