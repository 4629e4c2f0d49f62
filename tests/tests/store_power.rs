//! The embedded store on a disk that loses what was not synced, and on one that is full.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_sdk::{Damper, Options};
use damper_tests::binary::Served;
use damper_tests::disk::Disk;
use damper_tests::hop::{Hop, call};
use damper_tests::victim::{PATIENCE, assert_nothing_is_lost, kill_in_the_middle};
use tonic::{Code, Request};

/// Each round kills a victim in the middle of writing. In two of three rounds the power goes as well, and takes all that
/// was not synced, or some of it. In the third round only the process ends: the next one goes on from what the system
/// still holds in memory, and may not make a later loss of power worse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_over_sled_survive_power_loss() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = Disk::new();
    let store = disk.root().join("made").join("store");
    let location = format!("sled:{}", store.display());
    let mut acks = Vec::new();
    for round in 0..24 {
        let victim = disk.command(env!("CARGO_BIN_EXE_store_victim"));
        acks.extend(kill_in_the_middle(victim, &location, round, &mut random));
        match round % 3 {
            0 => disk.lose_power(|| false),
            1 => continue,
            _ => disk.lose_power(|| random.bool()),
        }
        if acks.is_empty() {
            continue;
        }
        let store = damper_tests::sled::open(&store).await;
        assert_nothing_is_lost(&store, &acks).await;
    }
    assert!(acks.len() > 24 * 4 / 5, "the victims hardly wrote: {}", acks.len());
}

/// The lines that a child prints, as they come.
fn lines_of(child: &mut Child) -> impl Fn() -> String + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, line) = mpsc::channel();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
    move || line.recv_timeout(PATIENCE).expect("the process goes on")
}

/// A child that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(disk: &Disk, program: &str) -> Running {
    let mut command = disk.command(program);
    command.arg(disk.root().join("store")).stdin(Stdio::null()).stdout(Stdio::piped());
    Running(command.spawn().unwrap())
}

/// The disk fills up with rules. Then a kill, the end of it, a removal and a compaction are still written, and rules
/// again as soon as there is room, all by one process.
#[test]
fn sled_on_a_full_disk_writes_kills_and_goes_on_with_room() {
    let disk = Disk::new();
    disk.hold_at_most(32 << 20);
    let mut child = start(&disk, env!("CARGO_BIN_EXE_store_full"));
    let next = lines_of(&mut child.0);
    let refusal = next();
    assert!(refusal.starts_with("refused nothing was changed"), "{refusal}");
    assert!(
        refusal.contains("disk is full") && refusal.contains("only kills and removals are written"),
        "{refusal}"
    );
    assert_eq!(next(), "urgent");
    assert!(disk.used() <= 32 << 20, "{}", disk.used());
    disk.hold_at_most(u64::MAX);
    assert_eq!(next(), "written");
    assert!(child.0.wait().unwrap().success());
}

/// Sled refuses everything after an error. The store opens it again by itself, also when it fails again meanwhile.
#[test]
fn sled_is_opened_again_when_its_disk_has_failed() {
    let disk = Disk::new();
    let mut child = start(&disk, env!("CARGO_BIN_EXE_store_faulty"));
    let next = lines_of(&mut child.0);
    assert_eq!(next(), "written");
    for _ in 0..3 {
        disk.fail_writes(true);
        let refusal = next();
        assert!(refusal.starts_with("refused"), "{refusal}");
        disk.fail_writes(false);
        assert_eq!(next(), "written");
    }
}

/// A service manager starts a server again that ends with 69, and gives up at 78.
#[test]
fn serve_ends_with_69_on_a_full_disk_and_78_on_a_wrong_path() {
    let disk = Disk::new();
    disk.hold_at_most(0);
    let status = |path: &Path| {
        let mut serve = disk.command(damper_tests::binary::damper());
        let ended = serve
            .args(["serve", "--listen", "127.0.0.1:0", "--store"])
            .arg(format!("sled:{}", path.display()));
        ended.stderr(Stdio::null()).status().unwrap().code()
    };
    assert_eq!(status(&disk.root().join("store")), Some(69));
    assert_eq!(status(Path::new("/dev/null/store")), Some(78));
}

fn kill_of(callee: &str) -> v1::KillRequest {
    let [any, callee] = ["*", callee].map(str::to_owned);
    let key = v1::Pattern {
        caller_service: any.clone(),
        caller_cluster: any.clone(),
        callee_service: callee,
        callee_method: any,
    };
    let options = v1::WriteOptions { reason: "an incident".to_owned(), ..Default::default() };
    v1::KillRequest { key: Some(key), calls: true, options: Some(options), ..Default::default() }
}

/// Asks the server for its kills until they are as they must become.
async fn kills_that(of: &Served, are_so: impl Fn(&[v1::KillSwitch]) -> bool) -> Vec<v1::KillSwitch> {
    let mut client = KillsClient::connect(of.url().to_owned()).await.unwrap();
    let asking = async {
        loop {
            let listed = client.list_kills(v1::ListKillsRequest::default()).await.unwrap().into_inner().kills;
            if are_so(&listed) {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("the kills become so")
}

/// Fail static over sled: while its disk fails a kill goes out from memory, nothing is taken from a client, and the kill
/// is stored once the disk works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_is_held_while_the_disk_of_sled_fails() {
    let disk = Disk::new();
    let store = format!("sled:{}", disk.root().join("store").display());
    let serve = || {
        let command = disk.command(damper_tests::binary::damper());
        Served::start_by(command, &["--listen", "127.0.0.1:0", "--store", &store])
    };
    let mut server = serve();
    let url = server.url().to_owned();
    let mut kills = KillsClient::connect(url.clone()).await.unwrap();
    kills.kill(kill_of("price")).await.unwrap();
    let damper = Damper::connect(Options::new([&url]).service("shop")).unwrap();
    damper.ready(PATIENCE).await.unwrap();
    let hop = Hop::serve(None, |request| async { Ok(tonic::Response::new(request.into_inner())) }).await;
    let is_killed = async |callee: &str| {
        let layer = damper.client_layer(callee).unwrap();
        let answer = call(hop.governed_channel(&layer).await, Request::new(String::new())).await;
        answer.is_err_and(|status| status.code() == Code::Unavailable)
    };
    assert!(is_killed("price").await && !is_killed("stock").await);
    disk.fail_writes(true);
    let held = kills.kill(kill_of("stock")).await.expect("a kill is taken").into_inner();
    assert!(held.kill.unwrap().unstored);
    let sent = async {
        while !is_killed("stock").await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("the client gets it");
    assert!(is_killed("price").await, "it lost nothing");
    let mut rules = RulesClient::connect(url.clone()).await.unwrap();
    let key = kill_of("stock").key;
    let policy = Some(v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() });
    let rule = Some(v1::Rule { key, policy, ..Default::default() });
    let refused = rules.put_rule(v1::PutRuleRequest { rule, ..Default::default() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    disk.fail_writes(false);
    let all_stored = |kills: &[v1::KillSwitch]| kills.len() == 2 && kills.iter().all(|kill| !kill.unstored);
    kills_that(&server, all_stored).await;
    server.kill();
    kills_that(&serve(), all_stored).await;
}
