//! kill -9 in the middle of writing: what was acknowledged is there, and the rest is sound.
//!
//! Each round starts `store_victim` on the store of the rounds before, kills it at a random moment, opens the
//! store and compares it with every line the victims ever printed. The moment is counted from the first
//! acknowledged write in most rounds, and from the start of the process in some, so that opening is hit too.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::io::BufReader;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use damper_store::Store;
use damper_tests::etcd::Etcd;
use damper_tests::victim::{PATIENCE, assert_nothing_is_lost, kill_in_the_middle, read};

fn victim() -> Command {
    Command::new(env!("CARGO_BIN_EXE_store_victim"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_loses_no_acknowledged_write_to_sixty_kills() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let location = format!("sled:{}", folder.path().display());
    let mut acks = Vec::new();
    for round in 0..60 {
        acks.extend(kill_in_the_middle(victim(), &location, round, &mut random));
        let store = damper_tests::sled::open(folder.path()).await;
        assert_nothing_is_lost(&store, &acks).await;
    }
    assert!(acks.len() > 60 * 4 / 5, "the victims hardly wrote: {}", acks.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_every_acknowledged_write_of_a_killed_writer() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let etcd = Etcd::start().await;
    let location = format!("etcd://{}", etcd.endpoint());
    let mut acks = Vec::new();
    for round in 0..15 {
        acks.extend(kill_in_the_middle(victim(), &location, round, &mut random));
        let store: Arc<dyn Store> = Arc::new(etcd.store("/damper/"));
        assert_nothing_is_lost(&*store, &acks).await;
    }
    assert!(acks.len() > 15 * 4 / 5, "the victims hardly wrote: {}", acks.len());
}

/// The same for etcd itself: what it acknowledged survives its own death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_etcd_keeps_what_was_acknowledged() {
    let mut etcd = Etcd::start().await;
    let location = format!("etcd://{}", etcd.endpoint());
    let mut acks = Vec::new();
    for round in 0..3 {
        let mut victim = victim()
            .args([&location, &round.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(victim.stdout.take().unwrap());
        let (first, begun) = mpsc::channel();
        let reader = thread::spawn(move || read(stdout, &first));
        begun.recv_timeout(PATIENCE).expect("the victim writes");
        thread::sleep(Duration::from_millis(fastrand::u64(..100)));
        etcd.kill();
        let killed = Instant::now();
        // The victim ends at the first refusal.
        victim.wait().unwrap();
        assert!(killed.elapsed() < PATIENCE, "{:?}", killed.elapsed());
        acks.extend(reader.join().unwrap());
        etcd.restart().await;
        assert_nothing_is_lost(&etcd.store("/damper/"), &acks).await;
    }
}
