//! The client layer for HTTP.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use arc_swap::ArcSwap;
use damper_core::{CallOptions, MAX_ROUTES, Policy, deadline, http as rules, key};
use damper_retry::{Attempt, Body, Calling, Failed, Retry, driver};
use http::{HeaderMap, HeaderValue, Method};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::assess::{Assess, Sent};
use super::message::{HttpRequest, HttpResponse};
use crate::headers;
use crate::operation::Governed;
use crate::routes::{Callee, Runtime};

/// Template of requests without one.
const ANY_PATH: &str = "/{path}";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const EARLY_DATA: &str = "early-data";

/// Applies the rules to the HTTP requests to one callee. Made by
/// [`Damper::http_client`](crate::Damper::http_client).
#[derive(Clone)]
pub struct HttpClientLayer(Arc<Shared>);

struct Shared {
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    external: bool,
    template: Option<Template>,
    /// Handles by `GET:/path`.
    handles: ArcSwap<HashMap<String, Handle>>,
}

type Handle = Arc<Retry<Assess, Governed>>;
/// Returns the template of a path.
type Template = Arc<dyn Fn(&Method, &str) -> String + Send + Sync>;

impl HttpClientLayer {
    pub(crate) fn new(engine: Arc<Runtime>, callee: Arc<Callee>) -> Self {
        Self(Arc::new(Shared { engine, callee, external: true, template: None, handles: ArcSwap::default() }))
    }

    /// Treats the callee as a service inside the system: sends it flags and deadline, and heeds its flag.
    #[must_use]
    pub fn internal(self) -> Self {
        self.with(|shared| Shared { external: false, ..shared })
    }

    /// Sets the function that returns the template of a path, `/orders/{id}` for `/orders/7`. Without one the
    /// routes are named by [`HttpClient::at`], and all other requests belong to `GET:/{path}` and its like.
    #[must_use]
    pub fn template(self, template: impl Fn(&Method, &str) -> String + Send + Sync + 'static) -> Self {
        self.with(|shared| Shared { template: Some(Arc::new(template)), ..shared })
    }

    /// Wraps an HTTP client: a `reqwest::Client` (feature `reqwest`), or any tower service of HTTP requests.
    /// Its own retries must be off. (The method of `tower_layer::Layer`, without the import.)
    pub fn layer<S>(&self, inner: S) -> HttpClient<S> {
        HttpClient { inner, is_ready: false, shared: Arc::clone(&self.0), at: None, options: None }
    }

    fn with(self, change: impl FnOnce(Shared) -> Shared) -> Self {
        let Shared { engine, callee, external, template, .. } = &*self.0;
        let (engine, callee, template) = (Arc::clone(engine), Arc::clone(callee), template.clone());
        let handles = ArcSwap::default();
        Self(Arc::new(change(Shared { engine, callee, external: *external, template, handles })))
    }
}

impl<S> Layer<S> for HttpClientLayer {
    type Service = HttpClient<S>;

    fn layer(&self, inner: S) -> HttpClient<S> {
        self.layer(inner)
    }
}

impl Shared {
    /// Returns the handle of a route, the same each time.
    fn handle(&self, method: String) -> Handle {
        let known = self.handles.load();
        if let Some(handle) = known.get(&method) {
            return Arc::clone(handle);
        }
        let handle = Arc::new(self.new_handle(&method));
        if known.len() >= MAX_ROUTES {
            return handle;
        }
        self.handles.rcu(|handles| {
            let mut handles = HashMap::clone(handles);
            if handles.len() < MAX_ROUTES {
                handles.insert(method.clone(), Arc::clone(&handle));
            }
            handles
        });
        handle
    }

    fn new_handle(&self, method: &str) -> Retry<Assess, Governed> {
        let source = Governed::new(Arc::clone(&self.engine), Arc::clone(&self.callee), method);
        let name = format!("{} {method}", self.callee.name());
        Retry::from_source(name, source, Assess { external: self.external })
    }
}

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
    /// Returns the client for requests to the paths of one template: `client.at("/orders/{id}")`.
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
        let mut handle = self.shared.handle(self.method_of(&request));
        let options = request.options().or(self.options).unwrap_or_default();
        if options != CallOptions::new() {
            handle = Arc::new(handle.with_options(options));
        }
        let policy = |policy: &Policy| (policy.repeats(), policy.chain.propagate_baggage);
        let (repeats, baggage) = handle.source().policy(policy).unwrap_or_default();
        let copy = (repeats && options.allow_repeats()).then(|| request.try_clone()).flatten();
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
        HttpFuture { call: Calling::new(handle, attempts, is_idempotent, replayable) }
    }

    /// Returns the method of the request's route: `GET:/orders/{id}`.
    fn method_of<R: HttpRequest>(&self, request: &R) -> String {
        let verb = request.method();
        let named = match (&self.at, &self.shared.template) {
            (Some(template), _) => format!("{verb}:{template}"),
            (None, Some(template)) => format!("{verb}:{}", template(verb, request.path())),
            (None, None) => format!("{verb}:{ANY_PATH}"),
        };
        if key::is_method(&named) { named } else { format!("{verb}:{ANY_PATH}") }
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
        f.debug_struct("HttpClient").field("callee", &self.shared.callee.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for HttpClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClientLayer").field("callee", &self.0.callee.name()).finish_non_exhaustive()
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
    /// Sets flag and deadline. A request may carry those of a request being served.
    fn mark(&self, headers: &mut HeaderMap, attempt: Attempt) {
        headers::drop_marks(headers);
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
        let outcome = std::task::ready!(self.project().call.poll(cx));
        Poll::Ready(outcome.map(|sent| sent.value).map_err(|error| match error {
            Error::Failed(Failed { last, ending, attempts, elapsed }) => {
                Error::Failed(Failed { last: last.value, ending, attempts, elapsed })
            }
            Error::NotAnswered(not_answered) => Error::NotAnswered(not_answered),
        }))
    }
}
