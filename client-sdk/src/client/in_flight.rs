//! A request in flight: waits for the inner service to be ready, calls it, and waits for the response
//! headers.
//!
//! A ready service is called at once, without an allocation. Otherwise service and request wait together on
//! the heap, so that the future of other calls has no space for them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use crate::outcome::verdict::BoxError;

pin_project! {
    #[project = SendingProj]
    pub(super) enum RequestInFlight<S, F> {
        Preparing { prepared: Box<WaitingForReady<S>> },
        Sent { #[pin] answer: F },
        // The response has begun, or the request failed.
        Over,
    }
}

/// Waits until the inner service is ready; part of the attempt.
pub(super) struct WaitingForReady<S> {
    service: S,
    /// `None` once sent.
    request: Option<Request<Body>>,
}

impl<S, F> RequestInFlight<S, F> {
    /// Returns a request that waits for its service to be ready.
    pub(super) fn preparing(service: S, request: Request<Body>) -> Self {
        Self::Preparing { prepared: Box::new(WaitingForReady { service, request: Some(request) }) }
    }
}

impl<S, B> RequestInFlight<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    /// Sends the request at once if the service is ready. A service that is not ready may hold a place in a
    /// queue, so that one is waited for, and a clone takes its place.
    pub(super) fn begin(service: &mut S, is_ready: bool, request: Request<Body>) -> Self
    where
        S: Clone,
    {
        if is_ready {
            Self::Sent { answer: service.call(request) }
        } else {
            let next = service.clone();
            Self::preparing(std::mem::replace(service, next), request)
        }
    }

    /// Ready once, with the response or error.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<B>, BoxError>> {
        let outcome = loop {
            let answer = match self.as_mut().project() {
                SendingProj::Preparing { prepared } => ready!(prepared.poll(cx)),
                SendingProj::Sent { answer } => break ready!(answer.poll(cx)).map_err(Into::into),
                SendingProj::Over => return Poll::Pending,
            };
            match answer {
                Ok(answer) => self.set(Self::Sent { answer }),
                Err(error) => break Err(error),
            }
        };
        self.set(Self::Over);
        Poll::Ready(outcome)
    }
}

impl<S> WaitingForReady<S>
where
    S: Service<Request<Body>>,
    S::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<S::Future, BoxError>> {
        let is_ready = ready!(self.service.poll_ready(cx));
        Poll::Ready(
            is_ready
                .map_err(Into::into)
                .map(|()| self.service.call(self.request.take().expect("a request is sent once"))),
        )
    }
}
