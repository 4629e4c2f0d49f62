//! Which replicas there are, and which of them are heard: what every answer about the fleet is qualified by.
//!
//! A replica is known as long as its key is in the store, or it is still heard. It is heard from when it has told of all
//! its clients until its stream ends. That one is heard says that what is known of it is at most a moment old.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use damper_proto::v1;
use prost::Message as _;

/// This replica, and the others.
pub(crate) struct Peers {
    own: v1::Replica,
    id: Arc<str>,
    others: Mutex<BTreeMap<String, Peer>>,
}

/// What is known of another replica.
struct Peer {
    told: v1::Replica,
    /// Since when its table and this one's have been at other revisions, and where it was last.
    apart_since: Option<SystemTime>,
    is_heard: bool,
}

/// A replica whose table is not where this one's is.
pub(crate) struct Apart {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) since: SystemTime,
}

impl Peers {
    /// Only this one, which the others reach at an address.
    pub(crate) fn new(address: String) -> Self {
        let id: Arc<str> = drawn_id().into();
        let own = v1::Replica {
            id: id.to_string(),
            address,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Some(SystemTime::now().into()),
            self_: true,
            ..v1::Replica::default()
        };
        Self { own, id, others: Mutex::default() }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<String, Peer>> {
        self.others.lock().expect("no holder of the lock panics")
    }

    /// This replica's id.
    pub(crate) fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// What this one says of itself.
    pub(crate) fn own(&self) -> &v1::Replica {
        &self.own
    }

    /// What this one says of itself in the store.
    pub(crate) fn announcement(&self) -> Vec<u8> {
        v1::Replica { self_: false, ..self.own.clone() }.encode_to_vec()
    }

    /// Another one is in the store: it is not heard yet.
    pub(super) fn found(&self, told: v1::Replica) {
        let told = v1::Replica {
            self_: false,
            problem: "it is being connected to".to_owned(),
            unheard_since: Some(SystemTime::now().into()),
            ..told
        };
        self.others().insert(told.id.clone(), Peer { told, apart_since: None, is_heard: false });
    }

    /// Another one is gone.
    pub(super) fn forget(&self, id: &str) {
        self.others().remove(id);
    }

    /// What another one tells is complete from here on.
    pub(super) fn heard(&self, id: &str) {
        if let Some(peer) = self.others().get_mut(id) {
            peer.is_heard = true;
            peer.told.problem.clear();
            peer.told.unheard_since = None;
        }
    }

    /// Another one is not heard, for this reason; true if it was until now.
    pub(super) fn unheard(&self, id: &str, problem: String) -> bool {
        let mut others = self.others();
        let Some(peer) = others.get_mut(id) else { return false };
        let was_heard = std::mem::replace(&mut peer.is_heard, false);
        peer.told.problem = problem;
        peer.told.unheard_since.get_or_insert_with(|| SystemTime::now().into());
        peer.apart_since = None;
        was_heard
    }

    /// Where another one's table is, while this one's is elsewhere or there too.
    pub(super) fn is_at(&self, id: &str, revision: u64, own: u64) {
        if let Some(peer) = self.others().get_mut(id) {
            peer.told.revision = revision;
            match revision == own {
                true => peer.apart_since = None,
                false => drop(peer.apart_since.get_or_insert_with(SystemTime::now)),
            }
        }
    }

    /// The ids of those that are not heard.
    pub(crate) fn missing(&self) -> Vec<String> {
        let others = self.others();
        others.iter().filter(|(_, peer)| !peer.is_heard).map(|(id, _)| id.clone()).collect()
    }

    /// All others.
    pub(crate) fn all_others(&self) -> Vec<v1::Replica> {
        self.others().values().map(|peer| peer.told.clone()).collect()
    }

    /// Those whose tables have been at other revisions than this one's.
    pub(crate) fn apart(&self) -> Vec<Apart> {
        let others = self.others();
        let apart = others.values().filter_map(|peer| {
            let since = peer.apart_since?;
            Some(Apart { id: peer.told.id.clone(), revision: peer.told.revision, since })
        });
        apart.collect()
    }
}

/// The host's name and something that no other replica drew.
fn drawn_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.trim().chars().filter(|c| plain(*c)).take(64).collect();
    let host = if host.is_empty() { "replica".to_owned() } else { host };
    format!("{host}-{:08x}", fastrand::u32(..))
}
