//! What replicas that follow this one have still to be told of its clients.
//!
//! One outbox per follower. Of a client only that it moved is noted, and its state is read when it is told, so that any
//! number of moves is one; reports wait in the order in which they came, up to a bound in bytes. An outbox that is full
//! is given up as a whole: its follower begins anew, and nothing is left out silently. Reports of a client of whom the
//! follower has no totals yet do not wait at all: they are contained in the totals that it will be told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use damper_proto::v1;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clients::session::ClientSession;

/// The most bytes of reports that wait for a follower.
const MAX_BYTES: usize = 16 << 20;
/// The most clients that wait for it, those included that left.
const MAX_CLIENTS: usize = 200_000;

/// The most followers at a time: replicas, and what is left of their streams before.
const MAX_FOLLOWERS: usize = 256;

/// The outboxes of all followers.
#[derive(Default)]
pub(crate) struct Outboxes(Mutex<Vec<Weak<Outbox>>>);

/// What one follower has still to be told.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    news: Notify,
}

/// What waits.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By number; true: the follower does not know it yet.
    pub(crate) clients: HashMap<u64, (Arc<ClientSession>, bool)>,
    /// Numbers of those who left.
    pub(crate) gone: Vec<u64>,
    /// Whose, when it came, what it says.
    pub(crate) reports: VecDeque<(u64, Instant, Arc<v1::Report>)>,
    bytes: usize,
    /// Clients whose totals the follower does not have yet.
    without_totals: HashSet<u64>,
    /// More waits than is kept; nothing of it is of use any more.
    pub(crate) overflown: bool,
}

impl Outboxes {
    fn each(&self) -> MutexGuard<'_, Vec<Weak<Outbox>>> {
        self.0.lock().expect("no holder of the lock panics")
    }

    fn tell(&self, note: impl Fn(&mut Waiting)) {
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

    /// None where there are too many.
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
        self.tell(|waiting| {
            waiting.clients.insert(session.id(), (session.clone(), true));
        });
    }

    pub(crate) fn moved(&self, session: &Arc<ClientSession>) {
        self.tell(|waiting| {
            waiting.clients.entry(session.id()).or_insert_with(|| (session.clone(), false));
        });
    }

    pub(crate) fn left(&self, session: &ClientSession) {
        self.tell(|waiting| waiting.gone.push(session.id()));
    }

    pub(crate) fn reported(&self, session: &ClientSession, report: v1::Report) {
        if self.each().is_empty() {
            return;
        }
        let (number, came, bytes) = (session.id(), Instant::now(), report.encoded_len());
        let report = Arc::new(report);
        self.tell(|waiting| {
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

    /// Waits until there is something to tell.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes out what waits.
    pub(crate) fn take(&self) -> Waiting {
        let mut waiting = self.waiting();
        let without_totals = std::mem::take(&mut waiting.without_totals);
        let overflown = waiting.overflown;
        std::mem::replace(&mut *waiting, Waiting { without_totals, overflown, ..Waiting::default() })
    }

    /// True if the follower has no totals of a client yet: they are to be read now and told, and from here on its
    /// reports wait like others.
    pub(crate) fn wants_totals(&self, number: u64) -> bool {
        self.waiting().without_totals.remove(&number)
    }
}

impl Waiting {
    /// Gives everything up where it is too much.
    fn check(&mut self) {
        if self.bytes > MAX_BYTES || self.clients.len() + self.gone.len() > MAX_CLIENTS {
            *self = Self { overflown: true, ..Self::default() };
        }
    }
}
