//! A control plane for tests: it delivers one rule to every client and no server has to run.
//!
//! A test that needs rules alone is shorter with `Damper::fixed`; this one also covers the connection.
//! `cargo run -p damper-sdk --example fake_control_plane`

use std::time::Duration;

use damper_core::{Backoff, Mode, Pattern, Policy, Retry, Waits};
use damper_proto::v1::distribution_server::{Distribution, DistributionServer};
use damper_proto::v1::{
    ClientMessage, DistributedRule, ServerMessage, Snapshot, distributed_rule, server_message,
};
use damper_sdk::{Damper, Options};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

struct FakeControlPlane(ServerMessage);

#[tonic::async_trait]
impl Distribution for FakeControlPlane {
    type SubscribeStream = std::pin::Pin<Box<dyn Stream<Item = Result<ServerMessage, Status>> + Send>>;

    /// Sends the snapshot after the client's hello; its other messages are acknowledgements and reports.
    async fn subscribe(
        &self,
        request: Request<Streaming<ClientMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut snapshot = Some(self.0.clone());
        let messages = request.into_inner().filter_map(move |_| snapshot.take().map(Ok));
        Ok(Response::new(Box::pin(messages)))
    }
}

/// Three attempts for all calls from `orders` to `stock`.
fn snapshot() -> Result<ServerMessage, damper_sdk::Faults> {
    let retry = Retry { max_attempts: 3, backoff: Backoff::Always(Waits::None), ..Retry::default() };
    let policy = Policy { retry: Some(retry), ..Policy::new(Mode::Enforce) };
    let rule = DistributedRule {
        key: Some((&Pattern::parse("orders", "*", "stock", "*")?).into()),
        revision: 1,
        kind: Some(distributed_rule::Kind::Policy((&policy).into())),
    };
    let snapshot = Snapshot { rules: vec![rule], last: true, ..Snapshot::default() };
    Ok(ServerMessage {
        epoch: "test".to_owned(),
        revision: 1,
        nonce: 1,
        kind: Some(server_message::Kind::Snapshot(snapshot)),
        ..ServerMessage::default()
    })
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let url = format!("http://{}", listener.local_addr()?);
    let fake = DistributionServer::new(FakeControlPlane(snapshot()?));
    let serving = tokio::spawn(Server::builder().add_service(fake).serve_with_incoming(listener));

    let damper = Damper::connect(Options::new([url]).service("orders").environment(|_| None))?;
    damper.ready(Duration::from_secs(30)).await?;
    println!("{:?}", damper.status());
    assert_eq!(damper.status().rules, 1);

    damper.shutdown().await;
    serving.abort();
    Ok(())
}
