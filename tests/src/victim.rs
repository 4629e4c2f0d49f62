//! `store_victim`, a process that writes until it is killed, and what must be left of what it wrote.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use damper_store::{Store, StoreContents};

/// How long a victim may take until its first acknowledged write.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// One acknowledged write.
pub struct Ack {
    revision: u64,
    key: String,
    value: String,
}

/// Runs `store_victim`, kills it, and yields what it had acknowledged.
///
/// # Panics
/// When it does not write, or ends by itself.
pub fn kill_in_the_middle(
    mut victim: Command,
    location: &str,
    round: usize,
    random: &mut fastrand::Rng,
) -> Vec<Ack> {
    let mut victim = victim
        .args([location, &round.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the victim runs");
    let stdout = BufReader::new(victim.stdout.take().expect("the victim runs"));
    let (first, begun) = mpsc::channel();
    let reader = thread::spawn(move || read(stdout, &first));
    if round % 5 == 4 {
        thread::sleep(Duration::from_micros(random.u64(..150_000)));
    } else {
        begun.recv_timeout(PATIENCE).expect("the victim writes");
        thread::sleep(Duration::from_micros(random.u64(..50_000)));
    }
    assert_eq!(victim.try_wait().expect("the victim runs"), None, "the victim writes until it is killed");
    victim.kill().expect("the victim runs");
    victim.wait().expect("the victim runs");
    reader.join().expect("its lines are read")
}

/// The lines of a victim up to its end; the last counts only if it is whole.
///
/// # Panics
/// When it prints something else.
pub fn read(mut stdout: impl BufRead, first: &mpsc::Sender<()>) -> Vec<Ack> {
    let mut acks = Vec::new();
    let mut line = String::new();
    while stdout.read_line(&mut line).expect("a line") > 0 && line.ends_with('\n') {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [revision, key, value] = words[..] else { panic!("the victim said {line:?}") };
        let revision = revision.parse().expect("a revision");
        acks.push(Ack { revision, key: key.to_owned(), value: value.to_owned() });
        // Only in some rounds it is waited for.
        let _ = first.send(());
        line.clear();
    }
    acks
}

/// Every acknowledged write is in the history, the history is without gap, and the entries are its outcome.
///
/// # Panics
/// When that is not so.
pub async fn assert_nothing_is_lost(store: &dyn Store, acks: &[Ack]) {
    let state = store.load().await.expect("the store is sound");
    let changes = store.changes(0, u64::MAX).await.expect("the store is sound");
    assert!(changes.iter().map(|change| change.revision).eq(1..=state.revision), "a gap in the history");
    for ack in acks {
        let place = usize::try_from(ack.revision).expect("a small number") - 1;
        let change = changes.get(place).unwrap_or_else(|| panic!("revision {} is lost", ack.revision));
        let edit = change.edits.iter().find(|edit| edit.key == ack.key);
        let value = edit.and_then(|edit| edit.value.as_deref());
        assert_eq!(value, Some(ack.value.as_bytes()), "{} at revision {}", ack.key, ack.revision);
    }
    let mut replayed = StoreContents { revision: 0, entries: Default::default(), ..state.clone() };
    changes.iter().for_each(|change| replayed.apply(change));
    assert_eq!(state, replayed);
}
