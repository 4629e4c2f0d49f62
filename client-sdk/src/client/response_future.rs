//! A call from its first send to its answer: a driver of the engine's steps.
//!
//! ```text
//! Preparing -> Sending -> Waiting -> Preparing ...
//!     |           |          |
//!     +-----------+----------+---> Ended
//! ```
//!
//! It decides nothing: whenever something happened it tells the call and does what the step says.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use damper_core::{Answer, Finish, Step};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::active_call::ActiveCall;
use super::requests::Requests;
use super::response_body::ResponseBody;
use super::timed_out;
use super::timer::Timer;
use super::verdict::{self, BoxError};
use crate::headers;

pin_project! {
    /// The future of a call through the client layer.
    pub struct ResponseFuture<S>
    where
        S: Service<Request<Body>>,
    {
        #[pin]
        state: State<S, S::Future>,
        calling: Option<Calling<S>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F> {
        // The call ended before anything was sent.
        Unsent { finish: Option<Finish> },
        // Waits until the inner service takes a request; that is part of the attempt.
        Preparing { service: S, request: Option<Request<Body>> },
        Sending { #[pin] attempt: F },
        // Waits before a retry.
        Waiting,
        Ended,
    }
}

/// What a call needs until it has its answer.
pub(super) struct Calling<S> {
    pub(super) call: ActiveCall,
    pub(super) requests: Requests,
    /// To send again by; none if there is at most one attempt.
    pub(super) service: Option<S>,
    pub(super) timer: Timer,
    pub(super) external: bool,
}

/// What an attempt came to.
type Outcome<B> = Result<Response<B>, BoxError>;
/// What the application gets.
type Answered<B> = Result<Response<ResponseBody<B>>, BoxError>;

impl<S, B> ResponseFuture<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
{
    /// Sends the first attempt, at once if the service is ready.
    pub(super) fn begin(
        calling: Calling<S>,
        step: Step,
        mut request: Request<Body>,
        service: &mut S,
        is_ready: bool,
    ) -> Self {
        let state = match step {
            Step::Send(send) => {
                calling.requests.mark(request.headers_mut(), &send);
                if is_ready {
                    State::Sending { attempt: service.call(request) }
                } else {
                    State::Preparing { service: service.clone(), request: Some(request) }
                }
            }
            Step::Finish(finish) => State::Unsent { finish: Some(finish) },
            Step::Wait { .. } | Step::Cancel { .. } => State::Waiting,
        };
        Self { state, calling: Some(calling) }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
{
    type Output = Answered<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let calling = this.calling.as_mut().expect("not polled after its answer");
            let (step, outcome) = match ready!(calling.poll_event(this.state.as_mut(), cx)) {
                Event::Step(step) => (step, None),
                Event::Outcome(outcome) => match outcome_verdict(&outcome, calling.external) {
                    Some(verdict) => (calling.call.attempt_ended(verdict), Some(outcome)),
                    None => {
                        this.state.set(State::Ended);
                        return Poll::Ready(begun(this.calling.take(), outcome));
                    }
                },
            };
            // Here a failed attempt and its answer are let go, unless they are what the application gets.
            match step {
                Step::Send(send) => {
                    let request = calling.requests.again(&send);
                    let service = calling.service.clone().expect("only a call that is kept is repeated");
                    this.state.set(State::Preparing { service, request });
                }
                Step::Wait { .. } | Step::Cancel { .. } => this.state.set(State::Waiting),
                Step::Finish(finish) => {
                    this.state.set(State::Ended);
                    this.calling.take();
                    return Poll::Ready(answer(finish, outcome));
                }
            }
        }
    }
}

/// What happened.
enum Event<B> {
    /// The call knows what to do next.
    Step(Step),
    /// An attempt ended, or its answer began.
    Outcome(Outcome<B>),
}

impl<S, B> Calling<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
{
    fn poll_event(
        &mut self,
        mut state: Pin<&mut State<S, S::Future>>,
        cx: &mut Context<'_>,
    ) -> Poll<Event<B>> {
        let attempt = match state.as_mut().project() {
            StateProj::Unsent { finish } => {
                let finish = finish.take().expect("not polled after its answer");
                return Poll::Ready(Event::Step(Step::Finish(finish)));
            }
            StateProj::Preparing { service, request } => match service.poll_ready(cx) {
                Poll::Ready(Ok(())) => {
                    let request = request.take().expect("a request is sent once");
                    let attempt = service.call(request);
                    state.set(State::Sending { attempt });
                    return self.poll_event(state, cx);
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            },
            StateProj::Sending { attempt } => attempt.poll(cx),
            StateProj::Waiting => Poll::Pending,
            StateProj::Ended => unreachable!("a call that has ended is not polled"),
        };
        match attempt {
            Poll::Ready(outcome) => Poll::Ready(Event::Outcome(outcome.map_err(Into::into))),
            Poll::Pending => self.poll_timer(cx).map(Event::Step),
        }
    }

    /// Ready with what to do when the time has come that the call waits for.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if !self.call.is_enforced() {
            return Poll::Pending;
        }
        loop {
            match self.call.next_step() {
                Step::Wait { until } => ready!(self.timer.poll(until, self.call.clock(), cx)),
                // The attempt is let go when the state changes, at the next step.
                Step::Cancel { .. } => return Poll::Ready(self.call.attempt_timed_out()),
                step => return Poll::Ready(step),
            }
        }
    }
}

fn outcome_verdict<B>(outcome: &Outcome<B>, external: bool) -> Option<damper_core::Verdict> {
    match outcome {
        Ok(response) => verdict::of_response(response, external),
        Err(error) => Some(verdict::of_error(&**error)),
    }
}

/// The answer has begun: the body goes on with the call.
fn begun<S, B: http_body::Body>(calling: Option<Calling<S>>, outcome: Outcome<B>) -> Answered<B> {
    let calling = calling.expect("not polled after its answer");
    let mut response = outcome?;
    headers::strip_hop_by_hop(response.headers_mut());
    let Calling { call, timer, external, .. } = calling;
    Ok(response.map(|body| ResponseBody::begun(body, call, timer, external)))
}

fn answer<B: http_body::Body>(finish: Finish, outcome: Option<Outcome<B>>) -> Answered<B> {
    match (finish.answer, outcome) {
        (Answer::Attempt(_), Some(outcome)) => {
            let mut response = outcome?;
            headers::strip_hop_by_hop(response.headers_mut());
            Ok(response.map(ResponseBody::decided))
        }
        (Answer::TimedOut, _) | (_, None) => Ok(timed_out::response(ResponseBody::empty())),
    }
}
