//! The latest calls of a route that did not end well, until they are reported.
//!
//! A call that ends well touches nothing here. Of those that do not, at most [`PER_SECOND`] of a route are taken in
//! each second of the process's clock: every further one costs one relaxed load, however many fail. Whoever finds
//! the place taken leaves its call out rather than wait. What is kept is bounded twice: [`MAX_CALLS`] of a route, and
//! [`MAX_BYTES`] of all routes together.
//!
//! They show operators examples; what counts are the counters of `damper_core`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use damper_core::failed_call::{ID_DIGITS, MAX_CALLS, is_id};
use damper_core::{Code, Ending, Time};

/// The most calls of a route that are taken in one second.
const PER_SECOND: u64 = 5;
/// The most bytes that calls of all routes take while they wait: 4,000 usual ones of three attempts.
const MAX_BYTES: usize = 2 << 20;
/// The gate's word: the second above, the number of calls taken in it below.
const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A call with any fate but `ok`, `ok_after_retry` and `ok_by_hedge`.
#[derive(Clone, Debug)]
pub(crate) struct FailedCall {
    pub(crate) ending: Ending,
    /// What the application got.
    pub(crate) code: Code,
    pub(crate) ended_at: SystemTime,
    pub(crate) latency: Duration,
    /// In the order they were sent, at most `failed_call::MAX_ATTEMPTS`.
    pub(crate) attempts: Vec<FailedAttempt>,
    /// Sends in all.
    pub(crate) sends: u32,
    /// None if it has neither.
    pub(crate) ids: Option<Box<Ids>>,
}

/// What tells a call from others, beyond this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) trace: Option<HexId>,
    pub(crate) call: Option<HexId>,
}

/// One send of such a call.
#[derive(Clone, Debug)]
pub(crate) struct FailedAttempt {
    /// As the engine counts; a transparent resend has the number of what it replaces.
    pub(crate) number: u32,
    /// From the beginning of the call.
    pub(crate) sent_after: Duration,
    /// Until it ended; none if the call ended before it.
    pub(crate) took: Option<Duration>,
    pub(crate) code: Code,
    pub(crate) hedge: bool,
    /// At most `failed_call::MAX_DETAIL_BYTES`, in words of this process.
    pub(crate) detail: Cow<'static, str>,
}

/// 128 bits as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HexId([u8; ID_DIGITS]);

impl Ids {
    /// None if there is no id.
    pub(crate) fn kept(self) -> Option<Box<Self>> {
        self.trace.or(self.call).map(|_| Box::new(self))
    }
}

impl HexId {
    /// None if the value is anything else: an application's own words are not for operators.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        value.try_into().ok().filter(|digits: &[u8; ID_DIGITS]| is_id(digits)).map(Self)
    }

    /// The trace id of a `traceparent` (W3C Trace Context): `00-<trace id>-<parent id>-<flags>`, and whatever later
    /// versions append. One of zeros only is none.
    pub(crate) fn of_traceparent(value: &[u8]) -> Option<Self> {
        const VERSION: usize = 2;
        let (version, rest) = value.split_at_checked(VERSION)?;
        let (id, rest) = rest.strip_prefix(b"-")?.split_at_checked(ID_DIGITS)?;
        let is_one = version != b"ff" && rest.starts_with(b"-");
        Self::read(id).filter(|id| is_one && id.0 != [b'0'; ID_DIGITS])
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits are ASCII")
    }
}

impl FailedCall {
    fn bytes(&self) -> usize {
        let owned = |attempt: &FailedAttempt| match &attempt.detail {
            Cow::Owned(detail) => detail.capacity(),
            Cow::Borrowed(_) => 0,
        };
        let details: usize = self.attempts.iter().map(owned).sum();
        let ids = self.ids.as_ref().map_or(0, |_| size_of::<Ids>());
        size_of::<Self>() + self.attempts.capacity() * size_of::<FailedAttempt>() + details + ids
    }
}

/// What the calls of all routes take.
#[derive(Debug, Default)]
pub(crate) struct FailureQuota(AtomicUsize);

impl FailureQuota {
    fn take(&self, bytes: usize) -> bool {
        let with = |held: usize| held.checked_add(bytes).filter(|held| *held <= MAX_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Those of one route.
#[derive(Debug)]
pub(crate) struct Failures {
    gate: AtomicU64,
    /// The latest last.
    latest: Mutex<VecDeque<FailedCall>>,
    room: Arc<FailureQuota>,
}

impl Failures {
    pub(crate) fn new(room: Arc<FailureQuota>) -> Self {
        Self { gate: AtomicU64::new(0), latest: Mutex::default(), room }
    }

    /// Those of another route, within the same room.
    pub(crate) fn of_another_route(&self) -> Self {
        Self::new(Arc::clone(&self.room))
    }

    /// False while enough have been taken: what a call would tell need not be gathered.
    pub(crate) fn has_room_at(&self, now: Time) -> bool {
        after_one_more(self.gate.load(Ordering::Relaxed), now).is_some()
    }

    /// Takes a call, unless enough have been taken or the place is taken this very moment.
    pub(crate) fn put(&self, now: Time, call: impl FnOnce() -> FailedCall) {
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.gate.fetch_update(set, get, |gate| after_one_more(gate, now)).is_err() {
            return;
        }
        let mut latest = match self.latest.try_lock() {
            Ok(latest) => latest,
            Err(TryLockError::Poisoned(latest)) => latest.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let call = call();
        let bytes = call.bytes();
        while latest.len() >= MAX_CALLS || !self.room.take(bytes) {
            let Some(oldest) = latest.pop_front() else { return };
            self.room.give_back(oldest.bytes());
        }
        // Many routes fail once between two reports: the first has a place of its own, with the second come all.
        let places = if latest.is_empty() { 1 } else { MAX_CALLS };
        let further = places.saturating_sub(latest.len());
        latest.reserve_exact(further);
        latest.push_back(call);
    }

    /// All that wait, the latest last.
    pub(crate) fn take(&self) -> VecDeque<FailedCall> {
        // Nothing below leaves them half changed.
        let taken = std::mem::take(&mut *self.latest.lock().unwrap_or_else(PoisonError::into_inner));
        self.room.give_back(taken.iter().map(FailedCall::bytes).sum());
        taken
    }
}

/// The gate's word with one more call in this second; none if that is too many. A thread whose present is late counts
/// in the second that has begun.
fn after_one_more(gate: u64, now: Time) -> Option<u64> {
    let second = (now.as_micros() / 1_000_000) << COUNT_BITS;
    let gate = gate.max(second);
    (gate & COUNT_MASK < PER_SECOND).then(|| gate + 1)
}

#[cfg(test)]
mod tests;
