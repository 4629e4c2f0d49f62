//! The server service: creates the context of each request and rejects retries beyond the limit.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use damper_core::chain::{self, RepeatMarks};
use damper_core::repeat_limit::LimitDecision;
use damper_core::{Time, deadline};
use http::{HeaderMap, Method, Request, Response};
use tower_service::Service;

use super::body::ServerBody;
use super::future::ServerFuture;
use super::reply::{ErrorReply, Unknown};
use crate::context::Context;
use crate::headers;
use crate::routes::{Runtime, method_of};

/// A service whose requests have a [`Context`].
#[derive(Clone)]
pub struct ServerService<S> {
    inner: S,
    engine: Arc<Runtime>,
    edge: bool,
}

impl<S> ServerService<S> {
    pub(super) fn new(inner: S, engine: Arc<Runtime>, edge: bool) -> Self {
        Self { inner, engine, edge }
    }

    fn context(&self, headers: &HeaderMap, marks: &RepeatMarks<'_>, now: Time) -> Context {
        let timeout = headers::bytes(headers, &headers::TIMEOUT).and_then(deadline::parse);
        Context::new(marks.flag(), timeout.map(|timeout| now + timeout), self.engine.clock())
    }
}

impl<S, A, B> Service<Request<A>> for ServerService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<ServerBody<B>>;
    type Error = S::Error;
    type Future = ServerFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let now = self.engine.clock().now();
        let envoy = came_through_envoy(request.headers());
        if self.edge {
            headers::drop_marks(request.headers_mut());
        }
        let marks = headers::marks(request.headers());
        let context = self.context(request.headers(), &marks, now);
        let (method, repeated_by) = (method_of(&request), marks.repeated_by());
        let arrived = is_grpc(&request).then(|| self.engine.methods().arrived(method, repeated_by, now));
        let unknown = arrived.filter(|arrived| arrived.is_open).map(|_| {
            let (engine, method) = (Arc::clone(&self.engine), method.to_owned());
            Box::new(Unknown { engine, method, repeated_by, now, is_served: false })
        });
        let reply = ErrorReply::new(context.clone(), envoy, self.edge, unknown);
        if arrived.is_some_and(|arrived| arrived.admission == LimitDecision::Shed) {
            return ServerFuture::refused(reply.refusal(request.headers()), reply);
        }
        request.extensions_mut().insert(context.clone());
        // A service may make calls before its future is first polled.
        let inner = context.sync_scope(|| self.inner.call(request));
        ServerFuture::serving(inner, reply)
    }
}

impl<S> fmt::Debug for ServerService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerService").field("edge", &self.edge).finish_non_exhaustive()
    }
}

/// Only gRPC requests have methods. Others are forwarded: a port may also serve pages and other protocols.
fn is_grpc<A>(request: &Request<A>) -> bool {
    request.method() == Method::POST && headers::has_grpc_type(request.headers())
}

fn came_through_envoy(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(chain::ENVOY_PREFIX))
}
