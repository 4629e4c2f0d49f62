//! The requests of one call: one per attempt, alike but for the headers that tell them apart.
//!
//! Every attempt has the application's method, path, metadata (order and duplicates included), extensions
//! and body. Only `grpc-timeout`, `damper-retry` and `grpc-previous-rpc-attempts` differ, as the engine says.

use std::io::Write as _;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Mode, Policy, SendAttempt, deadline};
use http::{HeaderMap, HeaderValue, Request};
use tonic::GrpcMethod;
use tonic::body::Body;

use super::active_call::ActiveCall;
use super::hang_up::BodyCanceller;
use super::replay::{self, BufferedRequest, CaptureResult, ReplayBudget};
use crate::failures::HexId;
use crate::headers;

/// How the requests of a call are made.
#[derive(Debug)]
pub(crate) struct RequestFactory {
    /// The body of each; none if it is not kept.
    kept: Option<BufferedRequest>,
    /// All else of each; none if there is at most one.
    head: Option<Head>,
    own_timeout: Option<Duration>,
    call_id: bool,
    external: bool,
    /// The flag goes into the baggage too.
    baggage: bool,
    hang_up: BodyCanceller,
}

/// A request without its body.
#[derive(Debug)]
struct Head {
    head: Request<()>,
    /// What tonic's generated clients put into each request's extensions, where nothing else is in them. Kept apart:
    /// cloning extensions takes an allocation for each and two for their map.
    grpc_method: Option<GrpcMethod<'static>>,
}

impl RequestFactory {
    /// Looks at the application's request, which becomes the first one, and keeps it if it may have to be sent
    /// again. Without a policy it is not touched.
    pub(crate) fn new(
        request: &mut Request<Body>,
        policy: Option<&Policy>,
        memory: &Arc<ReplayBudget>,
        external: bool,
        own_timeout: Option<Duration>,
    ) -> Self {
        let call_id = policy.is_some_and(|policy| policy.call_id && policy.mode == Mode::Enforce);
        if call_id {
            headers::put_call_id(request.headers_mut());
        }
        let kept = policy.filter(|policy| policy.repeats()).and_then(|policy| keep(request, policy, memory));
        let is_enforced = policy.is_some_and(|policy| policy.mode == Mode::Enforce);
        // In observe mode the request is kept as well, to know whether it could be, and then sent once.
        let head = (kept.is_some() && is_enforced).then(|| Head::of(request));
        let baggage = policy.is_some_and(|policy| policy.chain.propagate_baggage);
        let mut hang_up = BodyCanceller::default();
        if kept.is_none() && is_enforced {
            let (body, line) = BodyCanceller::line(mem::take(request.body_mut()));
            *request.body_mut() = body;
            hang_up = line;
        }
        Self { kept, head, own_timeout, call_id, external, baggage, hang_up }
    }

    /// What tells the call from others at its callee.
    pub(super) fn call_id(&self, request: &Request<Body>) -> Option<HexId> {
        let read = || headers::bytes(request.headers(), &headers::CALL_ID).and_then(HexId::read);
        self.call_id.then(read).flatten()
    }

    /// The end at which the call hangs up on a request that is still being sent.
    pub(super) fn take_hang_up(&mut self) -> BodyCanceller {
        mem::take(&mut self.hang_up)
    }

    /// True if the request is complete, so that it could be sent again.
    pub(crate) fn are_replayable(&self) -> bool {
        self.kept.is_some()
    }

    /// True if there may be more than one.
    pub(crate) fn may_repeat(&self) -> bool {
        self.head.is_some()
    }

    /// There will be no other.
    pub(super) fn forget(&mut self) {
        (self.kept, self.head) = (None, None);
    }

    /// The request once more, for this attempt; none if it was not kept.
    pub(crate) fn again(&self, send: &SendAttempt, call: &ActiveCall) -> Option<Request<Body>> {
        let kept = self.kept.as_ref()?;
        let mut request = self.head.as_ref()?.with(kept.body());
        self.mark(request.headers_mut(), send, call);
        Some(request)
    }

    /// Tells an attempt from the others.
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

/// What the application's request says to this layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestOptions {
    /// The time limit that the application set.
    pub(super) timeout: Option<Duration>,
    /// The trace that the call belongs to.
    pub(super) trace: Option<HexId>,
}

impl RequestOptions {
    /// Reads it, and takes off how often the application says that it sent the request before: on this hop that is
    /// for the layer to say, and a handler that copies what it received would make a first send look like a repeat.
    pub(super) fn of(request: &mut Request<Body>) -> Self {
        let names = [&headers::TIMEOUT, &headers::TRACE_PARENT, &headers::PREVIOUS_ATTEMPTS];
        let [timeout, trace, previous] = headers::each(request.headers(), names);
        let timeout = timeout.and_then(deadline::parse);
        let asked = Self { timeout, trace: trace.and_then(HexId::of_traceparent) };
        if previous.is_some() {
            request.headers_mut().remove(&headers::PREVIOUS_ATTEMPTS);
        }
        asked
    }
}

/// Tells until when the answer is awaited, and whether the request is a repeat.
pub(super) fn mark(
    headers: &mut HeaderMap,
    send: &SendAttempt,
    own_timeout: Option<Duration>,
    external: bool,
) {
    // The application's own limit stays as it was written for as long as it says the same.
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

/// Keeps the request's body, if it is one that can be.
fn keep(request: &mut Request<Body>, policy: &Policy, memory: &Arc<ReplayBudget>) -> Option<BufferedRequest> {
    let body = mem::take(request.body_mut());
    let (body, kept) = match replay::capture(body, policy.replay_limit, memory) {
        CaptureResult::Whole(kept) => (kept.body(), Some(kept)),
        CaptureResult::Once(body) => (body, None),
    };
    *request.body_mut() = body;
    kept
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

/// Written on the stack first: the header's own copy is the only allocation that a deadline costs.
fn timeout_value(limit: Duration) -> HeaderValue {
    let mut text = [0; deadline::MAX_VALUE_BYTES];
    let mut rest = text.as_mut_slice();
    write!(rest, "{}", deadline::HeaderValue::new(limit)).expect("no value is longer");
    let unused = rest.len();
    let used = &text[..text.len() - unused];
    HeaderValue::from_bytes(used).expect("digits and a letter are a header value")
}
