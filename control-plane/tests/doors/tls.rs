//! Rejected TLS handshakes, their alerts, and service to other clients meanwhile.

use damper_control_plane::{ClientCertificates, Pem, Server, ServerConfig, StartError, StoreUrl, TlsConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::Authority;
use crate::harness::{LIVEZ, channel, exchange, livez, soon, start, with_pair};

const HTTP1: &[u8] = b"http/1.1";

fn failures(reason: &str) -> String {
    format!("damper_tls_handshake_failures_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn invalid_client_certificate_is_rejected_with_its_alert() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let server = start(|settings| {
        settings.tls = Some(TlsConfig {
            client_ca: Some(Pem::Text(ours.pem.clone())),
            client_certificates: ClientCertificates::Required,
            ..with_pair(&ours.server("localhost"))
        });
    })
    .await;
    let good = ours.client("spiffe://example.org/shop");
    let refused = [
        (None, "CertificateRequired", "no_certificate"),
        (Some(ours.expired("shop")), "CertificateExpired", "expired"),
        (Some(theirs.client("spiffe://example.org/shop")), "UnknownCA", "unknown_authority"),
    ];
    for (shown, alert, reason) in refused {
        let error = livez(server.address, &ours.trusting(shown.as_ref(), HTTP1)).await.unwrap_err();
        assert!(error.to_string().contains(alert), "{alert}: {error}");
        server.figure_that(&failures(reason), |count| count == 1.0).await;
        let answer = livez(server.address, &ours.trusting(Some(&good), HTTP1)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let mut health = HealthClient::new(channel(server.address, &ours.trusting(Some(&good), b"h2")).await);
    soon(health.check(HealthCheckRequest::default())).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn client_rejects_an_invalid_server_certificate() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    for (pair, problem) in [
        (ours.expired("localhost"), "Expired"),
        (ours.server("elsewhere"), "NotValidForName"),
        (theirs.server("localhost"), "UnknownIssuer"),
    ] {
        let server = start(|settings| settings.tls = Some(with_pair(&pair))).await;
        let error = livez(server.address, &ours.trusting(None, HTTP1)).await.unwrap_err();
        assert!(format!("{error:?}").contains(problem), "{problem}: {error:?}");
        server.figure_that(&failures("refused_by_peer"), |count| count == 1.0).await;
        server.stop().await;
    }
}

/// Returns a ClientHello whose newest version is TLS 1.1.
fn old_hello(extensions: &[u8]) -> Vec<u8> {
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend([0, 4, 0xc0, 0x13, 0xc0, 0x09]);
    hello.extend([1, 0]);
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);
    let mut message = vec![1, 0, 0, hello.len() as u8];
    message.extend(hello);
    let mut record = vec![0x16, 3, 1, 0, message.len() as u8];
    record.extend(message);
    record
}

#[tokio::test]
async fn tls_1_1_and_plaintext_are_refused_on_a_tls_port() {
    let ours = Authority::new("ours");
    let server = start(|settings| settings.tls = Some(with_pair(&ours.server("localhost")))).await;
    // Without signature algorithms, as TLS 1.1 sends it: handshake_failure. With them only the version is
    // wrong.
    let curves = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0];
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    for (extensions, description) in [(curves.to_vec(), 40), ([&curves[..], &signatures].concat(), 70)] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&old_hello(&extensions)).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        // A fatal alert.
        assert_eq!((answer[0], &answer[5..]), (0x15, &[2, description][..]), "{answer:?}");
    }
    server.figure_that(&failures("incompatible"), |count| count == 2.0).await;

    let answer = exchange(TcpStream::connect(server.address).await.unwrap(), LIVEZ).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("use https"), "{answer}");
    server.figure_that(&failures("not_tls"), |count| count == 1.0).await;
    let answer = livez(server.address, &ours.trusting(None, HTTP1)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn metrics_port_uses_tls_unless_configured_plain() {
    let ours = Authority::new("ours");
    let server = start(|settings| {
        settings.tls = Some(with_pair(&ours.server("localhost")));
        settings.metrics_plaintext = false;
    })
    .await;
    let answer = livez(server.metrics, &ours.trusting(None, HTTP1)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn unusable_tls_files_are_all_reported_without_the_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let store: StoreUrl = format!("sled:{}", folder.path().display()).parse().unwrap();
    let mut settings = ServerConfig::new(store);
    settings.listen.set_port(0);
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (one, other) = (ours.server("a"), theirs.server("a"));
    let mut faults_of = async |tls: TlsConfig| {
        settings.tls = Some(tls);
        match Server::bind(settings.clone()).await {
            Err(StartError::Tls(faults)) => faults,
            other => panic!("{other:?}"),
        }
    };
    let faults = faults_of(TlsConfig::new(Pem::File("/no/cert".into()), Pem::File("/no/key".into()))).await;
    assert!(faults[0].starts_with("tls_cert: /no/cert: "), "{faults:?}");
    assert!(faults[1].starts_with("tls_key: /no/key: "), "{faults:?}");
    let faults =
        faults_of(TlsConfig::new(Pem::Text(one.key.clone()), Pem::Text("nonsense".to_owned()))).await;
    assert!(faults[0].starts_with("DAMPER_TLS_CERT_PEM: has no certificate"), "{faults:?}");
    assert!(faults[1].starts_with("DAMPER_TLS_KEY_PEM: has no private key"), "{faults:?}");
    let faults = faults_of(TlsConfig::new(Pem::Text(one.certificate.clone()), Pem::Text(other.key))).await;
    assert!(faults[0].contains("this private key does not belong to the certificate"), "{faults:?}");
    assert!(!faults.concat().contains(one.key.lines().nth(1).unwrap()));
}

#[tokio::test]
async fn expired_certificate_is_a_fault_but_still_served() {
    let ours = Authority::new("ours");
    let over = with_pair(&ours.expired("localhost"));
    let mut settings = ServerConfig::new("sled:x".parse().unwrap());
    settings.tls = Some(over.clone());
    let problem = Server::check(&settings).unwrap_err().to_string();
    assert!(problem.contains("tls_cert: the certificate expired at 2020-01-01T00:00:00Z"), "{problem}");
    let server = start(|settings| settings.tls = Some(over)).await;
    server.stop().await;
}
