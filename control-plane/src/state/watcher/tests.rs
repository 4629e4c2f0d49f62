use std::sync::Mutex;

use bytes::Bytes;

use crate::state::watcher::*;
use damper_store::Membership;
use damper_store::{Edit, Position, StoreContents};

/// A store of changes whose watch never delivers anything.
#[derive(Default)]
struct Quiet {
    held: Mutex<Held>,
}

#[derive(Clone, Default)]
struct Held {
    epoch: String,
    lineage: Vec<String>,
    changes: Vec<Change>,
    is_away: bool,
}

impl Quiet {
    fn hold(&self, epoch: &str, commits: &[u64]) {
        let changes = commits.iter().zip(1..).map(|(commit, revision)| change(revision, *commit)).collect();
        let held = Held { epoch: epoch.to_owned(), changes, ..Held::default() };
        *self.held.lock().unwrap() = held;
    }

    fn held(&self) -> Result<Held, StoreError> {
        let held = self.held.lock().unwrap().clone();
        match (held.is_away, held.epoch.is_empty()) {
            (true, _) => Err(StoreError::Unavailable { reason: "it is away".to_owned() }),
            (false, true) => Err(StoreError::Replaced { epoch: String::new() }),
            (false, false) => Ok(held),
        }
    }
}

fn change(revision: u64, commit: u64) -> Change {
    let pattern = damper_core::Pattern::parse("*", "*", &format!("callee-{revision}"), "*").unwrap();
    let rule = damper_proto::v1::Rule::default();
    Change {
        revision,
        commit,
        at: SystemTime::UNIX_EPOCH,
        author: String::new(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: vec![Edit {
            key: crate::state::resource_key::ResourceKey::Rule(pattern).key(),
            value: Some(crate::state::stored::StoredRule::value(&rule).into()),
            before: None,
        }],
    }
}

#[tonic::async_trait]
impl Store for Quiet {
    async fn create(&self) -> Result<(), StoreError> {
        panic!("following a store never makes one")
    }

    async fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        let Held { epoch, lineage, changes, .. } = self.held()?;
        let commit = changes.iter().find(|change| change.revision == revision).map(|change| change.commit);
        Ok(Identity { epoch, revision: changes.len() as u64, commit, lineage })
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        let Held { epoch, lineage, changes, .. } = self.held()?;
        let mut state = StoreContents { epoch, lineage, ..StoreContents::default() };
        changes.iter().for_each(|change| state.apply(change));
        Ok(state)
    }

    async fn commit(&self, _: u64, _: &[Change]) -> Result<(), StoreError> {
        Ok(())
    }

    fn watch(&self, _: &Position) -> Watch {
        Box::pin(tokio_stream::pending())
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        let changes = self.held()?.changes.into_iter();
        Ok(changes.filter(|change| (after + 1..=upto).contains(&change.revision)).collect())
    }

    async fn compact(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn renew_epoch(&self, current: &str, _: &[String]) -> Result<String, StoreError> {
        Ok(current.to_owned())
    }

    fn join(&self, _: &str, _: Bytes) -> Option<Membership> {
        None
    }
}

/// A follower of the store at the revision that it has now.
async fn followed(store: &Arc<Quiet>) -> watch::Receiver<Arc<Snapshot>> {
    followed_with_messages(store).await.0
}

/// The same with the way to tell it of kills.
async fn followed_with_messages(store: &Arc<Quiet>) -> (watch::Receiver<Arc<Snapshot>>, mpsc::Sender<Hold>) {
    let (_, peers) = watch::channel(PeerEpochs::new());
    followed_with_peers(store, peers).await
}

/// The same with the epochs of other replicas.
async fn followed_with_peers(
    store: &Arc<Quiet>,
    peers: watch::Receiver<PeerEpochs>,
) -> (watch::Receiver<Arc<Snapshot>>, mpsc::Sender<Hold>) {
    let view = Arc::new(Snapshot::of(&store.load().await.unwrap()));
    let (publish, table) = watch::channel(view);
    let (look, looks) = mpsc::channel(1);
    let (hold, holds) = mpsc::channel(1);
    let follower = StoreWatcher::new(store.clone(), publish, looks, holds, peers, Metrics::new());
    tokio::spawn(async move {
        let _open = look;
        follower.run().await;
    });
    (table, hold)
}

/// A decision about the one kill of these tests, and the change by which a store has it.
fn decision(at: SystemTime, sets: bool) -> (v1::HeldKill, Change) {
    let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
    let kill = sets.then(|| v1::KillSwitch {
        key: Some((&pattern).into()),
        reason: "storm".to_owned(),
        expires_at: Some((at + Duration::from_secs(3600)).into()),
        updated_at: Some(at.into()),
        ..v1::KillSwitch::default()
    });
    let value = kill.as_ref().map(|kill| crate::state::kills::StoredKill::value(kill).into());
    let key = crate::state::resource_key::ResourceKey::Kill(pattern.clone()).key();
    let change = Change { at, edits: vec![Edit { key, value, before: None }], ..change(0, 0) };
    (
        v1::HeldKill { key: Some((&pattern).into()), kill, at: Some(at.into()), ..v1::HeldKill::default() },
        change,
    )
}

/// Tells the follower of a decision, and returns the table that has it.
async fn hold(holds: &mpsc::Sender<Hold>, kill: &v1::HeldKill) -> Result<Arc<Snapshot>, NotHeld> {
    let (answer, answered) = oneshot::channel();
    holds.send(Hold::Take { kills: vec![kill.clone()], answer: Some(answer) }).await.unwrap();
    answered.await.unwrap()
}

async fn once(
    table: &mut watch::Receiver<Arc<Snapshot>>,
    is_so: impl FnMut(&Arc<Snapshot>) -> bool,
) -> Arc<Snapshot> {
    let view = timeout(Duration::from_secs(60), table.wait_for(is_so)).await;
    view.expect("it comes to that").unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn table_takes_what_a_silent_watch_does_not_deliver() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1]);
    let mut table = followed(&store).await;
    let start = Instant::now();
    store.hold("e", &[1, 2, 3]);
    let view = once(&mut table, |view| view.revision() == 3).await;
    assert!(start.elapsed() <= 2 * ASK_EVERY && view.len() == 3 && view.stale_since.is_none());
}

#[tokio::test(start_paused = true)]
async fn table_stays_when_the_store_is_another_one() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1, 2, 3]);
    let mut table = followed(&store).await;
    // Emptied, another one, rolled back, and another history at the same revision or beyond.
    for (epoch, commits) in
        [("", &[][..]), ("f", &[1, 2, 3, 4]), ("e", &[1, 2]), ("e", &[1, 2, 9]), ("e", &[1, 2, 9, 9])]
    {
        store.hold(epoch, commits);
        let revision = commits.len() as u64;
        let found = |view: &Arc<Snapshot>| {
            let is_it = |found: &Unaccepted| {
                (&*found.epoch, found.revision, found.entries) == (epoch, revision, commits.len())
            };
            view.unaccepted.as_deref().is_some_and(is_it)
        };
        let view = once(&mut table, found).await;
        assert_eq!((&**view.epoch(), view.revision(), view.len()), ("e", 3, 3), "{epoch} {commits:?}");
        store.hold("e", &[1, 2, 3]);
        let view = once(&mut table, |view| view.unaccepted.is_none()).await;
        assert_eq!((&**view.epoch(), view.revision(), view.len()), ("e", 3, 3), "it goes on by itself");
    }
    store.held.lock().unwrap().is_away = true;
    let view = once(&mut table, |view| view.stale_since.is_some()).await;
    assert!(view.unaccepted.is_none(), "a store that does not answer is no other one");
}

#[tokio::test(start_paused = true)]
async fn table_goes_on_from_a_successor() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1, 2, 3]);
    let mut table = followed(&store).await;
    store.hold("f", &[7]);
    once(&mut table, |view| view.unaccepted.is_some()).await;
    store.held.lock().unwrap().lineage = vec!["d".to_owned(), "e".to_owned()];
    let view = once(&mut table, |view| view.unaccepted.is_none()).await;
    assert_eq!((&**view.epoch(), view.revision(), view.len()), ("f", 1, 1));
    assert_eq!(view.lineage(), ["d", "e"]);
}

fn knows(peers: &watch::Sender<PeerEpochs>, replica: &str, epoch: Option<&str>) {
    peers.send_modify(|peers| match epoch {
        Some(epoch) => drop(peers.insert(replica.to_owned(), epoch.to_owned())),
        None => drop(peers.remove(replica)),
    });
}

#[tokio::test(start_paused = true)]
async fn store_is_not_accepted_while_a_replica_knows_another() {
    let store = Arc::new(Quiet::default());
    store.hold("f", &[1]);
    let (peers, known) = watch::channel(PeerEpochs::new());
    let (mut table, holds) = followed_with_peers(&store, known).await;
    knows(&peers, "a", Some("f"));
    knows(&peers, "b", Some("e"));
    let view = once(&mut table, |view| view.unaccepted.is_some()).await;
    let found = view.unaccepted.as_deref().unwrap();
    assert_eq!((&*found.epoch, found.revision, found.known_by.as_deref()), ("f", 1, Some("b")));
    assert!(found.problem.contains("replica b knows another store, epoch e"), "{}", found.problem);
    // A replica that leaves has not agreed; kills are held meanwhile.
    knows(&peers, "b", None);
    tokio::time::sleep(10 * ASK_EVERY).await;
    let held = hold(&holds, &decision(SystemTime::now(), true).0).await.unwrap();
    assert!(held.unaccepted.is_some() && held.kills().all().count() == 1);
    store.held.lock().unwrap().lineage = vec!["e".to_owned(), "f".to_owned()];
    store.held.lock().unwrap().epoch = "g".to_owned();
    let view = once(&mut table, |view| view.unaccepted.is_none()).await;
    assert_eq!(&**view.epoch(), "g", "an operator accepted it");
}

#[tokio::test(start_paused = true)]
async fn store_of_the_other_replicas_is_used_once_it_is_back() {
    let store = Arc::new(Quiet::default());
    store.hold("f", &[]);
    let (peers, known) = watch::channel(PeerEpochs::new());
    let (mut table, _holds) = followed_with_peers(&store, known).await;
    knows(&peers, "b", Some("e"));
    once(&mut table, |view| view.unaccepted.is_some()).await;
    store.hold("e", &[1, 2, 3]);
    let view = once(&mut table, |view| view.unaccepted.is_none()).await;
    assert_eq!((&**view.epoch(), view.len()), ("e", 3));
}

#[tokio::test(start_paused = true)]
async fn doubt_ends_when_the_other_replica_continues_here() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1]);
    let (peers, known) = watch::channel(PeerEpochs::new());
    let (mut table, _holds) = followed_with_peers(&store, known).await;
    knows(&peers, "b", Some("f"));
    once(&mut table, |view| view.unaccepted.is_some()).await;
    knows(&peers, "b", Some("e"));
    once(&mut table, |view| view.unaccepted.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn kill_that_was_held_stays_ended_when_the_store_ended_it() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1]);
    let (mut table, holds) = followed_with_messages(&store).await;
    store.held.lock().unwrap().is_away = true;
    once(&mut table, |view| view.stale_since.is_some()).await;
    let now = SystemTime::now();
    let (kill, set) = decision(now, true);
    let view = hold(&holds, &kill).await.unwrap();
    assert_eq!(view.shown_kills(now).len(), 1);
    // Another replica stores it, where it is ended.
    let (_, ended) = decision(now + Duration::from_secs(5), false);
    let of_others = [(2, set), (3, ended)];
    let of_others = of_others.map(|(revision, change)| Change { revision, commit: revision, ..change });
    {
        let mut held = store.held.lock().unwrap();
        held.changes.extend(of_others);
        held.is_away = false;
    }
    let view = once(&mut table, |view| view.revision() == 3).await;
    assert!(view.held().is_empty() && view.shown_kills(now).is_empty());
    assert_eq!(hold(&holds, &kill).await.err(), Some(NotHeld::Known), "however late a replica repeats it");
}

#[tokio::test(start_paused = true)]
async fn kill_that_was_held_ends_when_the_store_had_it_by_then() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1]);
    let (mut table, holds) = followed_with_messages(&store).await;
    let now = SystemTime::now();
    let (kill, _) = decision(now, true);
    hold(&holds, &kill).await.unwrap();
    let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
    holds.send(Hold::Stored { pattern, at: now, revision: 2 }).await.unwrap();
    assert_eq!(table.borrow_and_update().shown_kills(now).len(), 1, "the table is not there yet");
    store.held.lock().unwrap().changes.push(change(2, 2));
    let view = once(&mut table, |view| view.revision() == 2).await;
    assert!(view.held().is_empty() && view.shown_kills(now).is_empty());
}

#[tokio::test(start_paused = true)]
async fn kills_are_held_all_or_none() {
    let store = Arc::new(Quiet::default());
    store.hold("e", &[1]);
    let (table, holds) = followed_with_messages(&store).await;
    let now = SystemTime::now();
    let (kill, _) = decision(now, true);
    hold(&holds, &kill).await.unwrap();
    let mut other = kill.clone();
    other.key = Some((&Pattern::parse("*", "*", "price", "*").unwrap()).into());
    let (answer, answered) = oneshot::channel();
    // The second is known already.
    holds.send(Hold::Take { kills: vec![other, kill], answer: Some(answer) }).await.unwrap();
    assert_eq!(answered.await.unwrap().err(), Some(NotHeld::Known));
    assert_eq!(table.borrow().shown_kills(now).len(), 1);
}
