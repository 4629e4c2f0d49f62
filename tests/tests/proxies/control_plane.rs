//! A proxy whose control plane is away, at its start or later.

use std::path::Path;
use std::time::{Duration, Instant};

use damper_tests::binary::{self, Served};
use damper_tests::foreign::free_address;
use damper_tests::hop::Hop;
use damper_tests::peer::channel;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::{ANY_PORT, PATIENCE, Proxy, ended};

/// A callee that refuses each call, behind a proxy: each call shows the number of its attempts.
struct Counted {
    callee: Hop,
    channel: Channel,
    _proxy: Proxy,
}

impl Counted {
    /// Starts a proxy, and waits until it is ready.
    async fn start(control_plane: &str) -> Self {
        let callee = Hop::serve(None, |_| async { Err(Status::unavailable("out of stock")) }).await;
        let proxy = Proxy::start(control_plane, ANY_PORT, callee.address(), callee.address());
        let started = Instant::now();
        let admin = proxy.addresses.admin().to_string();
        while !binary::run(control_plane, &["proxy", "ready", "--admin", &admin]).status.success() {
            assert!(started.elapsed() < PATIENCE, "the proxy is not ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self { callee, channel: channel(proxy.addresses.outbound()), _proxy: proxy }
    }

    /// Returns how often the callee was asked for one call.
    async fn attempts(&self) -> u64 {
        let before = self.callee.handled();
        let error = ended(self.channel.clone(), "one").await.expect_err("the callee refuses");
        assert_eq!((error.code(), error.message()), (Code::Unavailable, "out of stock"));
        self.callee.handled() - before
    }

    /// Calls until a rule with this many attempts is in force.
    async fn follows(&self, attempts: u64) {
        let started = Instant::now();
        while self.attempts().await != attempts {
            assert!(started.elapsed() < PATIENCE, "the rule with {attempts} attempts does not arrive");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn apply(server: &Served, folder: &Path, attempts: u64) {
    let rule = format!(
        "kind: Rule\nkey: {{ caller_service: shop, caller_cluster: '*', callee_service: '*', \
         callee_method: '*' }}\npolicy: {{ mode: enforce, retry: {{ max_attempts: {attempts}, \
         backoff: {{ none: {{}} }} }}, retry_breaker: {{ enabled: false }} }}\n"
    );
    let file = folder.join("rule.yaml");
    std::fs::write(&file, rule).expect("a file can be written");
    let output = binary::run(server.url(), &["apply", "-f", &file.to_string_lossy()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Away at the start: calls pass and are not repeated. Away later: the rules stay in force. Each time it is
/// back, its rules arrive.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_follows_a_control_plane_that_is_away_and_returns() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = format!("sled:{}", folder.path().join("store").display());
    let address = free_address(42).to_string();
    let counted = Counted::start(&format!("http://{address}")).await;
    for _ in 0..10 {
        assert_eq!(counted.attempts().await, 1, "nothing is known of a rule");
    }

    let mut server = Served::start_on(&address, &store);
    apply(&server, folder.path(), 3);
    counted.follows(3).await;

    server.kill();
    for _ in 0..10 {
        assert_eq!(counted.attempts().await, 3, "the rule stays in force");
    }

    let server = Served::start_on(&address, &store);
    apply(&server, folder.path(), 2);
    counted.follows(2).await;
}
