//! Services go on whatever becomes of the control plane.
//!
//! The control plane is the real binary and is killed with SIGKILL; the service is a hop whose callee fails,
//! so that the number of requests that reach the callee tells whether retries happen.

use std::path::Path;
use std::time::{Duration, Instant};

use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::{self, client_message, server_message};
use damper_sdk::{ClientService, Damper, Options, Source};
use damper_tests::binary::{self, Served};
use damper_tests::hop::{Hop, call};
use tonic::transport::Channel;
use tonic::{Request, Status};

const READY: Duration = Duration::from_secs(10);
const RULE: &str = "kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }
";

/// A callee that always fails and a caller with Damper.
struct Service {
    damper: Damper,
    stock: Hop,
    channel: ClientService<Channel>,
}

impl Service {
    async fn start(options: Options) -> Self {
        let damper = Damper::connect(options.service("orders")).expect("good options");
        let stock = Hop::serve(None, |_| async { Err(Status::unavailable("out of stock")) }).await;
        let layer = damper.client_layer("stock").expect("a good name");
        let channel = stock.governed_channel(&layer).await;
        Self { damper, stock, channel }
    }

    /// How often the callee was asked for one call.
    async fn attempts(&self) -> u64 {
        let before = self.stock.handled();
        let answer = call(self.channel.clone(), Request::new("hello".to_owned())).await;
        answer.expect_err("the callee fails");
        self.stock.handled() - before
    }
}

fn apply(server: &Served, folder: &Path, manifest: &str) {
    let file = folder.join("rule.yaml");
    std::fs::write(&file, manifest).expect("a file can be written");
    let output = binary::run(server.url(), &["apply", "-f", &file.to_string_lossy()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn serve(folder: &Path) -> Served {
    Served::start(&format!("sled:{}", folder.join("store").display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn services_go_on_when_the_control_plane_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = serve(folder.path());
    apply(&server, folder.path(), RULE);
    let service = Service::start(Options::new([server.url()])).await;
    service.damper.ready(READY).await.expect("rules arrive");
    assert_eq!(service.attempts().await, 3);
    server.kill();
    for _ in 0..10 {
        assert_eq!(service.attempts().await, 3, "the rules stay in force");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_restarted_without_control_plane_runs_on_the_last_known_good_rules() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state");
    let mut server = serve(folder.path());
    apply(&server, folder.path(), RULE);
    let url = server.url().to_owned();
    let options = || Options::new([url.as_str()]).state_dir(&state);
    let first = Service::start(options()).await;
    first.damper.ready(READY).await.expect("rules arrive");
    server.kill();
    first.damper.shutdown().await;
    drop(first);

    let restarted = Service::start(options()).await;
    wait_for_source(&restarted, Source::LastKnownGood).await;
    assert_eq!(restarted.attempts().await, 3);
    restarted.damper.shutdown().await;
    drop(restarted);

    for entry in std::fs::read_dir(&state).expect("the state folder is there") {
        let path = entry.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("a readable file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).expect("a writable file");
    }
    let damaged = Service::start(options()).await;
    assert_eq!(damaged.attempts().await, 1, "built-in rules repeat nothing");
    assert_eq!(damaged.damper.status().source, Source::BuiltIn);
}

/// Reading the file happens beside the first calls; it takes milliseconds.
async fn wait_for_source(service: &Service, source: Source) {
    let started = Instant::now();
    while service.damper.status().source != source {
        assert!(started.elapsed() < READY, "{:?}", service.damper.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_override_file_ends_retries_without_the_control_plane() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("damper-mode");
    let mut server = serve(folder.path());
    apply(&server, folder.path(), RULE);
    let service = Service::start(Options::new([server.url()]).override_file(&file)).await;
    service.damper.ready(READY).await.expect("rules arrive");
    server.kill();
    assert_eq!(service.attempts().await, 3);

    let limit = Duration::from_secs(60);
    std::fs::write(&file, "off\n").expect("a file can be written");
    let written = Instant::now();
    while service.attempts().await != 1 {
        assert!(written.elapsed() < limit, "retries did not end within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_file(&file).expect("the file is there");
    let removed = Instant::now();
    while service.attempts().await != 3 {
        assert!(removed.elapsed() < limit, "the override stayed in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_follows_changes_after_the_control_plane_came_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = format!("sled:{}", folder.path().join("store").display());
    let mut server = serve(folder.path());
    let address = server.address().to_owned();
    apply(&server, folder.path(), RULE);
    let service = Service::start(Options::new([server.url()])).await;
    service.damper.ready(READY).await.expect("rules arrive");
    server.kill();
    let server = Served::start_on(&address, &store);
    apply(&server, folder.path(), &RULE.replace("max_attempts: 3", "max_attempts: 5"));
    let changed = Instant::now();
    while service.attempts().await != 5 {
        assert!(changed.elapsed() < Duration::from_secs(35), "the change did not arrive");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The server has checked every rule it sends, so a client that refuses one is played by a raw stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_rule_and_its_reason_are_seen_by_damper_clients() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = serve(folder.path());
    apply(&server, folder.path(), RULE);
    let (messages, outgoing) = tokio::sync::mpsc::channel(4);
    let identity = v1::Identity {
        service: "orders".to_owned(),
        cluster: "default".to_owned(),
        instance: "orders-1".to_owned(),
    };
    let features = vec![damper_core::feature::BASE.to_owned()];
    let hello = v1::Hello { identity: Some(identity), features, ..v1::Hello::default() };
    let say = |kind| v1::ClientMessage { kind: Some(kind) };
    messages.send(say(client_message::Kind::Hello(hello))).await.expect("the stream is open");
    let mut client = DistributionClient::connect(server.url().to_owned()).await.expect("the server is there");
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let mut incoming = client.subscribe(outgoing).await.expect("a stream").into_inner();
    let (nonce, revision, rule) = loop {
        let message = incoming.message().await.expect("a message").expect("the stream goes on");
        if let Some(server_message::Kind::Snapshot(mut snapshot)) = message.kind {
            break (message.nonce, message.revision, snapshot.rules.remove(0));
        }
    };
    let refusal = v1::Refusal {
        key: rule.key,
        revision: rule.revision,
        reason: "policy.retry.max_attempts: 3 is more than I like".to_owned(),
        guard: false,
        kill: false,
    };
    let ack = v1::Ack { nonce, revision, refused: vec![refusal] };
    messages.send(say(client_message::Kind::Ack(ack))).await.expect("the stream is open");
    binary::wait_until("damper clients shows the refusal", READY, || {
        let output = binary::run(server.url(), &["clients", "-o", "yaml"]);
        String::from_utf8_lossy(&output.stdout).contains("3 is more than I like")
    });
}
