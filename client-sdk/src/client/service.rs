//! The client service: begins a call for each request.
//!
//! A route without a rule, or with mode `off`, costs a lookup, some counters and no allocation if the inner
//! service is ready; see the passthrough path.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use damper_core::{Answer, CallOptions, CallStart, Route, Step, Time, deadline};
use http::{Request, Response};
use tonic::body::Body;
use tower_service::Service;

use super::active_call::ActiveCall;
use super::governed::GovernedFuture;
use super::hand_over::Aftermath;
use super::in_flight::RequestInFlight;
use super::local_response::LocalResponse;
use super::passthrough::PassthroughCall;
use super::requests::{self, RequestFactory, RequestOptions};
use super::response_body::ResponseBody;
use super::response_future::{PassthroughFuture, ResponseFuture};
use super::slot::CallSlot;
use crate::background::clock::Clock;
use crate::context::Context;
use crate::outcome::verdict::BoxError;
use crate::record::telemetry::{CallSpan, Protocol};
use crate::record::trail::AttemptTrail;
use crate::routes::failed_calls::Ids;
use crate::routes::{Callee, RouteHandle, Runtime, method_of};

/// A channel, or any service of gRPC requests, with Damper's rules applied.
pub struct ClientService<S> {
    inner: S,
    /// True once the inner service reported ready.
    is_ready: bool,
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    external: bool,
}

impl<S> ClientService<S> {
    pub(super) fn new(inner: S, engine: Arc<Runtime>, callee: Arc<Callee>, external: bool) -> Self {
        Self { inner, is_ready: false, engine, callee, external }
    }

    /// Returns the context of the request being served: from the request's extensions, or from the task.
    fn context(&self, request: &Request<Body>, route: &Route) -> Option<Context> {
        let context = request.extensions().get::<Context>().cloned().or_else(Context::current);
        let options = request.extensions().get::<CallOptions>();
        let is_repeat = options.is_some_and(CallOptions::is_repeated_by_caller);
        self.engine.count_context(route, context.as_ref(), is_repeat);
        context
    }

    /// Begins a passthrough call and sets its headers. Returns route and context if the engine has decisions
    /// to make.
    fn pass(
        &self,
        route: Arc<RouteHandle>,
        context: Option<Context>,
        request: &mut Request<Body>,
    ) -> Result<PassthroughCall, (Arc<RouteHandle>, Option<Context>)> {
        // Headers and clock are read only if needed. Under a rule the request is buffered before the call
        // begins.
        if route.policy().is_some() {
            return Err((route, context));
        }
        let (asked, clock) = (RequestOptions::of(request), self.engine.clock());
        let start = start(&context, &asked, clock);
        let Some((call, send)) = damper_core::Passthrough::begin(&route, &start) else {
            return Err((route, context));
        };
        let mut times = self.callee.call_begins(&route, method_of(request), start.now);
        let attempt = times.sent(send.kind, start.now);
        requests::mark(request.headers_mut(), &send, asked.timeout, self.external);
        let (call, trace, external) = (Some(call), asked.trace, self.external);
        Ok(PassthroughCall { call, route, context, clock, trace, times, attempt, external })
    }

    /// Begins a call under the engine and returns its first step.
    #[inline]
    fn govern(
        &self,
        route: Arc<RouteHandle>,
        context: Option<Context>,
        request: &mut Request<Body>,
        aftermath: Option<Aftermath>,
    ) -> (CallSlot, Step) {
        let mut asked = RequestOptions::of(request);
        let aftermath =
            aftermath.unwrap_or_else(|| Aftermath::of(request, &self.engine, &self.callee, context.as_ref()));
        asked.keeps_request = aftermath.keeps_request();
        let (memory, policy) = (self.engine.memory(), route.policy());
        let mut requests = RequestFactory::new(request, policy, memory, self.external, &asked);
        let clock = self.engine.clock();
        let (replayable, is_awaited) = (requests.are_replayable(), requests.are_awaited());
        let sends_before = aftermath.sends_before();
        let start = CallStart { replayable, sends_before, ..start(&context, &asked, clock) };
        let watch = CallSpan::begin(Protocol::Grpc, &route, &self.callee, method_of(request), start.now);
        let ids = Ids { trace: asked.trace, call: requests.call_id(request) };
        let records = (watch, AttemptTrail::begin(ids, start.now));
        let hang_up = requests.take_hang_up();
        let call = || ActiveCall::begin(route, context, records, start, clock);
        let mut calling = CallSlot::begin(call, requests, self.external);
        calling.call.limit_attempts(asked.call.attempts());
        if is_awaited {
            calling.call.await_request();
        }
        calling.call.hang_up_at_end(hang_up);
        calling.call.set_aftermath(aftermath);
        let step = calling.call.first_step();
        calling.refusal = is_killed(&step).then(|| self.refusal(method_of(request), start.now));
        (calling, step)
    }

    /// Returns the response to a call that a kill rejects.
    fn refusal(&self, method: &str, now: Time) -> Box<LocalResponse> {
        let kill = self.engine.kills().refusing(self.callee.name(), method, now);
        Box::new(LocalResponse::killed(kill.as_ref(), now))
    }
}

/// Returns the start of a call whose request is not buffered.
fn start(context: &Option<Context>, asked: &RequestOptions, clock: Clock) -> CallStart {
    let now = clock.now();
    let (inherited, flag) = Context::inherited(context.as_ref(), clock);
    let deadline = deadline::earliest([inherited, asked.deadline(now)]);
    CallStart { now, deadline, flag, replayable: false, sends_before: 0 }
}

fn is_killed(step: &Step) -> bool {
    matches!(step, Step::Finish(finish) if finish.answer == Answer::Killed)
}

impl<S, B> Service<Request<Body>> for ClientService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = BoxError;
    type Future = ResponseFuture<S, B>;

    /// Always ready: waiting for the inner service is part of the attempt. If it is ready, the first attempt
    /// uses it directly.
    fn poll_ready(&mut self, cx: &mut Task<'_>) -> Poll<Result<(), BoxError>> {
        self.is_ready = matches!(self.inner.poll_ready(cx), Poll::Ready(Ok(())));
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ResponseFuture<S, B> {
        let route = self.engine.route(&self.callee, method_of(&request));
        let context = self.context(&request, &route);
        let is_ready = mem::take(&mut self.is_ready);
        match self.pass(route, context, &mut request) {
            Ok(call) => {
                let sending = RequestInFlight::begin(&mut self.inner, is_ready, request);
                ResponseFuture::passing(PassthroughFuture::new(sending, call))
            }
            Err((route, context)) => {
                let (calling, step) = self.govern(route, context, &mut request, None);
                let call = GovernedFuture::begin(calling, step, request, &mut self.inner, is_ready);
                ResponseFuture::governed(call)
            }
        }
    }
}

#[cfg(feature = "queue")]
impl<S, B> ClientService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Sends the request of a job.
    pub(crate) fn deliver(
        &mut self,
        mut request: Request<Body>,
        redelivery: super::hand_over::Redelivery,
    ) -> ResponseFuture<S, B> {
        let route = self.engine.route(&self.callee, method_of(&request));
        let context = self.context(&request, &route);
        let aftermath = Aftermath::of_delivery(redelivery);
        let (calling, step) = self.govern(route, context, &mut request, Some(aftermath));
        ResponseFuture::governed(GovernedFuture::begin(calling, step, request, &mut self.inner, false))
    }
}

impl<S: Clone> Clone for ClientService<S> {
    /// Clones without the inner service's readiness.
    fn clone(&self) -> Self {
        let (engine, callee) = (Arc::clone(&self.engine), Arc::clone(&self.callee));
        Self::new(self.inner.clone(), engine, callee, self.external)
    }
}

impl<S> fmt::Debug for ClientService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientService")
            .field("callee", &self.callee.name())
            .field("external", &self.external)
            .finish_non_exhaustive()
    }
}
