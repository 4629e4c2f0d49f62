//! What the calls made in serving one request share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::outcome::code::{Code, CodeSet};
use crate::time::Time;

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

#[cfg(test)]
mod tests {
    use super::*;

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
