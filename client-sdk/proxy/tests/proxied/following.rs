//! A configuration that changes while the proxy runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use damper_proxy::{Config, Follow, Proxy, ReadConfig};
use damper_sdk::Damper;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::callers_tls::handshake;
use crate::certificates::{Authority, Files};
use crate::draining::ask;
use crate::peers::{Client, Server, grpc, message, read, status, within};
use crate::{RULE, Running};

const EVERY: Duration = Duration::from_millis(5);

/// A proxy that follows a file.
struct Following {
    running: Running,
    file: PathBuf,
    /// Changes that it has seen.
    changes: u64,
    _folder: tempfile::TempDir,
}

impl Following {
    async fn start(listeners: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, text) = (folder.path().join("proxy.yaml"), whole(listeners));
        let config = Config::read(&text, ReadConfig::default()).unwrap();
        let proxy = Proxy::bind(config, Damper::fixed("shop", RULE).unwrap()).await.unwrap();
        std::fs::write(&file, &text).unwrap();
        let proxy = proxy.follow(Follow::new(&file, text, ReadConfig::default(), EVERY));
        let (addresses, (stop, stopped)) = (proxy.addresses().clone(), oneshot::channel::<()>());
        let counters = Box::new(proxy.counters());
        let task = tokio::spawn(proxy.run(async { _ = stopped.await }));
        let running = Running { addresses, stop: Some(stop), task, counters };
        Self { running, file, changes: 0, _folder: folder }
    }

    /// Changes the file; returns whether the proxy has applied it.
    async fn change(&mut self, listeners: &str) -> bool {
        // Exchanged as a whole: a part of a file is a configuration too.
        let new = self.file.with_extension("new");
        std::fs::write(&new, whole(listeners)).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
        self.changes += 1;
        let before = (self.running.counters)().configurations;
        within(async {
            loop {
                let counted = (self.running.counters)();
                if counted.configurations + counted.rejected_configurations == self.changes {
                    return counted.configurations > before;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}

fn whole(listeners: &str) -> String {
    format!("admin: 127.0.0.1:0\n{listeners}")
}

/// Returns an address on which nothing listens.
fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn outbound(callees: &[(&str, SocketAddr, SocketAddr)]) -> String {
    let each = |(callee, listen, to): &(&str, SocketAddr, SocketAddr)| {
        format!("  - {{ callee: {callee}, listen: '{listen}', to: '{to}' }}\n")
    };
    format!("outbound:\n{}", callees.iter().map(each).collect::<String>())
}

/// Sends a call and returns its message, which the server chooses.
async fn called(client: &mut Client, server: &mut Server, payload: &[u8]) {
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    server.next().await.serve(payload);
    let mut body = within(response).await.unwrap().into_body();
    assert_eq!(read(&mut body).await.unwrap(), message(payload));
}

#[tokio::test]
async fn listener_that_stays_keeps_its_connections() {
    let (mut one, mut two) = (Server::start().await, Server::start().await);
    let (stays, added) = (free(), free());
    let mut following = Following::start(&outbound(&[("stock", stays, one.address)])).await;
    let mut client = Client::connect(stays).await;
    called(&mut client, &mut one, b"one").await;
    assert!(
        following.change(&outbound(&[("price", added, two.address), ("stock", stays, one.address)])).await
    );
    called(&mut client, &mut one, b"one").await;
    called(&mut Client::connect(added).await, &mut two, b"two").await;
    // The callee moves; the connection of the service does not notice.
    assert!(following.change(&outbound(&[("stock", stays, two.address)])).await);
    called(&mut client, &mut two, b"two").await;
    assert!(!client.connection.is_finished());
    assert!(TcpStream::connect(added).await.is_err(), "the other listener is gone");
}

#[tokio::test]
async fn removed_listener_lets_its_calls_end() {
    let mut server = Server::start().await;
    let (goes, stays) = (free(), free());
    let both = outbound(&[("stock", goes, server.address), ("price", stays, server.address)]);
    let mut following = Following::start(&both).await;
    let mut client = Client::connect(goes).await;
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    let mut arrival = server.next().await;
    assert!(following.change(&outbound(&[("price", stays, server.address)])).await);
    arrival.serve(b"late");
    let mut body = within(response).await.unwrap().into_body();
    assert_eq!(read(&mut body).await.unwrap(), message(b"late"));
    _ = within(client.connection).await.unwrap();
}

#[tokio::test]
async fn wrong_configuration_changes_nothing_and_is_counted() {
    let mut server = Server::start().await;
    let (stays, taken) = (free(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let right = outbound(&[("stock", stays, server.address)]);
    let mut following = Following::start(&right).await;
    let mut client = Client::connect(stays).await;
    let admin = following.running.addresses.admin;
    let not_open = outbound(&[("price", taken.local_addr().unwrap(), server.address)]);
    for wrong in ["outbound: [{}]\n", "drain: soon\n", &not_open, &format!("service: other\n{right}")] {
        assert!(!following.change(wrong).await, "{wrong}");
        called(&mut client, &mut server, b"stock").await;
        assert!(ask(admin, "GET /metrics").await.1.contains("damper_proxy_config_rejected 1\n"));
    }
    assert!(following.change(&right).await);
    let metrics = ask(admin, "GET /metrics").await.1;
    for line in ["config_rejected 0", "config_changes_total{result=\"rejected\"} 4"] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    called(&mut client, &mut server, b"stock").await;
}

/// The port is taken at first. The file does not change again.
#[tokio::test]
async fn listener_opens_once_its_port_is_free() {
    let mut server = Server::start().await;
    let (stays, taken) = (free(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let added = taken.local_addr().unwrap();
    let mut following = Following::start(&outbound(&[("stock", stays, server.address)])).await;
    let admin = following.running.addresses.admin;
    let both = outbound(&[("stock", stays, server.address), ("price", added, server.address)]);
    assert!(!following.change(&both).await);
    let (code, text) = ask(admin, "GET /readyz").await;
    assert!(code == 200 && text.contains(&format!("outbound[1].listen: {added}: ")), "{code} {text}");
    called(&mut Client::connect(stays).await, &mut server, b"stock").await;
    drop(taken);
    within(async {
        while (following.running.counters)().configurations == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    called(&mut Client::connect(added).await, &mut server, b"price").await;
    assert_eq!(ask(admin, "GET /readyz").await, (200, "ready\n".to_owned()));
    assert_eq!((following.running.counters)().rejected_configurations, 1, "counted once");
}

/// The files of a certificate come later than the configuration, which does not change again.
#[tokio::test]
async fn configuration_waits_for_the_files_of_a_certificate() {
    let (service, files, listen) = (Server::start().await, Files::new(), free());
    let plain = format!("inbound: {{ listen: '{listen}', to: '{}' }}\n", service.address);
    let mut following = Following::start(&plain).await;
    let path = |name| files.path(name).display().to_string();
    let tls = format!("tls: {{ cert_file: '{}', key_file: '{}' }}", path("cert.pem"), path("key.pem"));
    assert!(!following.change(&plain.replace(" }\n", &format!(", {tls} }}\n"))).await);
    let admin = following.running.addresses.admin;
    let body = ask(admin, "GET /readyz").await.1;
    assert!(body.contains("inbound.tls.cert_file: ") && body.contains("inbound.tls.key_file: "), "{body}");
    Client::connect(listen).await;
    let authority = Authority::new();
    // Written before the certificate, so that no moment has one without its key.
    let pair = authority.issue(&["127.0.0.1"]);
    files.write("key.pem", &pair.key);
    files.write("cert.pem", &pair.cert);
    within(async {
        while (following.running.counters)().configurations == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    Client::over(handshake(listen, &authority, None).await.unwrap()).await;
}

#[tokio::test]
async fn service_that_moves_gets_new_connections() {
    let (mut one, mut two) = (Server::start().await, Server::start().await);
    let listen = free();
    let inbound = |to: SocketAddr| format!("inbound: {{ listen: '{listen}', to: '{to}' }}\n");
    let mut following = Following::start(&inbound(one.address)).await;
    let mut caller = Client::connect(listen).await;
    let (response, _) = caller.begin(grpc().body(()).unwrap(), true).await;
    let mut arrival = one.next().await;
    assert!(following.change(&inbound(two.address)).await);
    arrival.refuse(5);
    assert_eq!(status(&within(response).await.unwrap()), Some("5"));
    _ = within(caller.connection).await.unwrap();
    called(&mut Client::connect(listen).await, &mut two, b"two").await;
}
