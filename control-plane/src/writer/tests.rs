use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::*;
use crate::store::sled::SledStore;
use crate::store::{Change, Error, MAX_VALUE_BYTES, State, Store, Watch};

struct Bench {
    _folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    writer: Writer,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SledStore::open(folder.path()).await.unwrap());
        let writer = Writer::spawn(store.clone(), settings).0;
        Self { _folder: folder, store, writer }
    }

    async fn put(&self, key: &str, value: &str, expected: Option<u64>) -> Result<Committed, Refusal> {
        self.writer.propose(proposal(vec![edit(key, Some(value), expected)])).await
    }

    async fn head(&self) -> u64 {
        self.store.load().await.unwrap().revision
    }
}

fn edit(key: &str, value: Option<&str>, expected: Option<u64>) -> ProposedEdit {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    ProposedEdit { key: format!("rules/{key}"), value, expected }
}

fn proposal(edits: Vec<ProposedEdit>) -> Proposal {
    Proposal {
        author: "ann".to_owned(),
        reason: "because".to_owned(),
        peer: "127.0.0.1:1".to_owned(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        at: SystemTime::now(),
        expected_head: None,
        edits,
        judge: None,
    }
}

fn request(id: &str, digest: u64, edits: Vec<ProposedEdit>) -> Proposal {
    Proposal { request_id: id.to_owned(), request_digest: digest, ..proposal(edits) }
}

#[tokio::test]
async fn an_unexpected_revision_is_a_conflict_that_shows_the_entry() {
    let bench = Bench::new().await;
    let first = bench.put("a", "1", Some(0)).await.unwrap();
    assert_eq!((first.revision, first.unchanged), (1, false));
    assert_eq!(*first.keys, [("rules/a".to_owned(), Some(1))]);
    let current = Some(Entry { revision: 1, value: "1".into() });
    let conflict = Refusal::Conflict { key: "rules/a".to_owned(), current };
    assert_eq!(bench.put("a", "2", Some(0)).await, Err(conflict.clone()));
    assert_eq!(bench.put("a", "2", Some(7)).await, Err(conflict));
    let absent = Refusal::Conflict { key: "rules/b".to_owned(), current: None };
    assert_eq!(bench.put("b", "2", Some(1)).await, Err(absent));
    assert_eq!(bench.head().await, 1);
    assert_eq!(bench.put("a", "2", Some(1)).await.unwrap().revision, 2);
}

#[tokio::test]
async fn one_conflict_refuses_the_whole_proposal() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let edits = vec![edit("b", Some("1"), Some(0)), edit("a", Some("2"), Some(9))];
    assert!(matches!(bench.writer.propose(proposal(edits)).await, Err(Refusal::Conflict { .. })));
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn a_proposal_for_another_head_is_refused_also_behind_others_of_its_batch() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let at =
        |head, value| Proposal { expected_head: Some(head), ..proposal(vec![edit("b", Some(value), None)]) };
    for wrong in [0, 2, u64::MAX] {
        assert_eq!(bench.writer.propose(at(wrong, "1")).await, Err(Refusal::Moved { head: 1 }));
    }
    let proposals = [at(1, "1"), at(1, "2")].map(|proposal| bench.writer.propose(proposal));
    let answers = futures_util::future::join_all(proposals).await;
    assert_eq!(answers[0].as_ref().unwrap().revision, 2);
    assert_eq!(answers[1], Err(Refusal::Moved { head: 2 }));
    assert_eq!(bench.head().await, 2);
}

#[tokio::test]
async fn a_change_keeps_what_each_key_was_before() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let both = vec![edit("a", Some("2"), None), edit("b", Some("1"), None)];
    bench.writer.propose(proposal(both)).await.unwrap();
    bench.writer.propose(proposal(vec![edit("a", None, None)])).await.unwrap();
    let changes = bench.store.changes(0, 3).await.unwrap();
    let before = |change: usize, place: usize| changes[change].edits[place].before.clone();
    let entry = |revision, value: &'static str| Some(Entry { revision, value: value.into() });
    assert_eq!(before(0, 0), None);
    assert_eq!((before(1, 0), before(1, 1)), (entry(1, "1"), None));
    assert_eq!(before(2, 0), entry(2, "2"));
}

#[tokio::test]
async fn what_changes_nothing_is_not_written() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    bench.put("b", "1", None).await.unwrap();
    let same = bench.put("a", "1", Some(1)).await.unwrap();
    assert_eq!((same.revision, same.unchanged), (2, true));
    assert_eq!(*same.keys, [("rules/a".to_owned(), Some(1))]);
    let gone = bench.writer.propose(proposal(vec![edit("none", None, None)])).await.unwrap();
    assert!(gone.unchanged);
    assert_eq!(bench.head().await, 2);
    let edits = vec![edit("a", Some("1"), None), edit("b", Some("2"), None)];
    let half = bench.writer.propose(proposal(edits)).await.unwrap();
    let keys = [("rules/a".to_owned(), Some(1)), ("rules/b".to_owned(), Some(3))];
    assert_eq!((half.revision, &half.keys[..]), (3, &keys[..]));
    assert_eq!(bench.store.changes(2, 3).await.unwrap()[0].edits.len(), 1);
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_answer_also_after_a_restart() {
    let bench = Bench::new().await;
    let first = bench.writer.propose(request("id", 5, vec![edit("a", Some("1"), Some(0))])).await.unwrap();
    bench.put("a", "2", None).await.unwrap();
    let restarted = Writer::spawn(bench.store.clone(), Settings::default()).0;
    for writer in [&bench.writer, &restarted] {
        let again = writer.propose(request("id", 5, vec![edit("a", Some("1"), Some(0))])).await.unwrap();
        assert_eq!(again, Committed { repeated: true, ..first.clone() });
        let other = writer.propose(request("id", 6, vec![edit("b", Some("1"), None)])).await;
        assert_eq!(other, Err(Refusal::RequestIdReused { request_id: "id".to_owned() }));
    }
    assert_eq!(bench.head().await, 2);
}

#[tokio::test]
async fn a_request_id_is_its_principals_own_at_once_and_after_a_restart() {
    let bench = Bench::new().await;
    let by = |principal: &str, key: &str| Proposal {
        principal: principal.to_owned(),
        ..request("id", key.len() as u64, vec![edit(key, Some("1"), None)])
    };
    let (ann, bob) =
        tokio::join!(bench.writer.propose(by("ann", "a")), bench.writer.propose(by("bob", "bb")));
    let nobody = bench.writer.propose(by("", "ccc")).await.unwrap();
    let firsts = [("ann", "a", ann.unwrap()), ("bob", "bb", bob.unwrap()), ("", "ccc", nobody)];
    let restarted = Writer::spawn(bench.store.clone(), Settings::default()).0;
    for writer in [&bench.writer, &restarted] {
        for (principal, key, first) in &firsts {
            assert!(!first.repeated && !first.unchanged);
            let again = writer.propose(by(principal, key)).await.unwrap();
            assert_eq!(again, Committed { repeated: true, ..first.clone() });
        }
        let other = writer.propose(by("ann", "bb")).await;
        assert_eq!(other, Err(Refusal::RequestIdReused { request_id: "id".to_owned() }));
    }
    assert_eq!(bench.head().await, 3);
}

#[tokio::test]
async fn a_request_repeated_at_the_same_moment_is_carried_out_once() {
    let bench = Bench::new().await;
    let ask = || bench.writer.propose(request("id", 5, vec![edit("a", Some("1"), Some(0))]));
    let (first, second) = tokio::join!(ask(), ask());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.revision, second.revision), (1, 1));
    assert_ne!(first.repeated, second.repeated);
}

#[tokio::test]
async fn request_ids_are_forgotten_after_the_settled_time() {
    let bench = Bench::new().await;
    let at = |hours: u64| UNIX_EPOCH + Duration::from_secs(hours * 3600);
    let ask =
        |hours, value| Proposal { at: at(hours), ..request("id", 5, vec![edit("a", Some(value), None)]) };
    assert!(!bench.writer.propose(ask(1, "1")).await.unwrap().repeated);
    assert!(bench.writer.propose(ask(25, "2")).await.unwrap().repeated);
    assert!(!bench.writer.propose(ask(26, "3")).await.unwrap().repeated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_at_the_same_time_each_get_their_own_revision() {
    let bench = Bench::new().await;
    let asking: Vec<_> = (0..300)
        .map(|place| {
            let writer = bench.writer.clone();
            tokio::spawn(async move {
                let edits = vec![edit(&place.to_string(), Some("v"), Some(0))];
                writer.propose(proposal(edits)).await.unwrap().revision
            })
        })
        .collect();
    let mut revisions = Vec::new();
    for asked in asking {
        revisions.push(asked.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=300).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_of_one_store_never_decide_on_old_knowledge() {
    let bench = Bench::new().await;
    let other = Writer::spawn(bench.store.clone(), Settings::default()).0;
    assert_eq!(bench.put("a", "1", Some(0)).await.unwrap().revision, 1);
    assert_eq!(other.propose(proposal(vec![edit("a", Some("2"), Some(1))])).await.unwrap().revision, 2);
    let stale = bench.put("a", "3", Some(1)).await;
    let current = Some(Entry { revision: 2, value: "2".into() });
    assert_eq!(stale, Err(Refusal::Conflict { key: "rules/a".to_owned(), current }));
    assert!(bench.put("a", "2", None).await.unwrap().unchanged);
    other.propose(request("id", 1, vec![edit("b", Some("1"), None)])).await.unwrap();
    let again = bench.writer.propose(request("id", 1, vec![edit("b", Some("1"), None)])).await.unwrap();
    assert_eq!((again.revision, again.repeated), (3, true));
}

#[tokio::test]
async fn the_number_of_entries_is_limited_and_shrinking_is_allowed() {
    let limit = |max_entries| EntryLimit { prefix: "rules/".to_owned(), max_entries };
    let bench = Bench::with(Settings { limits: vec![limit(2)], ..Settings::default() }).await;
    bench.put("a", "1", None).await.unwrap();
    bench.put("b", "1", None).await.unwrap();
    let refused = Refusal::TooManyEntries { prefix: "rules/".to_owned(), entries: 3, limit: 2 };
    assert_eq!(bench.put("c", "1", None).await, Err(refused));
    let exchange = vec![edit("a", None, None), edit("c", Some("1"), None)];
    bench.writer.propose(proposal(exchange)).await.unwrap();
    let lower = Settings { limits: vec![limit(1)], ..Settings::default() };
    let lower = Writer::spawn(bench.store.clone(), lower).0;
    lower.propose(proposal(vec![edit("c", Some("2"), None)])).await.unwrap();
    lower.propose(proposal(vec![edit("c", None, None)])).await.unwrap();
    assert!(lower.propose(proposal(vec![edit("d", Some("1"), None)])).await.is_err());
}

#[tokio::test]
async fn a_proposal_that_can_not_be_stored_takes_no_other_with_it() {
    let bench = Bench::new().await;
    let value = "x".repeat(MAX_VALUE_BYTES + 1);
    let twice = vec![edit("a", Some("1"), None), edit("a", Some("2"), None)];
    let long = "k".repeat(5000);
    let (good, large, twice, malformed, also_good) = tokio::join!(
        bench.put("good", "1", None),
        bench.put("large", &value, None),
        bench.writer.propose(proposal(twice)),
        bench.put(&long, "1", None),
        bench.put("also", "1", None),
    );
    assert!(good.is_ok() && also_good.is_ok(), "{good:?} {also_good:?}");
    assert!(matches!(large, Err(Refusal::TooLarge { .. })), "{large:?}");
    assert!(matches!(twice, Err(Refusal::Invalid { .. })), "{twice:?}");
    assert!(matches!(malformed, Err(Refusal::Invalid { .. })), "{malformed:?}");
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn the_history_may_be_compacted_under_the_writer() {
    let bench = Bench::new().await;
    let other = Writer::spawn(bench.store.clone(), Settings::default()).0;
    bench.put("a", "1", None).await.unwrap();
    other.propose(proposal(vec![edit("a", Some("2"), Some(1))])).await.unwrap();
    bench.store.compact(2).await.unwrap();
    assert_eq!(bench.put("a", "3", Some(2)).await.unwrap().revision, 3);
}

/// A store that never answers a commit.
struct Silent;

#[tonic::async_trait]
impl Store for Silent {
    async fn load(&self) -> Result<State, Error> {
        Ok(State { epoch: "one".to_owned(), revision: 0, entries: BTreeMap::new() })
    }

    async fn commit(&self, _: u64, _: &[Change]) -> Result<(), Error> {
        std::future::pending().await
    }

    fn watch(&self, _: u64) -> Watch {
        Box::pin(tokio_stream::pending())
    }

    async fn changes(&self, _: u64, _: u64) -> Result<Vec<Change>, Error> {
        Ok(Vec::new())
    }

    async fn compact(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    async fn renew_epoch(&self, current: &str) -> Result<String, Error> {
        Ok(current.to_owned())
    }

    fn join(&self, _: &str, _: bytes::Bytes) -> Option<crate::store::Presence> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn every_proposal_is_answered_in_time_however_silent_the_store_is() {
    let writer = Writer::spawn(Arc::new(Silent), Settings::default()).0;
    let begun = Instant::now();
    let propose = |key: &str| {
        let (writer, edits) = (writer.clone(), vec![edit(key, Some("1"), None)]);
        async move {
            let answer = writer.propose(proposal(edits)).await;
            (answer, begun.elapsed())
        }
    };
    let behind = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        propose("b").await
    };
    let (taken, waiting) = tokio::join!(propose("a"), behind);
    assert!(matches!(taken.0, Err(Refusal::Uncertain { .. })), "{taken:?}");
    assert!(matches!(waiting.0, Err(Refusal::Unavailable { .. })), "{waiting:?}");
    let (taken, waiting) = (taken.1.as_millis(), waiting.1.as_millis());
    assert!((5_000..5_010).contains(&taken) && (6_000..6_010).contains(&waiting), "{taken} {waiting}");
}

/// Removes everything that does not begin with its name; must not touch `held`.
#[derive(Debug)]
struct OnlyMine;

impl Judge for OnlyMine {
    fn edits(&self, entries: &Entries<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let others: Vec<String> = entries
            .iter()
            .map(|(key, _)| key.to_owned())
            .filter(|key| !key.starts_with("rules/mine"))
            .collect();
        if others.iter().any(|key| key == "rules/held") {
            return Err(vec!["rules/held".to_owned()]);
        }
        let mut edits = vec![edit("mine", Some(&format!("after {}", entries.head())), None)];
        edits.extend(others.into_iter().map(|key| ProposedEdit { key, value: None, expected: None }));
        Ok(edits)
    }
}

fn judged() -> Proposal {
    Proposal { judge: Some(Arc::new(OnlyMine)), ..proposal(Vec::new()) }
}

#[tokio::test]
async fn a_judge_sees_what_is_written_right_before_it() {
    let bench = Bench::new().await;
    // All wait together and go into one commit: each judge sees the proposals before its own.
    let (_, first, _, second) = tokio::join!(
        bench.put("a", "1", None),
        bench.writer.propose(judged()),
        bench.put("b", "1", None),
        bench.writer.propose(judged()),
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.revision, 2);
    assert_eq!(*first.keys, [("rules/mine".to_owned(), Some(2)), ("rules/a".to_owned(), None)]);
    assert_eq!(second.revision, 4);
    assert_eq!(*second.keys, [("rules/mine".to_owned(), Some(4)), ("rules/b".to_owned(), None)]);
    let left = bench.store.load().await.unwrap().entries;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["rules/mine"]);
    assert_eq!(left["rules/mine"].value, "after 3");
}

#[tokio::test]
async fn a_judge_that_refuses_is_told_what_it_refused() {
    let bench = Bench::new().await;
    bench.put("held", "1", None).await.unwrap();
    let refused = bench.writer.propose(judged()).await.unwrap_err();
    let held = Entry { revision: 1, value: Bytes::from_static(b"1") };
    assert_eq!(refused, Refusal::Judged { entries: vec![("rules/held".to_owned(), Some(held))] });
    assert_eq!(bench.head().await, 1);
}

#[tokio::test]
async fn a_judge_decides_by_what_another_writer_has_written() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let other = Writer::spawn(bench.store.clone(), Settings::default()).0;
    other.propose(proposal(vec![edit("late", Some("1"), None)])).await.unwrap();
    let done = bench.writer.propose(judged()).await.unwrap();
    assert_eq!((done.revision, done.keys.len()), (3, 3));
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 1);
}
