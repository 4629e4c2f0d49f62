//! Keeps the table at the store's head.
//!
//! The one task that builds tables: it reads everything once, then follows the store's watch. What the watch
//! can not bridge (compaction, another store in this one's place) is read anew; meanwhile the old table goes on
//! serving, marked with the time since when it may be out of date. A question every few seconds tells a quiet
//! store from one that is away.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::metrics::Metrics;
use crate::store::{Change, Error, Store, Watch};
use crate::table::TableView;

const ASK_EVERY: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// How long the store may take to be read whole.
pub(crate) const LOAD_WITHIN: Duration = Duration::from_secs(20);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The most changes taken together before they are published.
const BURST: usize = 256;
/// A client that claims a revision from the future can not make everybody start anew more often than this.
const RENEW_EVERY: Duration = Duration::from_secs(60);

/// The task's state.
pub(crate) struct Follower {
    store: Arc<dyn Store>,
    view: TableView,
    publish: watch::Sender<Arc<TableView>>,
    ahead: mpsc::Receiver<u64>,
    metrics: Metrics,
    renewed: Option<Instant>,
}

/// The watch is of no more use; read everything.
struct StartAnew;

impl Follower {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        publish: watch::Sender<Arc<TableView>>,
        ahead: mpsc::Receiver<u64>,
        metrics: Metrics,
    ) -> Self {
        let view = TableView::clone(&publish.borrow());
        Self { store, view, publish, ahead, metrics, renewed: None }
    }

    /// Follows the store for ever.
    pub(crate) async fn run(mut self) {
        loop {
            let StartAnew = self.follow().await;
            self.load().await;
        }
    }

    async fn follow(&mut self) -> StartAnew {
        let mut changes = self.store.watch(self.view.revision());
        let mut ask = interval(ASK_EVERY);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ahead_open = true;
        loop {
            let went_on = tokio::select! {
                change = changes.next() => self.take(change, &mut changes),
                _ = ask.tick() => self.ask().await,
                claimed = self.ahead.recv(), if ahead_open => match claimed {
                    Some(revision) => self.catch_up(revision).await,
                    None => {
                        ahead_open = false;
                        Ok(())
                    }
                },
            };
            if let Err(anew) = went_on {
                return anew;
            }
        }
    }

    /// Takes a change, and those that are ready behind it.
    fn take(&mut self, first: Option<Result<Change, Error>>, changes: &mut Watch) -> Result<(), StartAnew> {
        let mut next = first;
        for _ in 0..BURST {
            match next {
                Some(Ok(change)) if change.revision <= self.view.revision() => {}
                Some(Ok(change)) if change.revision == self.view.revision() + 1 => self.view.apply(&change),
                Some(Ok(change)) => {
                    tracing::error!(change.revision, "the store's watch left a gap; reading everything");
                    return Err(StartAnew);
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the store's watch ended; reading everything");
                    return Err(StartAnew);
                }
                None => return Err(StartAnew),
            }
            match changes.next().now_or_never() {
                Some(ready) => next = ready,
                None => break,
            }
        }
        self.view.stale_since = None;
        self.publish();
        Ok(())
    }

    /// Asks the store for its head: proof that it answers.
    async fn ask(&mut self) -> Result<(), StartAnew> {
        match timeout(ANSWER_WITHIN, self.store.changes(self.view.revision(), u64::MAX)).await {
            Ok(Err(Error::Replaced { .. } | Error::Compacted { .. })) => return Err(StartAnew),
            Ok(Ok(_)) => self.answered(),
            Ok(Err(error)) => self.went_away(&error.to_string()),
            Err(_) => self.went_away("no answer in time"),
        }
        Ok(())
    }

    /// Reads what a client claims to hold already. Where the store does not have it, the store is an older
    /// copy of the one the client followed: it gets another identity, so that everybody starts anew.
    async fn catch_up(&mut self, claimed: u64) -> Result<(), StartAnew> {
        if claimed <= self.view.revision() {
            return Ok(());
        }
        match timeout(ANSWER_WITHIN, self.store.changes(self.view.revision(), u64::MAX)).await {
            Ok(Ok(changes)) => {
                for change in &changes {
                    if change.revision == self.view.revision() + 1 {
                        self.view.apply(change);
                    }
                }
                self.publish();
            }
            Ok(Err(Error::Replaced { .. } | Error::Compacted { .. })) => return Err(StartAnew),
            _ => return Ok(()),
        }
        let recently = self.renewed.is_some_and(|at| at.elapsed() < RENEW_EVERY);
        if claimed <= self.view.revision() || recently {
            return Ok(());
        }
        tracing::warn!(claimed, revision = self.view.revision(), "a client is ahead of the store: new epoch");
        self.renewed = Some(Instant::now());
        match self.store.renew_epoch(self.view.epoch()).await {
            Ok(_) => Err(StartAnew),
            Err(error) => {
                tracing::warn!(%error, "the epoch could not be renewed");
                Ok(())
            }
        }
    }

    /// Reads everything, however long it takes until the store answers.
    async fn load(&mut self) {
        loop {
            match self.read().await {
                Ok(view) => {
                    self.view = view;
                    self.publish();
                    return;
                }
                Err(error) => self.went_away(&error),
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    async fn read(&self) -> Result<TableView, String> {
        let load = || async {
            let state = timeout(LOAD_WITHIN, self.store.load()).await;
            state.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())
        };
        let mut state = load().await?;
        // The revision never goes back within an epoch: an older copy under the same one gets a new one.
        if state.epoch == **self.view.epoch() && state.revision < self.view.revision() {
            self.store.renew_epoch(&state.epoch).await.map_err(|error| error.to_string())?;
            state = load().await?;
        }
        Ok(TableView::of(&state))
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

    fn publish(&self) {
        self.metrics.table(&self.view);
        self.publish.send_replace(Arc::new(self.view.clone()));
    }
}
