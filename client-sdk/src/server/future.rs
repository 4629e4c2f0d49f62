//! Runs the handler inside its request's context.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;

use super::body::ServerBody;
use super::reply::Reply;
use crate::context::Scope;

pin_project! {
    /// The future of a request through the server layer.
    pub struct ServerFuture<F> {
        #[pin]
        inner: Scope<F>,
        reply: Option<Reply>,
    }
}

impl<F: Future> ServerFuture<F> {
    pub(super) fn new(inner: F, reply: Reply) -> Self {
        Self { inner: reply.context().clone().scope(inner), reply: Some(reply) }
    }
}

impl<F, B, E> Future for ServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx))?;
        let reply = this.reply.take().expect("not polled after its answer");
        reply.flag(response.headers_mut());
        Poll::Ready(Ok(response.map(|body| ServerBody::new(body, reply))))
    }
}
