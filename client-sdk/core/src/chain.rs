//! The two flags by which a chain of services retries in one place only.
//!
//! - **Down**, `damper-retry: <n>`: this request is a repeat. A service that receives it sends its own calls
//!   once and passes the flag on: the layer above is the one retrying.
//! - **Up**, `damper-no-more-retry: 1` on an error: a hop below has made the retries that could help. Every
//!   layer above gives up at once and passes the flag on.
//!
//! Requests that other systems mark as repeats count too (`grpc-previous-rpc-attempts`,
//! `x-envoy-attempt-count`), and the flag up is translated for stock gRPC clients (a pushback of -1) and for
//! Envoy (`x-envoy-ratelimited`).
//!
//! With r attempts per layer a chain of m layers sends at most r on the hop nearest the fault and 1 above for
//! fast failures, and i x r - (i - 1) on hop i from the top when answers are lost; never r^i.
//!
//! Source: ByteDance's retry governance (the flags), gRFC A6 (previous attempts, pushback), Envoy's header
//! documentation. Headers are ASCII metadata over plain gRPC; messages are not touched.

mod baggage;
pub mod bound;

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use self::baggage::{BAGGAGE, Baggage, GRACE_MS, baggage_with, baggage_without};

use crate::code::{Code, CodeSet};
use crate::time::Time;

/// Down: how many sends came before this one, on this hop or one above.
pub const RETRY: &str = "damper-retry";
/// Up: do not repeat this call.
pub const NO_MORE_RETRY: &str = "damper-no-more-retry";
/// The value of [`NO_MORE_RETRY`].
pub const NO_MORE_RETRY_VALUE: &str = "1";
/// gRPC's own: how many attempts came before this one, on this hop.
pub const PREVIOUS_ATTEMPTS: &str = "grpc-previous-rpc-attempts";
/// gRPC's own: when to retry, in milliseconds; negative = not.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The value of [`PUSHBACK`] that goes with [`NO_MORE_RETRY`].
pub const PUSHBACK_STOP_VALUE: &str = "-1";
/// Envoy's count of sends, the first included.
pub const ENVOY_ATTEMPT_COUNT: &str = "x-envoy-attempt-count";
/// Envoy does not retry an answer with this header.
pub const ENVOY_RATE_LIMITED: &str = "x-envoy-ratelimited";
/// Requests with a header of this prefix came through Envoy.
pub const ENVOY_PREFIX: &str = "x-envoy-";

/// Equal on all attempts of a call: a key by which handlers can tell repeats.
pub const CALL_ID: &str = "damper-call";

/// Headers of an answer that speak to this hop only: the client layer takes them off before the application
/// sees the answer, because a handler that passes a status on would otherwise speak for the hop below.
pub const HOP_BY_HOP: [&str; 3] = [NO_MORE_RETRY, PUSHBACK, ENVOY_RATE_LIMITED];

/// The headers of a request that may mark it as a repeat, as they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatMarks<'a> {
    /// [`RETRY`]
    pub retry: Option<&'a [u8]>,
    /// The same in [`BAGGAGE`], if it still holds.
    pub baggage: Option<Baggage>,
    /// [`PREVIOUS_ATTEMPTS`]
    pub previous_attempts: Option<&'a [u8]>,
    /// [`ENVOY_ATTEMPT_COUNT`]
    pub envoy_attempt_count: Option<&'a [u8]>,
}

/// Who sent a request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeater {
    /// A client layer of Damper's.
    Damper,
    /// A gRPC client by itself.
    Grpc,
    /// An Envoy between.
    Envoy,
}

impl Repeater {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Damper, Self::Grpc, Self::Envoy];
}

impl RepeatMarks<'_> {
    /// The flag this request carries, if it is a repeat: how many sends came before.
    ///
    /// A `damper-retry` that is no number still says that the request is a repeat.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        if let Some(value) = self.retry {
            return Some(number(value).unwrap_or(1).max(1));
        }
        let baggage = self.baggage.map(Baggage::retry);
        baggage.or(self.previous()).or(self.envoy())
    }

    /// Who sent this request again, on the hop that it arrived by; none if that is its first send there.
    ///
    /// Our client layer marks its repeats both as ours and as gRPC does. `damper-retry` alone was merely
    /// passed on: the repeat was made further up.
    #[must_use]
    pub fn repeated_by(&self) -> Option<Repeater> {
        match (self.previous(), self.envoy()) {
            (Some(_), _) if self.retry.is_some() => Some(Repeater::Damper),
            (Some(_), _) => Some(Repeater::Grpc),
            (None, Some(_)) => Some(Repeater::Envoy),
            (None, None) => None,
        }
    }

    /// Attempts on this hop before this one, if there were any.
    fn previous(&self) -> Option<u32> {
        self.previous_attempts.and_then(number).filter(|previous| *previous >= 1)
    }

    /// Sends by an Envoy before this one, if there were any.
    fn envoy(&self) -> Option<u32> {
        let count = self.envoy_attempt_count.and_then(number::<u32>).filter(|count| *count > 1);
        count.map(|count| count - 1)
    }
}

/// Beside the bits of codes: the request must not be repeated whatever its answer.
const FINAL: u32 = 1 << 31;
/// What a handler may make of any failed call. Other codes that none of its calls failed with are its own.
const OF_ANY_FAILURE: CodeSet = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);

/// So many routes that failed for good are remembered in one request.
const FAILED_ROUTES: usize = 8;

/// What the calls made in serving one request share.
///
/// Created by the server layer from the request; every client layer called within reads it, and the server
/// layer asks it when the answer is an error.
#[derive(Debug, Default)]
pub struct RequestContext {
    flag: Option<u32>,
    deadline: Option<Time>,
    /// With what codes failures may be passed on that must not be repeated; [`FINAL`].
    marks: AtomicU32,
    /// The routes on which a call has failed for good; 0 is a free place.
    failed: [AtomicU64; FAILED_ROUTES],
}

impl RequestContext {
    /// The context of a request with this flag and deadline.
    #[must_use]
    pub fn new(flag: Option<u32>, deadline: Option<Time>) -> Self {
        Self { flag, deadline, ..Self::default() }
    }

    /// The flag the request carried: how many sends came before it; none for a first send.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        self.flag
    }

    /// Until when the request must be answered.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Notes that a call made in serving the request must not be repeated by the layers above. It failed with one of
    /// these codes, as far as the handler sees.
    pub fn mark_no_more_retry(&self, codes: CodeSet) {
        self.marks.fetch_or(codes.bits(), Ordering::Relaxed);
    }

    /// Notes that the request must not be repeated, whatever its answer.
    pub fn mark_final(&self) {
        self.marks.fetch_or(FINAL, Ordering::Relaxed);
    }

    /// Forgets what was noted so far: the answer has nothing to do with it.
    pub fn forget_failures(&self) {
        self.marks.store(0, Ordering::Relaxed);
    }

    /// True if the request's answer must carry the flag up where it is this error. The flag belongs to the failure:
    /// an error that is not one of those which calls ended with is the handler's own, and may be repeated.
    #[must_use]
    pub fn no_more_retry(&self, answer: Code) -> bool {
        let marks = self.marks.load(Ordering::Relaxed);
        let has = |codes: CodeSet| marks & codes.bits() != 0;
        marks & FINAL != 0 || has(CodeSet::of(&[answer])) || marks != 0 && OF_ANY_FAILURE.contains(answer)
    }

    /// Notes that a call of this route, made in serving the request, has failed for good. The number is the
    /// driver's own name for the route, not 0. The first 8 routes that fail are remembered.
    pub fn note_failed(&self, route_id: u64) {
        for place in &self.failed {
            match place.compare_exchange(0, route_id, Ordering::Relaxed, Ordering::Relaxed) {
                Err(other) if other != route_id => {}
                _ => return,
            }
        }
    }

    /// True if a call of this route has failed for good in serving the request: a further one is somebody's
    /// loop around the retries.
    #[must_use]
    pub fn has_failed(&self, route_id: u64) -> bool {
        route_id != 0 && self.failed.iter().any(|place| place.load(Ordering::Relaxed) == route_id)
    }
}

/// The number that a header consists of; none unless it is digits and nothing else.
pub(crate) fn number<N: FromStr>(value: &[u8]) -> Option<N> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks<'a>(
        retry: Option<&'a str>,
        previous: Option<&'a str>,
        envoy: Option<&'a str>,
    ) -> RepeatMarks<'a> {
        RepeatMarks {
            retry: retry.map(str::as_bytes),
            baggage: None,
            previous_attempts: previous.map(str::as_bytes),
            envoy_attempt_count: envoy.map(str::as_bytes),
        }
    }

    #[test]
    fn a_context_tells_what_the_request_brought_and_what_was_marked() {
        let context = RequestContext::new(Some(2), Some(Time::from_micros(7)));
        assert_eq!((context.flag(), context.deadline()), (Some(2), Some(Time::from_micros(7))));
        assert!(!context.no_more_retry(Code::Unavailable));
        context.mark_no_more_retry(CodeSet::of(&[Code::Aborted]));
        assert!(context.no_more_retry(Code::Aborted));
        let first_send = RequestContext::new(None, None);
        assert_eq!((first_send.flag(), first_send.deadline()), (None, None));
    }

    #[test]
    fn the_flag_up_belongs_to_the_failure_and_not_to_the_request() {
        let context = RequestContext::new(None, None);
        context.mark_no_more_retry(CodeSet::of(&[Code::Internal]));
        let flagged = |code| context.no_more_retry(code);
        assert!(flagged(Code::Internal));
        assert!(!flagged(Code::Aborted) && !flagged(Code::NotFound), "the handler's own");
        assert!(
            flagged(Code::Unavailable) && flagged(Code::DeadlineExceeded),
            "it may come from any failure"
        );
        context.forget_failures();
        assert!(!flagged(Code::Internal) && !flagged(Code::Unavailable));
        context.mark_final();
        assert!(flagged(Code::NotFound));
    }

    #[test]
    fn a_route_that_fails_again_and_again_takes_one_place() {
        let context = RequestContext::new(None, None);
        (0..20).for_each(|_| context.note_failed(1));
        context.note_failed(2);
        assert!(context.has_failed(1) && context.has_failed(2));
        assert!(!context.has_failed(3) && !context.has_failed(0));
    }

    #[test]
    fn any_of_the_three_marks_makes_a_request_a_repeat() {
        let check = |retry: Option<&str>, previous: Option<&str>, envoy: Option<&str>, expected| {
            assert_eq!(marks(retry, previous, envoy).flag(), expected, "{retry:?} {previous:?} {envoy:?}");
        };
        check(None, None, None, None);
        check(Some("2"), None, None, Some(2));
        check(Some("0"), None, None, Some(1));
        check(Some("x"), None, None, Some(1));
        check(None, Some("0"), None, None);
        check(None, Some("1"), None, Some(1));
        check(None, Some("-1"), None, None);
        check(None, Some("+1"), None, None);
        check(None, None, Some("1"), None);
        check(None, None, Some("3"), Some(2));
        check(None, Some("junk"), Some("2"), Some(1));
        check(Some("5"), Some("1"), Some("9"), Some(5));
    }

    #[test]
    fn baggage_marks_a_request_as_the_header_does_but_the_header_goes_first() {
        let baggage = Baggage::read([&b"damper.retry=4;until=9"[..]]);
        assert_eq!(RepeatMarks { baggage, ..RepeatMarks::default() }.flag(), Some(4));
        assert_eq!(RepeatMarks { baggage, ..marks(Some("2"), None, None) }.flag(), Some(2));
        assert_eq!(RepeatMarks { baggage, ..marks(None, Some("1"), Some("9")) }.flag(), Some(4));
    }

    #[test]
    fn a_repeat_is_told_from_a_flag_that_was_merely_passed_on() {
        let check = |retry: Option<&str>, previous: Option<&str>, envoy: Option<&str>, expected| {
            let marks = marks(retry, previous, envoy);
            assert_eq!(marks.repeated_by(), expected, "{retry:?} {previous:?} {envoy:?}");
            assert!(expected.is_none() || marks.flag().is_some());
        };
        check(None, None, None, None);
        check(Some("2"), None, None, None);
        check(Some("2"), Some("0"), Some("1"), None);
        check(Some("2"), Some("1"), None, Some(Repeater::Damper));
        check(Some("2"), Some("1"), Some("2"), Some(Repeater::Damper));
        check(None, Some("1"), None, Some(Repeater::Grpc));
        check(None, Some("1"), Some("2"), Some(Repeater::Grpc));
        check(None, None, Some("2"), Some(Repeater::Envoy));
        check(Some("2"), None, Some("2"), Some(Repeater::Envoy));
        check(None, Some("junk"), Some("junk"), None);
        let baggage = Baggage::read([&b"damper.retry=4;until=9"[..]]);
        assert_eq!(RepeatMarks { baggage, ..RepeatMarks::default() }.repeated_by(), None);
    }

    #[test]
    fn a_context_remembers_which_routes_have_failed_for_good() {
        let context = RequestContext::new(None, None);
        assert!(!context.has_failed(0) && !context.has_failed(7));
        for route in [7, 9, 7, 0, 7] {
            context.note_failed(route);
        }
        assert!(context.has_failed(7) && context.has_failed(9));
        assert!(!context.has_failed(0) && !context.has_failed(8));
    }

    #[test]
    fn a_context_full_of_failed_routes_forgets_none_of_them_and_takes_no_more() {
        let context = RequestContext::new(None, None);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let context = &context;
                scope.spawn(move || (0..100).for_each(|i| context.note_failed(1 + (i + thread) % 8)));
            }
        });
        context.note_failed(9);
        assert_eq!(
            (1..=9).filter(|route| context.has_failed(*route)).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
    }
}
