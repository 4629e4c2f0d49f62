//! Rolling restarts under load: two real `damper serve` over etcd, with TLS and tokens, and services that call
//! each other meanwhile.
//!
//! The callee fails the first attempt of every call, so that a service which ever runs without its rule gets an error.
//! Each service's revision is looked at every few milliseconds of its whole life.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use damper_sdk::{Damper, Options};
use damper_tests::binary::{Served, damper};
use damper_tests::etcd::Etcd;
use damper_tests::foreign::free_addresses;
use damper_tests::hop::{Hop, call};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use crate::world::{PATIENCE, RULE};

/// Of each replica, in turn.
const ROUNDS: u32 = 20;
const SERVICES: usize = 6;
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// The last byte of the host of both replicas, 127.0.77.52.
const HOST: u8 = 52;

/// Two replicas, and what it takes to talk to them.
struct Pair {
    _etcd: Etcd,
    folder: TempDir,
    store: String,
    listen: [String; 2],
    running: Vec<Served>,
}

impl Pair {
    async fn start() -> Self {
        let etcd = Etcd::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_certificates(folder.path());
        let store = format!("etcd://{}", etcd.endpoint());
        let listen = free_addresses(HOST).map(|address| address.to_string());
        let mut pair = Self { _etcd: etcd, folder, store, listen, running: Vec::new() };
        pair.running = vec![pair.serve(0), pair.serve(1)];
        pair
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self, n: usize) -> Served {
        let files =
            ["server.pem", "server.key", "ca.pem", "admin"].map(|name| self.file(name).display().to_string());
        let [certificate, key, ca, admin] = &files;
        Served::start_with(&[
            "--listen",
            &self.listen[n],
            "--store",
            &self.store,
            "--auth",
            "tokens",
            "--tls-cert",
            certificate,
            "--tls-key",
            key,
            "--peer-ca",
            ca,
            "--bootstrap-token-file",
            admin,
        ])
    }

    fn url(&self, n: usize) -> String {
        format!("https://{}", self.listen[n])
    }

    /// Runs a command as the admin.
    fn run(&self, server: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(damper());
        command
            .args(arguments)
            .env("DAMPER_SERVER", self.url(server))
            .env("DAMPER_CA_FILE", self.file("ca.pem"));
        command.env("DAMPER_TOKEN_FILE", self.file("admin")).output().expect("damper can be started")
    }

    fn run_well(&self, server: usize, arguments: &[&str]) -> String {
        let output = self.run(server, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Writes a rule that is as good as the one before, so that the revision rises.
    fn write(&self, server: usize, attempts: u32) {
        let file = self.file("rule.yaml");
        let rule = RULE.replace("max_attempts: 3", &format!("max_attempts: {attempts}"));
        std::fs::write(&file, rule).expect("a file can be written");
        self.run_well(server, &["apply", "-f", &file.to_string_lossy()]);
    }

    async fn service(&self, n: usize, stock: &Hop) -> Service {
        let options = Options::new([self.url(0), self.url(1)])
            .service("orders")
            .instance_id(format!("orders-{n}"))
            .ca_file(self.file("ca.pem"))
            .token_file(self.file("agent"));
        let damper = Damper::connect(options).expect("good options");
        damper.ready(PATIENCE).await.expect("rules arrive");
        Service::start(damper, stock).await
    }
}

/// A service under load, and what was seen of it.
struct Service {
    damper: Damper,
    calls: Arc<AtomicU64>,
    errors: Arc<Mutex<Vec<Status>>>,
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

/// What became of a service's revision and stream.
#[derive(Default)]
struct Seen {
    went_back: Mutex<Vec<(u64, u64)>>,
    epochs: Mutex<HashSet<String>>,
    /// How long it was without a stream, each time.
    gaps: Mutex<Vec<Duration>>,
}

impl Service {
    async fn start(damper: Damper, stock: &Hop) -> Self {
        let channel = stock.governed_channel(&damper.client_layer("stock").expect("a good name")).await;
        let (calls, errors): (Arc<AtomicU64>, Arc<Mutex<Vec<Status>>>) = Default::default();
        let (seen, stop): (Arc<Seen>, Arc<AtomicBool>) = Default::default();
        let (count, failures, ended) = (calls.clone(), errors.clone(), stop.clone());
        let load = tokio::spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let question = format!("{:032x}", fastrand::u128(..));
                match call(channel.clone(), Request::new(question)).await {
                    Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    Err(status) => failures.lock().expect("no panic").push(status),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let watching = tokio::spawn(watch(damper.clone(), seen.clone(), stop.clone()));
        Self { damper, calls, errors, seen, stop, tasks: vec![load, watching] }
    }

    async fn end(self) -> (u64, Vec<Status>, Arc<Seen>) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("it ends well");
        }
        let errors = std::mem::take(&mut *self.errors.lock().expect("no panic"));
        (self.calls.load(Ordering::Relaxed), errors, self.seen)
    }
}

async fn watch(damper: Damper, seen: Arc<Seen>, stop: Arc<AtomicBool>) {
    let (mut revision, mut without) = (0, None::<Instant>);
    while !stop.load(Ordering::Relaxed) {
        let status = damper.status();
        if status.revision < revision {
            seen.went_back.lock().expect("no panic").push((revision, status.revision));
        }
        revision = status.revision;
        seen.epochs.lock().expect("no panic").insert(status.epoch);
        match (status.connected, without) {
            (false, None) => without = Some(Instant::now()),
            (true, Some(since)) => {
                seen.gaps.lock().expect("no panic").push(since.elapsed());
                without = None;
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    if let Some(since) = without {
        seen.gaps.lock().expect("no panic").push(since.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_rolling_restarts_under_load_cost_no_call_and_no_revision_goes_back() {
    let mut pair = Pair::start().await;
    pair.write(0, 3);
    let agent = pair.run_well(0, &["token", "create", "orders", "--role", "agent", "--caller", "orders"]);
    std::fs::write(pair.file("agent"), agent).expect("a file can be written");
    let asked = Arc::new(Mutex::new(HashSet::new()));
    let stock = Hop::serve(None, move |request: Request<String>| {
        let is_first = asked.lock().expect("no panic").insert(request.get_ref().clone());
        async move {
            if is_first { Err(Status::unavailable("once")) } else { Ok(Response::new(request.into_inner())) }
        }
    })
    .await;
    let mut services = Vec::new();
    for n in 0..SERVICES {
        services.push(pair.service(n, &stock).await);
    }
    tokio::task::block_in_place(|| roll(&mut pair, |_| Duration::ZERO));
    all_are_back(&services).await;
    // From one that comes up at once to one that an orchestrator looks at for a while.
    tokio::task::block_in_place(|| roll(&mut pair, |restart| Duration::from_millis(500) * (restart % 5)));
    all_are_back(&services).await;
    tokio::task::block_in_place(|| agree(&pair));
    report(services).await;
}

/// Each replica as often, the next one so long after the one before serves again.
fn roll(pair: &mut Pair, pause: impl Fn(u32) -> Duration) {
    let begun = Instant::now();
    let mut stops = Vec::new();
    for restart in 0..2 * ROUNDS {
        let n = (restart % 2) as usize;
        let mut leaving = pair.running.remove(n);
        let stopping = Instant::now();
        leaving.terminate();
        stops.push(stopping.elapsed());
        pair.write(1 - n, 3 + restart % 3);
        let back = pair.serve(n);
        pair.running.insert(n, back);
        std::thread::sleep(pause(restart));
    }
    println!("{} restarts took {:?}", stops.len(), begun.elapsed());
    stops.sort();
    let (median, longest) = (stops[stops.len() / 2], stops[stops.len() - 1]);
    println!("a replica stopped within {median:?} at the median, {longest:?} at most");
}

async fn all_are_back(services: &[Service]) {
    let since = Instant::now();
    for service in services {
        while !service.damper.status().connected {
            assert!(since.elapsed() < BACK_WITHIN, "{:?}", service.damper.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Both replicas list all services, and a change reaches all of them through either.
fn agree(pair: &Pair) {
    let file = pair.file("rule.yaml").display().to_string();
    std::fs::write(&file, RULE.replace("max_attempts: 3", "max_attempts: 9")).expect("a file can be written");
    pair.run_well(0, &["apply", "-f", &file, "--wait", "100%"]);
    for n in [0, 1] {
        let listed = pair.run_well(n, &["clients", "-o", "json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        assert_eq!(listed["clients"].as_array().map(Vec::len), Some(SERVICES), "{listed}");
        let replicas = pair.run_well(n, &["replicas"]);
        assert_eq!(replicas.lines().count(), 3, "a heading and two: {replicas}");
    }
}

async fn report(services: Vec<Service>) {
    let (mut calls, mut gaps) = (0, Vec::new());
    for service in services {
        let (made, errors, seen) = service.end().await;
        assert!(errors.is_empty(), "{} of {made} calls failed, the first with {:?}", errors.len(), errors[0]);
        let went_back = seen.went_back.lock().expect("no panic");
        assert!(went_back.is_empty(), "a revision went back: {went_back:?}");
        assert_eq!(seen.epochs.lock().expect("no panic").len(), 1, "one store, one epoch");
        gaps.extend(seen.gaps.lock().expect("no panic").iter().copied());
        calls += made;
    }
    gaps.sort();
    let longest = *gaps.last().expect("streams were ended");
    println!(
        "{calls} calls, no error; {} streams ended, back after {:?} at the median, {longest:?} at most",
        gaps.len(),
        gaps[gaps.len() / 2]
    );
    assert!(calls > 1000, "{calls} calls are no load");
    assert!(gaps.len() >= SERVICES && longest < BACK_WITHIN, "{gaps:?}");
}

/// An authority, and a certificate of it for the replicas.
fn write_certificates(folder: &Path) {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = authority.self_signed(&key).expect("a certificate");
    std::fs::write(folder.join("ca.pem"), certificate.pem()).expect("a file can be written");
    let issuer = rcgen::Issuer::new(authority, key);
    let server = rcgen::CertificateParams::new(vec![format!("127.0.77.{HOST}")]).expect("parameters");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = server.signed_by(&key, &issuer).expect("a certificate");
    std::fs::write(folder.join("server.pem"), certificate.pem()).expect("a file can be written");
    std::fs::write(folder.join("server.key"), key.serialize_pem()).expect("a file can be written");
}
