//! The revision that a client holds when it connects, and whether this server may replace it.
//!
//! A client sends the epoch, the revision and its commit. A client that holds more than this server knows
//! (another store, a later revision, another commit) is **held**: it keeps its rules and gets kills only,
//! until this replica has caught up or an operator has accepted the store. Its rules are never passed to
//! other clients.

use std::time::Duration;

use damper_proto::v1;
use tokio::time::timeout;

use crate::push::PushContext;
use crate::state::snapshot::Snapshot;
use damper_store::Position;

/// The time limit for reading the commit of an old revision from the store.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// The position that a client claims to hold.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) at: Position,
    /// The client can add kills to those it holds.
    pub(crate) takes_additions: bool,
    /// The store's commit at that revision, if the snapshot does not have it.
    stored: Option<u64>,
}

/// The result of comparing a claim with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// Nothing, or rules of a predecessor of this store: the client gets everything.
    Nothing,
    /// A known revision of this snapshot.
    Revision(u64),
    /// More than this server knows.
    More,
}

impl Claim {
    pub(crate) fn of(hello: &v1::Hello) -> Self {
        let commit = hello.commit.unwrap_or_default();
        let at = Position { epoch: hello.epoch.clone(), revision: hello.revision, commit };
        Self { at, takes_additions: hello.commit.is_some(), stored: None }
    }

    pub(crate) fn against(&self, view: &Snapshot) -> Holding {
        let Position { epoch, revision, .. } = &self.at;
        if epoch.is_empty() {
            return Holding::Nothing;
        }
        if **epoch != **view.epoch() {
            return if view.lineage().contains(epoch) { Holding::Nothing } else { Holding::More };
        }
        let known = view.commit_of(*revision).or(self.stored);
        match *revision <= view.revision() && self.at.is_made_by(known) {
            true => Holding::Revision(*revision),
            false => Holding::More,
        }
    }

    /// Reads the commit of a revision that the snapshot does not have from the store, one client at a time.
    /// Without an answer the claim is accepted.
    pub(crate) async fn read_commit(&mut self, context: &PushContext, view: &Snapshot) {
        let Position { epoch, revision, commit } = &self.at;
        let is_old = **epoch == **view.epoch() && *revision < view.revision();
        if !is_old || *commit == 0 || view.commit_of(*revision).is_some() {
            return;
        }
        let asked = async {
            let _one = context.store_reads.acquire().await.ok()?;
            context.fleet.state.store.identity(*revision).await.ok()?.commit
        };
        self.stored = timeout(LOOK_WITHIN, asked).await.ok().flatten();
    }
}
