//! The memory of the embedded store with a long history.
//!
//! One test in a binary of its own, because the counting allocator counts the whole process.

use std::alloc::System;
use std::time::SystemTime;

use bytes::Bytes;
use damper_store::sled::SledStore;
use damper_store::{Change, Edit, Store};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The history in changes and in bytes of each.
const CHANGES: u64 = 64;
const CHANGE_BYTES: usize = 1 << 20;
/// A fourth of the history.
const BOUND: usize = 16 << 20;

/// Bytes on the heap now.
fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

fn change(revision: u64) -> Change {
    // Nothing that could be compressed.
    let mut value = vec![0; CHANGE_BYTES];
    fastrand::Rng::with_seed(revision).fill(&mut value);
    let edit = Edit { key: "rules/a".to_owned(), value: Some(Bytes::from(value)), before: None };
    Change {
        revision,
        commit: 0,
        at: SystemTime::UNIX_EPOCH,
        author: String::new(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: vec![edit],
    }
}

#[tokio::test]
async fn sled_opens_without_reading_its_history() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = SledStore::open(folder.path()).await.expect("the store opens");
    for revision in 1..=CHANGES {
        store.commit(revision - 1, &[change(revision)]).await.expect("the disk has room");
    }
    drop(store);
    let before = in_use();
    let store = damper_tests::sled::open(folder.path()).await;
    let state = store.load().await.expect("the disk can be read");
    assert_eq!((state.revision, state.entries.len()), (CHANGES, 1));
    let held = in_use().saturating_sub(before);
    assert!(held < BOUND, "{} MiB", held >> 20);
}
