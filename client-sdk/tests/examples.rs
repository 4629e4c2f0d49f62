//! Runs the examples to their end, as `cargo run --example NAME` does.

#[path = "../examples/adopt.rs"]
#[allow(dead_code, reason = "its main function waits for Ctrl-C")]
mod adopt;
#[path = "../examples/custom_metrics.rs"]
mod custom_metrics;
#[path = "../examples/edge_gateway.rs"]
mod edge_gateway;
#[path = "../examples/fake_control_plane.rs"]
mod fake_control_plane;
#[path = "../examples/hedging.rs"]
mod hedging;
#[path = "../examples/http_call.rs"]
mod http_call;
#[path = "../examples/queue_worker.rs"]
mod queue_worker;
#[path = "../examples/sql_statement.rs"]
mod sql_statement;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

#[test]
fn examples_succeed() -> Result {
    adopt()?;
    hedging::main()?;
    edge_gateway::main()?;
    custom_metrics::main()?;
    http_call::main()?;
    sql_statement::main()?;
    queue_worker::main()?;
    fake_control_plane::main()
}

/// The service answers as the one below it.
#[tokio::main]
async fn adopt() -> Result {
    use tonic::transport::server::TcpIncoming;
    use tonic::transport::{Channel, Server};
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let listen = || TcpIncoming::bind("127.0.0.1:0".parse()?).map_err(Box::<dyn std::error::Error>::from);
    let channel = |listener: &TcpIncoming| -> std::result::Result<_, Box<dyn std::error::Error>> {
        Ok(Channel::from_shared(format!("http://{}", listener.local_addr()?))?.connect_lazy())
    };
    let (below, orders) = (listen()?, listen()?);
    let (inventory, mut client) = (channel(&below)?, HealthClient::new(channel(&orders)?));
    let (_reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().add_service(health).serve_with_incoming(below));

    let damper = damper_sdk::Damper::off();
    let call = async move { client.check(HealthCheckRequest::default()).await };
    tokio::select! {
        answer = call => drop(answer?),
        ended = adopt::serve(&damper, inventory, orders, std::future::pending()) => ended?,
    }
    let mut calls = 0;
    damper.for_each_route(|_, _, counters| calls += counters.calls());
    assert_eq!(calls, 1);
    Ok(())
}
