//! The server layer for HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use damper_core::{chain, deadline, http as rules};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::context::{Context, Scope};
use crate::headers;
use crate::routes::Runtime;

/// Gives each request of an HTTP server a [`Context`]. Made by
/// [`Damper::http_server_layer`](crate::Damper::http_server_layer).
#[derive(Clone, Debug)]
pub struct HttpServerLayer {
    engine: Arc<Runtime>,
    internal: bool,
}

impl HttpServerLayer {
    pub(crate) fn new(engine: Arc<Runtime>) -> Self {
        engine.set_serves();
        Self { engine, internal: false }
    }

    /// Treats the clients as services inside the system: reads their flags and deadlines, and asks them not
    /// to retry what was retried here.
    #[must_use]
    pub fn internal(self) -> Self {
        Self { internal: true, ..self }
    }
}

impl<S> Layer<S> for HttpServerLayer {
    type Service = HttpServerService<S>;

    fn layer(&self, inner: S) -> HttpServerService<S> {
        HttpServerService { inner, layer: self.clone() }
    }
}

/// A service whose requests have a [`Context`].
#[derive(Clone, Debug)]
pub struct HttpServerService<S> {
    inner: S,
    layer: HttpServerLayer,
}

impl<S, A, B> Service<Request<A>> for HttpServerService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<HttpServerBody<B>>;
    type Error = S::Error;
    type Future = HttpServerFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let HttpServerLayer { engine, internal } = &self.layer;
        let clock = engine.clock();
        let context = if *internal {
            let timeout = headers::bytes(request.headers(), &headers::HTTP_TIMEOUT).and_then(deadline::parse);
            let deadline = timeout.map(|timeout| clock.now() + timeout);
            Context::new(headers::marks(request.headers()).flag(), deadline, clock)
        } else {
            headers::drop_marks(request.headers_mut());
            request.headers_mut().remove(&headers::HTTP_TIMEOUT);
            Context::new(None, None, clock)
        };
        request.extensions_mut().insert(context.clone());
        // A service may make calls before its future is first polled.
        let inner = context.sync_scope(|| self.inner.call(request));
        HttpServerFuture { inner: context.clone().scope(inner), context, internal: *internal }
    }
}

pin_project! {
    /// Future of a request through the HTTP server layer.
    pub struct HttpServerFuture<F> {
        #[pin]
        inner: Scope<F>,
        context: Context,
        internal: bool,
    }
}

impl<F, B, E> Future for HttpServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<HttpServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx))?;
        let code = rules::code_of(response.status().as_u16());
        // A handler may forward the response of a callee with its flag.
        response.headers_mut().remove(&headers::NO_MORE_RETRY);
        if *this.internal && code.is_some_and(|code| this.context.chain().no_more_retry_over_http(code)) {
            let flag = HeaderValue::from_static(chain::NO_MORE_RETRY_VALUE);
            response.headers_mut().insert(&headers::NO_MORE_RETRY, flag);
        }
        let context = this.context.clone();
        Poll::Ready(Ok(response.map(|inner| HttpServerBody { inner, context })))
    }
}

pin_project! {
    /// Response body of the HTTP server layer, polled in the context of its request: streaming handlers make
    /// calls there.
    #[derive(Debug)]
    pub struct HttpServerBody<B> {
        #[pin]
        inner: B,
        context: Context,
    }
}

impl<B: Body> Body for HttpServerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        this.context.sync_scope(|| this.inner.poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
