//! Future of a call, on either path.
//!
//! The path is chosen when the call begins; a rule that arrives later does not change it. One type covers
//! both, so that a client has one type for all rules.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::governed::GovernedFuture;
use super::passing::PassthroughFuture;
use super::response_body::ResponseBody;
use super::verdict::BoxError;

/// Result for the application.
pub(super) type CallResult<B> = Result<Response<ResponseBody<B>>, BoxError>;

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
