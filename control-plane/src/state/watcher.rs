//! Watcher: keeps the snapshot at the store's head.
//!
//! The only task that builds snapshots. It follows the store's watch and reads the store's identity every few
//! seconds. After compaction, or for an accepted successor, it loads the store again; meanwhile the old
//! snapshot stays in use, marked with the time since when it may be stale. A store other than the known one
//! is never published: the snapshot stays, marked with what was found (see [`crate::state::known_store`]). So
//! is one that another replica does not know.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Pattern;
use damper_proto::v1;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use crate::metrics::Metrics;
use crate::state::held_kills::{HeldKills, NotHeld};
use crate::state::known_store::{PeerEpochs, Standing, Unaccepted, continues, identify};
use crate::state::snapshot::Snapshot;
use damper_store::{Change, Identity, Store, StoreError, Watch};

const ASK_EVERY: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Timeout of a load of the store.
pub(crate) const LOAD_WITHIN: Duration = Duration::from_secs(20);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Changes applied together before they are published.
const BURST: usize = 256;
/// Minimum interval between reads of the store on behalf of clients.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Identity reads in a row with undelivered changes after which the watch is opened again.
const SILENT_ASKS: u32 = 2;

/// The task's state.
pub(crate) struct StoreWatcher {
    store: Arc<dyn Store>,
    view: Snapshot,
    publish: watch::Sender<Arc<Snapshot>>,
    /// A client knows a later revision than the snapshot.
    looks: mpsc::Receiver<()>,
    /// Kills that the store cannot accept now.
    holds: mpsc::Receiver<Hold>,
    held: Arc<HeldKills>,
    /// Epochs of the other replicas.
    peers: watch::Receiver<PeerEpochs>,
    /// Replicas that know another store: each until it continues from this one, even if it leaves before.
    doubts: PeerEpochs,
    metrics: Metrics,
    looked: Option<Instant>,
    /// Identity reads in a row with changes of which the watch delivered none.
    silent_asks: u32,
}

/// Message about kills that the store could not accept.
pub(crate) enum Hold {
    /// Puts them in force now, all or none.
    Take {
        kills: Vec<v1::HeldKill>,
        /// Receives the snapshot that contains them.
        answer: Option<oneshot::Sender<Result<Arc<Snapshot>, NotHeld>>>,
    },
    /// The store has had one by this revision.
    Stored { pattern: Pattern, at: SystemTime, revision: u64 },
}

/// The watch is no longer usable.
enum Ended {
    /// The snapshot is valid; open a new watch.
    Watch,
    /// Load the store.
    Table,
}

impl StoreWatcher {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        publish: watch::Sender<Arc<Snapshot>>,
        looks: mpsc::Receiver<()>,
        holds: mpsc::Receiver<Hold>,
        peers: watch::Receiver<PeerEpochs>,
        metrics: Metrics,
    ) -> Self {
        let view = Snapshot::clone(&publish.borrow());
        let (held, doubts) = (Arc::default(), PeerEpochs::new());
        Self {
            store,
            view,
            publish,
            looks,
            holds,
            held,
            peers,
            doubts,
            metrics,
            looked: None,
            silent_asks: 0,
        }
    }

    /// Follows the store; never returns.
    pub(crate) async fn run(mut self) {
        loop {
            match self.follow().await {
                Ended::Watch => {}
                Ended::Table => self.load().await,
            }
        }
    }

    async fn follow(&mut self) -> Ended {
        let mut changes = self.store.watch(&self.view.position());
        let mut ask = interval(ASK_EVERY);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.silent_asks = 0;
        loop {
            let went_on = tokio::select! {
                change = changes.next() => self.take(change, &mut changes),
                _ = ask.tick() => self.ask().await,
                Some(()) = self.looks.recv() => self.refresh().await,
                Ok(()) = self.peers.changed() => self.ask().await,
                Some(hold) = self.holds.recv() => {
                    self.hold(hold);
                    Ok(())
                }
            };
            if let Err(ended) = went_on {
                return ended;
            }
        }
    }

    /// Applies a change and those that are ready behind it.
    fn take(&mut self, first: Option<Result<Change, StoreError>>, changes: &mut Watch) -> Result<(), Ended> {
        let mut next = first;
        for _ in 0..BURST {
            match next {
                Some(Ok(change)) if change.revision <= self.view.revision() => {}
                Some(Ok(change)) if change.revision == self.view.revision() + 1 => self.apply(&change),
                Some(Ok(change)) => {
                    tracing::error!(change.revision, "the store's watch left a gap; reading all entries");
                    return Err(Ended::Table);
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the store's watch ended");
                    return Err(Ended::Table);
                }
                None => return Err(Ended::Table),
            }
            self.silent_asks = 0;
            match changes.next().now_or_never() {
                Some(ready) => next = ready,
                None => break,
            }
        }
        self.view.stale_since = None;
        self.publish();
        Ok(())
    }

    /// Reads the store because a client knows a later revision.
    async fn refresh(&mut self) -> Result<(), Ended> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        self.ask().await
    }

    /// Reads the store's identity and head: confirms that it answers and that no change is missing.
    async fn ask(&mut self) -> Result<(), Ended> {
        let Some(found) = self.identify().await else { return Ok(()) };
        if self.standing(&found) != Standing::Known {
            return Err(Ended::Table);
        }
        let known = self.view.revision();
        if found.revision > known {
            self.catch_up(known + BURST as u64).await?;
            self.silent_asks += 1;
        }
        if self.view.revision() >= found.revision {
            self.answered();
        }
        if self.silent_asks >= SILENT_ASKS {
            tracing::warn!("the store's watch delivers nothing; opening it again");
            return Err(Ended::Watch);
        }
        Ok(())
    }

    /// Applies changes that the watch has not delivered.
    async fn catch_up(&mut self, upto: u64) -> Result<(), Ended> {
        let (store, after) = (self.store.clone(), self.view.revision());
        let reading = async move { timeout(ANSWER_WITHIN, store.changes(after, upto)).await };
        match self.holding_kills(reading).await {
            Ok(Ok(changes)) => {
                for change in &changes {
                    if change.revision != self.view.revision() + 1 {
                        return Err(Ended::Table);
                    }
                    self.apply(change);
                }
                self.publish();
            }
            Ok(Err(StoreError::Replaced { .. } | StoreError::Compacted { .. })) => return Err(Ended::Table),
            Ok(Err(error)) => self.went_away(&error.to_string()),
            Err(_) => self.went_away("no answer in time"),
        }
        Ok(())
    }

    /// Reads the store's identity; `None` if it does not answer.
    async fn identify(&mut self) -> Option<Identity> {
        let (store, revision) = (self.store.clone(), self.view.revision());
        let asking = async move { timeout(ANSWER_WITHIN, identify(&*store, revision)).await };
        match self.holding_kills(asking).await {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(error)) => self.went_away(&error.to_string()),
            Err(_) => self.went_away("no answer in time"),
        }
        None
    }

    /// Compares the store with the snapshot and with the epochs of the other replicas.
    fn standing(&mut self, found: &Identity) -> Standing {
        match Standing::of(&self.view.position(), found) {
            Standing::Known => match self.doubt() {
                Some((replica, epoch)) => Standing::Other(format!(
                    "replica {replica} knows another store, epoch {epoch}; this replica started over epoch {}",
                    found.epoch
                )),
                None => Standing::Known,
            },
            // The store that the other replica knows is back, or has a successor.
            Standing::Other(_)
                if self.doubts.values().any(|known| continues(&found.epoch, &found.lineage, known)) =>
            {
                Standing::Successor
            }
            standing => standing,
        }
    }

    /// Returns a replica that knows a store of which this one is no successor, and its epoch.
    fn doubt(&mut self) -> Option<(String, String)> {
        let peers = self.peers.borrow_and_update().clone();
        self.doubts.extend(peers.into_iter().filter(|(_, epoch)| !epoch.is_empty()));
        self.doubts.retain(|_, known| !continues(self.view.epoch(), self.view.lineage(), known));
        self.doubts.first_key_value().map(|(replica, epoch)| (replica.clone(), epoch.clone()))
    }

    /// Loads the store; waits until it answers and is the known one.
    async fn load(&mut self) {
        loop {
            if let Some(found) = self.identify().await {
                match self.standing(&found) {
                    Standing::Other(problem) => self.mark(found, problem).await,
                    Standing::Known | Standing::Successor => match self.read(&found).await {
                        Ok(view) => return self.go_on_from(view),
                        Err(error) => self.went_away(&error),
                    },
                }
            }
            let again_at = Instant::now() + AGAIN_AFTER;
            while let Ok(Some(hold)) = timeout_at(again_at, self.holds.recv()).await {
                self.hold(hold);
            }
        }
    }

    fn apply(&mut self, change: &Change) {
        self.view.apply(change);
        if !self.held.is_empty() {
            Arc::make_mut(&mut self.held).follow(change);
        }
    }

    /// Puts kills in force that the store cannot accept now, or records that it has had one.
    fn hold(&mut self, hold: Hold) {
        let (kills, answer) = match hold {
            Hold::Take { kills, answer } => (kills, answer),
            Hold::Stored { pattern, at, revision } => {
                Arc::make_mut(&mut self.held).stored(&pattern, at, revision);
                return self.publish();
            }
        };
        let mut held = HeldKills::clone(&self.held);
        let revision = self.view.revision();
        let taken = kills.into_iter().try_for_each(|kill| held.take(kill, revision));
        if taken.is_ok() {
            self.held = Arc::new(held);
            self.publish();
        }
        if let Some(answer) = answer {
            // The requester may be gone.
            let _ = answer.send(taken.map(|()| self.publish.borrow().clone()));
        }
    }

    /// Waits for the store, and puts kills in force meanwhile.
    async fn holding_kills<T>(&mut self, asking: impl Future<Output = T>) -> T {
        let mut asking = pin!(asking);
        loop {
            tokio::select! {
                answer = &mut asking => return answer,
                Some(hold) = self.holds.recv() => self.hold(hold),
            }
        }
    }

    /// Loads the identified store.
    async fn read(&mut self, found: &Identity) -> Result<Snapshot, String> {
        let store = self.store.clone();
        let reading = async move { timeout(LOAD_WITHIN, store.load()).await };
        let state = self.holding_kills(reading).await;
        let state = state.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        match state.epoch == found.epoch && state.revision >= found.revision {
            true => Ok(Snapshot::of(&state)),
            false => Err("the store changed its identity while it was read".to_owned()),
        }
    }

    fn go_on_from(&mut self, view: Snapshot) {
        if self.view.unaccepted.is_some() || view.epoch() != self.view.epoch() {
            let (epoch, revision) = (view.epoch(), view.revision());
            tracing::warn!(%epoch, revision, known = %self.view.epoch(), "an operator accepted the new store; its rules are in force");
        }
        self.view = view;
        self.publish();
    }

    /// Records what was found in place of the known store; nothing of it is used.
    async fn mark(&mut self, found: Identity, problem: String) {
        self.answered();
        let noted = self.view.unaccepted.as_deref();
        if noted.is_some_and(|noted| (&noted.epoch, noted.revision) == (&found.epoch, found.revision)) {
            return;
        }
        let since = noted.map_or_else(SystemTime::now, |noted| noted.since);
        let Identity { epoch, revision, .. } = found.clone();
        let doubter = (epoch == **self.view.epoch()).then(|| self.doubts.first_key_value()).flatten();
        let known_by = doubter.map(|(replica, _)| replica.clone());
        let mut unaccepted = Unaccepted { epoch, revision, entries: 0, since, problem, known_by };
        // Published before the load: from here on no other task uses the store.
        self.view.unaccepted = Some(Arc::new(unaccepted.clone()));
        self.publish();
        if !found.epoch.is_empty() {
            unaccepted.entries = self.read(&found).await.map_or(0, |view| view.entries());
        }
        tracing::error!(
            problem = unaccepted.problem,
            found_epoch = unaccepted.epoch,
            found_revision = revision,
            found_entries = unaccepted.entries,
            known_entries = self.view.entries(),
            "the store was replaced: serving the earlier rules from memory until the earlier store is back or an operator accepts the new one (damper store accept)"
        );
        self.view.unaccepted = Some(Arc::new(unaccepted));
        self.publish();
    }

    fn answered(&mut self) {
        if self.view.stale_since.take().is_some() {
            tracing::info!("the store answers again");
            self.publish();
        }
    }

    fn went_away(&mut self, reason: &str) {
        if self.view.stale_since.is_none() {
            tracing::warn!(reason, "the store does not answer; serving from memory");
            self.view.stale_since = Some(SystemTime::now());
            self.publish();
        }
    }

    fn publish(&mut self) {
        let shown = self.view.holding(&mut self.held);
        shown.publish_to(&self.metrics);
        self.publish.send_replace(Arc::new(shown));
    }
}
