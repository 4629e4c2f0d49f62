//! The server service: makes the context of each request.

use std::task::{Context as Task, Poll};

use damper_core::chain::{self, Marks};
use damper_core::deadline;
use http::{HeaderMap, Request, Response};
use tower_service::Service;

use super::body::ServerBody;
use super::future::ServerFuture;
use super::reply::Reply;
use crate::clock::Clock;
use crate::context::Context;
use crate::headers;

/// A service whose requests have a [`Context`].
#[derive(Clone, Debug)]
pub struct ServerService<S> {
    inner: S,
    clock: Clock,
    edge: bool,
}

impl<S> ServerService<S> {
    pub(super) fn new(inner: S, clock: Clock, edge: bool) -> Self {
        Self { inner, clock, edge }
    }

    fn context(&self, headers: &mut HeaderMap) -> Context {
        if self.edge {
            for name in [&headers::RETRY, &headers::PREVIOUS_ATTEMPTS, &headers::ENVOY_ATTEMPT_COUNT] {
                headers.remove(name);
            }
        }
        let marks = Marks {
            retry: headers::bytes(headers, &headers::RETRY),
            previous_attempts: headers::bytes(headers, &headers::PREVIOUS_ATTEMPTS),
            envoy_attempt_count: headers::bytes(headers, &headers::ENVOY_ATTEMPT_COUNT),
            baggage: None,
        };
        let timeout = headers::bytes(headers, &headers::TIMEOUT).and_then(deadline::parse);
        let deadline = timeout.map(|timeout| self.clock.now() + timeout);
        Context::new(marks.flag(), deadline, self.clock)
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
        let envoy = came_through_envoy(request.headers());
        let context = self.context(request.headers_mut());
        request.extensions_mut().insert(context.clone());
        // A service may make calls before its future is first polled.
        let inner = context.sync_scope(|| self.inner.call(request));
        ServerFuture::new(inner, Reply::new(context, envoy))
    }
}

fn came_through_envoy(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(chain::ENVOY_PREFIX))
}
