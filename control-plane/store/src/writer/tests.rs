use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use crate::sled::SledStore;
use crate::writer::*;
use crate::{Change, Edit, Identity, MAX_VALUE_BYTES, Position, Store, StoreContents, StoreError, Watch};

struct Bench {
    _folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    writer: Writer,
}

impl Bench {
    async fn new() -> Self {
        Self::with(WriterConfig::default()).await
    }

    async fn with(settings: WriterConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SledStore::open(folder.path()).await.unwrap());
        let writer = Writer::spawn(store.clone(), settings).0;
        Self { _folder: folder, store, writer }
    }

    async fn put(&self, key: &str, value: &str, expected: Option<u64>) -> Result<Committed, ProposeError> {
        self.writer.propose(proposal(vec![edit(key, Some(value), expected)])).await
    }

    async fn head(&self) -> u64 {
        self.store.load().await.unwrap().revision
    }
}

pub(crate) fn edit(key: &str, value: Option<&str>, expected: Option<u64>) -> ProposedEdit {
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
        planner: None,
    }
}

pub(crate) fn request(id: &str, digest: u64, edits: Vec<ProposedEdit>) -> Proposal {
    Proposal { request_id: id.to_owned(), request_digest: digest, ..proposal(edits) }
}

#[tokio::test]
async fn an_unexpected_revision_is_a_conflict_that_shows_the_entry() {
    let bench = Bench::new().await;
    let first = bench.put("a", "1", Some(0)).await.unwrap();
    assert_eq!((first.revision, first.unchanged), (1, false));
    assert_eq!(*first.keys, [("rules/a".to_owned(), Some(1))]);
    let current = Some(Entry { revision: 1, value: "1".into() });
    let conflict = ProposeError::Conflict { key: "rules/a".to_owned(), current };
    assert_eq!(bench.put("a", "2", Some(0)).await, Err(conflict.clone()));
    assert_eq!(bench.put("a", "2", Some(7)).await, Err(conflict));
    let absent = ProposeError::Conflict { key: "rules/b".to_owned(), current: None };
    assert_eq!(bench.put("b", "2", Some(1)).await, Err(absent));
    assert_eq!(bench.head().await, 1);
    assert_eq!(bench.put("a", "2", Some(1)).await.unwrap().revision, 2);
}

#[tokio::test]
async fn one_conflict_refuses_the_whole_proposal() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let edits = vec![edit("b", Some("1"), Some(0)), edit("a", Some("2"), Some(9))];
    assert!(matches!(bench.writer.propose(proposal(edits)).await, Err(ProposeError::Conflict { .. })));
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn proposal_for_another_head_is_refused_within_a_batch() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let at =
        |head, value| Proposal { expected_head: Some(head), ..proposal(vec![edit("b", Some(value), None)]) };
    for wrong in [0, 2, u64::MAX] {
        assert_eq!(bench.writer.propose(at(wrong, "1")).await, Err(ProposeError::Moved { head: 1 }));
    }
    let proposals = [at(1, "1"), at(1, "2")].map(|proposal| bench.writer.propose(proposal));
    let answers = futures_util::future::join_all(proposals).await;
    assert_eq!(answers[0].as_ref().unwrap().revision, 2);
    assert_eq!(answers[1], Err(ProposeError::Moved { head: 2 }));
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
async fn repeated_request_gets_stored_answer_after_restart() {
    let bench = Bench::new().await;
    let first = bench.writer.propose(request("id", 5, vec![edit("a", Some("1"), Some(0))])).await.unwrap();
    bench.put("a", "2", None).await.unwrap();
    let restarted = Writer::spawn(bench.store.clone(), WriterConfig::default()).0;
    for writer in [&bench.writer, &restarted] {
        let again = writer.propose(request("id", 5, vec![edit("a", Some("1"), Some(0))])).await.unwrap();
        assert_eq!(again, Committed { repeated: true, ..first.clone() });
        let other = writer.propose(request("id", 6, vec![edit("b", Some("1"), None)])).await;
        assert_eq!(other, Err(ProposeError::RequestIdReused { request_id: "id".to_owned() }));
    }
    assert_eq!(bench.head().await, 2);
}

#[tokio::test]
async fn request_ids_are_separate_per_principal() {
    let bench = Bench::new().await;
    let by = |principal: &str, key: &str| Proposal {
        principal: principal.to_owned(),
        ..request("id", key.len() as u64, vec![edit(key, Some("1"), None)])
    };
    let (ann, bob) =
        tokio::join!(bench.writer.propose(by("ann", "a")), bench.writer.propose(by("bob", "bb")));
    let anonymous = bench.writer.propose(by("", "ccc")).await.unwrap();
    let firsts = [("ann", "a", ann.unwrap()), ("bob", "bb", bob.unwrap()), ("", "ccc", anonymous)];
    let restarted = Writer::spawn(bench.store.clone(), WriterConfig::default()).0;
    for writer in [&bench.writer, &restarted] {
        for (principal, key, first) in &firsts {
            assert!(!first.repeated && !first.unchanged);
            let again = writer.propose(by(principal, key)).await.unwrap();
            assert_eq!(again, Committed { repeated: true, ..first.clone() });
        }
        let other = writer.propose(by("ann", "bb")).await;
        assert_eq!(other, Err(ProposeError::RequestIdReused { request_id: "id".to_owned() }));
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
    let ask = |value| bench.writer.propose(request("id", 5, vec![edit("a", Some(value), None)]));
    assert!(!ask("1").await.unwrap().repeated);
    tokio::time::pause();
    tokio::time::advance(REMEMBER_REQUESTS - Duration::from_secs(60)).await;
    assert!(ask("2").await.unwrap().repeated);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(!ask("3").await.unwrap().repeated);
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
    let other = Writer::spawn(bench.store.clone(), WriterConfig::default()).0;
    assert_eq!(bench.put("a", "1", Some(0)).await.unwrap().revision, 1);
    assert_eq!(other.propose(proposal(vec![edit("a", Some("2"), Some(1))])).await.unwrap().revision, 2);
    let stale = bench.put("a", "3", Some(1)).await;
    let current = Some(Entry { revision: 2, value: "2".into() });
    assert_eq!(stale, Err(ProposeError::Conflict { key: "rules/a".to_owned(), current }));
    assert!(bench.put("a", "2", None).await.unwrap().unchanged);
    other.propose(request("id", 1, vec![edit("b", Some("1"), None)])).await.unwrap();
    let again = bench.writer.propose(request("id", 1, vec![edit("b", Some("1"), None)])).await.unwrap();
    assert_eq!((again.revision, again.repeated), (3, true));
}

#[tokio::test]
async fn number_of_entries_is_limited_and_may_shrink() {
    let limit = |max_entries| EntryLimit { prefix: "rules/".to_owned(), max_entries, max_bytes: usize::MAX };
    let bench = Bench::with(WriterConfig { limits: vec![limit(2)], ..WriterConfig::default() }).await;
    bench.put("a", "1", None).await.unwrap();
    bench.put("b", "1", None).await.unwrap();
    let refused = ProposeError::TooManyEntries { prefix: "rules/".to_owned(), entries: 3, limit: 2 };
    assert_eq!(bench.put("c", "1", None).await, Err(refused));
    let exchange = vec![edit("a", None, None), edit("c", Some("1"), None)];
    bench.writer.propose(proposal(exchange)).await.unwrap();
    let lower = WriterConfig { limits: vec![limit(1)], ..WriterConfig::default() };
    let lower = Writer::spawn(bench.store.clone(), lower).0;
    lower.propose(proposal(vec![edit("c", Some("2"), None)])).await.unwrap();
    lower.propose(proposal(vec![edit("c", None, None)])).await.unwrap();
    assert!(lower.propose(proposal(vec![edit("d", Some("1"), None)])).await.is_err());
}

#[tokio::test]
async fn bytes_of_entries_are_limited_and_may_shrink() {
    // Keys of seven bytes.
    let limit = |max_bytes| EntryLimit { prefix: "rules/".to_owned(), max_entries: 9, max_bytes };
    let config = |max_bytes| WriterConfig { limits: vec![limit(max_bytes)], ..WriterConfig::default() };
    let bench = Bench::with(config(20)).await;
    bench.put("a", "111", None).await.unwrap();
    bench.put("b", "111", None).await.unwrap();
    let refused = ProposeError::TooManyBytes { prefix: "rules/".to_owned(), bytes: 21, limit: 20 };
    assert_eq!(bench.put("b", "1111", None).await, Err(refused));
    bench.writer.propose(proposal(vec![edit("a", None, None), edit("b", Some("1111"), None)])).await.unwrap();
    let lower = Writer::spawn(bench.store.clone(), config(5)).0;
    lower.propose(proposal(vec![edit("b", Some("11"), None)])).await.unwrap();
    lower.propose(proposal(vec![edit("b", Some("22"), None)])).await.unwrap();
    assert!(lower.propose(proposal(vec![edit("b", Some("333"), None)])).await.is_err());
}

#[tokio::test]
async fn invalid_proposal_fails_alone() {
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
    assert!(matches!(large, Err(ProposeError::TooLarge { .. })), "{large:?}");
    assert!(matches!(twice, Err(ProposeError::Invalid { .. })), "{twice:?}");
    assert!(matches!(malformed, Err(ProposeError::Invalid { .. })), "{malformed:?}");
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn the_history_may_be_compacted_under_the_writer() {
    let bench = Bench::new().await;
    let other = Writer::spawn(bench.store.clone(), WriterConfig::default()).0;
    bench.put("a", "1", None).await.unwrap();
    other.propose(proposal(vec![edit("a", Some("2"), Some(1))])).await.unwrap();
    bench.store.compact(2).await.unwrap();
    assert_eq!(bench.put("a", "3", Some(2)).await.unwrap().revision, 3);
}

/// A store that never answers a commit.
struct Silent;

#[tonic::async_trait]
impl Store for Silent {
    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn identity(&self, _: u64) -> Result<Identity, StoreError> {
        Ok(Identity { epoch: "one".to_owned(), ..Identity::default() })
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        Ok(StoreContents { epoch: "one".to_owned(), revision: 0, ..StoreContents::default() })
    }

    async fn commit(&self, _: u64, _: &[Change]) -> Result<(), StoreError> {
        std::future::pending().await
    }

    fn watch(&self, _: &Position) -> Watch {
        Box::pin(futures_util::stream::pending())
    }

    async fn changes(&self, _: u64, _: u64) -> Result<Vec<Change>, StoreError> {
        Ok(Vec::new())
    }

    async fn compact(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn renew_epoch(&self, current: &str, _: &[String]) -> Result<String, StoreError> {
        Ok(current.to_owned())
    }

    fn join(&self, _: &str, _: bytes::Bytes) -> Option<crate::membership::Membership> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn proposals_time_out_when_the_store_is_silent() {
    let writer = Writer::spawn(Arc::new(Silent), WriterConfig::default()).0;
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
    assert!(matches!(taken.0, Err(ProposeError::Uncertain { .. })), "{taken:?}");
    assert!(matches!(waiting.0, Err(ProposeError::Unavailable { .. })), "{waiting:?}");
    let (taken, waiting) = (taken.1.as_millis(), waiting.1.as_millis());
    assert!((5_000..5_010).contains(&taken) && (6_000..6_010).contains(&waiting), "{taken} {waiting}");
}

#[tokio::test(start_paused = true)]
async fn propose_within_waits_no_longer_than_its_limit() {
    let writer = Writer::spawn(Arc::new(Silent), WriterConfig::default()).0;
    let begun = Instant::now();
    let large = writer.propose(proposal(vec![edit("a", Some("1"), None)]));
    let behind = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let kill = ProposedEdit { key: "kills/a".to_owned(), ..edit("a", Some("1"), None) };
        let refused = writer.propose_within(Duration::from_secs(1), proposal(vec![kill])).await;
        (refused, begun.elapsed())
    };
    let (_, (refused, after)) = tokio::join!(large, behind);
    assert!(matches!(refused, Err(ProposeError::Unavailable { .. })), "certainly not written: {refused:?}");
    assert!((1_000..1_100).contains(&after.as_millis()), "{after:?}");
    // What is being written is waited for.
    let writer = Writer::spawn(Arc::new(Silent), WriterConfig::default()).0;
    let alone =
        writer.propose_within(Duration::from_secs(1), proposal(vec![edit("b", Some("1"), None)])).await;
    assert!(matches!(alone, Err(ProposeError::Uncertain { .. })), "{alone:?}");
}

/// Removes everything that does not begin with its name; must not touch `held`.
#[derive(Debug)]
struct OnlyMine;

impl EditPlanner for OnlyMine {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
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

fn planned() -> Proposal {
    Proposal { planner: Some(Arc::new(OnlyMine)), ..proposal(Vec::new()) }
}

#[tokio::test]
async fn planner_sees_earlier_proposals_of_its_batch() {
    let bench = Bench::new().await;
    // All wait together and go into one commit: each planner sees the proposals before its own.
    let (_, first, _, second) = tokio::join!(
        bench.put("a", "1", None),
        bench.writer.propose(planned()),
        bench.put("b", "1", None),
        bench.writer.propose(planned()),
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
async fn rejecting_planner_gets_the_entries_it_rejected() {
    let bench = Bench::new().await;
    bench.put("held", "1", None).await.unwrap();
    let refused = bench.writer.propose(planned()).await.unwrap_err();
    let held = Entry { revision: 1, value: Bytes::from_static(b"1") };
    assert_eq!(
        refused,
        ProposeError::PlannerRejected { entries: vec![("rules/held".to_owned(), Some(held))] }
    );
    assert_eq!(bench.head().await, 1);
}

#[tokio::test]
async fn planner_sees_changes_of_another_writer() {
    let bench = Bench::new().await;
    bench.put("a", "1", None).await.unwrap();
    let other = Writer::spawn(bench.store.clone(), WriterConfig::default()).0;
    other.propose(proposal(vec![edit("late", Some("1"), None)])).await.unwrap();
    let done = bench.writer.propose(planned()).await.unwrap();
    assert_eq!((done.revision, done.keys.len()), (3, 3));
    assert_eq!(bench.store.load().await.unwrap().entries.len(), 1);
}

/// A store of which nothing can be read at first, and then only when it is let.
#[derive(Default)]
struct Slow {
    /// Writes kills and removals only.
    is_full: bool,
    loads: AtomicUsize,
    readable: tokio::sync::Notify,
    committed: Mutex<Vec<Change>>,
}

#[tonic::async_trait]
impl Store for Slow {
    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn identity(&self, _: u64) -> Result<Identity, StoreError> {
        Ok(Identity { epoch: "one".to_owned(), ..Identity::default() })
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        if self.loads.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(StoreError::Unavailable { reason: "not yet".to_owned() });
        }
        self.readable.notified().await;
        Ok(StoreContents { epoch: "one".to_owned(), ..StoreContents::default() })
    }

    async fn commit(&self, _: u64, changes: &[Change]) -> Result<(), StoreError> {
        let edits = changes.iter().flat_map(|change| &change.edits);
        if self.is_full && !crate::is_urgent(edits.map(|edit| (&*edit.key, edit.value.as_ref()))) {
            return Err(StoreError::Unavailable { reason: "full".to_owned() });
        }
        self.committed.lock().unwrap().extend_from_slice(changes);
        Ok(())
    }

    fn watch(&self, _: &Position) -> Watch {
        Box::pin(futures_util::stream::pending())
    }

    async fn changes(&self, _: u64, _: u64) -> Result<Vec<Change>, StoreError> {
        Ok(Vec::new())
    }

    async fn compact(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn renew_epoch(&self, current: &str, _: &[String]) -> Result<String, StoreError> {
        Ok(current.to_owned())
    }

    fn join(&self, _: &str, _: Bytes) -> Option<crate::membership::Membership> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_up_during_a_long_reading_is_not_written() {
    let store = Arc::new(Slow::default());
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    let put = |key| writer.propose(proposal(vec![edit(key, Some("1"), None)]));
    // The first reading fails at once, and the writer waits for a proposal before it reads again.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let given_up = put("a").await;
    assert!(matches!(given_up, Err(ProposeError::Unavailable { .. })), "certainly not written: {given_up:?}");
    store.readable.notify_one();
    assert_eq!(put("b").await.unwrap().revision, 1);
    let committed = store.committed.lock().unwrap();
    let keys: Vec<&str> = committed.iter().flat_map(|change| &change.edits).map(|edit| &*edit.key).collect();
    assert_eq!(keys, ["rules/b"]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_written_before_large_proposals_that_wait() {
    let store = Arc::new(Slow::default());
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    let large = |name: &str| {
        let edits = (0..200).map(|place| edit(&format!("{name}{place}"), Some("1"), None));
        writer.propose(proposal(edits.collect()))
    };
    let kill = ProposedEdit { key: "kills/a".to_owned(), ..edit("", Some("1"), None) };
    tokio::time::sleep(Duration::from_millis(1)).await;
    let let_read = async { store.readable.notify_one() };
    let (first, second, third, kill, ()) =
        tokio::join!(large("a"), large("b"), large("c"), writer.propose(proposal(vec![kill])), let_read);
    assert_eq!(kill.unwrap().revision, 1);
    let others = [first, second, third].map(|done| done.unwrap().revision);
    assert_eq!(others, [2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn kills_around_a_refused_rule_are_written() {
    let store = Arc::new(Slow { is_full: true, ..Slow::default() });
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    let kill = |key: &str| ProposedEdit { key: key.to_owned(), ..edit("", Some("1"), None) };
    let put = |edit| writer.propose(proposal(vec![edit]));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let let_read = async { store.readable.notify_one() };
    let (first, rule, last, ()) =
        tokio::join!(put(kill("kills/a")), put(kill("rules/a")), put(kill("kills/b")), let_read);
    assert!(matches!(rule, Err(ProposeError::Unavailable { .. })), "{rule:?}");
    assert_eq!([first, last].map(|kill| kill.unwrap().revision), [1, 2]);
    // A kill that arrives between the refusal of a rule and its answer.
    let behind = async {
        tokio::task::yield_now().await;
        put(kill("kills/c")).await
    };
    let (rule, kill) = tokio::join!(put(kill("rules/b")), behind);
    assert!(matches!(rule, Err(ProposeError::Unavailable { .. })), "{rule:?}");
    assert_eq!(kill.unwrap().revision, 3);
}

#[tokio::test(start_paused = true)]
async fn kills_that_do_not_fit_a_batch_wait_for_the_next() {
    let store = Arc::new(Slow::default());
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let asked = (0..300).map(|place| {
        let prefix = if place % 3 == 0 { "rules" } else { "kills" };
        let edits = (0..1 + place % 40)
            .map(|n| ProposedEdit { key: format!("{prefix}/{place}/{n}"), ..edit("", Some("1"), None) });
        writer.propose(proposal(edits.collect()))
    });
    let let_read = async { store.readable.notify_one() };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(asked), let_read);
    let mut revisions: Vec<u64> = answers.into_iter().map(|done| done.unwrap().revision).collect();
    revisions.sort_unstable();
    assert!(revisions.into_iter().eq(1..=300));
}

/// A store with a long day behind it, which counts how many of the values that it gave out are in memory.
#[derive(Default)]
struct Long {
    given: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Given(Arc<AtomicUsize>);

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        b"value"
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl Store for Long {
    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn identity(&self, _: u64) -> Result<Identity, StoreError> {
        Ok(Identity { epoch: "one".to_owned(), ..Identity::default() })
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        Ok(StoreContents { epoch: "one".to_owned(), revision: 5_000, ..StoreContents::default() })
    }

    async fn commit(&self, _: u64, _: &[Change]) -> Result<(), StoreError> {
        Ok(())
    }

    fn watch(&self, _: &Position) -> Watch {
        Box::pin(futures_util::stream::pending())
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        let change = |revision: u64| {
            self.most.fetch_max(self.given.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let value = Some(Bytes::from_owner(Given(self.given.clone())));
            Change {
                revision,
                commit: 0,
                at: SystemTime::now(),
                author: String::new(),
                reason: String::new(),
                peer: String::new(),
                principal: String::new(),
                request_id: format!("request {revision}"),
                request_digest: 1,
                edits: vec![Edit { key: "rules/a".to_owned(), value, before: None }],
            }
        };
        Ok((after + 1..=upto.min(5_000)).map(change).collect())
    }

    async fn compact(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn renew_epoch(&self, current: &str, _: &[String]) -> Result<String, StoreError> {
        Ok(current.to_owned())
    }

    fn join(&self, _: &str, _: Bytes) -> Option<crate::membership::Membership> {
        None
    }
}

#[tokio::test]
async fn the_last_day_is_read_a_page_at_a_time_and_its_ids_are_known() {
    let store = Arc::new(Long::default());
    let writer = Writer::spawn(store.clone(), WriterConfig::default()).0;
    for revision in [1, 2_500, 5_000] {
        let id = format!("request {revision}");
        let first = writer.propose(request(&id, 1, vec![edit("a", Some("1"), None)])).await.unwrap();
        assert_eq!((first.revision, first.repeated), (revision, true));
    }
    let most = store.most.load(Ordering::SeqCst);
    assert!(most <= 64, "{most} values were in memory at once");
}
