//! What a client holds when it connects, and whether this server may take anything from it.
//!
//! A client names the epoch, the revision and the commit that made it. A client that holds more than this server knows
//! (another store, a later revision, another commit) is **held**: it keeps what it has and gets kills only, until the
//! table has come there or an operator has accepted the store. It is never believed for others.

use std::time::Duration;

use damper_proto::v1;
use tokio::time::timeout;

use crate::push::PushContext;
use crate::state::snapshot::Snapshot;
use damper_store::Position;

/// How long the store may take to name the commit of an old revision.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// What a client claims to hold.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) at: Position,
    /// The client understands kills that are added to those it holds.
    pub(crate) takes_additions: bool,
    /// The commit that the store has at that revision, where the table does not remember it.
    stored: Option<u64>,
}

/// What a claim is worth at a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// Nothing, or what a predecessor of this store had: it gets everything.
    Nothing,
    /// What this table was at a revision.
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

    /// Asks the store for the commit of a revision that the table does not remember, one client at a time. Without
    /// an answer the claim is taken as it is.
    pub(crate) async fn look_up(&mut self, context: &PushContext, view: &Snapshot) {
        let Position { epoch, revision, commit } = &self.at;
        let is_old = **epoch == **view.epoch() && *revision < view.revision();
        if !is_old || *commit == 0 || view.commit_of(*revision).is_some() {
            return;
        }
        let asked = async {
            let _one = context.looks.acquire().await.ok()?;
            context.fleet.state.store.identity(*revision).await.ok()?.commit
        };
        self.stored = timeout(LOOK_WITHIN, asked).await.ok().flatten();
    }
}
