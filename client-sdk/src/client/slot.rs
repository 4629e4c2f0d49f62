//! Reused heap slot that holds the state of a call until its end.
//!
//! The state takes almost a kilobyte, and a response is moved a dozen times on its way through this layer,
//! the layers around it and tonic. A pointer is moved instead. Slots of ended calls are reused by the next
//! calls on the same thread, without an allocation. A thread keeps at most [`MOST`] free slots.

use std::cell::RefCell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

use damper_core::endpoints::Tried;
use damper_core::{Step, Verdict};

use super::active_call::ActiveCall;
use super::body_canceller::BodyCanceller;
use super::local_response::LocalResponse;
use super::requests::RequestFactory;
use crate::background::clock::Timer;
use crate::outcome::cause::Cause;
use crate::record::telemetry::AttemptSpan;
use crate::routes::kills::KillWaker;

/// Free slots per thread: about 60 kB, enough for as many concurrent calls.
const MOST: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// A slot is empty while free.
type Place = Box<Option<CallState>>;

/// A call with its slot.
#[derive(Debug)]
pub(super) struct CallSlot(Option<Place>);

/// State of a call.
#[derive(Debug)]
pub(super) struct CallState {
    /// Span of the attempt whose response has begun.
    pub(super) attempt: AttemptSpan,
    pub(super) call: ActiveCall,
    pub(super) requests: RequestFactory,
    pub(super) timer: Timer,
    pub(super) alarm: KillWaker,
    /// Response to a call that a kill rejects.
    pub(super) refusal: Option<Box<LocalResponse>>,
    pub(super) external: bool,
    /// Endpoints tried, if the channel reports them.
    pub(super) tried: Tried,
}

impl CallSlot {
    /// Begins the call in its slot: it is large.
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

/// A call whose response has begun: one attempt is left, and it cannot be retried.
#[derive(Debug)]
pub(super) struct CommittedAttempt {
    pub(super) calling: CallSlot,
    hang_up: BodyCanceller,
    /// True once a data frame was read.
    has_frame: bool,
}

impl CommittedAttempt {
    /// Commits the call to this attempt.
    pub(super) fn new(mut calling: CallSlot, attempt: AttemptSpan) -> Self {
        let hang_up = calling.call.answer_begins(attempt.number());
        calling.attempt = attempt;
        calling.requests.forget();
        Self { calling, hang_up, has_frame: false }
    }

    /// Notes a data frame. Returns true if the time limit has passed.
    pub(super) fn is_over_at_frame(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_frame, true);
        !is_first
            && self.calling.call.has_limit()
            && !matches!(self.calling.call.next_step(), Step::Wait { .. })
    }

    /// Records the end of the response.
    pub(super) fn ended(&mut self, verdict: Verdict, cause: Cause<'_>) -> Step {
        let attempt = self.calling.take_attempt();
        self.calling.call.attempt_ended(attempt, verdict, cause)
    }

    /// Records the timeout of the response.
    pub(super) fn timed_out(&mut self) -> Step {
        self.hang_up.now();
        let attempt = self.calling.take_attempt();
        self.calling.call.attempt_timed_out(attempt)
    }
}

impl CallState {
    /// Reports to the call whether a request that arrives is kept. Between attempts the call reads its rest.
    #[inline]
    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) {
        if self.requests.are_awaited()
            && let Poll::Ready(is_kept) = self.requests.poll_arriving(self.call.is_between_attempts(), cx)
        {
            self.call.request_arrived(is_kept);
        }
    }

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
        // Before the slot is returned: dropping the request's extensions may start further calls.
        *place = None;
        // Fails on a thread that is ending.
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
    use crate::client::ClientService;
    use crate::outcome::BoxError;
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
    fn a_thread_keeps_and_reuses_a_bounded_number_of_slots() {
        let mut service = governed(&engine(enforce()), silent());
        let calls: Vec<_> = (0..2 * MOST).map(|_| service.call(request())).collect();
        drop(calls);
        assert_eq!(kept(), MOST);
        let call = service.call(request());
        assert_eq!(kept(), MOST - 1);
        drop(call);
        assert_eq!(kept(), MOST);
    }

    /// An extension that an application may add to a request.
    #[derive(Clone)]
    struct CallsWhenDropped(ClientService<Silent>);

    impl Drop for CallsWhenDropped {
        fn drop(&mut self) {
            drop(self.0.call(request()));
        }
    }

    #[test]
    fn a_request_whose_drop_makes_calls_does_not_block_the_end() {
        let engine = engine(enforce());
        let mut service = governed(&engine, silent());
        let mut request = request();
        request.extensions_mut().insert(CallsWhenDropped(service.clone()));
        drop(service.call(request));
        // The sent request and the buffered one made a call each.
        ended(&engine, &[("cancelled", 3)]);
    }
}
