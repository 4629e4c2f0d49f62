//! An HTTP client with rules: the calls of its requests, and their attempts.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use damper_core::{CallOptions, Policy, deadline, http as rules};
use damper_retry::{Attempt, Body, Calling, Failed, driver};
use http::{Extensions, HeaderMap, HeaderValue};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::assess::Sent;
use super::layer::{Handle, PathTemplate, Shared};
use super::message::{HttpRequest, HttpResponse};
use crate::context::Context;
use crate::headers;
use crate::operation::Governed;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const EARLY_DATA: &str = "early-data";

/// An HTTP client with Damper's rules applied.
#[derive(Clone)]
pub struct HttpClient<S> {
    inner: S,
    is_ready: bool,
    shared: Arc<Shared>,
    /// Template of all requests.
    at: Option<Arc<str>>,
    /// Options of requests without their own.
    options: Option<CallOptions>,
}

impl<S> HttpClient<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, is_ready: false, shared, at: None, options: None }
    }

    /// Returns the client for requests to the paths of one template: `client.at("/orders/{id}")`. A
    /// [`PathTemplate`] in the extensions of an `http::Request` replaces it.
    #[must_use]
    pub fn at(&self, template: &str) -> Self
    where
        S: Clone,
    {
        Self { at: Some(template.into()), is_ready: false, ..self.clone() }
    }

    /// Returns the client with options for its calls: `client.with_options(CallOptions::new().idempotent())`.
    /// Options in the extensions of an `http::Request` replace them.
    #[must_use]
    pub fn with_options(&self, options: CallOptions) -> Self
    where
        S: Clone,
    {
        Self { options: Some(options), is_ready: false, ..self.clone() }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The last attempt's error, or why the request was not sent.
    pub fn send<R>(&self, request: R) -> HttpFuture<S, R>
    where
        S: Service<R> + Clone,
        R: HttpRequest,
        S::Response: HttpResponse,
        S::Error: Error + 'static,
    {
        self.begin(None, self.inner.clone(), request)
    }

    fn begin<R>(&self, ready: Option<S>, service: S, request: R) -> HttpFuture<S, R>
    where
        S: Service<R> + Clone,
        R: HttpRequest,
        S::Response: HttpResponse,
        S::Error: Error + 'static,
    {
        let extensions = request.extensions();
        let template = extensions.and_then(Extensions::get::<PathTemplate>).map(|template| &*template.0);
        let template = template.or(self.at.as_deref());
        let mut handle = self.shared.handle(request.method(), request.path(), template);
        let options = extensions.and_then(|extensions| extensions.get().copied());
        let options = options.or(self.options).unwrap_or_default();
        let context = extensions.and_then(|extensions| extensions.get().cloned());
        if options != CallOptions::new() {
            handle = Arc::new(handle.with_options(options));
        }
        let policy = handle.source().policy(|policy: &Policy| {
            (policy.repeats(), policy.replay_limit, policy.chain.propagate_baggage)
        });
        let (repeats, replay_limit, baggage) = policy.unwrap_or_default();
        let is_short = request.body_len().is_none_or(|length| length <= u64::from(replay_limit));
        let is_kept = repeats && is_short && options.allow_repeats();
        let copy = is_kept.then(|| request.try_clone()).flatten();
        let replayable = copy.is_some();
        let is_idempotent = options.is_idempotent()
            || rules::is_idempotent(request.method().as_str())
            || request.headers().contains_key(IDEMPOTENCY_KEY);
        let attempts = HttpAttempts {
            ready,
            service,
            early_data: request.headers().contains_key(EARLY_DATA),
            first: Some(request),
            copy,
            is_idempotent,
            external: self.shared.external,
            baggage,
        };
        HttpFuture { context, call: Calling::new(handle, attempts, is_idempotent, replayable) }
    }
}

impl<S, R> Service<R> for HttpClient<S>
where
    S: Service<R> + Clone,
    R: HttpRequest,
    S::Response: HttpResponse,
    S::Error: Error + 'static,
{
    type Response = S::Response;
    type Error = damper_retry::Error<S::Error>;
    type Future = HttpFuture<S, R>;

    /// Always ready: waiting for the inner service is part of the attempt.
    fn poll_ready(&mut self, cx: &mut Task<'_>) -> Poll<Result<(), Self::Error>> {
        self.is_ready = matches!(self.inner.poll_ready(cx), Poll::Ready(Ok(())));
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> HttpFuture<S, R> {
        let service = self.inner.clone();
        let is_ready = std::mem::take(&mut self.is_ready);
        let ready = is_ready.then(|| std::mem::replace(&mut self.inner, service.clone()));
        self.begin(ready, service, request)
    }
}

impl<S> fmt::Debug for HttpClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("callee", &self.shared.callee()).finish_non_exhaustive()
    }
}

/// Sends the attempts of one request.
#[derive(Debug)]
pub struct HttpAttempts<S, R> {
    /// The service that was ready when the call began.
    ready: Option<S>,
    service: S,
    first: Option<R>,
    copy: Option<R>,
    is_idempotent: bool,
    early_data: bool,
    external: bool,
    baggage: bool,
}

impl<S: Service<R> + Clone, R: HttpRequest> Body for HttpAttempts<S, R> {
    type Future = Sending<S, R>;

    fn start(&mut self, attempt: Attempt) -> Sending<S, R> {
        let request = self.first.take().or_else(|| self.copy.as_ref().and_then(R::try_clone));
        let request = request.map(|mut request| {
            self.mark(request.headers_mut(), attempt);
            request
        });
        let is_ready = self.ready.is_some();
        let service = self.ready.take().unwrap_or_else(|| self.service.clone());
        let sent = Sent { value: (), is_idempotent: self.is_idempotent, early_data: self.early_data };
        Sending { sending: driver::Sending::new(service, request, is_ready), sent }
    }

    fn may_follow_cut(&self) -> bool {
        self.is_idempotent
    }
}

impl<S, R> HttpAttempts<S, R> {
    /// Sets flag and deadline. A request may carry those of a request being served, which are not its own.
    fn mark(&self, headers: &mut HeaderMap, attempt: Attempt) {
        headers::drop_repeat_marks(headers);
        headers.remove(&headers::HTTP_TIMEOUT);
        if self.external {
            return;
        }
        let left = attempt.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(retry) = attempt.retry_flag() {
            headers.insert(&headers::RETRY, HeaderValue::from(retry));
            if self.baggage {
                headers::put_baggage(headers, retry, left);
            }
        }
        if let Some(left) = left {
            let value = deadline::HeaderValue::new(left).to_string();
            headers.insert(&headers::HTTP_TIMEOUT, HeaderValue::try_from(value).expect("digits and a unit"));
        }
    }
}

pin_project! {
    /// Future of one attempt.
    pub struct Sending<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        sending: driver::Sending<S, R>,
        sent: Sent<()>,
    }
}

impl<S: Service<R>, R> Future for Sending<S, R> {
    type Output = Result<Sent<S::Response>, Sent<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let outcome = std::task::ready!(this.sending.poll(cx));
        Poll::Ready(outcome.map(|value| this.sent.with(value)).map_err(|error| this.sent.with(error)))
    }
}

pin_project! {
    /// Future of an HTTP request with its retries.
    #[must_use = "futures do nothing unless polled"]
    pub struct HttpFuture<S, R>
    where
        S: Service<R>,
        S: Clone,
        R: HttpRequest,
    {
        // The context in the extensions of the request; otherwise that of the task applies.
        context: Option<Context>,
        #[pin]
        call: Calling<Handle, Governed, HttpAttempts<S, R>, Sent<S::Response>, Sent<S::Error>>,
    }
}

impl<S, R> Future for HttpFuture<S, R>
where
    S: Service<R> + Clone,
    R: HttpRequest,
    S::Response: HttpResponse,
    S::Error: Error + 'static,
{
    type Output = Result<S::Response, damper_retry::Error<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        use damper_retry::Error;
        let this = self.project();
        let polled = match this.context {
            Some(context) => context.sync_scope(|| this.call.poll(cx)),
            None => this.call.poll(cx),
        };
        let outcome = std::task::ready!(polled);
        Poll::Ready(outcome.map(|sent| sent.value).map_err(|error| match error {
            Error::Failed(Failed { last, ending, attempts, elapsed }) => {
                Error::Failed(Failed { last: last.value, ending, attempts, elapsed })
            }
            Error::NotAnswered(not_answered) => Error::NotAnswered(not_answered),
        }))
    }
}
