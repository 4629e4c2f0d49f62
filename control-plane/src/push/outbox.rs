//! Changes of this replica's clients that are still to be sent to its peers.
//!
//! One outbox per peer. Only the fact that a client changed is stored; its state is read when it is sent, so
//! that many changes become one message. Reports wait in order, up to a limit in bytes. A full outbox is
//! dropped and its peer reconnects, so that nothing is lost silently. Reports of a client whose totals were
//! not sent yet are not queued, because the totals will contain them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use damper_proto::v1;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clients::session::ClientSession;

/// The most bytes of reports that wait for a peer.
const MAX_BYTES: usize = 16 << 20;
/// The most clients that wait for a peer, including those that left.
const MAX_CLIENTS: usize = 200_000;

/// The most peers at a time, including streams that are about to end.
const MAX_FOLLOWERS: usize = 256;

/// The outboxes of all peers.
#[derive(Default)]
pub(crate) struct Outboxes(Mutex<Vec<Weak<Outbox>>>);

/// The outbox of one peer.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    news: Notify,
}

/// The waiting changes.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By number; true: the peer does not know the client yet.
    pub(crate) clients: HashMap<u64, (Arc<ClientSession>, bool)>,
    /// Numbers of the clients that left.
    pub(crate) gone: Vec<u64>,
    /// Client number, time of arrival, report.
    pub(crate) reports: VecDeque<(u64, Instant, Arc<v1::Report>)>,
    bytes: usize,
    /// Clients whose totals the peer does not have yet.
    without_totals: HashSet<u64>,
    /// Set when a limit was exceeded; the content is useless then.
    pub(crate) overflown: bool,
}

impl Outboxes {
    fn each(&self) -> MutexGuard<'_, Vec<Weak<Outbox>>> {
        self.0.lock().expect("no holder of the lock panics")
    }

    fn for_each(&self, note: impl Fn(&mut Waiting)) {
        for outbox in self.each().iter().filter_map(Weak::upgrade) {
            let mut waiting = outbox.waiting();
            if !waiting.overflown {
                note(&mut waiting);
                waiting.check();
            }
            drop(waiting);
            outbox.news.notify_one();
        }
    }

    /// `None` if there are too many.
    pub(crate) fn open<'a>(
        &self,
        sessions: impl Iterator<Item = &'a Arc<ClientSession>>,
    ) -> Option<Arc<Outbox>> {
        self.each().retain(|other| other.strong_count() > 0);
        if self.each().len() >= MAX_FOLLOWERS {
            return None;
        }
        let outbox = Outbox::default();
        let mut waiting = outbox.waiting();
        for session in sessions {
            waiting.clients.insert(session.id(), (session.clone(), true));
            waiting.without_totals.insert(session.id());
        }
        drop(waiting);
        outbox.news.notify_one();
        let outbox = Arc::new(outbox);
        self.each().push(Arc::downgrade(&outbox));
        Some(outbox)
    }

    pub(crate) fn came(&self, session: &Arc<ClientSession>) {
        self.for_each(|waiting| {
            waiting.clients.insert(session.id(), (session.clone(), true));
        });
    }

    pub(crate) fn moved(&self, session: &Arc<ClientSession>) {
        self.for_each(|waiting| {
            waiting.clients.entry(session.id()).or_insert_with(|| (session.clone(), false));
        });
    }

    pub(crate) fn left(&self, session: &ClientSession) {
        self.for_each(|waiting| waiting.gone.push(session.id()));
    }

    pub(crate) fn reported(&self, session: &ClientSession, report: v1::Report) {
        if self.each().is_empty() {
            return;
        }
        let (number, came, bytes) = (session.id(), Instant::now(), report.encoded_len());
        let report = Arc::new(report);
        self.for_each(|waiting| {
            if !waiting.without_totals.contains(&number) {
                waiting.bytes += bytes;
                waiting.reports.push_back((number, came, report.clone()));
            }
        });
    }
}

impl Outbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no holder of the lock panics")
    }

    /// Waits for a change.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes all waiting changes.
    pub(crate) fn take(&self) -> Waiting {
        let mut waiting = self.waiting();
        let without_totals = std::mem::take(&mut waiting.without_totals);
        let overflown = waiting.overflown;
        std::mem::replace(&mut *waiting, Waiting { without_totals, overflown, ..Waiting::default() })
    }

    /// True if the peer has no totals of a client yet: the caller must send them now. Later reports of the
    /// client are queued.
    pub(crate) fn wants_totals(&self, number: u64) -> bool {
        self.waiting().without_totals.remove(&number)
    }
}

impl Waiting {
    /// Drops all changes if a limit is exceeded.
    fn check(&mut self) {
        if self.bytes > MAX_BYTES || self.clients.len() + self.gone.len() > MAX_CLIENTS {
            *self = Self { overflown: true, ..Self::default() };
        }
    }
}
