//! Future of a call, on either path.
//!
//! The path is chosen when the call begins; a rule that arrives later does not change it. One type covers
//! both, so that a client has one type for all rules.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::committed::CommittedCall;
use super::governed::GovernedFuture;
use super::in_flight::RequestInFlight;
use super::passthrough::PassthroughCall;
use super::response_body::{CallResult, ResponseBody};
use crate::headers;
use crate::outcome::cause::Cause;
use crate::outcome::verdict::{self, BoxError};

pin_project! {
    /// Future of a call through the client layer.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<Body>>,
        B: http_body::Body,
    {
        #[pin]
        way: Way<S, B>,
    }
}

pin_project! {
    #[project = WayProj]
    enum Way<S, B>
    where
        S: Service<Request<Body>>,
        B: http_body::Body,
    {
        Passing { #[pin] call: PassthroughFuture<S, S::Future> },
        Governed { #[pin] call: GovernedFuture<S, B> },
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<Body>>,
    B: http_body::Body,
{
    pub(super) fn passing(call: PassthroughFuture<S, S::Future>) -> Self {
        Self { way: Way::Passing { call } }
    }

    pub(super) fn governed(call: GovernedFuture<S, B>) -> Self {
        Self { way: Way::Governed { call } }
    }
}

impl<S, B> Future for ResponseFuture<S, B>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    type Output = CallResult<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProj::Passing { call } => call.poll(cx),
            WayProj::Governed { call } => call.poll(cx),
        }
    }
}

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
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult<B>> {
        let this = self.project();
        let outcome = ready!(this.sending.poll(cx));
        let call = this.call.take().expect("not polled after its answer");
        Poll::Ready(answered(call, outcome))
    }
}

/// Returns the application's result. The call ends here or with the response body.
fn answered<B>(call: PassthroughCall, outcome: Result<Response<B>, BoxError>) -> CallResult<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    let response = match outcome {
        Ok(response) => response,
        Err(error) => {
            call.ended(&verdict::of_error(&*error), Cause::Error(&*error));
            return Err(error);
        }
    };
    let mut response = match verdict::of_response(&response, call.external) {
        Some(verdict) => {
            call.ended(&verdict, Cause::Headers(response.status(), response.headers()));
            response.map(ResponseBody::decided)
        }
        None => response.map(|body| ResponseBody::begun(body, CommittedCall::Passing(call))),
    };
    headers::clean(response.headers_mut());
    Ok(response)
}
