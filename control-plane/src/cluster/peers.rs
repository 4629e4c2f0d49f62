//! The known replicas and the unreachable ones among them; every answer about the fleet lists the latter.
//!
//! A replica is known while its key is in the store or it is reachable. It is reachable from the time when it
//! has sent all its clients until its stream ends; its data are then at most a moment old.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use damper_proto::v1;
use prost::Message as _;
use tokio::sync::watch;

use crate::state::known_store::PeerEpochs;

/// This replica and its peers.
pub(crate) struct Peers {
    own: v1::Replica,
    id: Arc<str>,
    others: Mutex<BTreeMap<String, PeerState>>,
    last_export: Mutex<Option<SystemTime>>,
    /// For the watcher of the store.
    epochs: watch::Sender<PeerEpochs>,
}

/// The state of a peer.
struct PeerState {
    replica: v1::Replica,
    /// A revision that one of the two snapshots has reached and the other has not, and since when.
    apart: Option<(u64, SystemTime)>,
    is_reachable: bool,
}

/// A peer at another revision.
pub(crate) struct OutOfSyncPeer {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) since: SystemTime,
}

impl Peers {
    /// Creates the list with this replica only, reachable by peers at the address.
    pub(crate) fn new(address: String, epoch: &str, epochs: watch::Sender<PeerEpochs>) -> Self {
        let id: Arc<str> = drawn_id().into();
        let own = v1::Replica {
            id: id.to_string(),
            address,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Some(SystemTime::now().into()),
            self_: true,
            epoch: epoch.to_owned(),
            ..v1::Replica::default()
        };
        Self { own, id, others: Mutex::default(), last_export: Mutex::default(), epochs }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<String, PeerState>> {
        self.others.lock().expect("no holder of the lock panics")
    }

    /// The id of this replica.
    pub(crate) fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The entry of this replica.
    pub(crate) fn own(&self) -> &v1::Replica {
        &self.own
    }

    /// The entry of this replica in the store.
    pub(crate) fn announcement(&self) -> Vec<u8> {
        v1::Replica { self_: false, ..self.own.clone() }.encode_to_vec()
    }

    /// The start time of this replica.
    pub(crate) fn started_at(&self) -> SystemTime {
        let wire = self.own.started_at;
        wire.and_then(|at| SystemTime::try_from(at).ok()).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Records an export of rules and guards by any replica.
    pub(crate) fn exported(&self, at: SystemTime) {
        let mut last = self.last_export.lock().expect("no holder of the lock panics");
        *last = (*last).max(Some(at));
    }

    /// The time of the last export; `None` if there was none since the replicas started.
    pub(crate) fn last_export(&self) -> Option<SystemTime> {
        *self.last_export.lock().expect("no holder of the lock panics")
    }

    /// Adds a peer from the store; it is not reachable yet.
    pub(crate) fn found(&self, replica: v1::Replica) {
        let replica = v1::Replica {
            self_: false,
            problem: "connecting".to_owned(),
            unheard_since: Some(SystemTime::now().into()),
            ..replica
        };
        let (id, epoch) = (replica.id.clone(), replica.epoch.clone());
        self.others().insert(id.clone(), PeerState { replica, apart: None, is_reachable: false });
        self.epochs.send_modify(|epochs| drop(epochs.insert(id, epoch)));
    }

    /// Removes a peer.
    pub(crate) fn forget(&self, id: &str) {
        self.others().remove(id);
        self.epochs.send_modify(|epochs| drop(epochs.remove(id)));
    }

    /// Marks a peer as reachable: its data are complete, and its store has this epoch.
    pub(crate) fn reachable(&self, id: &str, epoch: &str) {
        if let Some(peer) = self.others().get_mut(id) {
            peer.is_reachable = true;
            peer.replica.epoch = epoch.to_owned();
            self.epochs.send_modify(|epochs| drop(epochs.insert(id.to_owned(), epoch.to_owned())));
            peer.replica.problem.clear();
            peer.replica.unheard_since = None;
        }
    }

    /// Marks a peer as unreachable for this reason; true if it was reachable.
    pub(crate) fn unreachable(&self, id: &str, problem: String) -> bool {
        let mut others = self.others();
        let Some(peer) = others.get_mut(id) else { return false };
        let was_reachable = std::mem::replace(&mut peer.is_reachable, false);
        peer.replica.problem = problem;
        peer.replica.unheard_since.get_or_insert_with(|| SystemTime::now().into());
        peer.apart = None;
        was_reachable
    }

    /// Compares the revisions of a peer and of this replica. During writes they are seldom equal: one is
    /// behind until it reaches the revision that the other had.
    pub(crate) fn is_at(&self, id: &str, revision: u64, own: u64) {
        let mut others = self.others();
        let Some(peer) = others.get_mut(id) else { return };
        peer.replica.revision = revision;
        if peer.apart.is_some_and(|(awaited, _)| revision.min(own) >= awaited) {
            peer.apart = None;
        }
        if revision != own && peer.apart.is_none() {
            peer.apart = Some((revision.max(own), SystemTime::now()));
        }
    }

    /// Records the status of a peer, which it sends every second: its clock, and the state of its store.
    pub(crate) fn status(
        &self,
        id: &str,
        sent_at: Option<prost_types::Timestamp>,
        unaccepted: Option<v1::UnacceptedStore>,
    ) {
        let mut others = self.others();
        let Some(peer) = others.get_mut(id) else { return };
        let there = sent_at.and_then(|at| SystemTime::try_from(at).ok());
        peer.replica.clock_offset = there.and_then(|there| offset(there, SystemTime::now()));
        peer.replica.unaccepted_store = unaccepted;
    }

    /// The ids of the unreachable peers.
    pub(crate) fn missing(&self) -> Vec<String> {
        let others = self.others();
        others.iter().filter(|(_, peer)| !peer.is_reachable).map(|(id, _)| id.clone()).collect()
    }

    /// All peers.
    pub(crate) fn all_others(&self) -> Vec<v1::Replica> {
        self.others().values().map(|peer| peer.replica.clone()).collect()
    }

    /// The peers at other revisions than this replica.
    pub(crate) fn apart(&self) -> Vec<OutOfSyncPeer> {
        let others = self.others();
        let apart = others.values().filter_map(|peer| {
            let (_, since) = peer.apart?;
            Some(OutOfSyncPeer { id: peer.replica.id.clone(), revision: peer.replica.revision, since })
        });
        apart.collect()
    }
}

/// The difference between two clocks; negative: behind.
fn offset(there: SystemTime, here: SystemTime) -> Option<prost_types::Duration> {
    match there.duration_since(here) {
        Ok(ahead) => prost_types::Duration::try_from(ahead).ok(),
        Err(behind) => {
            let behind = prost_types::Duration::try_from(behind.duration()).ok()?;
            Some(prost_types::Duration { seconds: -behind.seconds, nanos: -behind.nanos })
        }
    }
}

/// Returns the host name and a random suffix.
fn drawn_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.trim().chars().filter(|c| plain(*c)).take(64).collect();
    let host = if host.is_empty() { "replica".to_owned() } else { host };
    format!("{host}-{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Peers {
        let peers = Peers::new("http://a:1".to_owned(), "e", watch::Sender::new(PeerEpochs::new()));
        peers.found(v1::Replica { id: "b".to_owned(), ..v1::Replica::default() });
        peers
    }

    #[test]
    fn a_replica_is_missing_until_it_has_told_everything_and_after_it_was_lost() {
        let peers = peers();
        assert_eq!(peers.missing(), ["b"]);
        peers.reachable("b", "e");
        assert_eq!((&*peers.all_others()[0].epoch, &*peers.epochs.borrow()["b"]), ("e", "e"));
        assert!(peers.missing().is_empty() && peers.all_others()[0].problem.is_empty());
        assert!(peers.unreachable("b", "it is silent".to_owned()));
        assert!(!peers.unreachable("b", "connection refused".to_owned()), "it was not heard any more");
        assert_eq!(
            (peers.missing(), &*peers.all_others()[0].problem),
            (vec!["b".to_owned()], "connection refused")
        );
        peers.forget("b");
        assert!(peers.epochs.borrow().is_empty());
        assert!(peers.missing().is_empty() && peers.all_others().is_empty());
    }

    #[test]
    fn under_steady_writes_no_replica_is_behind_that_keeps_coming_to_where_the_other_was() {
        let peers = peers();
        let apart = |there, here| {
            peers.is_at("b", there, here);
            peers.apart().first().map(|apart| apart.since)
        };
        assert_eq!(apart(5, 5), None);
        let since = apart(5, 8);
        assert!(since.is_some() && apart(7, 9) == since, "it has not come to 8 yet");
        assert_ne!(apart(8, 12), since);
        assert_eq!(apart(12, 12), None);
        let since = apart(20, 12);
        assert!(apart(21, 19) == since && apart(21, 21).is_none(), "the one that asks can be behind, too");
    }
}
