//! Future of a call under a rule, from its first attempt to its response.
//!
//! ```text
//! step: Send -> starts an attempt, concurrent with those in flight
//!       Wait -> polls attempts and timer, reports to the call, takes the next step
//!       Finish, or a response begins -> drops all other attempts, which resets their streams
//! ```
//!
//! It makes no decisions: it reports events to the engine's `Call` and carries out its steps. The first
//! attempt and retries are stored inline; only hedges are allocated. While the call waits between attempts it
//! keeps the last failure, because a kill may end the wait with it. A request that is still arriving is kept
//! meanwhile, and read here between attempts. A call that ended and is handed over
//! waits for the queue, see `handing`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use damper_core::{SendAttempt, Step};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

mod ended;
#[cfg(feature = "queue")]
mod handing;
#[cfg(not(feature = "queue"))]
#[path = "not_handing.rs"]
mod handing;

use self::ended::EndedCall;
use self::handing::Handing;
use super::attempt::{Attempt, AttemptResult};
use super::committed::CommittedCall;
use super::held_response::HeldResponse;
use super::in_flight::RequestInFlight;
use super::response_body::{CallResult, ResponseBody};
use super::slot::{CallSlot, CallState, CommittedAttempt};
use crate::balance::tried;
use crate::headers;
use crate::outcome::cause::Cause;
use crate::outcome::verdict::{self, BoxError};
use crate::record::telemetry::AttemptSpan;

pin_project! {
    /// Future of a call for which the engine may have decisions to make.
    pub(super) struct GovernedFuture<S, B>
    where
        S: Service<Request<Body>>,
        B: http_body::Body,
    {
        #[pin]
        main: Attempt<S, S::Future, B>,
        hedges: Vec<Pin<Box<Attempt<S, S::Future, B>>>>,
        // Step to carry out before polling.
        step: Option<Step>,
        calling: Option<CallSlot>,
        // Service for further attempts; `None` if there is at most one attempt.
        service: Option<S>,
        // Failure of the last attempt, while the call waits for the next.
        last: Option<Box<CallResult<B>>>,
        handing: Handing<B>,
    }
}

impl<S, B> GovernedFuture<S, B>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Sends the first attempt, at once if the service is ready.
    pub(super) fn begin(
        mut calling: CallSlot,
        step: Step,
        mut request: Request<Body>,
        service: &mut S,
        is_ready: bool,
    ) -> Self {
        let Step::Send(send) = step else {
            return Self {
                main: Attempt::none(),
                hedges: Vec::new(),
                step: Some(step),
                calling: Some(calling),
                service: None,
                last: None,
                handing: Handing::none(),
            };
        };
        let again = calling.requests.may_repeat().then(|| service.clone());
        calling.requests.mark(request.headers_mut(), &send, &calling.call);
        let watch = calling.call.attempt_sent(&send);
        let send = || RequestInFlight::begin(service, is_ready, request);
        let sending = watch.span().in_scope(|| tried::with(&mut calling.tried, send));
        let main = Attempt::sending(watch, sending);
        Self {
            main,
            hedges: Vec::new(),
            step: None,
            calling: Some(calling),
            service: again,
            last: None,
            handing: Handing::none(),
        }
    }
}

impl<S, B> Future for GovernedFuture<S, B>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    type Output = CallResult<B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(answer) = self.as_mut().project().handing.poll(cx) {
                return answer;
            }
            let (step, came) = match self.as_mut().project().step.take() {
                Some(step) => (step, None),
                None => match self.as_mut().poll_in_flight(cx) {
                    None => (ready!(self.as_mut().poll_timer(cx)), None),
                    Some(attempt) => match self.as_mut().check(attempt) {
                        AttemptOutcome::Ended(step, came) => (step, Some(came)),
                        AttemptOutcome::Begun(watch, came) => {
                            return Poll::Ready(self.as_mut().begun(watch, came));
                        }
                        AttemptOutcome::Held => continue,
                    },
                },
            };
            match step {
                Step::Send(send) => self.as_mut().send(&send),
                Step::Wait { .. } => self.as_mut().keep(came),
                Step::Cancel { attempt } => self.as_mut().cancel(attempt),
                Step::Finish(finish) => {
                    self.as_mut().give_up_attempts();
                    let this = self.as_mut().project();
                    let mut calling = this.calling.take().expect("not polled after its answer");
                    let (refusal, report) = (calling.refusal.take(), calling.call.report(&finish));
                    let last = came.map(answered).or_else(|| this.last.take().map(|last| *last));
                    let ended = EndedCall { finish, last, refusal, report };
                    if let Some(ended) = this.handing.begin(&mut calling, ended) {
                        return Poll::Ready(ended.answer());
                    }
                }
            }
        }
    }
}

/// An attempt that has a result.
struct FinishedAttempt<B: http_body::Body> {
    watch: AttemptSpan,
    came: AttemptResult<B>,
}

/// Meaning of a result.
enum AttemptOutcome<B: http_body::Body> {
    /// The attempt ended; the next step follows.
    Ended(Step, AttemptResult<B>),
    /// The response has begun and goes to the application.
    Begun(AttemptSpan, AttemptResult<B>),
    /// The response has begun and is held.
    Held,
}

impl<S, B> GovernedFuture<S, B>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Returns an attempt that has a result. The call learns before if its request is kept.
    fn poll_in_flight(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Option<FinishedAttempt<B>> {
        let finished = self.as_mut().poll_attempts(cx);
        self.project().calling.as_mut().expect("not polled after its answer").poll_request(cx);
        finished
    }

    /// Returns an attempt that has a result; `None` if all are pending.
    fn poll_attempts(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Option<FinishedAttempt<B>> {
        let mut this = self.project();
        let calling = this.calling.as_mut().expect("not polled after its answer");
        if let Poll::Ready(came) = tried::with(&mut calling.tried, || this.main.as_mut().poll(cx)) {
            return Some(FinishedAttempt { watch: this.main.take_watch(), came });
        }
        for index in 0..this.hedges.len() {
            if let Some(attempt) = this.hedges.get_mut(index)
                && let Poll::Ready(came) = tried::with(&mut calling.tried, || attempt.as_mut().poll(cx))
            {
                let mut attempt = this.hedges.swap_remove(index);
                return Some(FinishedAttempt { watch: attempt.as_mut().take_watch(), came });
            }
        }
        None
    }

    /// Ready with the next step when the timer fires.
    fn poll_timer(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step> {
        let calling = self.project().calling.as_mut().expect("not polled after its answer");
        let CallState { call, timer, alarm, .. } = &mut **calling;
        if !call.is_enforced() {
            return Poll::Pending;
        }
        loop {
            alarm.listen(call.bell(), call.is_between_attempts());
            match call.next_step() {
                Step::Wait { .. } if alarm.poll(cx).is_ready() => {}
                Step::Wait { until } => ready!(timer.poll(until, call.clock(), cx)),
                step => return Poll::Ready(step),
            }
        }
    }

    /// Keeps the result of the last attempt while the call waits.
    fn keep(self: Pin<&mut Self>, came: Option<AttemptResult<B>>) {
        let this = self.project();
        let is_waiting = this.calling.as_ref().is_some_and(|calling| calling.call.is_between_attempts());
        if let Some(came) = came.filter(|_| is_waiting) {
            *this.last = Some(Box::new(released(came)));
        }
    }

    fn check(mut self: Pin<&mut Self>, arrived: FinishedAttempt<B>) -> AttemptOutcome<B> {
        let FinishedAttempt { watch, came } = arrived;
        let this = self.as_mut().project();
        let calling = this.calling.as_mut().expect("not polled after its answer");
        let verdict = match &came {
            AttemptResult::Outcome(Ok(response)) => verdict::of_response(response, calling.external),
            AttemptResult::Outcome(Err(error)) => Some(verdict::of_error(&**error)),
            AttemptResult::Held(held) => held.verdict(calling.external),
        };
        if let Some(verdict) = verdict {
            let cause = match &came {
                AttemptResult::Outcome(Ok(response)) => Cause::Headers(response.status(), response.headers()),
                AttemptResult::Outcome(Err(error)) => Cause::Error(&**error),
                AttemptResult::Held(held) => held.cause(),
            };
            return AttemptOutcome::Ended(calling.call.attempt_ended(watch, verdict, cause), came);
        }
        // Holding has no benefit if the request cannot be retried.
        let can_repeat = calling.requests.may_repeat() && calling.requests.are_replayable();
        let limit = calling.call.hold_limit().filter(|_| can_repeat);
        match (limit, came) {
            (Some(limit), AttemptResult::Outcome(Ok(response))) => {
                self.put(Attempt::holding(watch, Box::new(HeldResponse::new(response, limit))));
                AttemptOutcome::Held
            }
            (_, came) => AttemptOutcome::Begun(watch, came),
        }
    }

    /// Hands the call over to the response body.
    fn begun(mut self: Pin<&mut Self>, watch: AttemptSpan, came: AttemptResult<B>) -> CallResult<B> {
        self.as_mut().give_up_attempts();
        let calling = self.project().calling.take().expect("not polled after its answer");
        let call = CommittedCall::Governed(CommittedAttempt::new(calling, watch));
        let mut response = match came {
            AttemptResult::Outcome(response) => response?.map(|body| ResponseBody::begun(body, call)),
            AttemptResult::Held(held) => ResponseBody::released(*held, call),
        };
        headers::clean(response.headers_mut());
        Ok(response)
    }

    fn send(mut self: Pin<&mut Self>, send: &SendAttempt) {
        self.as_mut().project().last.take();
        let this = self.as_mut().project();
        let calling = this.calling.as_mut().expect("not polled after its answer");
        let service = this.service.clone().expect("only a call that is kept is repeated");
        let request = calling.requests.again(send, &calling.call);
        let request = request.expect("only a call that is kept is repeated");
        let watch = calling.call.attempt_sent(send);
        self.put(Attempt::sending(watch, RequestInFlight::preparing(service, request)));
    }

    /// Ends an attempt whose time limit has passed.
    fn cancel(self: Pin<&mut Self>, number: u32) {
        let mut this = self.project();
        let watch = if this.main.number() == number {
            let watch = this.main.as_mut().take_watch();
            this.main.set(Attempt::none());
            watch
        } else {
            let index = this.hedges.iter().position(|attempt| attempt.number() == number);
            let index = index.expect("only an attempt in flight is cancelled");
            this.hedges.swap_remove(index).as_mut().take_watch()
        };
        let calling = this.calling.as_mut().expect("not polled after its answer");
        *this.step = Some(calling.call.attempt_timed_out(watch));
    }

    /// Stores an attempt inline if possible, else on the heap.
    fn put(self: Pin<&mut Self>, attempt: Attempt<S, S::Future, B>) {
        let mut this = self.project();
        if this.main.is_over() {
            this.main.set(attempt);
        } else {
            this.hedges.push(Box::pin(attempt));
        }
    }

    /// Drops all attempts in flight; their streams are reset.
    fn give_up_attempts(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.main.as_mut().give_up();
        while let Some(mut attempt) = this.hedges.pop() {
            attempt.as_mut().give_up();
        }
    }
}

fn answered<B>(came: AttemptResult<B>) -> CallResult<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    match came {
        AttemptResult::Outcome(response) => Ok(response?.map(ResponseBody::decided)),
        AttemptResult::Held(held) => Ok(ResponseBody::held(*held)),
    }
}

/// As [`answered`], but drops an open stream: a response whose status is known must not hold one while the
/// call waits.
fn released<B>(came: AttemptResult<B>) -> CallResult<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    match came {
        AttemptResult::Outcome(Ok(response)) if !response.body().is_end_stream() => {
            Ok(response.map(|_| ResponseBody::empty()))
        }
        came => answered(came),
    }
}
