//! Callers over TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use damper_proxy::{Config, Proxy, ReadConfig};
use damper_sdk::Damper;
use rcgen::SanType;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::certificates::{Authority, Files, Pair};
use crate::draining::ask;
use crate::peers::{Arrival, Client, Server, grpc, status, within};
use crate::{Running, inbound, proxy};

const FORWARDED: &str = "x-forwarded-client-cert";
const FORGED: &str = "Hash=00;Subject=\"CN=admin\"";

/// A service whose callers use TLS.
struct Secured {
    files: Files,
    authority: Authority,
    clients: Authority,
    service: Server,
    running: Running,
}

impl Secured {
    /// `client` is the part of the configuration about callers' certificates.
    async fn start(client: &str) -> Self {
        let (files, authority, clients) = (Files::new(), Authority::new(), Authority::new());
        files.write_pair(&authority.issue(&["127.0.0.1"]));
        files.write("clients.pem", &clients.pem);
        let service = Server::start().await;
        let running = proxy("shop", &text(&files, service.address, client)).await;
        Self { files, authority, clients, service, running }
    }

    fn address(&self) -> SocketAddr {
        self.running.addresses.inbound.unwrap()
    }

    async fn connect(&self, pair: Option<&Pair>) -> Client {
        Client::over(handshake(self.address(), &self.authority, pair).await.unwrap()).await
    }

    /// Makes a call that the service refuses, and returns what the service has seen of it.
    async fn call(&mut self, client: &mut Client) -> Arrival {
        let head = grpc().header(FORWARDED, FORGED).header(FORWARDED, FORGED);
        let (response, _) = client.begin(head.body(()).unwrap(), true).await;
        let mut arrival = self.service.next().await;
        arrival.refuse(5);
        assert_eq!(status(&within(response).await.unwrap()), Some("5"));
        arrival
    }

    /// A caller fails that has this certificate.
    async fn refuses(&self, pair: Option<&Pair>) {
        let before = (self.running.counters)().failed_handshakes;
        // With TLS 1.3 the client learns of it by a lost connection.
        if let Ok(stream) = handshake(self.address(), &self.authority, pair).await
            && let Ok((_, connection)) = h2::client::handshake(stream).await
        {
            _ = within(connection).await;
        }
        self.until_failed(before).await;
    }

    async fn until_failed(&self, before: u64) {
        within(async {
            while (self.running.counters)().failed_handshakes == before {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn text(files: &Files, service: SocketAddr, client: &str) -> String {
    let path = |name| files.path(name).display().to_string();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let client = client.replace("CLIENTS", &path("clients.pem"));
    format!(
        "inbound:\n  listen: '127.0.0.1:0'\n  to: '{service}'\n  tls: {{ cert_file: '{cert}', key_file: '{key}'{client} }}\n"
    )
}

pub(crate) async fn handshake(
    address: SocketAddr,
    authority: &Authority,
    pair: Option<&Pair>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match pair {
        Some(Pair { cert, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect("127.0.0.1".try_into().unwrap(), stream);
    let stream = within(connecting).await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    Ok(stream)
}

/// Returns the faults of a start.
async fn faults(text: &str) -> Vec<String> {
    let text = format!("admin: 127.0.0.1:0\n{text}");
    let config = Config::read(&text, ReadConfig::default()).unwrap();
    let checked = config.check_files().unwrap_err();
    let started = Proxy::bind(config, Damper::off()).await.err().expect("it does not start");
    let started: Vec<_> = started.iter().map(ToString::to_string).collect();
    assert_eq!(started, checked.iter().map(ToString::to_string).collect::<Vec<_>>());
    started
}

#[tokio::test]
async fn caller_is_served_over_tls_and_forges_no_certificate() {
    let mut secured = Secured::start("").await;
    let mut client = secured.connect(None).await;
    assert_eq!(secured.call(&mut client).await.field(FORWARDED), None);
    // A client without TLS, and one that trusts another authority.
    let stream = TcpStream::connect(secured.address()).await.unwrap();
    let before = (secured.running.counters)().failed_handshakes;
    let (_, connection) = h2::client::handshake(stream).await.unwrap();
    _ = within(connection).await;
    secured.until_failed(before).await;
    handshake(secured.address(), &Authority::new(), None).await.unwrap_err();
    secured.until_failed(before + 1).await;
    assert!(secured.service.arrived().is_none());
    let metrics = ask(secured.running.addresses.admin, "GET /metrics").await.1;
    assert!(metrics.contains("damper_proxy_handshakes_failed_total 2\n"), "{metrics}");
}

#[tokio::test]
async fn certificate_of_a_caller_is_forwarded() {
    let mut secured = Secured::start(", client_ca_file: 'CLIENTS', peer: forward").await;
    let known = secured.clients.issue_with(&["web.shop"], |params| {
        params.subject_alt_names.push(SanType::URI("spiffe://shop/web".try_into().unwrap()));
    });
    let mut client = secured.connect(Some(&known)).await;
    for _ in 0..2 {
        let seen = secured.call(&mut client).await;
        let values: Vec<_> = seen.head.headers.get_all(FORWARDED).iter().collect();
        let [value] = values[..] else { panic!("{values:?}") };
        let value = value.to_str().unwrap();
        assert!(value.starts_with("Hash=") && value.len() > 70, "{value}");
        assert!(
            value.ends_with(";Subject=\"CN=rcgen self signed cert\";DNS=web.shop;URI=spiffe://shop/web"),
            "{value}"
        );
    }
    // Of no authority that is known here, and none.
    secured.refuses(Some(&secured.authority.issue(&["web.shop"]))).await;
    secured.refuses(None).await;
    assert!(secured.service.arrived().is_none());
}

#[tokio::test]
async fn certificate_of_a_caller_is_dropped() {
    let mut secured = Secured::start(", client_ca_file: 'CLIENTS', peer: drop").await;
    let mut client = secured.connect(Some(&secured.clients.issue(&["web.shop"]))).await;
    assert_eq!(secured.call(&mut client).await.field(FORWARDED), None);
    secured.refuses(None).await;
}

/// A mesh that stands before the proxy has set the field.
#[tokio::test]
async fn plaintext_caller_keeps_the_field_of_a_certificate() {
    let mut service = Server::start().await;
    let running = proxy("shop", &inbound(service.address)).await;
    let mut client = Client::connect(running.addresses.inbound.unwrap()).await;
    let (response, _) = client.begin(grpc().header(FORWARDED, FORGED).body(()).unwrap(), true).await;
    let mut arrival = service.next().await;
    assert_eq!(arrival.field(FORWARDED), Some(FORGED));
    arrival.refuse(5);
    within(response).await.unwrap();
}

#[tokio::test]
async fn changed_certificate_serves_the_next_connection() {
    let mut secured = Secured::start(", client_ca_file: 'CLIENTS', peer: drop").await;
    let admin = secured.running.addresses.admin;
    let known = secured.clients.issue(&["web.shop"]);
    let mut before = secured.connect(Some(&known)).await;
    secured.call(&mut before).await;

    let former = std::mem::replace(&mut secured.authority, Authority::new());
    secured.files.write_pair(&secured.authority.issue(&["127.0.0.1"]));
    let mut after = secured.connect(Some(&known)).await;
    secured.call(&mut after).await;
    secured.call(&mut before).await;
    handshake(secured.address(), &former, Some(&known)).await.unwrap_err();

    // A key of another certificate, and no file: the former contents stay in force.
    let other = secured.authority.issue(&["127.0.0.1"]);
    let key = secured.files.write("key.pem", &other.key);
    secured.connect(Some(&known)).await;
    let (code, body) = ask(admin, "GET /readyz").await;
    let fault =
        format!("inbound.tls.key_file: {}: the key does not belong to the certificate", key.display());
    assert!(code == 200 && body.contains(&fault), "{code} {body}");
    std::fs::remove_file(&key).unwrap();
    secured.connect(Some(&known)).await;
    let body = ask(admin, "GET /readyz").await.1;
    assert!(body.contains(&format!("inbound.tls.key_file: the key file {}: ", key.display())), "{body}");
    assert!(ask(admin, "GET /metrics").await.1.contains("damper_proxy_config_rejected 1\n"));
    secured.files.write_pair(&other);
    secured.connect(Some(&known)).await;
    assert_eq!(ask(admin, "GET /readyz").await, (200, "ready\n".to_owned()));

    // Another authority of callers.
    let clients = Authority::new();
    secured.files.write("clients.pem", &clients.pem);
    secured.refuses(Some(&known)).await;
    let mut last = secured.connect(Some(&clients.issue(&["web.shop"]))).await;
    secured.call(&mut last).await;
}

#[tokio::test]
async fn connection_over_tls_is_drained() {
    let mut secured = Secured::start("").await;
    let admin = secured.running.addresses.admin;
    // A connection that never begins TLS does not delay the end.
    let _silent = TcpStream::connect(secured.address()).await.unwrap();
    let mut client = secured.connect(None).await;
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    let mut arrival = secured.service.next().await;
    assert_eq!(ask(admin, "POST /drain").await.0, 200);
    assert_eq!(ask(admin, "GET /readyz").await.0, 503);
    within(async {
        while client.send.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    arrival.refuse(5);
    assert_eq!(status(&within(response).await.unwrap()), Some("5"));
    _ = within(client.connection).await.unwrap();
    secured.running.stop();
    within(secured.running.task).await.unwrap();
}

#[tokio::test]
async fn files_that_cannot_be_used_are_all_reported_at_start() {
    let (files, nowhere) = (Files::new(), "127.0.0.1:1".parse().unwrap());
    let client = ", client_ca_file: 'CLIENTS', peer: drop";
    let named = |fault: &str, field: &str, path: &Path, problem: &str| {
        let begin = format!("inbound.tls.{field}: ");
        let is_named = fault.starts_with(&begin) && fault.contains(&path.display().to_string());
        assert!(is_named && fault.contains(problem), "{fault}");
    };
    let found = faults(&text(&files, nowhere, client)).await;
    let [cert, key, ca] = &found[..] else { panic!("{found:?}") };
    named(cert, "cert_file", &files.path("cert.pem"), "No such file");
    named(key, "key_file", &files.path("key.pem"), "No such file");
    named(ca, "client_ca_file", &files.path("clients.pem"), "No such file");

    files.write_pair(&Pair { cert: "no certificate".to_owned(), key: "no key".to_owned() });
    files.write("clients.pem", "");
    let found = faults(&text(&files, nowhere, client)).await;
    let [cert, key, ca] = &found[..] else { panic!("{found:?}") };
    named(cert, "cert_file", &files.path("cert.pem"), "contains no certificate in PEM");
    named(key, "key_file", &files.path("key.pem"), "contains no unencrypted private key");
    named(ca, "client_ca_file", &files.path("clients.pem"), "contains no certificate in PEM");

    let (authority, other) = (Authority::new(), Authority::new());
    let (cert, key) = (authority.issue(&["a.test"]).cert, other.issue(&["a.test"]).key);
    files.write_pair(&Pair { cert, key });
    files.write("clients.pem", &authority.pem);
    let found = faults(&text(&files, nowhere, client)).await;
    let [key] = &found[..] else { panic!("{found:?}") };
    named(key, "key_file", &files.path("key.pem"), "the key does not belong to the certificate");
}
