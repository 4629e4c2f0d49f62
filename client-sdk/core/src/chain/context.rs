//! State that the calls made to serve one request share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::outcome::code::{Code, CodeSet};
use crate::time::Time;

/// Next to the bits of codes: the request must not be retried, whatever its status.
const FINAL: u32 = 1 << 31;
/// Next to the bits of codes: the response does not depend on the failures so far.
const FORGOTTEN: u32 = 1 << 30;
/// Codes into which handlers turn any failure. Other codes that no call failed with are the handler's own.
const OF_ANY_FAILURE: CodeSet = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);
/// The same over HTTP, where frameworks answer 500 for any error of a handler.
const OF_ANY_FAILURE_OVER_HTTP: CodeSet = OF_ANY_FAILURE.union(CodeSet::of(&[Code::Internal]));

/// Failed routes that are remembered per request.
const FAILED_ROUTES: usize = 8;

/// State that the calls made to serve one request share.
///
/// The server layer creates it from the request. Client layers read it for each call made to serve the
/// request, and the server layer reads it if the response is an error.
#[derive(Debug, Default)]
pub struct RequestContext {
    flag: Option<u32>,
    deadline: Option<Time>,
    /// Codes of failures that must not be retried; [`FINAL`], [`FORGOTTEN`].
    marks: AtomicU32,
    /// Routes on which a call has failed; 0 is a free place.
    failed: [AtomicU64; FAILED_ROUTES],
}

impl RequestContext {
    /// Returns the context of a request with this flag and deadline.
    #[must_use]
    pub fn new(flag: Option<u32>, deadline: Option<Time>) -> Self {
        Self { flag, deadline, ..Self::default() }
    }

    /// Returns the flag of the request: the number of attempts before it; `None` for a first attempt.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        self.flag
    }

    /// Returns the deadline of the request.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Records that layers above must not retry a call made to serve the request. It failed with one of these
    /// codes, as far as the handler sees.
    pub fn mark_no_more_retry(&self, codes: CodeSet) {
        self.marks.fetch_or(codes.bits(), Ordering::Relaxed);
    }

    /// Records that the request must not be retried, whatever its status.
    pub fn mark_final(&self) {
        self.marks.fetch_or(FINAL, Ordering::Relaxed);
    }

    /// Returns true if a call was recorded that layers above must not retry.
    #[must_use]
    pub fn has_marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & !FORGOTTEN != 0
    }

    /// Clears all records: the response does not depend on them.
    pub fn forget_failures(&self) {
        self.marks.store(FORGOTTEN, Ordering::Relaxed);
    }

    /// Returns true if a response with this error must carry the no-more-retry flag. The flag belongs to the
    /// failure: an error with another code is the handler's own and may be retried.
    #[must_use]
    pub fn no_more_retry(&self, answer: Code) -> bool {
        self.is_final(answer, OF_ANY_FAILURE)
    }

    /// As [`no_more_retry`](Self::no_more_retry), for a response over HTTP: 500 may stand for any failure.
    #[must_use]
    pub fn no_more_retry_over_http(&self, answer: Code) -> bool {
        self.is_final(answer, OF_ANY_FAILURE_OVER_HTTP)
    }

    fn is_final(&self, answer: Code, of_any_failure: CodeSet) -> bool {
        let marks = self.marks.load(Ordering::Relaxed) & !FORGOTTEN;
        let has = |codes: CodeSet| marks & codes.bits() != 0;
        marks & FINAL != 0 || has(CodeSet::of(&[answer])) || marks != 0 && of_any_failure.contains(answer)
    }

    /// As [`no_more_retry`](Self::no_more_retry), for a response that is the failure of one call. `is_final`:
    /// layers above must not retry that call, which need not have been recorded here.
    #[must_use]
    pub fn no_more_retry_of_call(&self, is_final: bool) -> bool {
        let marks = self.marks.load(Ordering::Relaxed);
        marks & FINAL != 0 || is_final && marks != FORGOTTEN
    }

    /// Records that a call of this route, made to serve the request, has failed. The number identifies the
    /// route in the driver, and is not 0. The first 8 failed routes are remembered.
    pub fn note_failed(&self, route_id: u64) {
        for place in &self.failed {
            match place.compare_exchange(0, route_id, Ordering::Relaxed, Ordering::Relaxed) {
                Err(other) if other != route_id => {}
                _ => return,
            }
        }
    }

    /// Returns true if a call of this route has failed for this request: another one is a loop around the
    /// retries.
    #[must_use]
    pub fn has_failed(&self, route_id: u64) -> bool {
        route_id != 0 && self.failed.iter().any(|place| place.load(Ordering::Relaxed) == route_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_keeps_flag_deadline_and_marks() {
        let context = RequestContext::new(Some(2), Some(Time::from_micros(7)));
        assert_eq!((context.flag(), context.deadline()), (Some(2), Some(Time::from_micros(7))));
        assert!(!context.no_more_retry(Code::Unavailable));
        context.mark_no_more_retry(CodeSet::of(&[Code::Aborted]));
        assert!(context.no_more_retry(Code::Aborted));
        let first_send = RequestContext::new(None, None);
        assert_eq!((first_send.flag(), first_send.deadline()), (None, None));
    }

    #[test]
    fn flag_up_belongs_to_the_failure_and_not_to_the_request() {
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
        assert!(!context.no_more_retry_over_http(Code::Internal));
        context.mark_no_more_retry(CodeSet::of(&[Code::Aborted]));
        assert!(!flagged(Code::Internal) && context.no_more_retry_over_http(Code::Internal));
        assert!(!context.no_more_retry_over_http(Code::NotFound));
        context.mark_final();
        assert!(flagged(Code::NotFound));
    }

    #[test]
    fn failure_of_a_call_has_the_flag_of_that_call() {
        let context = RequestContext::new(None, None);
        assert!(context.no_more_retry_of_call(true) && !context.no_more_retry_of_call(false));
        context.mark_no_more_retry(CodeSet::of(&[Code::Unavailable]));
        assert!(!context.no_more_retry_of_call(false), "another call gave up");
        context.forget_failures();
        assert!(!context.no_more_retry_of_call(true) && !context.has_marks());
        context.mark_no_more_retry(CodeSet::of(&[Code::Aborted]));
        assert!(context.no_more_retry_of_call(true), "a failure after the forgotten ones");
        context.mark_final();
        assert!(context.no_more_retry_of_call(false));
    }

    #[test]
    fn route_that_fails_repeatedly_takes_one_place() {
        let context = RequestContext::new(None, None);
        (0..20).for_each(|_| context.note_failed(1));
        context.note_failed(2);
        assert!(context.has_failed(1) && context.has_failed(2));
        assert!(!context.has_failed(3) && !context.has_failed(0));
    }

    #[test]
    fn context_remembers_failed_routes() {
        let context = RequestContext::new(None, None);
        assert!(!context.has_failed(0) && !context.has_failed(7));
        for route in [7, 9, 7, 0, 7] {
            context.note_failed(route);
        }
        assert!(context.has_failed(7) && context.has_failed(9));
        assert!(!context.has_failed(0) && !context.has_failed(8));
    }

    #[test]
    fn full_context_keeps_its_failed_routes_and_takes_no_more() {
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
