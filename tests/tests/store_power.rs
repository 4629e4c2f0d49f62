//! The embedded store on a disk that loses what was not synced, and on one that is full.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;

use damper_tests::disk::Disk;
use damper_tests::victim::{PATIENCE, assert_nothing_is_lost, kill_in_the_middle};

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
    disk.hold_at_most(24 << 20);
    let mut child = start(&disk, env!("CARGO_BIN_EXE_store_full"));
    let next = lines_of(&mut child.0);
    let refusal = next();
    assert!(refusal.starts_with("refused not written"), "{refusal}");
    assert!(
        refusal.contains("disk is full") && refusal.contains("only kills and removals are written"),
        "{refusal}"
    );
    assert_eq!(next(), "urgent");
    assert!(disk.used() <= 24 << 20, "{}", disk.used());
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
