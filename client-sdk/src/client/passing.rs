//! A call without a rule: the request is forwarded with the chain's flag and deadline, and the call is
//! counted.
//!
//! This is a separate path because most calls take it. Its state fits into a few hundred bytes and moves with
//! the future: no heap slot, no timer, no span. `damper_core::Passthrough` decides what the call counts as.
//! Only a request whose inner service is not ready goes to the heap.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use damper_core::{Code, CodeSet, Fate, Finish, Time, Verdict};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::begun::CommittedCall;
use super::cause::{self, Cause};
use super::response_body::ResponseBody;
use super::response_future::CallResult;
use super::sending::RequestInFlight;
use super::trail::AttemptTrail;
use super::verdict::{self, BoxError};
use crate::clock::Clock;
use crate::context::Context;
use crate::failures::{HexId, Ids};
use crate::headers;
use crate::metrics::{AttemptTimes, CallTimes};
use crate::routes::RouteHandle;

pin_project! {
    /// Future of the call until its response begins.
    pub(super) struct PassthroughFuture<S, F> {
        #[pin]
        sending: RequestInFlight<S, F>,
        // `None` once the response has begun.
        call: Option<PassthroughCall>,
    }
}

impl<S, F> PassthroughFuture<S, F> {
    pub(super) fn new(sending: RequestInFlight<S, F>, call: PassthroughCall) -> Self {
        Self { sending, call: Some(call) }
    }
}

impl<S, B> PassthroughFuture<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<CallResult<B>> {
        let this = self.project();
        let outcome = ready!(this.sending.poll(cx));
        let call = this.call.take().expect("not polled after its answer");
        Poll::Ready(call.answered(outcome))
    }
}

/// The call until its end. If dropped before, it counts as cancelled, or as timed out if its deadline has
/// passed.
#[derive(Debug)]
pub(super) struct PassthroughCall {
    /// `None` once the call has ended.
    pub(super) call: Option<damper_core::Passthrough>,
    pub(super) route: Arc<RouteHandle>,
    pub(super) context: Option<Context>,
    pub(super) clock: Clock,
    pub(super) trace: Option<HexId>,
    pub(super) times: CallTimes,
    pub(super) attempt: AttemptTimes,
    pub(super) external: bool,
}

impl PassthroughCall {
    /// Records the end of the attempt.
    pub(super) fn ended(mut self, verdict: &Verdict, cause: Cause<'_>) {
        let Some(call) = self.call.take() else { return };
        let (began, now) = (call.began(), self.clock.now());
        let (finish, code) = call.ended(&self.route, verdict, now);
        if !finish.ending.fate.is_ok() {
            let mut trail = self.trail(began);
            trail.attempt_ended(1, code, verdict, cause, now, self.route.failures());
            trail.ended(&finish, code, now, self.route.failures());
        }
        self.record(&finish, cause::seen_as(code, matches!(cause, Cause::Error(_))), now);
    }

    /// Returns the application's result. The call ends here or with the response body.
    fn answered<B>(self, outcome: Result<Response<B>, BoxError>) -> CallResult<B>
    where
        B: http_body::Body,
        B::Error: Into<BoxError>,
    {
        let response = match outcome {
            Ok(response) => response,
            Err(error) => {
                self.ended(&verdict::of_error(&*error), Cause::Error(&*error));
                return Err(error);
            }
        };
        let mut response = match verdict::of_response(&response, self.external) {
            Some(verdict) => {
                self.ended(&verdict, Cause::Headers(response.status(), response.headers()));
                response.map(ResponseBody::decided)
            }
            None => response.map(|body| ResponseBody::begun(body, CommittedCall::Passing(self))),
        };
        headers::clean(response.headers_mut());
        Ok(response)
    }

    fn trail(&self, began: Time) -> AttemptTrail {
        AttemptTrail::of_first(Ids { trace: self.trace, call: None }, began)
    }

    fn record(&mut self, finish: &Finish, codes: CodeSet, now: Time) {
        self.times.attempt_ended(now);
        self.attempt.ended(now);
        self.times.ended(now);
        if let Some(context) = &self.context {
            context.call_ended(&self.route, finish, codes);
        }
    }
}

impl Drop for PassthroughCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (began, now) = (call.began(), self.clock.now());
        let finish = call.dropped(&self.route, now);
        let (mut trail, failures) = (self.trail(began), self.route.failures());
        let code = match finish.ending.fate {
            Fate::Deadline => {
                trail.timed_out(now, failures);
                Code::DeadlineExceeded
            }
            _ => Code::Cancelled,
        };
        trail.ended(&finish, code, now, failures);
        self.record(&finish, cause::seen_as(code, false), now);
    }
}
