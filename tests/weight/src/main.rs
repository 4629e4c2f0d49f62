//! A service that calls one other, as small as it can be with tonic: `weight CONTROL-PLANE ROUTES`. With the feature `sdk`
//! it has Damper's two layers, with the feature `tls` it would call an https:// address, and nothing else is different.
//!
//! It serves health checks, calls so many methods of itself, and prints what it holds then: its memory in KiB, how much
//! of that is not mapped from files, how many tasks its runtime has, and how many of them are the SDK's own.

use std::error::Error;
#[cfg(feature = "sdk")]
use std::time::Duration;

#[cfg(feature = "sdk")]
use damper_sdk::{Damper, Options};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let control_plane = arguments.next().ok_or("the control plane's URL is missing")?;
    let routes: usize = arguments.next().ok_or("the number of routes is missing")?.parse()?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    #[cfg(feature = "sdk")]
    let damper = Damper::connect(Options::new([control_plane]).service("orders"))?;
    #[cfg(not(feature = "sdk"))]
    drop(control_plane);

    let server = Server::builder();
    #[cfg(feature = "sdk")]
    let server = server.layer(damper.server_layer());
    let mut server = server;
    tokio::spawn(server.add_service(health).serve_with_incoming(TcpListenerStream::new(listener)));

    let channel = endpoint(url)?.connect().await?;
    #[cfg(feature = "sdk")]
    let channel = damper.client_layer("stock")?.layer(channel);
    #[cfg(feature = "sdk")]
    damper.ready(Duration::from_secs(30)).await?;
    let mut client = tonic::client::Grpc::new(channel);
    for route in 0..routes {
        let path: PathAndQuery = format!("/grpc.health.v1.Health/Check{route}").parse()?;
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        client.ready().await.map_err(|error| format!("the channel is not ready: {error:?}"))?;
        let answer = client.unary(Request::new(HealthCheckRequest::default()), path, codec).await;
        match answer.map_err(|status| status.code()) {
            Err(Code::Unimplemented) => {}
            other => return Err(format!("no such method is served: {other:?}").into()),
        }
    }
    let (memory, anonymous, tasks) = (memory_kib("VmRSS:")?, memory_kib("RssAnon:")?, tasks());
    #[cfg(feature = "sdk")]
    let own = tasks_without_connection().await?;
    #[cfg(not(feature = "sdk"))]
    let own = 0;
    println!("{memory} {anonymous} {tasks} {own}");
    Ok(())
}

/// How many tasks the SDK has where no control plane can be reached: then none is for a connection.
#[cfg(feature = "sdk")]
async fn tasks_without_connection() -> Result<usize, Box<dyn Error>> {
    let before = tasks();
    let damper = Damper::connect(Options::new(["http://127.0.0.1:1"]).service("orders"))?;
    // By then it has tried.
    let not_ready = damper.ready(Duration::from_millis(100)).await;
    not_ready.err().ok_or("something answers on port 1")?;
    Ok(tasks().saturating_sub(before))
}

fn endpoint(url: String) -> Result<Endpoint, Box<dyn Error>> {
    let endpoint = Channel::from_shared(url)?;
    #[cfg(feature = "tls")]
    if endpoint.uri().scheme_str() == Some("https") {
        let roots = tonic::transport::ClientTlsConfig::new().with_native_roots();
        return Ok(endpoint.tls_config(roots)?);
    }
    Ok(endpoint)
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn memory_kib(what: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let held = status.lines().find_map(|line| line.strip_prefix(what)).ok_or("the system does not say")?;
    Ok(held.trim().trim_end_matches(" kB").parse()?)
}
