//! The certificate changes under open streams by a symlink, as a mounted secret does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use damper_control_plane::{Pem, TlsConfig};
use damper_proto::v1;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::{WatchRequest, WatchResponse};
use tempfile::TempDir;
use tokio_rustls::rustls::ClientConfig;
use tonic::Streaming;

use crate::certificates::{Authority, Pair};
use crate::harness::{Running, channel, shake, soon, start, with_pair};

/// Points the folder's files to a new version, all at once.
fn swap(folder: &Path, version: &str, pair: &Pair) {
    let next = folder.join(version);
    std::fs::create_dir(&next).unwrap();
    std::fs::write(next.join("tls.crt"), &pair.certificate).unwrap();
    std::fs::write(next.join("tls.key"), &pair.key).unwrap();
    std::os::unix::fs::symlink(version, folder.join("next")).unwrap();
    std::fs::rename(folder.join("next"), folder.join("now")).unwrap();
}

async fn shown(server: &Running, config: &Arc<ClientConfig>) -> Vec<u8> {
    let stream = shake(server.address, config, "localhost").await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

async fn another_than(server: &Running, config: &Arc<ClientConfig>, before: &[u8]) -> Vec<u8> {
    soon(async {
        loop {
            let now = shown(server, config).await;
            if now != before {
                return now;
            }
        }
    })
    .await
}

async fn goes_on(watch: &mut Streaming<WatchResponse>) {
    for _ in 0..2 {
        soon(watch.message()).await.unwrap().expect("the stream goes on");
    }
}

#[tokio::test]
async fn new_certificate_is_used_while_open_streams_go_on() {
    let ours = Authority::new("ours");
    let folder = TempDir::new().unwrap();
    swap(folder.path(), "first", &ours.server("localhost"));
    let now = folder.path().join("now");
    let server = start(|settings| {
        let tls = TlsConfig::new(Pem::File(now.join("tls.crt")), Pem::File(now.join("tls.key")));
        settings.tls = Some(TlsConfig { reload_interval: Duration::from_millis(50), ..tls });
        settings.watched_report_interval = Duration::from_millis(200);
    })
    .await;
    let http1 = ours.trusting(None, b"http/1.1");
    let mut fleet = FleetClient::new(channel(server.address, &ours.trusting(None, b"h2")).await);
    let mut watch = soon(fleet.watch(WatchRequest::default())).await.unwrap().into_inner();
    goes_on(&mut watch).await;
    let first = shown(&server, &http1).await;

    swap(folder.path(), "second", &ours.server("localhost"));
    let second = another_than(&server, &http1, &first).await;
    goes_on(&mut watch).await;
    soon(fleet.list_clients(v1::ListClientsRequest::default())).await.unwrap();

    let broken = Pair { key: "no key".to_owned(), ..ours.server("localhost") };
    swap(folder.path(), "third", &broken);
    server.figure_that("damper_tls_reload_failing", |failing| failing == 1.0).await;
    assert!(shown(&server, &http1).await == second, "the one before stays");
    goes_on(&mut watch).await;

    swap(folder.path(), "fourth", &ours.server("localhost"));
    another_than(&server, &http1, &second).await;
    server.figure_that("damper_tls_reload_failing", |failing| failing == 0.0).await;
    assert!(server.figure("damper_tls_certificate_expires_at_seconds").await > 1.7e9);
    goes_on(&mut watch).await;
    drop(watch);
    server.stop().await;
}

#[tokio::test]
async fn streams_end_with_the_authority_of_their_certificate() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let folder = TempDir::new().unwrap();
    let trusted = folder.path().join("ca.pem");
    std::fs::write(&trusted, [&*ours.pem, &theirs.pem].concat()).unwrap();
    let server = start(|settings| {
        settings.tls = Some(TlsConfig {
            client_ca: Some(Pem::File(trusted.clone())),
            reload_interval: Duration::from_millis(50),
            ..with_pair(&ours.server("localhost"))
        });
    })
    .await;
    let watch = async |shown: &Pair| {
        let mut fleet = FleetClient::new(channel(server.address, &ours.trusting(Some(shown), b"h2")).await);
        soon(fleet.watch(WatchRequest::default())).await.unwrap().into_inner()
    };
    let mut kept = watch(&ours.client("spiffe://example.org/shop")).await;
    let mut ended = watch(&theirs.client("spiffe://example.org/cart")).await;
    goes_on(&mut kept).await;
    goes_on(&mut ended).await;

    std::fs::write(folder.path().join("next"), &ours.pem).unwrap();
    std::fs::rename(folder.path().join("next"), &trusted).unwrap();
    soon(async { while let Ok(Some(_)) = ended.message().await {} }).await;
    goes_on(&mut kept).await;
    drop((kept, ended));
    server.stop().await;
}
