//! Who has how much: connections in all and per identity, reads and writes per identity.
//!
//! What an identity has is forgotten when it has nothing, so that addresses that came once do not stay. Rates are
//! leaky buckets (GCRA) by the `governor` crate.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::methods::Class;
use super::{Limit, Limits, Rate};
use crate::errors::Error;
use crate::metrics::Metrics;

/// Buckets that are full again are cleared away once in so many requests.
const CLEAR_EVERY: u32 = 4096;

/// The counts of one server; clones share them.
#[derive(Clone)]
pub(crate) struct Limiter(Arc<Inner>);

struct Inner {
    limits: Limits,
    metrics: Metrics,
    room: Arc<Semaphore>,
    connections: Mutex<HashMap<String, usize>>,
    reads: DefaultKeyedRateLimiter<String>,
    writes: DefaultKeyedRateLimiter<String>,
    requests: AtomicU32,
}

impl Limiter {
    pub(crate) fn new(limits: Limits, metrics: Metrics) -> Self {
        let bucket =
            |rate: Rate| RateLimiter::keyed(Quota::per_second(rate.per_second).allow_burst(rate.burst));
        Self(Arc::new(Inner {
            room: Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS))),
            connections: Mutex::default(),
            reads: bucket(limits.reads),
            writes: bucket(limits.writes),
            requests: AtomicU32::new(0),
            limits,
            metrics,
        }))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Counts that a limit was hit.
    pub(crate) fn hit(&self, limit: Limit) {
        self.0.metrics.limit_hit(limit);
    }

    /// Room for one more connection.
    pub(crate) fn room(&self) -> Option<OwnedSemaphorePermit> {
        let room = self.0.room.clone().try_acquire_owned().ok();
        if room.is_none() {
            self.hit(Limit::Connections);
        }
        room
    }

    /// Counts a connection for an identity until what is returned is dropped.
    pub(crate) fn register(&self, identity: &str) -> Result<Registered, Error> {
        let most = self.0.limits.max_connections_per_identity;
        let mut connections = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let count = connections.entry(identity.to_owned()).or_default();
        if *count >= most {
            let text = format!("{identity} has {count} connections, at most {most} are allowed");
            return Err(Error::TooMuch { limit: Limit::ConnectionsPerIdentity, text, again_after: None });
        }
        *count += 1;
        Ok(Registered { identity: identity.to_owned(), limiter: self.clone() })
    }

    /// Lets one request of an identity in, or says when to ask again.
    pub(crate) fn admit(&self, identity: &str, class: Class) -> Result<(), Error> {
        let inner = &*self.0;
        let (buckets, limit, rate, what) = match class {
            Class::Read => (&inner.reads, Limit::Reads, inner.limits.reads, "reads"),
            Class::Write => (&inner.writes, Limit::Writes, inner.limits.writes, "writes"),
        };
        if inner.requests.fetch_add(1, Ordering::Relaxed) % CLEAR_EVERY == CLEAR_EVERY - 1 {
            for buckets in [&inner.reads, &inner.writes] {
                buckets.retain_recent();
            }
        }
        buckets.check_key(&identity.to_owned()).map_err(|not_until| {
            let again_after = Some(not_until.wait_time_from(DefaultClock::default().now()));
            let Rate { per_second, burst } = rate;
            let text = format!("{identity} makes more than {per_second} {what} a second ({burst} at once)");
            Error::TooMuch { limit, text, again_after }
        })
    }

    fn unregister(&self, identity: &str) {
        let mut connections = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = connections.get_mut(identity) {
            *count -= 1;
            if *count == 0 {
                connections.remove(identity);
            }
        }
    }
}

/// A connection that is counted for an identity.
pub(crate) struct Registered {
    identity: String,
    limiter: Limiter,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.identity).finish()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.limiter.unregister(&self.identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn limiter(connections: usize, burst: u32) -> Limiter {
        let rate = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(burst).unwrap() };
        let limits = Limits {
            max_connections: 2,
            max_connections_per_identity: connections,
            reads: rate,
            writes: rate,
            ..Limits::default()
        };
        Limiter::new(limits, Metrics::new())
    }

    #[test]
    fn an_identity_has_its_connections_until_they_end_and_leaves_nothing_behind() {
        let limiter = limiter(2, 1);
        let first = limiter.register("a").unwrap();
        let _second = limiter.register("a").unwrap();
        let _other = limiter.register("b").unwrap();
        let refused = limiter.register("a").unwrap_err();
        assert!(matches!(refused, Error::TooMuch { limit: Limit::ConnectionsPerIdentity, .. }), "{refused}");
        drop(first);
        let again = limiter.register("a").unwrap();
        drop((again, _second, _other));
        assert!(limiter.0.connections.lock().unwrap().is_empty());
    }

    #[test]
    fn a_connection_beyond_all_room_is_counted_and_room_comes_back() {
        let limiter = limiter(1, 1);
        let rooms = [limiter.room(), limiter.room()];
        assert!(rooms.iter().all(Option::is_some) && limiter.room().is_none());
        drop(rooms);
        assert!(limiter.room().is_some());
        let text = limiter.0.metrics.render();
        assert!(text.contains("damper_limit_hits_total{limit=\"connections\"} 1"), "{text}");
    }

    #[test]
    fn reads_and_writes_of_each_identity_have_buckets_of_their_own() {
        let limiter = limiter(1, 3);
        for class in [Class::Read, Class::Write] {
            for identity in ["a", "b"] {
                for _ in 0..3 {
                    limiter.admit(identity, class).unwrap();
                }
                match limiter.admit(identity, class).unwrap_err() {
                    Error::TooMuch { again_after: Some(wait), .. } => {
                        assert!(wait.as_millis() > 0 && wait.as_secs() <= 1, "{wait:?}");
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
}
