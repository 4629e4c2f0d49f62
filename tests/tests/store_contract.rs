//! What every store promises, run against sled and against a real etcd.
//!
//! `contract!` turns each case into one test per store. A case gets a [`Place`]: where a store lies and how to
//! open it, more than once where the store allows that. What only etcd can suffer (an outage, its own
//! compaction, an answer that never comes) stands at the end.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use damper_store::etcd::{EtcdConfig, EtcdStore};
use damper_store::sled::SledStore;
use damper_store::{
    Change, Edit, MAX_CHANGES_PER_COMMIT, MAX_READ_BYTES, MAX_VALUE_BYTES, OpenError, Position, Store,
    StoreContents, StoreError, Watch, key,
};
use damper_tests::etcd::{Etcd, Tls};
use futures_util::StreamExt;
use tempfile::TempDir;

const PREFIX: &str = "/damper/";

/// How long anything in here may take before the test says it never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a store lies.
enum Place {
    Sled(TempDir),
    Etcd(Box<Etcd>),
}

impl Place {
    fn sled() -> Self {
        Self::Sled(tempfile::tempdir().unwrap())
    }

    async fn etcd() -> Self {
        Self::Etcd(Box::new(Etcd::start().await))
    }

    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sled(folder) => Arc::new(damper_tests::sled::open(folder.path()).await),
            Self::Etcd(etcd) => {
                let store = etcd.store(PREFIX);
                store.create().await.unwrap();
                Arc::new(store)
            }
        }
    }

    /// Another way in beside an open one: a second replica where the store is shared, the same handle else.
    async fn beside(&self, store: &Arc<dyn Store>) -> Arc<dyn Store> {
        match self {
            Self::Sled(_) => store.clone(),
            Self::Etcd(_) => self.open().await,
        }
    }

    /// Removes everything; nobody may have the store open where it is embedded.
    async fn wipe(&self) {
        match self {
            Self::Sled(folder) => {
                for entry in std::fs::read_dir(folder.path()).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
                        .unwrap();
                }
            }
            Self::Etcd(etcd) => {
                let options = etcd_client::DeleteOptions::new().with_prefix();
                etcd.client().await.delete(PREFIX, Some(options)).await.unwrap();
            }
        }
    }
}

macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod sled_keeps {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(super::Place::sled()).await })*
        }
        mod etcd_keeps {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(super::Place::etcd().await).await })*
        }
    };
}

contract!(
    a_created_store_is_empty_and_stays_what_it_is,
    commits_and_lineage_tell_histories_apart,
    a_commit_needs_the_right_head,
    of_racing_writers_exactly_one_gets_each_revision,
    a_change_is_all_or_nothing_to_every_reader,
    a_change_of_many_keys_is_one_change,
    a_change_of_many_bytes_is_one_change,
    changes_are_read_so_many_bytes_at_a_time,
    a_commit_of_many_changes_keeps_each_of_them,
    a_watch_yields_every_change_once_while_writes_go_on,
    a_watch_and_the_head_go_on_after_reopening,
    changes_are_kept_as_they_were_made,
    compaction_drops_changes_and_keeps_entries,
    the_epoch_lasts_until_the_store_is_wiped,
    a_renewed_epoch_ends_watches,
    hostile_names_stay_in_their_place,
    what_can_not_be_stored_is_refused_and_leaves_nothing,
    the_entries_are_what_the_changes_make,
    who_serves_from_the_store_is_no_part_of_its_state,
);

async fn who_serves_from_the_store_is_no_part_of_its_state(place: Place) {
    let store = place.open().await;
    let before = store.load().await.unwrap();
    let beside = place.beside(&store).await;
    let others = (store.join("a/b", Bytes::from_static(b"1")), beside.join("c", Bytes::from_static(b"2")));
    let (mut one, mut other) = match (others, &place) {
        ((Some(one), Some(other)), Place::Etcd(_)) => (one, other),
        ((None, None), Place::Sled(_)) => return,
        (others, _) => panic!("{others:?}"),
    };
    assert!(one.settled("c", PATIENCE).await && other.settled("a/b", PATIENCE).await);
    assert_eq!(one.known().borrow()["c"], Bytes::from_static(b"2"));
    assert_eq!(store.load().await.unwrap(), before);
    store.commit(0, &[change(1, vec![edit("rules/a", "1")])]).await.unwrap();
    assert_eq!(beside.load().await.unwrap().entries.len(), 1);
    let reserved = change(2, vec![edit("replicas/x", "1")]);
    assert!(matches!(store.commit(1, &[reserved]).await, Err(StoreError::Invalid { .. })));
    one.leave().await;
    let mut known = other.known();
    let gone = known.wait_for(|known| known.len() == 1 && known.contains_key("c"));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

fn edit(key: &str, value: &str) -> Edit {
    Edit { key: key.to_owned(), value: Some(Bytes::copy_from_slice(value.as_bytes())), before: None }
}

fn removal(key: &str) -> Edit {
    Edit { key: key.to_owned(), value: None, before: None }
}

fn change(revision: u64, edits: Vec<Edit>) -> Change {
    Change {
        revision,
        commit: 0,
        at: UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_000 + revision),
        author: format!("author {revision}"),
        reason: "because".to_owned(),
        peer: format!("[::1]:{revision}"),
        principal: format!("token ci ({revision})"),
        request_id: format!("request {revision}"),
        request_digest: u64::MAX - revision,
        edits,
    }
}

async fn put(store: &Arc<dyn Store>, revision: u64, edits: Vec<Edit>) -> Change {
    let change = change(revision, edits);
    store.commit(revision - 1, std::slice::from_ref(&change)).await.unwrap();
    change
}

async fn next(watch: &mut Watch) -> Result<Change, StoreError> {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    next.expect("the watch yields something in time").expect("a watch ends only with an error")
}

/// The state that the changes make of nothing.
fn replayed(epoch: &str, changes: &[Change]) -> StoreContents {
    let mut state = StoreContents { epoch: epoch.to_owned(), revision: 0, ..StoreContents::default() };
    changes.iter().for_each(|change| state.apply(change));
    state
}

/// All changes, however many reads that takes.
async fn all_changes(store: &Arc<dyn Store>) -> Vec<Change> {
    let mut all = store.changes(0, u64::MAX).await.unwrap();
    while let Some(reached) = all.last().map(|change| change.revision) {
        match store.changes(reached, u64::MAX).await.unwrap() {
            more if more.is_empty() => break,
            more => all.extend(more),
        }
    }
    all
}

async fn assert_entries_are_the_replay_of_all_changes(store: &Arc<dyn Store>) -> StoreContents {
    let state = store.load().await.unwrap();
    let changes = all_changes(store).await;
    assert_eq!(state, replayed(&state.epoch, &changes));
    state
}

async fn a_created_store_is_empty_and_stays_what_it_is(place: Place) {
    let store = place.open().await;
    let state = store.load().await.unwrap();
    assert_eq!((state.revision, state.entries.len(), state.epoch.len()), (0, 0, 32));
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), []);
    store.create().await.unwrap();
    assert_eq!(store.load().await.unwrap(), state);
}

async fn a_commit_needs_the_right_head(place: Place) {
    let store = place.open().await;
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let late = store.commit(0, &[change(1, vec![edit("rules/a", "2")])]).await;
    assert!(matches!(late, Err(StoreError::Conflict { head: 1 })), "{late:?}");
    let early = store.commit(2, &[change(3, vec![edit("rules/a", "3")])]).await;
    assert!(matches!(early, Err(StoreError::Conflict { head: 1 })), "{early:?}");
    let state = assert_entries_are_the_replay_of_all_changes(&store).await;
    assert_eq!(state.entries["rules/a"].value, "1");
}

async fn of_racing_writers_exactly_one_gets_each_revision(place: Place) {
    const EACH: usize = 25;
    let store = place.open().await;
    store.load().await.unwrap();
    let mut writers = Vec::new();
    for name in ["a", "b", "c"] {
        let store = place.beside(&store).await;
        writers.push(tokio::spawn(async move {
            let mut won = Vec::new();
            let mut head = 0;
            while won.len() < EACH {
                let proposed = change(head + 1, vec![edit("rules/shared", name), edit(name, "x")]);
                match store.commit(head, std::slice::from_ref(&proposed)).await {
                    Ok(()) => {
                        head += 1;
                        won.push(proposed);
                    }
                    Err(StoreError::Conflict { head: now }) => head = now,
                    Err(error) => panic!("{error}"),
                }
            }
            won
        }));
    }
    let mut won = Vec::new();
    for writer in writers {
        won.extend(writer.await.unwrap());
    }
    won.sort_by_key(|change| change.revision);
    assert_eq!(won.len(), 3 * EACH);
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), won);
    assert_entries_are_the_replay_of_all_changes(&store).await;
}

/// Readers look again and again while one value is moved between two keys in changes of all sizes.
async fn a_change_is_all_or_nothing_to_every_reader(place: Place) {
    let store = place.open().await;
    let many = |value: &str, count: usize| -> Vec<Edit> {
        (0..count).map(|place| edit(&format!("rules/{place}"), value)).collect()
    };
    put(&store, 1, many("1", 150)).await;
    let beside = place.beside(&store).await;
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while seen < 5 {
            let state = beside.load().await.unwrap();
            let expected = state.revision.to_string();
            for (key, entry) in &state.entries {
                assert_eq!(entry.value, expected, "{key} at revision {}", state.revision);
                assert_eq!(entry.revision, state.revision);
            }
            assert_eq!(state.entries.len(), 150);
            seen = state.revision;
        }
    });
    for revision in 2..=5 {
        put(&store, revision, many(&revision.to_string(), 150)).await;
    }
    tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap();
}

async fn a_change_of_many_keys_is_one_change(place: Place) {
    let store = place.open().await;
    let first = put(&store, 1, vec![edit("rules/00001", "old"), edit("rules/gone", "old")]).await;
    let mut watch = store.watch(&Position::at(1));
    let mut edits: Vec<Edit> = (0..500).map(|place| edit(&format!("rules/{place:05}"), "new")).collect();
    edits.push(removal("rules/gone"));
    let second = put(&store, 2, edits).await;
    assert_eq!(next(&mut watch).await.unwrap(), second);
    let third = put(&store, 3, vec![edit("rules/00002", "newer")]).await;
    assert_eq!(next(&mut watch).await.unwrap(), third);
    assert_eq!(store.changes(0, 9).await.unwrap(), [first, second, third]);
    let state = assert_entries_are_the_replay_of_all_changes(&store).await;
    assert_eq!(state.entries.len(), 500);
}

async fn a_change_of_many_bytes_is_one_change(place: Place) {
    let store = place.open().await;
    store.load().await.unwrap();
    let mut watch = store.watch(&Position::at(0));
    let value = |byte: u8| Some(Bytes::from(vec![byte; MAX_VALUE_BYTES]));
    let edits = (0..6).map(|place| Edit { key: format!("rules/{place}"), value: value(place), before: None });
    let big = put(&store, 1, edits.collect()).await;
    let small = put(&store, 2, vec![edit("rules/0", "small")]).await;
    assert_eq!(next(&mut watch).await.unwrap(), big);
    assert_eq!(next(&mut watch).await.unwrap(), small);
    assert_entries_are_the_replay_of_all_changes(&store).await;
}

async fn changes_are_read_so_many_bytes_at_a_time(place: Place) {
    let store = place.open().await;
    let value = "x".repeat(MAX_VALUE_BYTES);
    let mut made = Vec::new();
    for revision in 1..=10 {
        made.push(put(&store, revision, vec![edit("a", &value)]).await);
    }
    let first = store.changes(0, u64::MAX).await.unwrap();
    let bytes: usize = first
        .iter()
        .flat_map(|change| &change.edits)
        .filter_map(|edit| edit.value.as_ref())
        .map(Bytes::len)
        .sum();
    assert!((1..10).contains(&first.len()) && bytes < MAX_READ_BYTES + 2 * MAX_VALUE_BYTES, "{bytes} bytes");
    assert_eq!(all_changes(&store).await, made);
    let mut watch = store.watch(&Position::at(0));
    for change in &made {
        assert_eq!(&next(&mut watch).await.unwrap(), change);
    }
}

async fn a_commit_of_many_changes_keeps_each_of_them(place: Place) {
    let store = place.open().await;
    let count = MAX_CHANGES_PER_COMMIT as u64;
    let changes: Vec<Change> = (1..=count)
        .map(|revision| change(revision, vec![edit("rules/a", &revision.to_string()), removal("rules/none")]))
        .collect();
    store.commit(0, &changes).await.unwrap();
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), changes);
    assert_eq!(store.changes(3, 5).await.unwrap(), changes[3..5]);
    let state = assert_entries_are_the_replay_of_all_changes(&store).await;
    assert_eq!((state.revision, state.entries["rules/a"].revision), (count, count));
}

async fn a_watch_yields_every_change_once_while_writes_go_on(place: Place) {
    const WRITES: u64 = 120;
    let store = place.open().await;
    store.load().await.unwrap();
    let writer = place.beside(&store).await;
    let writing = tokio::spawn(async move {
        for revision in 1..=WRITES {
            put(&writer, revision, vec![edit("rules/a", &revision.to_string())]).await;
        }
    });
    let mut watches = Vec::new();
    for from in [0, 1, 40, 119] {
        while store.load().await.unwrap().revision < from {}
        let store = place.beside(&store).await;
        watches.push(tokio::spawn(async move {
            let mut watch = store.watch(&Position::at(from));
            for revision in from + 1..=WRITES {
                let change = next(&mut watch).await.unwrap();
                assert_eq!(change.revision, revision);
                assert_eq!(change.edits, [edit("rules/a", &revision.to_string())]);
            }
        }));
    }
    for watch in watches {
        watch.await.unwrap();
    }
    writing.await.unwrap();
}

async fn a_watch_and_the_head_go_on_after_reopening(place: Place) {
    let store = place.open().await;
    let mut made = vec![put(&store, 1, vec![edit("rules/a", "1")]).await];
    made.push(put(&store, 2, vec![edit("rules/b", "2")]).await);
    drop(store);
    let store = place.open().await;
    let mut watch = store.watch(&Position::at(1));
    made.push(put(&store, 3, vec![removal("rules/a")]).await);
    assert_eq!(next(&mut watch).await.unwrap(), made[1]);
    assert_eq!(next(&mut watch).await.unwrap(), made[2]);
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), made);
    assert_entries_are_the_replay_of_all_changes(&store).await;
}

async fn changes_are_kept_as_they_were_made(place: Place) {
    let store = place.open().await;
    let mut made = Vec::new();
    for revision in 1..=5 {
        made.push(put(&store, revision, vec![edit("rules/a", &revision.to_string())]).await);
    }
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), made);
    assert_eq!(store.changes(2, 4).await.unwrap(), made[2..4]);
    assert_eq!(store.changes(5, 5).await.unwrap(), []);
    let ahead = store.changes(6, 9).await;
    assert!(matches!(ahead, Err(StoreError::Replaced { .. })), "{ahead:?}");
}

async fn compaction_drops_changes_and_keeps_entries(place: Place) {
    let store = place.open().await;
    let big: Vec<Edit> = (0..200).map(|place| edit(&format!("rules/{place}"), "v")).collect();
    put(&store, 1, big).await;
    for revision in 2..=6 {
        put(&store, revision, vec![edit("rules/a", &revision.to_string())]).await;
    }
    let before = store.load().await.unwrap();
    let mut watching = store.watch(&Position::at(6));
    store.compact(4).await.unwrap();
    store.compact(3).await.unwrap();
    assert_eq!(store.load().await.unwrap(), before);
    let kept: Vec<u64> =
        store.changes(0, u64::MAX).await.unwrap().iter().map(|change| change.revision).collect();
    assert_eq!(kept, [5, 6]);
    let late = next(&mut store.watch(&Position::at(2))).await;
    assert!(matches!(late, Err(StoreError::Compacted { oldest: 4 })), "{late:?}");
    assert_eq!(next(&mut store.watch(&Position::at(4))).await.unwrap().revision, 5);
    let seventh = put(&store, 7, vec![removal("rules/a")]).await;
    assert_eq!(next(&mut watching).await.unwrap(), seventh);
    store.compact(u64::MAX).await.unwrap();
    let gone = store.changes(0, u64::MAX).await;
    assert!(matches!(gone, Err(StoreError::Compacted { oldest: 7 })), "{gone:?}");
    assert_eq!(store.changes(7, u64::MAX).await.unwrap(), []);
    put(&store, 8, vec![edit("rules/b", "8")]).await;
    assert_eq!(store.load().await.unwrap().revision, 8);
}

async fn the_epoch_lasts_until_the_store_is_wiped(place: Place) {
    let store = place.open().await;
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let first = store.load().await.unwrap().epoch;
    drop(store);
    let store = place.open().await;
    assert_eq!(store.load().await.unwrap().epoch, first);
    drop(store);
    place.wipe().await;
    let state = place.open().await.load().await.unwrap();
    assert_ne!(state.epoch, first);
    assert_eq!((state.revision, state.entries.len()), (0, 0));
}

async fn a_renewed_epoch_ends_watches(place: Place) {
    let store = place.open().await;
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let first = store.load().await.unwrap().epoch;
    let mut watch = store.watch(&Position::at(1));
    let mut ready = Box::pin(next(&mut watch));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut ready).await.is_err(), "nothing happened");
    let second = store.renew_epoch(&first, &[]).await.unwrap();
    assert_ne!(second, first);
    assert!(matches!(ready.await, Err(StoreError::Replaced { epoch }) if epoch == second));
    assert_eq!(store.renew_epoch(&first, &[]).await.unwrap(), second, "somebody else was faster");
    let state = store.load().await.unwrap();
    assert_eq!((state.epoch, state.revision), (second, 1));
    put(&store, 2, vec![edit("rules/a", "2")]).await;
}

async fn commits_and_lineage_tell_histories_apart(place: Place) {
    let store = place.open().await;
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    put(&store, 2, vec![edit("rules/a", "2")]).await;
    let changes = store.changes(0, 2).await.unwrap();
    assert!(changes.iter().all(|change| change.commit != 0) && changes[0].commit != changes[1].commit);
    let state = store.load().await.unwrap();
    assert_eq!((state.commit, state.lineage.len()), (changes[1].commit, 0));
    let first = store.identity(1).await.unwrap();
    assert_eq!((first.revision, first.commit), (2, Some(changes[0].commit)));
    assert_eq!(store.identity(9).await.unwrap().commit, None);
    let lineage = ["b".to_owned(), state.epoch.clone()];
    let second = store.renew_epoch(&state.epoch, &lineage).await.unwrap();
    let third = store.renew_epoch(&second, std::slice::from_ref(&second)).await.unwrap();
    let found = store.identity(2).await.unwrap();
    assert_eq!(found.lineage, [second, "b".to_owned(), state.epoch]);
    assert_eq!((found.epoch, found.commit), (third, Some(changes[1].commit)));
    assert_eq!(store.load().await.unwrap().lineage, found.lineage);
}

async fn hostile_names_stay_in_their_place(place: Place) {
    let longest = "ü".repeat(127) + "x";
    let names = [
        "..",
        "../head",
        "%2F",
        "/",
        " ",
        "'\"`$(x)\\",
        "a",
        "a/b",
        "ab",
        "a%2Fb",
        "\u{0}",
        "\n",
        "日本語",
        "head",
        "epoch",
        "changes",
        "parts",
        "compacted",
        "é",
        "e\u{301}",
        &longest,
        "",
        "*",
        "~",
        "\u{7f}",
    ];
    let store = place.open().await;
    let keys: Vec<String> = names.iter().map(|name| key(["rules", name, "c", "s", "m"])).collect();
    assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
    let edits = keys.iter().zip(names).map(|(key, name)| edit(key, name));
    let made = put(&store, 1, edits.collect()).await;
    let state = assert_entries_are_the_replay_of_all_changes(&store).await;
    for (key, name) in keys.iter().zip(names) {
        assert_eq!(state.entries[key].value, name, "{key}");
    }
    assert_eq!(store.changes(0, 1).await.unwrap(), [made]);
    let removals = keys.iter().skip(1).map(|key| removal(key));
    put(&store, 2, removals.collect()).await;
    let left = store.load().await.unwrap().entries;
    assert_eq!(left.keys().collect::<Vec<_>>(), [&keys[0]], "removing a name removes no other");
}

async fn what_can_not_be_stored_is_refused_and_leaves_nothing(place: Place) {
    let store = place.open().await;
    let refusals = [
        store.commit(0, &[]).await,
        store.commit(0, &[change(2, vec![edit("rules/a", "")])]).await,
        store.commit(0, &[change(1, vec![edit("head", "9")])]).await,
        store.commit(0, &[change(1, vec![edit("changes/00000000000000000009", "9")])]).await,
        store.commit(0, &[change(1, vec![edit("", "9")])]).await,
        store.commit(0, &[change(1, vec![edit("rules/a", "1"), edit("rules/a", "2")])]).await,
        store.commit(0, &[change(1, vec![edit(&"k".repeat(5000), "1")])]).await,
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(StoreError::Invalid { .. })), "{refusal:?}");
    }
    let value = "x".repeat(MAX_VALUE_BYTES + 1);
    let too_large = store.commit(0, &[change(1, vec![edit("rules/a", &value)])]).await;
    assert!(matches!(too_large, Err(StoreError::TooLarge { .. })), "{too_large:?}");
    let state = store.load().await.unwrap();
    assert_eq!((state.revision, state.entries.len()), (0, 0));
}

/// Random edits over few keys, in commits of random size, some above one transaction, with a seed to repeat.
async fn the_entries_are_what_the_changes_make(place: Place) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let store = place.open().await;
    let mut made: Vec<Change> = Vec::new();
    for _ in 0..40 {
        let head = made.len() as u64;
        let changes: Vec<Change> =
            (1..=random.u64(1..=3)).map(|ahead| change(head + ahead, random_edits(&mut random))).collect();
        store.commit(head, &changes).await.unwrap();
        made.extend(changes);
        if random.u8(..8) == 0 {
            let state = StoreContents { commit: 0, ..store.load().await.unwrap() };
            assert_eq!(state, replayed(&state.epoch, &made), "seed {seed}");
        }
    }
    assert_eq!(store.changes(0, u64::MAX).await.unwrap(), made, "seed {seed}");
    drop(store);
    let state = assert_entries_are_the_replay_of_all_changes(&place.open().await).await;
    assert_eq!(StoreContents { commit: 0, ..state.clone() }, replayed(&state.epoch, &made), "seed {seed}");
}

fn random_edits(random: &mut fastrand::Rng) -> Vec<Edit> {
    let count = if random.u8(..10) == 0 { random.usize(100..200) } else { random.usize(0..6) };
    let mut edits = std::collections::BTreeMap::new();
    for _ in 0..count {
        let name = key(["rules", &random.u32(..250).to_string()]);
        let value = random.bool().then(|| vec![random.u8(..); random.usize(..2000)].into());
        edits.insert(name, value);
    }
    edits.into_iter().map(|(key, value)| Edit { key, value, before: None }).collect()
}

#[tokio::test]
async fn a_second_process_is_told_that_the_folder_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let _open = SledStore::open(folder.path()).await.unwrap();
    let second = SledStore::open(folder.path()).await;
    let error = second.err().expect("only one can have it open");
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_stopped_or_killed_costs_time_but_no_change() {
    let mut etcd = Etcd::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let mut watch = store.watch(&Position::at(0));
    assert_eq!(next(&mut watch).await.unwrap().revision, 1);
    for (revision, kill) in [(2, false), (3, true)] {
        if kill {
            etcd.kill();
        } else {
            etcd.stop();
        }
        let asked = Instant::now();
        let proposed = change(revision, vec![edit("rules/a", "away")]);
        let changes = [proposed];
        let (written, read) = tokio::join!(store.commit(revision - 1, &changes), store.load());
        assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
        assert!(
            matches!(written, Err(StoreError::Unavailable { .. } | StoreError::Uncertain { .. })),
            "{written:?}"
        );
        assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
        etcd.restart().await;
        let made = put(&store, revision, vec![edit("rules/a", &revision.to_string())]).await;
        assert_eq!(next(&mut watch).await.unwrap(), made);
    }
    assert_entries_are_the_replay_of_all_changes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_by_etcd_neither_loses_nor_invents_a_change() {
    let mut etcd = Etcd::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let mut watch = store.watch(&Position::at(0));
    assert_eq!(next(&mut watch).await.unwrap().revision, 1);
    for revision in 2..=30 {
        put(&store, revision, vec![edit("rules/a", &revision.to_string())]).await;
        if revision % 10 == 0 {
            let mut client = etcd.client().await;
            let at = client.get("x", None).await.unwrap().header().unwrap().revision();
            let options = etcd_client::CompactionOptions::new().with_physical();
            client.compact(at, Some(options)).await.unwrap();
        }
        if revision == 20 {
            // The watch must start over at a revision that etcd has forgotten.
            etcd.kill();
            etcd.restart().await;
        }
    }
    for revision in 2..=30 {
        assert_eq!(next(&mut watch).await.unwrap().revision, revision);
    }
    let mut late = store.watch(&Position::at(0));
    for revision in 1..=30 {
        assert_eq!(next(&mut late).await.unwrap().revision, revision);
    }
}

/// etcd is frozen with the commit on its way: either nobody answers, or the answer is right once it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_cleared_up() {
    let etcd = Etcd::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    put(&store, 1, vec![edit("rules/a", "1")]).await;

    etcd.freeze();
    let asked = Instant::now();
    let thaw = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        etcd.thaw();
    };
    let second = [change(2, vec![edit("rules/a", "2")])];
    let (written, ()) = tokio::join!(store.commit(1, &second), thaw);
    match written {
        // Two attempts can be too few on a slow machine; what is read then decides.
        Err(StoreError::Uncertain { .. }) => {
            if store.load().await.unwrap().revision == 1 {
                store.commit(1, &second).await.unwrap();
            }
        }
        written => written.expect("the first attempt was lost or not, the second finds out"),
    }
    assert!(asked.elapsed() > Duration::from_secs(2));
    assert_eq!(store.changes(1, 9).await.unwrap(), second);

    etcd.freeze();
    let third = [change(3, vec![edit("rules/a", "3")])];
    let silent = store.commit(2, &third).await;
    assert!(matches!(silent, Err(StoreError::Uncertain { .. })), "{silent:?}");
    etcd.thaw();
    let head = store.load().await.unwrap().revision;
    assert!(head == 2 || head == 3, "{head}");
    let state = assert_entries_are_the_replay_of_all_changes(&store).await;
    let value = state.entries["rules/a"].value.clone();
    assert_eq!(value, state.revision.to_string());
}

/// The same with a second writer that takes the revision meanwhile: the first must not believe it was itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_writers_change_is_not_mistaken_for_the_own() {
    let etcd = Etcd::start().await;
    let (one, two) = (etcd.store(PREFIX), etcd.store(PREFIX));
    one.create().await.unwrap();
    one.load().await.unwrap();
    two.load().await.unwrap();
    let same = [change(1, vec![edit("rules/a", "1")])];
    let (first, second) = tokio::join!(one.commit(0, &same), two.commit(0, &same));
    assert_eq!(usize::from(first.is_ok()) + usize::from(second.is_ok()), 1, "{first:?} {second:?}");
}

/// Everything after the deciding transaction of a large commit is undone, as if the writer had died there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_commit_that_was_cut_off_is_finished_by_the_next() {
    let etcd = Etcd::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    let large: Vec<Edit> = (0..300).map(|place| edit(&format!("rules/{place:03}"), "new")).collect();
    put(&store, 1, vec![edit("rules/000", "old"), edit("rules/zzz", "old")]).await;
    put(&store, 2, large).await;
    let expected = store.load().await.unwrap();
    let mut client = etcd.client().await;
    for finish_by_load in [true, false] {
        let range = etcd_client::DeleteOptions::new().with_range("/damper/rules/300");
        client.delete("/damper/rules/100", Some(range)).await.unwrap();
        client.put("/damper/head", "2 entries since 1 written 100", None).await.unwrap();
        if finish_by_load {
            assert_eq!(store.load().await.unwrap(), expected);
        } else {
            put(&store, 3, vec![edit("rules/zzz", "3")]).await;
        }
        let head = client.get("/damper/head", None).await.unwrap();
        assert_eq!(head.kvs()[0].value(), if finish_by_load { b"2" } else { b"3" });
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        let entries = client.get("/damper/rules/", Some(options)).await.unwrap();
        assert_eq!(entries.count(), 301);
    }
    assert_entries_are_the_replay_of_all_changes(&store).await;
}

/// The kill is put in force from memory then; its writer finishing the large commit would take as long as that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_is_refused_in_time_while_another_writes_a_large_commit() {
    let etcd = Etcd::start().await;
    let [one, other] =
        [etcd.store(PREFIX), etcd.store(PREFIX)].map(|store| Arc::new(store) as Arc<dyn Store>);
    one.create().await.unwrap();
    other.load().await.unwrap();
    let edits = (0..100_000).map(|place| edit(&format!("rules/{place:06}"), "new")).collect();
    let large = tokio::spawn(async move { one.commit(0, &[change(1, edits)]).await });
    let is_unfinished = async || {
        let head = etcd.client().await.get("/damper/head", None).await.unwrap();
        head.kvs()[0].value_str().unwrap().contains("entries")
    };
    tokio::time::timeout(PATIENCE, async { while !is_unfinished().await {} })
        .await
        .expect("it is being written");
    let kill = change(2, vec![edit("kills/a", "1")]);
    let refused = other.commit(1, &[kill]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "certainly not written: {refused:?}");
    assert!(!large.is_finished(), "it waited for the large commit");
    large.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swapped_etcd_is_noticed_by_watch_read_and_commit() {
    let etcd = Etcd::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    let mut watch = store.watch(&Position::at(1));
    let mut client = etcd.client().await;
    let everything = etcd_client::DeleteOptions::new().with_prefix();
    client.delete(PREFIX, Some(everything)).await.unwrap();
    let missing = store.load().await;
    assert!(matches!(&missing, Err(StoreError::Replaced { epoch }) if epoch.is_empty()), "{missing:?}");
    let other: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    other.create().await.unwrap();
    put(&other, 1, vec![edit("rules/b", "1")]).await;
    let seen = next(&mut watch).await;
    assert!(matches!(seen, Err(StoreError::Replaced { .. })), "{seen:?}");
    let written = store.commit(1, &[change(2, vec![edit("rules/a", "2")])]).await;
    assert!(matches!(written, Err(StoreError::Replaced { .. })), "{written:?}");
    assert_eq!(store.load().await.unwrap(), other.load().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_down_is_passed_over() {
    let etcd = Etcd::start().await;
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = etcd.settings(PREFIX);
    settings.endpoints.insert(0, gone.to_string());
    let store: Arc<dyn Store> = Arc::new(EtcdStore::open(settings).unwrap());
    store.create().await.unwrap();
    let mut watch = store.watch(&Position::at(0));
    for revision in 1..=20 {
        put(&store, revision, vec![edit("rules/a", &revision.to_string())]).await;
        assert_eq!(next(&mut watch).await.unwrap().revision, revision);
    }
}

/// etcd's simple tokens die with the process that gave them out, so a restart is an expiry of all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_signed_in_again_when_the_token_has_expired() {
    let mut etcd = Etcd::start().await;
    let mut client = etcd.client().await;
    client.user_add("root", "secret", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    let with_password = |password: &str| {
        let (user, password) = (Some("root".to_owned()), Some(password.to_owned()));
        Arc::new(EtcdStore::open(EtcdConfig { user, password, ..etcd.settings(PREFIX) }).unwrap())
    };
    let refused = with_password("wrong").load().await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    let store: Arc<dyn Store> = with_password("secret");
    store.create().await.unwrap();
    let mut watch = store.watch(&Position::at(0));
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 1);
    etcd.stop();
    etcd.restart().await;
    put(&store, 2, vec![edit("rules/a", "2")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 2);
}

/// A token of the kind `jwt` names the revision of users and roles, so that each change to them ends all tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_signed_in_again_when_users_have_changed() {
    fn with_jwt(program: PathBuf) -> Command {
        let key = std::env::temp_dir().join(format!("damper-jwt-{}", std::process::id()));
        std::fs::write(&key, [7; 64]).unwrap();
        let mut command = Command::new(program);
        command.args(["--auth-token", &format!("jwt,priv-key={},sign-method=HS256,ttl=10m", key.display())]);
        command
    }
    let etcd = Etcd::start_by(with_jwt).await;
    let mut client = etcd.client().await;
    client.user_add("root", "secret", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    let (user, password) = (Some("root".to_owned()), Some("secret".to_owned()));
    let settings = EtcdConfig { user, password, ..etcd.settings(PREFIX) };
    let store: Arc<dyn Store> = Arc::new(EtcdStore::open(settings).unwrap());
    store.create().await.unwrap();
    let mut watch = store.watch(&Position::at(0));
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 1);
    let options = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let mut admin = etcd_client::Client::connect([etcd.endpoint()], Some(options)).await.unwrap();
    admin.user_add("ann", "secret", None).await.unwrap();
    put(&store, 2, vec![edit("rules/a", "2")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 2);
    assert_eq!(store.load().await.unwrap().revision, 2);
}

/// The commit that crosses etcd's quota is carried out and answered like those that are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_etcd_has_written_is_acknowledged() {
    fn with_quota(program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.args(["--quota-backend-bytes", "16777216"]);
        command
    }
    let etcd = Etcd::start_by(with_quota).await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    store.load().await.unwrap();
    let value = "v".repeat(200 << 10);
    let mut acknowledged = 0;
    let refused = loop {
        let next = change(acknowledged + 1, vec![edit("rules/a", &value)]);
        match store.commit(acknowledged, &[next]).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused:?}");
    assert!(store.is_full());
    assert_eq!(store.load().await.unwrap().revision, acknowledged, "what was refused was not written");
}

/// An authority, and a certificate of it for 127.0.0.1, written over the files.
fn issue(files: &Tls) {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&files.ca, authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    let mut own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    own.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&files.cert, own.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_for_etcd_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let files = Tls { ca: file("ca"), cert: file("cert"), key: file("key") };
    issue(&files);
    let mut etcd = Etcd::start_with_tls(files.clone()).await;
    let store: Arc<dyn Store> = Arc::new(etcd.store(PREFIX));
    store.create().await.unwrap();
    let mut watch = store.watch(&Position::at(0));
    put(&store, 1, vec![edit("rules/a", "1")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 1);
    issue(&files);
    etcd.stop();
    etcd.restart().await;
    put(&store, 2, vec![edit("rules/a", "2")]).await;
    assert_eq!(next(&mut watch).await.unwrap().revision, 2);
}
