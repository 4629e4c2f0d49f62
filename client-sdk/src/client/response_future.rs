//! The future of a call: of one that passes, or of one that the engine may have something to decide about.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::governed::Governed;
use super::passing::Passing;
use super::response_body::ResponseBody;
use super::verdict::BoxError;

/// What the application gets.
pub(super) type Answered<B> = Result<Response<ResponseBody<B>>, BoxError>;

pin_project! {
    /// The future of a call through the client layer.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<Body>>,
        B: http_body::Body,
    {
        #[pin]
        call: Of<S, B>,
    }
}

pin_project! {
    #[project = OfProj]
    enum Of<S, B>
    where
        S: Service<Request<Body>>,
        B: http_body::Body,
    {
        Passing { #[pin] call: Passing<S, S::Future> },
        Governed { #[pin] call: Governed<S, B> },
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<Body>>,
    B: http_body::Body,
{
    pub(super) fn passing(call: Passing<S, S::Future>) -> Self {
        Self { call: Of::Passing { call } }
    }

    pub(super) fn governed(call: Governed<S, B>) -> Self {
        Self { call: Of::Governed { call } }
    }
}

impl<S, B> Future for ResponseFuture<S, B>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    type Output = Answered<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().call.project() {
            OfProj::Passing { call } => call.poll(cx),
            OfProj::Governed { call } => call.poll(cx),
        }
    }
}
