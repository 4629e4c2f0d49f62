//! The latest failed calls of a route, until they are reported.
//!
//! A successful call touches nothing here. At most [`PER_SECOND`] failed calls of a route are recorded per
//! second of the process's clock; each further one costs a relaxed load. If the lock is taken, the call is
//! skipped rather than waited for. Two limits apply: [`MAX_CALLS`] per route and [`MAX_BYTES`] for all
//! routes.
//!
//! The calls are examples for operators; exact numbers are in the counters of `damper_core`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use damper_core::failed_call::{ID_DIGITS, MAX_CALLS, is_id};
use damper_core::{Code, Ending, Time};

/// Limit of calls recorded per route and second.
const PER_SECOND: u64 = 5;
/// Limit of bytes for all routes: about 4,000 calls of three attempts.
const MAX_BYTES: usize = 2 << 20;
/// Layout of the gate: the second in the upper bits, the number of calls recorded in it in the lower bits.
const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A call with any fate but `ok`, `ok_after_retry` and `ok_by_hedge`.
#[derive(Clone, Debug)]
pub(crate) struct FailedCall {
    pub(crate) ending: Ending,
    /// Code that the application got.
    pub(crate) code: Code,
    pub(crate) ended_at: SystemTime,
    pub(crate) latency: Duration,
    /// In the order of sending, at most `failed_call::MAX_ATTEMPTS`.
    pub(crate) attempts: Vec<FailedAttempt>,
    /// Total number of attempts.
    pub(crate) sends: u32,
    /// `None` if it has no id.
    pub(crate) ids: Option<Box<Ids>>,
}

/// Ids of a call that are valid beyond this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) trace: Option<HexId>,
    pub(crate) call: Option<HexId>,
}

/// An attempt of a failed call.
#[derive(Clone, Debug)]
pub(crate) struct FailedAttempt {
    /// Number of the engine; a transparent resend has the number of the attempt that it replaces.
    pub(crate) number: u32,
    /// Time from the beginning of the call.
    pub(crate) sent_after: Duration,
    /// Time until its end; `None` if the call ended before.
    pub(crate) took: Option<Duration>,
    pub(crate) code: Code,
    pub(crate) hedge: bool,
    /// At most `failed_call::MAX_DETAIL_BYTES`, without text of the peer.
    pub(crate) detail: Cow<'static, str>,
}

/// 128 bits as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HexId([u8; ID_DIGITS]);

impl Ids {
    /// Returns `None` if there is no id.
    pub(crate) fn kept(self) -> Option<Box<Self>> {
        self.trace.or(self.call).map(|_| Box::new(self))
    }
}

impl HexId {
    /// Returns `None` for any other value: texts of the application are not for operators.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        value.try_into().ok().filter(|digits: &[u8; ID_DIGITS]| is_id(digits)).map(Self)
    }

    /// Returns the trace id of a `traceparent` (W3C Trace Context): `00-<trace id>-<parent id>-<flags>`, and
    /// additions of later versions. An id of zeros is invalid.
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

/// Bytes used by the failed calls of all routes.
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

/// The failed calls of one route.
#[derive(Debug)]
pub(crate) struct Failures {
    gate: AtomicU64,
    /// Latest last.
    latest: Mutex<VecDeque<FailedCall>>,
    room: Arc<FailureQuota>,
}

impl Failures {
    pub(crate) fn new(room: Arc<FailureQuota>) -> Self {
        Self { gate: AtomicU64::new(0), latest: Mutex::default(), room }
    }

    /// Returns those of another route, within the same quota.
    pub(crate) fn of_another_route(&self) -> Self {
        Self::new(Arc::clone(&self.room))
    }

    /// Returns false while the limit is reached: then nothing need be recorded.
    pub(crate) fn has_room_at(&self, now: Time) -> bool {
        after_one_more(self.gate.load(Ordering::Relaxed), now).is_some()
    }

    /// Records a call, unless the limit is reached or the lock is taken.
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
        // Many routes have one failure between two reports: space for one at first, for all with the second.
        let places = if latest.is_empty() { 1 } else { MAX_CALLS };
        let further = places.saturating_sub(latest.len());
        latest.reserve_exact(further);
        latest.push_back(call);
    }

    /// Takes all recorded calls, latest last.
    pub(crate) fn take(&self) -> VecDeque<FailedCall> {
        // No code below leaves the list inconsistent.
        let taken = std::mem::take(&mut *self.latest.lock().unwrap_or_else(PoisonError::into_inner));
        self.room.give_back(taken.iter().map(FailedCall::bytes).sum());
        taken
    }
}

/// Returns the gate with one more call in this second; `None` if that exceeds the limit. A thread with an
/// older time counts in the latest second.
fn after_one_more(gate: u64, now: Time) -> Option<u64> {
    let second = (now.as_micros() / 1_000_000) << COUNT_BITS;
    let gate = gate.max(second);
    (gate & COUNT_MASK < PER_SECOND).then(|| gate + 1)
}

#[cfg(test)]
mod tests;
