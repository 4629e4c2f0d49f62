//! The writer over a real etcd: replicas that compete, and an etcd that goes away and comes back.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_store::Store;
use damper_store::writer::{Committed, Proposal, ProposeError, ProposedEdit, Writer, WriterConfig};
use damper_tests::etcd::Etcd;

/// That an answer comes is what is asserted here; within how long, the writer's own tests say on a virtual clock.
const PATIENCE: Duration = Duration::from_secs(20);

fn put(key: &str, value: &str, expected: Option<u64>) -> Proposal {
    let value = Some(value.to_owned().into());
    Proposal {
        author: "ann".to_owned(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        at: SystemTime::now(),
        expected_head: None,
        edits: vec![ProposedEdit { key: format!("rules/{key}"), value, expected }],
        planner: None,
    }
}

async fn replica(etcd: &Etcd) -> (Arc<dyn Store>, Writer) {
    let store: Arc<dyn Store> = Arc::new(etcd.store("/damper/"));
    store.create().await.unwrap();
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    (store, writer)
}

/// Four callers on two replicas count one number up, each only from the revision it has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_between_replicas() {
    const EACH: u64 = 20;
    let etcd = Etcd::start().await;
    let (store, one) = replica(&etcd).await;
    let (_, two) = replica(&etcd).await;
    let first = one.propose(put("n", "0", Some(0))).await.unwrap();
    assert_eq!(first.revision, 1);
    let callers: Vec<_> = [one.clone(), two.clone(), one, two]
        .into_iter()
        .map(|writer| {
            tokio::spawn(async move {
                let (mut seen, mut number, mut done) = (1, 0, 0);
                while done < EACH {
                    match writer.propose(put("n", &(number + 1).to_string(), Some(seen))).await {
                        Ok(Committed { revision, .. }) => {
                            (seen, number, done) = (revision, number + 1, done + 1);
                        }
                        Err(ProposeError::Conflict { current: Some(entry), .. }) => {
                            seen = entry.revision;
                            number = std::str::from_utf8(&entry.value).unwrap().parse::<u64>().unwrap();
                        }
                        Err(refusal) => panic!("{refusal}"),
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let state = store.load().await.unwrap();
    assert_eq!(state.entries["rules/n"].value, (4 * EACH).to_string());
    assert_eq!(state.revision, 1 + 4 * EACH);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_away_costs_refusals_in_time_and_nothing_else() {
    let mut etcd = Etcd::start().await;
    let (store, writer) = replica(&etcd).await;
    writer.propose(put("a", "1", None)).await.unwrap();
    etcd.kill();
    let asked = Instant::now();
    let away: Vec<_> = (0..20)
        .map(|place| {
            let writer = writer.clone();
            tokio::spawn(async move { writer.propose(put(&format!("away{place}"), "1", Some(0))).await })
        })
        .collect();
    for answer in away {
        let answer = answer.await.unwrap();
        assert!(
            matches!(answer, Err(ProposeError::Unavailable { .. } | ProposeError::Uncertain { .. })),
            "{answer:?}"
        );
    }
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    etcd.restart().await;
    assert_eq!(writer.propose(put("a", "2", Some(1))).await.unwrap().revision, 2);
    assert_eq!(store.load().await.unwrap().entries.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_may_be_started_before_its_etcd() {
    let mut etcd = Etcd::start().await;
    etcd.stop();
    let store: Arc<dyn Store> = Arc::new(etcd.store("/damper/"));
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    let refused = writer.propose(put("a", "1", None)).await;
    assert!(matches!(refused, Err(ProposeError::Unavailable { .. })), "{refused:?}");
    etcd.restart().await;
    store.create().await.unwrap();
    assert_eq!(writer.propose(put("a", "1", Some(0))).await.unwrap().revision, 1);
}

/// The answer to a proposal is lost while etcd is frozen; its repetition tells what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_repeated_after_silence_is_carried_out_once() {
    let etcd = Etcd::start().await;
    let (store, writer) = replica(&etcd).await;
    writer.propose(put("a", "1", None)).await.unwrap();
    let request = Proposal { request_id: "id".to_owned(), request_digest: 1, ..put("a", "2", None) };
    etcd.freeze();
    let silent = writer.propose(request.clone()).await;
    assert!(matches!(silent, Err(ProposeError::Uncertain { .. })), "{silent:?}");
    etcd.thaw();
    assert_eq!(writer.propose(request).await.unwrap().revision, 2);
    assert_eq!(store.changes(0, u64::MAX).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_makes_no_store_in_a_wiped_etcd() {
    let etcd = Etcd::start().await;
    let (store, writer) = replica(&etcd).await;
    for value in ["1", "2", "3"] {
        writer.propose(put("a", value, None)).await.unwrap();
    }
    let everything = etcd_client::DeleteOptions::new().with_prefix();
    etcd.client().await.delete("/damper/", Some(everything)).await.unwrap();
    let refused = writer.propose(put("b", "1", Some(0))).await;
    assert!(matches!(refused, Err(ProposeError::Unavailable { .. })), "{refused:?}");
    assert!(store.load().await.is_err(), "nothing was made");
    store.create().await.unwrap();
    assert_eq!(writer.propose(put("b", "1", Some(0))).await.unwrap().revision, 1);
    assert_eq!(store.load().await.unwrap().entries.len(), 1);
}
