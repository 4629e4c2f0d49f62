//! Limiter: connections in total, per identity and, before the first request, per address; reads and writes
//! per identity.
//!
//! Rates are leaky buckets (GCRA) of the `governor` crate.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::limits::LimitCounters;
use crate::limits::partial::Partial;
use crate::limits::queues::{Line, Lines};
use crate::limits::quota::{InFlightQuota, QuotaPermit};
use crate::limits::{Limit, LimitExceeded, Limits, Rate, RequestKind, subscriber};

/// Requests between two removals of full buckets.
const CLEAR_EVERY: u32 = 4096;
/// Open requests with a proven identity, in total, clients not counted.
pub const MAX_OPEN_REQUESTS: usize = 80;
/// Additional places for kills, unkills and peers that follow this replica. Other requests cannot use them.
pub const MAX_OPEN_URGENT: usize = 32;
/// Open requests without a proven identity: health, files of the web UI, sign-in.
pub const MAX_OPEN_VISITS: usize = 128;

/// Open exports and audit logs. Each holds the keys of all rules or a page of changes.
pub const MAX_EXPORTS: usize = 3;
/// Open exports and audit logs of one identity.
const MAX_EXPORTS_PER_IDENTITY: usize = 2;
const EXPORT_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Permit of an open request.
pub type Opened = (OwnedSemaphorePermit, Option<QuotaPermit>);

/// Counts of one server. Clones share them.
#[derive(Clone)]
pub struct Limiter(Arc<LimiterState>);

struct LimiterState {
    limits: Limits,
    counters: LimitCounters,
    room: Arc<Semaphore>,
    connections: InFlightQuota,
    new_connections: InFlightQuota,
    stream_room: Arc<Semaphore>,
    streams: InFlightQuota,
    request_room: Arc<Semaphore>,
    visit_room: Arc<Semaphore>,
    urgent_room: Arc<Semaphore>,
    requests_open: InFlightQuota,
    export_room: Arc<Semaphore>,
    exports: InFlightQuota,
    partial: Partial,
    reads: DefaultKeyedRateLimiter<String>,
    writes: DefaultKeyedRateLimiter<String>,
    written_kib: DefaultKeyedRateLimiter<String>,
    submits: DefaultKeyedRateLimiter<String>,
    submitted_kib: DefaultKeyedRateLimiter<String>,
    requests: AtomicU32,
    lines: Lines,
}

impl Limiter {
    /// A limiter without any open connection.
    pub fn new(limits: Limits, counters: LimitCounters) -> Self {
        let bucket =
            |rate: Rate| RateLimiter::keyed(Quota::per_second(rate.per_second).allow_burst(rate.burst));
        Self(Arc::new(LimiterState {
            room: Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS))),
            connections: InFlightQuota::new(limits.max_connections_per_identity),
            new_connections: InFlightQuota::new(limits.max_new_connections_per_address),
            stream_room: Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS))),
            streams: InFlightQuota::new(limits.max_connections_per_identity),
            request_room: Arc::new(Semaphore::new(
                MAX_OPEN_REQUESTS.max(limits.max_open_requests_per_identity),
            )),
            visit_room: Arc::new(Semaphore::new(MAX_OPEN_VISITS)),
            urgent_room: Arc::new(Semaphore::new(MAX_OPEN_URGENT)),
            requests_open: InFlightQuota::new(limits.max_open_requests_per_identity),
            export_room: Arc::new(Semaphore::new(MAX_EXPORTS)),
            exports: InFlightQuota::new(MAX_EXPORTS_PER_IDENTITY),
            partial: Partial::default(),
            reads: bucket(limits.reads),
            writes: bucket(limits.writes),
            written_kib: bucket(limits.written_kib),
            submits: bucket(limits.submits),
            submitted_kib: bucket(limits.submitted_kib),
            requests: AtomicU32::new(0),
            lines: Lines::new(Instant::now()),
            limits,
            counters,
        }))
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Counts that a limit was hit.
    pub fn hit(&self, limit: Limit) {
        self.0.counters.hit(limit);
    }

    /// Returns the number of log lines left out before this one; `None` if this one must be left out too.
    pub fn line(&self, line: Line) -> Option<u64> {
        self.0.lines.due(line, Instant::now())
    }

    /// Takes a connection permit; `None` at the limit.
    pub fn room(&self) -> Option<OwnedSemaphorePermit> {
        let room = self.0.room.clone().try_acquire_owned().ok();
        if room.is_none() {
            self.hit(Limit::Connections);
        }
        room
    }

    /// Takes a permit for a connection of an address that has made no request yet; `None` at the limit.
    pub fn newcomer(&self, address: IpAddr) -> Option<QuotaPermit> {
        let newcomer = self.0.new_connections.take(&subscriber(address).to_string());
        if newcomer.is_none() {
            self.hit(Limit::NewConnectionsPerAddress);
        }
        newcomer
    }

    /// Counts a connection for an identity until the permit is dropped.
    pub fn register(&self, identity: &str) -> Result<QuotaPermit, LimitExceeded> {
        self.0.connections.take(identity).ok_or_else(|| {
            let most = self.0.limits.max_connections_per_identity;
            let text = format!("{identity} has {most} connections, and no more are allowed");
            LimitExceeded { limit: Limit::ConnectionsPerIdentity, text, retry_after: None }
        })
    }

    /// Counts a client until the permits are dropped. One connection can carry many clients, so they have a
    /// limit of their own, equal to that of connections.
    pub fn stream(&self, identity: &str) -> Result<(OwnedSemaphorePermit, QuotaPermit), LimitExceeded> {
        let over = |limit, text| LimitExceeded { limit, text, retry_after: None };
        let room = self.0.stream_room.clone().try_acquire_owned().map_err(|_| {
            let most = self.0.limits.max_connections;
            over(Limit::Streams, format!("{most} clients are connected, and no more are allowed"))
        })?;
        let own = self.0.streams.take(identity).ok_or_else(|| {
            let most = self.0.limits.max_connections_per_identity;
            over(Limit::StreamsPerIdentity, format!("{identity} has {most} clients, and no more are allowed"))
        })?;
        Ok((room, own))
    }

    /// Counts an open request of an identity until the permit is dropped. `is_proven`: the identity was
    /// authenticated.
    pub fn open(&self, identity: &str, is_proven: bool) -> Result<Opened, LimitExceeded> {
        let (room, most) = match is_proven {
            true => (&self.0.request_room, MAX_OPEN_REQUESTS),
            false => (&self.0.visit_room, MAX_OPEN_VISITS),
        };
        let own = self.0.requests_open.take(identity).ok_or_else(|| {
            let most = self.0.limits.max_open_requests_per_identity;
            let text = format!("{identity} has {most} open requests, and no more are allowed");
            LimitExceeded { limit: Limit::OpenRequestsPerIdentity, text, retry_after: None }
        })?;
        Ok((place(room, most)?, Some(own)))
    }

    /// Counts an urgent request if [`Self::open`] is at its limit. The caller's role was checked before.
    pub fn open_urgent(&self) -> Result<Opened, LimitExceeded> {
        Ok((place(&self.0.urgent_room, MAX_OPEN_URGENT)?, None))
    }

    /// Counts an open export or audit log until the permit is dropped.
    pub fn export(&self, identity: &str) -> Result<Opened, LimitExceeded> {
        let over = |who: &str, most: usize| {
            let text =
                format!("{who} {most} open exports or audit logs, and no more are allowed; try again later");
            LimitExceeded { limit: Limit::Exports, text, retry_after: Some(EXPORT_AGAIN_AFTER) }
        };
        let own = self.0.exports.take(identity);
        let own = own.ok_or_else(|| over(&format!("{identity} has"), MAX_EXPORTS_PER_IDENTITY))?;
        let room = self.0.export_room.clone().try_acquire_owned();
        Ok((room.map_err(|_| over("there are", MAX_EXPORTS))?, Some(own)))
    }

    /// Returns the quota of incomplete messages.
    pub fn partial(&self) -> &Partial {
        &self.0.partial
    }

    /// Admits one request of an identity. Errors with the time to wait at the rate limit.
    pub fn admit(&self, identity: &str, class: RequestKind) -> Result<(), LimitExceeded> {
        let inner = &*self.0;
        let (buckets, limit, rate, what) = match class {
            RequestKind::Read => (&inner.reads, Limit::Reads, inner.limits.reads, "reads"),
            RequestKind::Write => (&inner.writes, Limit::Writes, inner.limits.writes, "writes"),
            RequestKind::Jobs => return Ok(()),
        };
        self.clear();
        take(buckets, identity, NonZeroU32::MIN, rate, (limit, what))
    }

    /// Admits jobs that an identity submits, with the bytes of their bodies. Errors with the time to wait at
    /// the rate limit.
    pub fn admit_jobs(&self, identity: &str, jobs: usize, bytes: usize) -> Result<(), LimitExceeded> {
        let inner = &*self.0;
        self.clear();
        let count = |number: usize| NonZeroU32::new(u32::try_from(number).unwrap_or(u32::MAX));
        let (rate, what) = (inner.limits.submits, (Limit::Submits, "jobs"));
        if let Some(jobs) = count(jobs) {
            take(&inner.submits, identity, jobs.min(rate.burst), rate, what)?;
        }
        let (rate, what) = (inner.limits.submitted_kib, (Limit::SubmittedBytes, "KiB of jobs"));
        match count(bytes.div_ceil(1 << 10)) {
            Some(kib) => take(&inner.submitted_kib, identity, kib.min(rate.burst), rate, what),
            None => Ok(()),
        }
    }

    /// Removes full buckets from time to time.
    fn clear(&self) {
        let inner = &*self.0;
        if inner.requests.fetch_add(1, Ordering::Relaxed) % CLEAR_EVERY == CLEAR_EVERY - 1 {
            let all = [&inner.reads, &inner.writes, &inner.written_kib, &inner.submits, &inner.submitted_kib];
            all.into_iter().for_each(|buckets| buckets.retain_recent());
        }
    }
}

/// Takes a number of places, at most the burst.
fn take(
    buckets: &DefaultKeyedRateLimiter<String>,
    identity: &str,
    count: NonZeroU32,
    rate: Rate,
    (limit, what): (Limit, &str),
) -> Result<(), LimitExceeded> {
    match buckets.check_key_n(&identity.to_owned(), count) {
        Ok(Err(not_until)) => {
            let retry_after = Some(not_until.wait_time_from(DefaultClock::default().now()));
            let Rate { per_second, burst } = rate;
            let text = format!("{identity} makes more than {per_second} {what} a second ({burst} at once)");
            Err(LimitExceeded { limit, text, retry_after })
        }
        // It never exceeds the burst.
        _ => Ok(()),
    }
}

/// Takes a permit of an open request.
fn place(room: &Arc<Semaphore>, most: usize) -> Result<OwnedSemaphorePermit, LimitExceeded> {
    room.clone().try_acquire_owned().map_err(|_| {
        let text = format!("{most} requests are open, and no more are allowed");
        LimitExceeded { limit: Limit::OpenRequests, text, retry_after: None }
    })
}

impl Limiter {
    /// Admits bytes that an identity writes. Errors with the time to wait at the rate limit.
    pub fn admit_bytes(&self, identity: &str, bytes: usize) -> Result<(), LimitExceeded> {
        let Rate { per_second, burst } = self.0.limits.written_kib;
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(burst.get());
        let Some(kib) = NonZeroU32::new(kib) else { return Ok(()) };
        match self.0.written_kib.check_key_n(&identity.to_owned(), kib) {
            Ok(Err(not_until)) => {
                let retry_after = Some(not_until.wait_time_from(DefaultClock::default().now()));
                let text =
                    format!("{identity} writes more than {per_second} KiB a second ({burst} KiB at once)");
                Err(LimitExceeded { limit: Limit::WrittenBytes, text, retry_after })
            }
            // `kib` never exceeds the burst.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn limiter(connections: usize, burst: u32) -> Limiter {
        counting(connections, burst, Limit::Connections).0
    }

    /// The limiter and the number of hits of one limit.
    fn counting(connections: usize, burst: u32, limit: Limit) -> (Limiter, Arc<AtomicU64>) {
        let mut counters = LimitCounters::noop();
        let hits = Arc::new(AtomicU64::new(0));
        counters.0[limit as usize] = metrics::Counter::from_arc(hits.clone());
        let rate = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(burst).unwrap() };
        let limits = Limits {
            max_connections: 2,
            max_connections_per_identity: connections,
            max_new_connections_per_address: connections,
            reads: rate,
            writes: rate,
            ..Limits::default()
        };
        (Limiter::new(limits, counters), hits)
    }

    #[test]
    fn identity_without_connections_leaves_no_entry() {
        let limiter = limiter(2, 1);
        let first = limiter.register("a").unwrap();
        let _second = limiter.register("a").unwrap();
        let _other = limiter.register("b").unwrap();
        let refused = limiter.register("a").unwrap_err();
        assert!(matches!(refused, LimitExceeded { limit: Limit::ConnectionsPerIdentity, .. }), "{refused}");
        drop(first);
        let again = limiter.register("a").unwrap();
        drop((again, _second, _other));
        assert!(limiter.0.connections.is_empty());
    }

    #[test]
    fn connections_without_a_request_are_limited_per_address() {
        let (limiter, hits) = counting(2, 1, Limit::NewConnectionsPerAddress);
        let of = |address: &str| limiter.newcomer(address.parse().unwrap());
        let first = of("10.0.0.1").unwrap();
        let _second = of("10.0.0.1").unwrap();
        assert!(of("10.0.0.1").is_none());
        let _other = of("10.0.0.2").unwrap();
        drop(first);
        let _again = of("10.0.0.1").unwrap();
        assert_eq!(hits.load(Ordering::Relaxed), 1);
        drop((_second, _again, _other));
        assert!(limiter.0.new_connections.is_empty());
    }

    #[test]
    fn clients_are_held_to_as_many_as_there_may_be_connections() {
        let limiter = limiter(1, 1);
        let limit = |refused| match refused {
            Err(LimitExceeded { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        let first = limiter.stream("a").unwrap();
        assert_eq!(limit(limiter.stream("a").map(drop)), Limit::StreamsPerIdentity);
        let _second = limiter.stream("b").unwrap();
        assert_eq!(limit(limiter.stream("c").map(drop)), Limit::Streams);
        drop(first);
        drop(limiter.stream("a").unwrap());
    }

    #[test]
    fn exports_are_few_of_each_identity_and_in_all() {
        let limiter = limiter(1, 1);
        let limit = |refused| match refused {
            Err(LimitExceeded { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        let mut held: Vec<_> = (0..MAX_EXPORTS_PER_IDENTITY).map(|_| limiter.export("a").unwrap()).collect();
        assert_eq!(limit(limiter.export("a")), Limit::Exports);
        held.extend((0..MAX_EXPORTS - held.len()).map(|n| limiter.export(&n.to_string()).unwrap()));
        assert_eq!(limit(limiter.export("b")), Limit::Exports);
        held.clear();
        let _again = limiter.export("a").unwrap();
    }

    #[test]
    fn a_connection_beyond_all_room_is_counted_and_room_comes_back() {
        let (limiter, hits) = counting(1, 1, Limit::Connections);
        let rooms = [limiter.room(), limiter.room()];
        assert!(rooms.iter().all(Option::is_some) && limiter.room().is_none());
        drop(rooms);
        assert!(limiter.room().is_some());
        assert_eq!(hits.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn reads_and_writes_of_each_identity_have_buckets_of_their_own() {
        let limiter = limiter(1, 3);
        for class in [RequestKind::Read, RequestKind::Write] {
            for identity in ["a", "b"] {
                for _ in 0..3 {
                    limiter.admit(identity, class).unwrap();
                }
                match limiter.admit(identity, class).unwrap_err() {
                    LimitExceeded { retry_after: Some(wait), .. } => {
                        assert!(wait.as_millis() > 0 && wait.as_secs() <= 1, "{wait:?}");
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn written_bytes_are_limited_and_a_large_write_takes_all() {
        let rate = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(100).unwrap() };
        let limiter = Limiter::new(Limits { written_kib: rate, ..Limits::default() }, LimitCounters::noop());
        limiter.admit_bytes("a", 60 << 10).unwrap();
        let refused = limiter.admit_bytes("a", 60 << 10).unwrap_err();
        assert!(matches!(refused, LimitExceeded { limit: Limit::WrittenBytes, .. }), "{refused}");
        limiter.admit_bytes("a", 40 << 10).unwrap();
        limiter.admit_bytes("a", 0).unwrap();
        limiter.admit_bytes("b", 1 << 30).unwrap();
        limiter.admit_bytes("b", 1).unwrap_err();
    }
}
