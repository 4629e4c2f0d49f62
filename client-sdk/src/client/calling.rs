//! What a call needs until its end, in a place on the heap that was another call's before.
//!
//! It is almost a kilobyte, and an answer is moved a dozen times on its way to the application: by this
//! layer, by those around it, by tonic. So it stays where it is, and a pointer moves. The places of calls that
//! ended on a thread serve those that begin there next, so that a call does not go to the heap for one; a thread
//! keeps at most [`MOST`] of them.

use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};

use damper_core::endpoints::Tried;
use damper_core::{Step, Verdict};

use super::active_call::ActiveCall;
use super::cause::Cause;
use super::hang_up::BodyCanceller;
use super::own_answer::LocalResponse;
use super::requests::RequestFactory;
use super::telemetry::AttemptSpan;
use super::timer::Timer;
use crate::kills::KillWaker;

/// The places that a thread keeps: for as many calls as one has under way at once, some 60 kB.
const MOST: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// A place is empty while no call has it.
type Place = Box<Option<CallState>>;

/// One call, as long as it lasts.
#[derive(Debug)]
pub(super) struct CallSlot(Option<Place>);

/// What it consists of.
#[derive(Debug)]
pub(super) struct CallState {
    /// The one whose answer has begun; of no attempt before.
    pub(super) attempt: AttemptSpan,
    pub(super) call: ActiveCall,
    pub(super) requests: RequestFactory,
    pub(super) timer: Timer,
    pub(super) alarm: KillWaker,
    /// What a call is told that a kill refuses.
    pub(super) refusal: Option<Box<LocalResponse>>,
    pub(super) external: bool,
    /// Where its attempts went, if the channel knows.
    pub(super) tried: Tried,
}

impl CallSlot {
    /// The call is begun in its place, for it is large.
    #[inline]
    pub(super) fn begin(call: impl FnOnce() -> ActiveCall, requests: RequestFactory, external: bool) -> Self {
        let mut place = free_place();
        *place = Some(CallState {
            attempt: AttemptSpan::none(),
            call: call(),
            requests,
            timer: Timer::default(),
            alarm: KillWaker::default(),
            refusal: None,
            external,
            tried: Tried::NONE,
        });
        Self(Some(place))
    }
}

fn free_place() -> Place {
    FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// A call whose answer has begun: one attempt is left, and it can not be repeated any more.
#[derive(Debug)]
pub(super) struct CommittedAttempt {
    pub(super) calling: CallSlot,
    hang_up: BodyCanceller,
    /// One frame of data was read.
    has_frame: bool,
}

impl CommittedAttempt {
    /// The call goes on with this attempt alone.
    pub(super) fn new(mut calling: CallSlot, attempt: AttemptSpan) -> Self {
        let hang_up = calling.call.answer_begins(attempt.number());
        calling.attempt = attempt;
        calling.requests.forget();
        Self { calling, hang_up, has_frame: false }
    }

    /// One more frame is ready; is the time over?
    pub(super) fn is_over_at_frame(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_frame, true);
        !is_first
            && self.calling.call.has_limit()
            && !matches!(self.calling.call.next_step(), Step::Wait { .. })
    }

    /// The answer ended so.
    pub(super) fn ended(&mut self, verdict: Verdict, cause: Cause<'_>) -> Step {
        let attempt = self.calling.take_attempt();
        self.calling.call.attempt_ended(attempt, verdict, cause)
    }

    /// The answer's time was over.
    pub(super) fn timed_out(&mut self) -> Step {
        self.hang_up.now();
        let attempt = self.calling.take_attempt();
        self.calling.call.attempt_timed_out(attempt)
    }
}

impl CallState {
    fn take_attempt(&mut self) -> AttemptSpan {
        mem::replace(&mut self.attempt, AttemptSpan::none())
    }
}

impl Deref for CallSlot {
    type Target = CallState;

    fn deref(&self) -> &CallState {
        self.0.as_deref().and_then(Option::as_ref).expect("a call keeps its place until it is dropped")
    }
}

impl DerefMut for CallSlot {
    fn deref_mut(&mut self) -> &mut CallState {
        self.0.as_deref_mut().and_then(Option::as_mut).expect("a call keeps its place until it is dropped")
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        let Some(mut place) = self.0.take() else { return };
        // Before the place is given back: what the application put into its request may make calls when dropped.
        *place = None;
        // A thread that ends keeps none.
        _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MOST {
                free.push(place);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Pending, pending};

    use http::{Request, Response};
    use tonic::body::Body;
    use tower::util::{ServiceFn, service_fn};
    use tower_service::Service;

    use super::*;
    use crate::client::{BoxError, ClientService};
    use crate::scenarios::{ended, enforce, engine, governed, request};

    type Silence = Pending<Result<Response<Body>, BoxError>>;
    type Silent = ServiceFn<fn(Request<Body>) -> Silence>;

    fn silent() -> Silent {
        service_fn(|_| pending())
    }

    fn kept() -> usize {
        FREE.with_borrow(Vec::len)
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_places_and_calls_take_them() {
        let mut service = governed(&engine(enforce()), silent());
        let calls: Vec<_> = (0..2 * MOST).map(|_| service.call(request())).collect();
        drop(calls);
        assert_eq!(kept(), MOST);
        let call = service.call(request());
        assert_eq!(kept(), MOST - 1);
        drop(call);
        assert_eq!(kept(), MOST);
    }

    /// What an application may put into a request.
    #[derive(Clone)]
    struct CallsWhenDropped(ClientService<Silent>);

    impl Drop for CallsWhenDropped {
        fn drop(&mut self) {
            drop(self.0.call(request()));
        }
    }

    #[test]
    fn a_request_whose_end_makes_calls_does_not_stop_its_call_from_ending() {
        let engine = engine(enforce());
        let mut service = governed(&engine, silent());
        let mut request = request();
        request.extensions_mut().insert(CallsWhenDropped(service.clone()));
        drop(service.call(request));
        // The request that was to be sent and the one that was kept made a call each.
        ended(&engine, &[("cancelled", 3)]);
    }
}
