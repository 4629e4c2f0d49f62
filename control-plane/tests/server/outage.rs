//! A real etcd that stops responding while the server runs, and recovers.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use damper_control_plane::QueuesUrl;
use damper_proto::v1;
use tempfile::TempDir;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{Agent, hello, rule, shop_rule, soon, start_in};

/// An etcd for this test.
struct Etcd {
    process: Child,
    client: u16,
    _data: TempDir,
}

impl Etcd {
    fn start() -> Self {
        let data = TempDir::new().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, peer) = (free(), free());
        let ports = [&client, &peer].map(|listener| listener.local_addr().unwrap().port());
        drop((client, peer));
        let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let process = Command::new("etcd")
            .args(["--name", "one", "--initial-cluster", &format!("one={peer}")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need etcd on the path (Debian package etcd-server)");
        Self { process, client: ports[0], _data: data }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.signal("-CONT");
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn reads_and_streams_go_on_while_the_store_is_unavailable() {
    let etcd = Etcd::start();
    let url = format!("etcd://127.0.0.1:{}", etcd.client);
    let folder = TempDir::new().unwrap();
    let server = start_in(folder, |settings| {
        settings.store = url.parse().unwrap();
        settings.queues = QueuesUrl::Off;
    })
    .await;
    server.put(shop_rule(2)).await;
    let mut watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    assert!(soon(watch.message()).await.unwrap().unwrap().stale_since.is_none());

    etcd.signal("-STOP");
    let begin = Instant::now();
    let request = v1::PutRuleRequest { rule: Some(shop_rule(3)), ..Default::default() };
    let refused = soon(server.rules().put_rule(request)).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.get_details_retry_info().is_some());
    while soon(watch.message()).await.unwrap().unwrap().stale_since.is_none() {}
    let (_, rules) = Agent::connect(&server, hello("shop")).await.snapshot().await;
    assert_eq!(rules.len(), 1);
    let key = rule(shop_rule(2).key.unwrap(), 2).key;
    assert!(server.rules().get_rule(v1::GetRuleRequest { key, min_revision: 0 }).await.is_ok());

    etcd.signal("-CONT");
    while soon(watch.message()).await.unwrap().unwrap().stale_since.is_some() {}
    soon(async {
        let request = v1::PutRuleRequest { rule: Some(shop_rule(4)), ..Default::default() };
        while server.rules().put_rule(request.clone()).await.is_err() {}
    })
    .await;
    server.stop().await;
}
