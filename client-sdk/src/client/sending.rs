//! A request on its way, until the headers of its answer: the inner service, asked whether it is ready.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::verdict::BoxError;

pin_project! {
    #[project = SendingProj]
    pub(super) enum Sending<S, F> {
        // Apart, for it is large: almost every first attempt is sent at once, and calls are moved.
        Preparing { prepared: Box<Prepared<S>> },
        Sent { #[pin] answer: F },
    }
}

/// Waits until the inner service takes a request; that is part of the attempt.
pub(super) struct Prepared<S> {
    service: S,
    /// None once it was sent.
    request: Option<Request<Body>>,
}

impl<S, F> Sending<S, F> {
    /// The service is to be asked whether it is ready.
    pub(super) fn preparing(service: S, request: Request<Body>) -> Self {
        Self::Preparing { prepared: Box::new(Prepared { service, request: Some(request) }) }
    }
}

impl<S, B> Sending<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    /// Sends the request at once if the service has said that it is ready.
    pub(super) fn begin(service: &mut S, is_ready: bool, request: Request<Body>) -> Self
    where
        S: Clone,
    {
        if is_ready {
            Self::Sent { answer: service.call(request) }
        } else {
            Self::preparing(service.clone(), request)
        }
    }

    /// Ready with what came of it.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<B>, BoxError>> {
        loop {
            let answer = match self.as_mut().project() {
                SendingProj::Preparing { prepared } => ready!(prepared.poll(cx))?,
                SendingProj::Sent { answer } => return answer.poll(cx).map_err(Into::into),
            };
            self.set(Self::Sent { answer });
        }
    }
}

impl<S> Prepared<S>
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
