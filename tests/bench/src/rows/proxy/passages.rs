//! The ways to the service: `damper proxy`, Envoy, a bare pass-through of hyper, and none between.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use damper_tests::binary;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::calls::CALLEE;
use crate::patience::PATIENCE;
use crate::process::{Conversation, Running, Usage, tethered};

/// A proxy that runs.
#[derive(Debug)]
pub(super) struct Proxy {
    running: Running,
    _folder: TempDir,
    /// Where calls are sent to; of Damper's: under no rule, and under a rule.
    pub(super) addresses: Vec<String>,
}

impl Proxy {
    pub(super) fn usage(&self) -> Result<Usage> {
        self.running.usage()
    }

    /// Damper's, with two listeners for the same service.
    pub(super) async fn damper(control_plane: &str, service: &str) -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?];
        let [admin, free, ruled] = ports.map(|port| format!("127.0.0.1:{port}"));
        let config = format!(
            "service: orders\nadmin: {admin}\noutbound:\n- {{ callee: free, listen: {free}, to: {service} }}\n- {{ callee: \
             {CALLEE}, listen: {ruled}, to: {service} }}\n"
        );
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("proxy.yaml");
        std::fs::write(&file, config)?;
        let mut command = tethered(binary::damper_proxy());
        command.arg("--file").arg(&file);
        command.envs([("DAMPER_SERVER", control_plane), ("RUST_LOG", "warn")]);
        let running = Running::start("damper-proxy", command)?;
        let mut proxy = Self { running, _folder: folder, addresses: vec![free, ruled] };
        proxy.listens().await?;
        let deadline = Instant::now() + PATIENCE;
        while !binary::run(control_plane, &["proxy", "ready", "--admin", &admin]).status.success() {
            if Instant::now() > deadline {
                bail!("not ready: {}", proxy.running.complaint());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(proxy)
    }

    /// Envoy with one route and as many threads.
    pub(super) async fn envoy(service: &str, threads: usize) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, config(&address, service)?)?;
        let program =
            std::env::var_os("DAMPER_TEST_ENVOY").map_or_else(|| PathBuf::from("envoy"), PathBuf::from);
        let mut command = tethered(program);
        command.arg("-c").arg(&file).args(["--disable-hot-restart", "-l", "error"]);
        command.args(["--concurrency", &threads.to_string()]);
        let running = Running::start("envoy", command)?;
        let mut proxy = Self { running, _folder: folder, addresses: vec![address] };
        proxy.listens().await?;
        Ok(proxy)
    }

    async fn listens(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for address in self.addresses.clone() {
            while TcpStream::connect(&address).await.is_err() {
                if Instant::now() > deadline || self.running.ended()?.is_some() {
                    bail!("no connection to {address}: {}", self.running.complaint());
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

/// The pass-through of hyper, and where it listens.
pub(super) async fn bare(service: &str) -> Result<(Conversation, String)> {
    let mut bare = Conversation::start(&["pass-through", "--to", service], [])?;
    let address = bare.read("the address of the pass-through").await?;
    Ok((bare, address))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// HTTP/2 on both sides, one cluster with one endpoint, and no policy.
fn config(listen: &str, service: &str) -> Result<String> {
    let address = |address: &str| -> Result<_> {
        let (host, port) = address.rsplit_once(':').context("an address has a port")?;
        Ok(json!({ "socket_address": { "address": host, "port_value": port.parse::<u16>()? } }))
    };
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let connections = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                  HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP2",
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "service" } }],
        }] },
        "http_filters": [router],
    });
    let http2 = json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": {} },
    } });
    let endpoint = json!({ "endpoint": { "address": address(service)? } });
    let config = json!({ "static_resources": {
        "listeners": [{
            "name": "bench",
            "address": address(listen)?,
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": connections,
            }] }],
        }],
        "clusters": [{
            "name": "service",
            "type": "STATIC",
            "load_assignment": { "cluster_name": "service", "endpoints": [{ "lb_endpoints": [endpoint] }] },
            "typed_extension_protocol_options": http2,
        }],
    } });
    Ok(config.to_string())
}
