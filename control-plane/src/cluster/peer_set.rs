//! Following all other replicas, each in a task of its own, as the store tells who there is.
//!
//! Whoever is in the store and can not be followed, because there is no room or what it said of itself can not be read,
//! is known as one that is not heard, so that every answer says that its clients are missing. A failure in following one
//! is the failure of that one alone.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Faults, key};
use damper_proto::v1;
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::cluster::query::PeerLink;
use damper_store::Members;

/// The most replicas that are followed.
const MAX_FOLLOWED: usize = 64;
const MAX_ADDRESS_BYTES: usize = 2048;
/// The pause after a failure of this replica in following another one.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Those who are in the store.
pub(crate) struct PeerSet {
    cluster: Arc<Cluster>,
    known: watch::Receiver<Members>,
    followed: BTreeSet<String>,
    /// In the store, and not followed.
    unfollowed: BTreeSet<String>,
    /// Each ends with the id of one that is gone.
    tasks: JoinSet<String>,
}

impl PeerSet {
    /// Nobody yet; `known` tells of each.
    pub(crate) fn of(cluster: Arc<Cluster>, known: watch::Receiver<Members>) -> Self {
        let (followed, unfollowed) = (BTreeSet::new(), BTreeSet::new());
        Self { cluster, known, followed, unfollowed, tasks: JoinSet::new() }
    }

    /// Takes up those who came, and forgets of those that are not followed who left.
    pub(crate) fn look(&mut self) {
        let all = self.known.borrow_and_update().clone();
        self.unfollowed.retain(|id| {
            let is_there = all.contains_key(id);
            if !is_there {
                self.cluster.peers.forget(id);
            }
            is_there
        });
        for (id, value) in all.iter() {
            if **id == **self.cluster.peers.id() || self.followed.contains(id) || !is_id(id) {
                continue;
            }
            match read(id, value) {
                Ok(told) if self.followed.len() < MAX_FOLLOWED => self.follow(told),
                // It is there all the same: what its clients do is missing.
                told => {
                    let problem = told.err().unwrap_or("there are too many replicas to follow them all");
                    self.leave_out(id, problem);
                }
            }
        }
        self.cluster.fleet.hub.changed();
    }

    /// Follows everybody until this replica leaves the store.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                changed = self.known.changed() => if changed.is_err() {
                    break;
                },
                Some(ended) = self.tasks.join_next() => if let Ok(id) = ended {
                    self.cluster.peers.forget(&id);
                    self.followed.remove(&id);
                }
            }
            self.look();
        }
        // Nobody tells any more who is there, so that no connection that ends now is opened again.
        self.tasks.shutdown().await;
        if self.cluster.stopping.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    fn follow(&mut self, told: v1::Replica) {
        self.unfollowed.remove(&told.id);
        self.followed.insert(told.id.clone());
        self.cluster.peers.found(told.clone());
        self.tasks.spawn(follow(self.cluster.clone(), told, self.known.clone()));
    }

    fn leave_out(&mut self, id: &str, problem: &'static str) {
        if self.unfollowed.insert(id.to_owned()) {
            self.cluster.peers.found(v1::Replica { id: id.to_owned(), ..v1::Replica::default() });
            self.cluster.peers.unheard(id, problem.to_owned());
            tracing::error!(replica = id, problem, "a replica can not be followed");
        }
    }
}

/// Follows one until it is gone, whatever goes wrong here; answers with its id.
async fn follow(cluster: Arc<Cluster>, told: v1::Replica, known: watch::Receiver<Members>) -> String {
    let following = || PeerLink::of(cluster.clone(), told.clone(), known.clone()).run();
    while AssertUnwindSafe(following()).catch_unwind().await.is_err() {
        tracing::error!(replica = told.id, "following a replica failed");
        cluster.peers.unheard(&told.id, "this replica failed in following it; its log says how".to_owned());
        cluster.fleet.hub.changed();
        sleep(AGAIN_AFTER).await;
    }
    told.id
}

/// True if a replica can have this id.
fn is_id(id: &str) -> bool {
    let mut faults = Faults::none();
    key::check_name("id", id, &mut faults);
    faults.is_empty()
}

/// What a replica said of itself in the store.
fn read(id: &str, value: &[u8]) -> Result<v1::Replica, &'static str> {
    let told = v1::Replica::decode(value).ok().filter(|told| {
        told.id == id && told.version.len() <= key::MAX_NAME_BYTES && told.address.len() <= MAX_ADDRESS_BYTES
    });
    told.ok_or("what is in the store about it can not be read")
}
