//! gRPC's own interop cases, between two libraries: the same results through proxies as without.
//!
//! A call passes two proxies, that of the caller (outbound) and that of the server (inbound), under a rule.

use std::net::SocketAddr;

use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::chain::{NO_BREAKER, rules};
use damper_tests::foreign::{Interop, Process, free_address};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

/// Proxies of a caller and of a server.
struct Pair {
    /// Where the caller dials.
    address: SocketAddr,
    _processes: [Process; 2],
    _folders: [TempDir; 2],
}

impl Pair {
    fn start(control_plane: &str, [caller, callee]: &[String; 2], server: SocketAddr) -> Self {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let proxy =
            |config: String, place: usize| Process::proxy(control_plane, &config, folders[place].path());
        let text = format!(
            "service: {callee}\ninbound: {{ listen: '127.0.0.1:0', to: '{server}' }}\nadmin: 127.0.0.1:0\n"
        );
        let (inbound, addresses) = proxy(text, 0);
        let to = addresses.inbound();
        let text = format!(
            "service: {caller}\nadmin: 127.0.0.1:0\n\
             outbound: [{{ callee: {callee}, listen: '127.0.0.1:0', to: '{to}' }}]\n"
        );
        let (outbound, addresses) = proxy(text, 1);
        Self { address: addresses.outbound(), _processes: [inbound, outbound], _folders: folders }
    }
}

async fn same_results(client: Interop, server: Interop, host: u8) {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(NO_BREAKER, &[])).await;
    let url = control_plane.url().to_owned();
    let names = [format!("{client:?}-caller"), format!("{server:?}-callee")].map(|name| name.to_lowercase());
    let services = names.clone();
    let started = spawn_blocking(move || {
        let address = free_address(host);
        (address, server.server(address), Pair::start(&url, &services, address))
    });
    let (direct, _server, pair) = started.await.expect("all programs start");
    control_plane.acknowledged_by(&names).await;
    let proxied = pair.address;
    let run = |address| spawn_blocking(move || client.passed(address));
    let (with, without) = tokio::join!(run(proxied), run(direct));
    let all: Vec<_> = client.cases().into_iter().map(str::to_owned).collect();
    assert_eq!(without.expect("it runs"), (all.clone(), String::new()), "without proxies");
    assert_eq!(with.expect("it runs"), (all, String::new()), "with proxies");
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_of_go_pass_to_java_as_without_proxies() {
    same_results(Interop::Go, Interop::Java, 13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_of_java_pass_to_go_as_without_proxies() {
    same_results(Interop::Java, Interop::Go, 14).await;
}
