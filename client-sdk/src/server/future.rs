//! Runs the handler in the context of its request, or responds in its place.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use http::{HeaderMap, Response};
use pin_project_lite::pin_project;

use super::body::ServerBody;
use super::reply::ErrorReply;
use crate::context::Scope;

pin_project! {
    /// Future of a request through the server layer.
    pub struct ServerFuture<F> {
        #[pin]
        state: State<F>,
        reply: Option<ErrorReply>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Serving { #[pin] inner: Scope<F> },
        Refused { answer: HeaderMap },
    }
}

impl<F: Future> ServerFuture<F> {
    pub(super) fn serving(inner: F, reply: ErrorReply) -> Self {
        let inner = reply.context().clone().scope(inner);
        Self { state: State::Serving { inner }, reply: Some(reply) }
    }

    /// Responds with these headers without running the handler.
    pub(super) fn refused(answer: HeaderMap, reply: ErrorReply) -> Self {
        Self { state: State::Refused { answer }, reply: Some(reply) }
    }
}

impl<F, B, E> Future for ServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reply = this.reply;
        let mut end = || reply.take().expect("not polled after its answer");
        Poll::Ready(match this.state.project() {
            StateProjection::Serving { inner } => {
                let mut response = ready!(inner.poll(cx))?;
                let mut reply = end();
                reply.begins(response.status(), response.headers());
                reply.flag(response.headers_mut());
                Ok(response.map(|body| ServerBody::new(body, reply)))
            }
            StateProjection::Refused { answer } => {
                let mut response = Response::new(ServerBody::empty(end()));
                *response.headers_mut() = mem::take(answer);
                Ok(response)
            }
        })
    }
}
