//! Control planes over TLS, sound and misbehaving ones, on the real clock.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use damper_sdk::{Damper, Options, Source, Status};
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::callee::attempts;
use crate::certificates::{Authority, Files, Pair};
use crate::hostile::{PANICS, count_panics};
use crate::server::*;

/// Returns the reason why there is no stream.
async fn problem(options: Options) -> String {
    let damper = Damper::connect(options).unwrap();
    let status = until(&damper, |status| status.last_problem.is_some()).await;
    assert!(!status.connected && !status.denied && status.source == Source::BuiltIn, "{status:?}");
    assert_eq!(attempts(&damper, "a").await, 1, "calls continue");
    status.last_problem.unwrap()
}

async fn problem_contains(options: Options, words: &str) {
    let problem = problem(options).await;
    assert!(problem.contains(words), "{problem}");
}

/// A peer that sends these bytes to every client after its first bytes, and then waits.
async fn saying(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 1024]).await;
            let _ = socket.write_all(bytes).await;
            open.push(socket);
        }
    });
    address
}

#[tokio::test]
async fn rules_arrive_over_tls_from_a_trusted_server() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut plane = ControlPlane::start_tls(authority.server()).await;
    let ca = files.write("ca.pem", &authority.pem);
    let damper = Damper::connect(plane.options().ca_file(ca).token("t")).unwrap();
    let mut stream = plane.accept().await;
    assert_eq!(stream.shown.as_deref(), Some("Bearer t"));
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    damper.ready(PATIENCE).await.unwrap();
    assert_eq!(attempts(&damper, "a").await, 3);
}

#[tokio::test]
async fn an_invalid_server_certificate_is_explained() {
    let (authority, other, files) = (Authority::new(), Authority::new(), Files::new());
    let ca = files.write("ca.pem", &authority.pem);
    let long_ago = authority.issue_with(&["127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    let some_day =
        authority.issue_with(&["127.0.0.1"], |params| params.not_before = date_time_ymd(3000, 1, 1));
    let table: [(Pair, &str); 4] = [
        (other.issue(&["127.0.0.1"]), "unknown authority"),
        (authority.issue(&["damper.example.org"]), "it is for damper.example.org"),
        (long_ago, "has expired"),
        (some_day, "not valid yet"),
    ];
    for (pair, words) in table {
        let plane = ControlPlane::start_tls(pair.server()).await;
        problem_contains(plane.options().ca_file(&ca), words).await;
    }
    let plane = ControlPlane::start_tls(authority.server()).await;
    problem_contains(plane.options(), "unknown authority").await;
}

#[tokio::test]
async fn a_certificate_can_match_the_configured_name() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut plane = ControlPlane::start_tls(authority.issue(&["damper.example.org"]).server()).await;
    let ca = files.write("ca.pem", &authority.pem);
    let _damper = Damper::connect(plane.options().ca_file(ca).server_name("damper.example.org")).unwrap();
    plane.accept().await;
}

#[tokio::test]
async fn a_required_client_certificate_is_sent_and_renewed() {
    let (authority, clients, files) = (Authority::new(), Authority::new(), Files::new());
    let mut plane = ControlPlane::start_tls(authority.server_that_asks(&clients)).await;
    let ca = files.write("ca.pem", &authority.pem);
    let (cert, key) = files.write_pair(&clients.issue(&["orders"]));
    let options = plane.options().ca_file(&ca).client_certificate(&cert, &key);
    let _damper = Damper::connect(options).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    let first = stream.certificate.clone();
    assert!(first.is_some());
    files.write_pair(&clients.issue(&["orders"]));
    drop(stream);
    let renewed = plane.accept().await.certificate;
    assert!(renewed.is_some() && renewed != first);
}

#[tokio::test]
async fn a_missing_client_certificate_is_explained() {
    let (authority, clients, files) = (Authority::new(), Authority::new(), Files::new());
    let plane = ControlPlane::start_tls(authority.server_that_asks(&clients)).await;
    let ca = files.write("ca.pem", &authority.pem);
    problem_contains(plane.options().ca_file(&ca), "require").await;
    // A certificate of another authority is rejected too, even if the server's reason is lost.
    let (cert, key) = files.write_pair(&authority.issue(&["orders"]));
    problem(plane.options().ca_file(&ca).client_certificate(cert, key)).await;
}

#[tokio::test]
async fn files_that_come_later_are_used_then() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut plane = ControlPlane::start_tls(authority.server()).await;
    let damper = Damper::connect(plane.options().ca_file(files.path("ca.pem"))).unwrap();
    let status = until(&damper, |status| status.last_problem.is_some()).await;
    assert!(status.last_problem.unwrap().contains("ca.pem"));
    files.write("ca.pem", &authority.pem);
    plane.accept().await;
}

#[tokio::test]
async fn a_key_of_another_certificate_is_explained() {
    let (authority, files) = (Authority::new(), Files::new());
    let plane = ControlPlane::start_tls(authority.server()).await;
    let mixed = Pair { key: authority.issue(&["x"]).key, ..authority.issue(&["x"]) };
    let (cert, key) = files.write_pair(&mixed);
    let ca = files.write("ca.pem", &authority.pem);
    problem_contains(plane.options().ca_file(ca).client_certificate(cert, key), "does not belong").await;
}

#[tokio::test]
async fn peers_without_current_tls_are_explained() {
    // A fatal alert `protocol_version`, in TLS 1.1's record.
    let old = saying(&[21, 3, 2, 0, 2, 2, 70]).await;
    problem_contains(options([format!("https://{old}")]), "neither TLS 1.2 nor 1.3").await;
    let plain = saying(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    problem_contains(options([format!("https://{plain}")]), "does not speak TLS").await;
    let plane = ControlPlane::start().await;
    problem_contains(options([format!("https://{}", plane.address)]), "does not speak TLS").await;
    // An alert `unexpected_message`, TLS's response to other protocols, and HTTP/1.
    for other in [&[21, 3, 3, 0, 2, 2, 10][..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let peer = saying(other).await;
        problem_contains(options([format!("http://{peer}")]), "use an https:// address").await;
    }
    let guarded = ControlPlane::start_tls(Authority::new().server()).await;
    problem_contains(options([format!("http://{}", guarded.address)]), "use an https:// address").await;
}

#[tokio::test]
async fn a_hanging_handshake_does_not_block_the_other_replicas() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut plane = ControlPlane::start_tls(authority.server()).await;
    let hangs = saying(&[]).await;
    let ca = files.write("ca.pem", &authority.pem);
    let begun = Instant::now();
    let options = options([format!("https://{hangs}"), plane.url()]).ca_file(&ca);
    let damper = Damper::connect(options).unwrap();
    assert_eq!(attempts(&damper, "a").await, 1);
    plane.accept().await;
    // The order is random; the handshake has 5 s.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let alone = crate::server::options([format!("https://{hangs}")]).ca_file(ca);
    let begun = Instant::now();
    problem(alone).await;
    assert!((5..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn no_peer_makes_anything_panic() {
    const PEERS: [&[u8]; 6] = [
        // Records of no length, of maximum length, of unknown kind; an invalid ServerHello; noise.
        &[22, 3, 3, 0, 0],
        &[22, 3, 3, 0xff, 0xff, 2, 0, 0, 0],
        &[99, 99, 99, 0, 1, 7],
        &[22, 3, 3, 0, 10, 2, 0, 0, 6, 3, 3, 0, 0, 0, 0],
        &[22, 3, 3, 0, 4, 11, 0xff, 0xff, 0xff],
        &[0xff; 4096],
    ];
    count_panics();
    let (authority, files) = (Authority::new(), Files::new());
    let ca = files.write("ca.pem", &authority.pem);
    for bytes in PEERS {
        let peer = saying(bytes).await;
        problem(options([format!("https://{peer}")]).ca_file(&ca)).await;
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn another_endpoint_is_used_where_one_has_a_bad_certificate() {
    let (authority, other, files) = (Authority::new(), Authority::new(), Files::new());
    let bad = ControlPlane::start_tls(other.server()).await;
    let mut good = ControlPlane::start_tls(authority.server()).await;
    let ca = files.write("ca.pem", &authority.pem);
    let damper = Damper::connect(options([bad.url(), good.url()]).ca_file(ca)).unwrap();
    let mut stream = good.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    let Status { connected, .. } = damper.status();
    assert!(connected);
}
