//! Builds the requests of a call, one per attempt.
//!
//! Every attempt has the application's method, path, metadata (with order and duplicates), extensions and
//! body. Only `grpc-timeout`, `damper-retry` and `grpc-previous-rpc-attempts` differ, as decided by the
//! engine.

use std::io::Write as _;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use damper_core::{CallOptions, Mode, Policy, SendAttempt, Time, deadline};
use http::{HeaderMap, HeaderValue, Request};
use tonic::GrpcMethod;
use tonic::body::Body;

use super::active_call::ActiveCall;
use super::body_canceller::BodyCanceller;
use crate::headers;
use crate::routes::failed_calls::HexId;
use crate::routes::replay::{self, ArrivingRequest, BufferedRequest, CaptureResult, ReplayBudget};

/// Builds the requests of a call.
#[derive(Debug)]
pub(crate) struct RequestFactory {
    /// Body of each request; `None` if not buffered.
    kept: Option<BufferedRequest>,
    /// The request while it arrives and is not buffered yet.
    arriving: Option<ArrivingRequest>,
    /// All else of each request; `None` if there is at most one.
    head: Option<Head>,
    own_timeout: Option<Duration>,
    call_id: bool,
    external: bool,
    /// True if the flag also goes into the baggage.
    baggage: bool,
    hang_up: BodyCanceller,
}

/// A request without its body.
#[derive(Debug)]
struct Head {
    head: Request<()>,
    /// The extension of tonic's generated clients, if it is the only one. Stored apart: cloning extensions
    /// costs an allocation each and two for their map.
    grpc_method: Option<GrpcMethod<'static>>,
}

impl RequestFactory {
    /// Reads the application's request, which becomes the first attempt, and buffers it if it may be retried.
    /// Without a policy the request is not changed.
    pub(crate) fn new(
        request: &mut Request<Body>,
        policy: Option<&Policy>,
        memory: &Arc<ReplayBudget>,
        external: bool,
        asked: &RequestOptions,
    ) -> Self {
        let call_id = policy.is_some_and(|policy| policy.call_id && policy.mode == Mode::Enforce);
        if call_id {
            headers::put_call_id(request.headers_mut());
        }
        let is_enforced = policy.is_some_and(|policy| policy.mode == Mode::Enforce);
        let repeats = policy.is_some_and(Policy::repeats) && asked.call.allow_repeats();
        let keeps = repeats || asked.keeps_request && is_enforced;
        let (kept, arriving) =
            policy.filter(|_| keeps).map_or((None, None), |policy| keep(request, policy, memory));
        // In observe mode the request is buffered only to learn whether it could be, and sent once.
        let may_be_kept = kept.is_some() || arriving.is_some();
        let head = (may_be_kept && repeats && is_enforced).then(|| Head::of(request));
        let baggage = policy.is_some_and(|policy| policy.chain.propagate_baggage);
        let mut hang_up = BodyCanceller::default();
        if kept.is_none() && is_enforced {
            let (body, line) = BodyCanceller::line(mem::take(request.body_mut()));
            *request.body_mut() = body;
            hang_up = line;
        }
        Self { kept, arriving, head, own_timeout: asked.timeout, call_id, external, baggage, hang_up }
    }

    /// Returns the id that identifies the call at its callee.
    pub(super) fn call_id(&self, request: &Request<Body>) -> Option<HexId> {
        let read = || headers::bytes(request.headers(), &headers::CALL_ID).and_then(HexId::read);
        self.call_id.then(read).flatten()
    }

    /// Takes the canceller of the request.
    pub(super) fn take_hang_up(&mut self) -> BodyCanceller {
        mem::take(&mut self.hang_up)
    }

    /// Returns the message of the request if it is buffered, see [`BufferedRequest::message`].
    #[cfg(feature = "queue")]
    pub(super) fn message(&self) -> Option<bytes::Bytes> {
        self.kept.as_ref()?.message()
    }

    /// True if the request is buffered and could be retried.
    pub(crate) fn are_replayable(&self) -> bool {
        self.kept.is_some()
    }

    /// True if the request is still arriving and may be buffered then.
    pub(super) fn are_awaited(&self) -> bool {
        self.arriving.is_some()
    }

    /// Ready once it is known whether a request that arrives is buffered. If `takes_over`, its rest is read
    /// here, and the first attempt fails.
    pub(super) fn poll_arriving(&mut self, takes_over: bool, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(arriving) = &mut self.arriving else { return Poll::Pending };
        self.kept = ready!(arriving.poll(takes_over, cx));
        self.arriving = None;
        Poll::Ready(self.kept.is_some())
    }

    /// True if there may be further attempts.
    pub(crate) fn may_repeat(&self) -> bool {
        self.head.is_some()
    }

    /// Drops the buffer: there are no further attempts.
    pub(super) fn forget(&mut self) {
        (self.kept, self.arriving, self.head) = (None, None, None);
    }

    /// Returns the request of a further attempt; `None` if not buffered.
    pub(crate) fn again(&self, send: &SendAttempt, call: &ActiveCall) -> Option<Request<Body>> {
        let kept = self.kept.as_ref()?;
        let mut request = self.head.as_ref()?.with(kept.body());
        self.mark(request.headers_mut(), send, call);
        Some(request)
    }

    /// Sets the headers that differ between attempts.
    pub(crate) fn mark(&self, headers: &mut HeaderMap, send: &SendAttempt, call: &ActiveCall) {
        mark(headers, send, self.own_timeout, self.external);
        if let Some(flag) = send.flag.filter(|_| self.baggage && !self.external) {
            headers::put_baggage(headers, flag, call.time_left());
        }
        let previous = send.previous_attempts();
        if previous > 0 {
            headers.insert(&headers::PREVIOUS_ATTEMPTS, previous.into());
        }
    }
}

/// Settings in the application's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestOptions {
    /// Timeout in the application's `grpc-timeout`.
    pub(super) timeout: Option<Duration>,
    /// Trace of the call.
    pub(super) trace: Option<HexId>,
    pub(super) call: CallOptions,
    /// The request is kept even if it is not retried.
    pub(super) keeps_request: bool,
}

impl RequestOptions {
    /// Reads the settings and removes the application's `grpc-previous-rpc-attempts`. On this hop the layer
    /// sets it: a handler that copies received metadata would make a first attempt look like a retry.
    pub(super) fn of(request: &mut Request<Body>) -> Self {
        let names = [&headers::TIMEOUT, &headers::TRACE_PARENT, &headers::PREVIOUS_ATTEMPTS];
        let [timeout, trace, previous] = headers::each(request.headers(), names);
        let timeout = timeout.and_then(deadline::parse);
        let call = request.extensions().get().copied().unwrap_or_default();
        let trace = trace.and_then(HexId::of_traceparent);
        let asked = Self { timeout, trace, call, keeps_request: false };
        if previous.is_some() {
            request.headers_mut().remove(&headers::PREVIOUS_ATTEMPTS);
        }
        asked
    }

    /// Returns the application's deadline of a call that begins at `now`.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        deadline::earliest([self.timeout.map(|timeout| now + timeout), self.call.deadline(now)])
    }
}

/// Sets the time limit of the attempt and the retry flag.
pub(super) fn mark(
    headers: &mut HeaderMap,
    send: &SendAttempt,
    own_timeout: Option<Duration>,
    external: bool,
) {
    // An equal limit set by the application keeps its original text.
    if let Some(limit) = send.limit.filter(|limit| own_timeout != Some(*limit)) {
        headers.insert(&headers::TIMEOUT, timeout_value(limit));
    }
    if external {
        headers.remove(&headers::RETRY);
        headers::drop_baggage(headers);
    } else if let Some(flag) = send.flag {
        headers.insert(&headers::RETRY, flag.into());
    }
}

/// Buffers the request's body if possible, now or while it arrives.
fn keep(
    request: &mut Request<Body>,
    policy: &Policy,
    memory: &Arc<ReplayBudget>,
) -> (Option<BufferedRequest>, Option<ArrivingRequest>) {
    let body = mem::take(request.body_mut());
    let (body, kept, arriving) = match replay::capture(body, policy.replay_limit, memory) {
        CaptureResult::Whole(kept) => (kept.body(), Some(kept), None),
        CaptureResult::Arriving(body, arriving) => (body, None, Some(arriving)),
        CaptureResult::Once(body) => (body, None, None),
    };
    *request.body_mut() = body;
    (kept, arriving)
}

impl Head {
    fn of<B>(request: &Request<B>) -> Self {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        *head.headers_mut() = request.headers().clone();
        let extensions = request.extensions();
        let grpc_method = extensions.get().filter(|_| extensions.len() == 1).cloned();
        if grpc_method.is_none() {
            *head.extensions_mut() = extensions.clone();
        }
        Self { head, grpc_method }
    }

    fn with(&self, body: Body) -> Request<Body> {
        let mut request = self.head.clone().map(|()| body);
        if let Some(grpc_method) = &self.grpc_method {
            request.extensions_mut().insert(grpc_method.clone());
        }
        request
    }
}

/// Formats on the stack first: the header's own copy is the only allocation of a deadline.
fn timeout_value(limit: Duration) -> HeaderValue {
    let mut text = [0; deadline::MAX_VALUE_BYTES];
    let mut rest = text.as_mut_slice();
    write!(rest, "{}", deadline::HeaderValue::new(limit)).expect("no value is longer");
    let unused = rest.len();
    let used = &text[..text.len() - unused];
    HeaderValue::from_bytes(used).expect("digits and a letter are a header value")
}
