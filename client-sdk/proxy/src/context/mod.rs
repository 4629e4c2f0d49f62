//! How the context of a request crosses a service that does not know Damper.
//!
//! Inbound, the context is kept under a random key while the request lives, and the key is added to the
//! request in `tracestate` and `baggage`, see `carriers`. The service's OpenTelemetry copies them to its
//! calls. Outbound, the key finds the context. Without a key, the id of a trace that one living request has
//! finds the flag of that request, and nothing else: an id carries less than a key, see `ids`.
//!
//! The table has at most [`MAX_REQUESTS`] requests. Further ones have no context; while there are any, no id
//! counts as unique.

pub(crate) mod carriers;
mod ids;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use damper_sdk::Context;

use crate::lock::lock;

pub(crate) use self::ids::Ids;

/// Requests in the table.
pub(crate) const MAX_REQUESTS: usize = 65_536;
/// Parts of the table, each with its own lock.
const SHARDS: usize = 32;

/// The requests that the service is serving.
#[derive(Debug)]
pub(crate) struct Contexts {
    limit: usize,
    kept: AtomicUsize,
    /// Living requests that are not in the table.
    beyond: AtomicUsize,
    hasher: RandomState,
    by_key: [Mutex<HashMap<u64, Request>>; SHARDS],
    by_id: [Mutex<HashMap<u128, Requests>>; SHARDS],
}

/// A request that the service is serving.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) context: Context,
    /// The service was asked not to repeat a call of this request.
    pub(crate) was_stopped: Arc<AtomicBool>,
}

/// The living requests of one id.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    all: usize,
    retries: usize,
}

/// What the id of a trace means for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfId {
    /// One request has the id. `is_retry`: it is a retry.
    One { is_retry: bool },
    /// Several requests have the id. `is_retry`: all are retries.
    Several { is_retry: bool },
    /// No request, or not known.
    Unknown,
}

/// Keeps a request in the table until it is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    contexts: Arc<Contexts>,
    /// `None` if the table was full.
    key: Option<u64>,
    ids: Ids,
    is_retry: bool,
    was_stopped: Arc<AtomicBool>,
}

impl Contexts {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            kept: AtomicUsize::new(0),
            beyond: AtomicUsize::new(0),
            hasher: RandomState::new(),
            by_key: Default::default(),
            by_id: Default::default(),
        })
    }

    /// Keeps a request while the result lives.
    pub(crate) fn keep(self: &Arc<Self>, context: Context, ids: Ids) -> Kept {
        let (is_retry, was_stopped) = (context.is_retry(), Arc::new(AtomicBool::new(false)));
        let request = Request { context, was_stopped: Arc::clone(&was_stopped) };
        let key = self.insert(request);
        match key {
            Some(_) => ids.each().for_each(|id| self.requests(id, |of_id| of_id.begins(is_retry))),
            None => _ = self.beyond.fetch_add(1, Ordering::Relaxed),
        }
        Kept { contexts: Arc::clone(self), key, ids, is_retry, was_stopped }
    }

    fn insert(&self, request: Request) -> Option<u64> {
        if self.kept.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        loop {
            let key = fastrand::u64(..);
            let mut shard = self.shard(key);
            if let Entry::Vacant(vacant) = shard.entry(key) {
                vacant.insert(request);
                return Some(key);
            }
        }
    }

    /// Returns the request of a key, if it lives.
    pub(crate) fn find(&self, key: u64) -> Option<Request> {
        self.shard(key).get(&key).cloned()
    }

    /// Returns what the first known id has.
    pub(crate) fn of_ids(&self, ids: &Ids) -> OfId {
        if self.beyond.load(Ordering::Relaxed) > 0 {
            return OfId::Unknown;
        }
        let known = |id| self.id_shard(id).get(&id).copied();
        match ids.each().find_map(known) {
            None => OfId::Unknown,
            Some(Requests { all: 1, retries }) => OfId::One { is_retry: retries == 1 },
            Some(Requests { all, retries }) => OfId::Several { is_retry: retries == all },
        }
    }

    /// Returns the number of requests in the table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_key.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, Request>> {
        lock(&self.by_key[usize::try_from(key % SHARDS as u64).unwrap_or_default()])
    }

    fn id_shard(&self, id: u128) -> MutexGuard<'_, HashMap<u128, Requests>> {
        let place = self.hasher.hash_one(id) % SHARDS as u64;
        lock(&self.by_id[usize::try_from(place).unwrap_or_default()])
    }

    /// Changes the requests of an id, which is forgotten with its last one.
    fn requests(&self, id: u128, change: impl FnOnce(&mut Requests)) {
        let mut shard = self.id_shard(id);
        let of_id = shard.entry(id).or_default();
        change(of_id);
        if of_id.all == 0 {
            shard.remove(&id);
        }
    }
}

impl Requests {
    fn begins(&mut self, is_retry: bool) {
        self.all += 1;
        self.retries += usize::from(is_retry);
    }

    fn ends(&mut self, is_retry: bool) {
        self.all = self.all.saturating_sub(1);
        self.retries = self.retries.saturating_sub(usize::from(is_retry));
    }
}

impl Kept {
    pub(crate) fn key(&self) -> Option<u64> {
        self.key
    }

    /// Returns true if the service was asked not to repeat a call of this request.
    pub(crate) fn was_stopped(&self) -> bool {
        self.was_stopped.load(Ordering::Relaxed)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let contexts = &self.contexts;
        let Some(key) = self.key else {
            contexts.beyond.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        contexts.shard(key).remove(&key);
        contexts.kept.fetch_sub(1, Ordering::Relaxed);
        self.ids.each().for_each(|id| contexts.requests(id, |of_id| of_id.ends(self.is_retry)));
    }
}

#[cfg(test)]
mod tests;
