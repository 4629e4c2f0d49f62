//! Queries all peers in the membership list, each in its own task.
//!
//! A peer that cannot be queried, because there are too many or its entry is unreadable, counts as
//! unreachable, so that every answer lists its clients as missing. A failure in the task of one peer does not
//! affect the others.

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

/// The most peers that are queried.
const MAX_FOLLOWED: usize = 64;
const MAX_ADDRESS_BYTES: usize = 2048;
/// The pause after a failure in the task of a peer.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The replicas in the membership list.
pub(crate) struct PeerSet {
    cluster: Arc<Cluster>,
    known: watch::Receiver<Members>,
    followed: BTreeSet<String>,
    /// In the list, and not queried.
    unfollowed: BTreeSet<String>,
    /// Each ends with the id of a removed peer.
    tasks: JoinSet<String>,
}

impl PeerSet {
    /// Starts without peers; `known` is the membership list.
    pub(crate) fn of(cluster: Arc<Cluster>, known: watch::Receiver<Members>) -> Self {
        let (followed, unfollowed) = (BTreeSet::new(), BTreeSet::new());
        Self { cluster, known, followed, unfollowed, tasks: JoinSet::new() }
    }

    /// Starts tasks for new peers, and forgets removed ones without a task.
    pub(crate) fn refresh(&mut self) {
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
                Ok(replica) if self.followed.len() < MAX_FOLLOWED => self.follow(replica),
                // Its clients are still missing in the statistics.
                replica => {
                    let problem = replica.err().unwrap_or("too many replicas");
                    self.leave_out(id, problem);
                }
            }
        }
        self.cluster.fleet.hub.changed();
    }

    /// Queries all peers until this replica leaves the store.
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
            self.refresh();
        }
        // The membership list has ended, so no connection that closes now is opened again.
        self.tasks.shutdown().await;
        if self.cluster.stopping.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    fn follow(&mut self, replica: v1::Replica) {
        self.unfollowed.remove(&replica.id);
        self.followed.insert(replica.id.clone());
        self.cluster.peers.found(replica.clone());
        self.tasks.spawn(follow(self.cluster.clone(), replica, self.known.clone()));
    }

    fn leave_out(&mut self, id: &str, problem: &'static str) {
        if self.unfollowed.insert(id.to_owned()) {
            self.cluster.peers.found(v1::Replica { id: id.to_owned(), ..v1::Replica::default() });
            self.cluster.peers.unreachable(id, problem.to_owned());
            tracing::error!(replica = id, problem, "a replica cannot be queried");
        }
    }
}

/// Queries one peer until it is removed, even after failures of the task; returns its id.
async fn follow(cluster: Arc<Cluster>, replica: v1::Replica, known: watch::Receiver<Members>) -> String {
    let following = || PeerLink::of(cluster.clone(), replica.clone(), known.clone()).run();
    while AssertUnwindSafe(following()).catch_unwind().await.is_err() {
        tracing::error!(
            replica = replica.id,
            "the internal task that queries another replica panicked; restarting it"
        );
        cluster.peers.unreachable(&replica.id, "internal error; see the log of this replica".to_owned());
        cluster.fleet.hub.changed();
        sleep(AGAIN_AFTER).await;
    }
    replica.id
}

/// True if the id is valid.
fn is_id(id: &str) -> bool {
    let mut faults = Faults::none();
    key::check_name("id", id, &mut faults);
    faults.is_empty()
}

/// Reads the entry of a replica in the store.
fn read(id: &str, value: &[u8]) -> Result<v1::Replica, &'static str> {
    let replica = v1::Replica::decode(value).ok().filter(|replica| {
        replica.id == id
            && replica.version.len() <= key::MAX_NAME_BYTES
            && replica.epoch.len() <= key::MAX_NAME_BYTES
            && replica.address.len() <= MAX_ADDRESS_BYTES
    });
    replica.ok_or("its entry in the store cannot be read")
}
