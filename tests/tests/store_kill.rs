//! kill -9 in the middle of writing: what was acknowledged is there, and the rest is sound.
//!
//! Each round starts `store_victim` on the store of the rounds before, kills it at a random moment, opens the
//! store and compares it with every line the victims ever printed. The moment is counted from the first
//! acknowledged write in most rounds, and from the start of the process in some, so that opening is hit too.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use damper_control_plane::store::{State, Store};
use damper_tests::etcd::Etcd;

/// How long a victim may take until its first acknowledged write.
const PATIENCE: Duration = Duration::from_secs(20);

/// One acknowledged write.
struct Ack {
    revision: u64,
    key: String,
    value: String,
}

/// Runs a victim, kills it, and yields what it had acknowledged.
fn kill_in_the_middle(location: &str, round: usize, random: &mut fastrand::Rng) -> Vec<Ack> {
    let mut victim = Command::new(env!("CARGO_BIN_EXE_store_victim"))
        .args([location, &round.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(victim.stdout.take().unwrap());
    let (first, begun) = mpsc::channel();
    let reader = thread::spawn(move || read(stdout, &first));
    if round % 5 == 4 {
        thread::sleep(Duration::from_micros(random.u64(..150_000)));
    } else {
        begun.recv_timeout(PATIENCE).expect("the victim writes");
        thread::sleep(Duration::from_micros(random.u64(..50_000)));
    }
    assert_eq!(victim.try_wait().unwrap(), None, "the victim writes until it is killed");
    victim.kill().unwrap();
    victim.wait().unwrap();
    reader.join().unwrap()
}

/// The lines of a victim up to its end; the last counts only if it is whole.
fn read(mut stdout: impl BufRead, first: &mpsc::Sender<()>) -> Vec<Ack> {
    let mut acks = Vec::new();
    let mut line = String::new();
    while stdout.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [revision, key, value] = words[..] else { panic!("the victim said {line:?}") };
        let revision = revision.parse().unwrap();
        acks.push(Ack { revision, key: key.to_owned(), value: value.to_owned() });
        // Nobody waits for it in the rounds that are counted from the start.
        let _ = first.send(());
        line.clear();
    }
    acks
}

/// Every acknowledged write is in the history, the history is without gap, and the entries are its outcome.
async fn assert_nothing_is_lost(store: &dyn Store, acks: &[Ack]) {
    let state = store.load().await.unwrap();
    let changes = store.changes(0, u64::MAX).await.unwrap();
    assert!(changes.iter().map(|change| change.revision).eq(1..=state.revision), "a gap in the history");
    for ack in acks {
        let place = usize::try_from(ack.revision).unwrap() - 1;
        let change = changes.get(place).unwrap_or_else(|| panic!("revision {} is lost", ack.revision));
        let edit = change.edits.iter().find(|edit| edit.key == ack.key);
        let value = edit.and_then(|edit| edit.value.as_deref());
        assert_eq!(value, Some(ack.value.as_bytes()), "{} at revision {}", ack.key, ack.revision);
    }
    let mut replayed = State { revision: 0, entries: Default::default(), ..state.clone() };
    changes.iter().for_each(|change| replayed.apply(change));
    assert_eq!(state, replayed);
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
        acks.extend(kill_in_the_middle(&location, round, &mut random));
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
        acks.extend(kill_in_the_middle(&location, round, &mut random));
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
        let mut victim = Command::new(env!("CARGO_BIN_EXE_store_victim"))
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
