//! The client service: begins a call for each request.
//!
//! A route without a rule, or with one that is off, costs a look-up, some counters and no allocation: the
//! request goes on as it is.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use damper_core::{Answer, Route, Step, Time};
use http::{Request, Response};
use tonic::body::Body;
use tower_service::Service;

use super::active_call::ActiveCall;
use super::calling::Calling;
use super::own_answer::OwnAnswer;
use super::requests::Requests;
use super::response_body::ResponseBody;
use super::response_future::ResponseFuture;
use super::telemetry::CallWatch;
use super::trail::Trail;
use super::verdict::BoxError;
use crate::context::Context;
use crate::routes::{Callee, Engine, method_of};

/// A channel, or any service of gRPC requests, whose calls Damper governs.
pub struct ClientService<S> {
    inner: S,
    /// The inner service said that it takes a request.
    is_ready: bool,
    engine: Arc<Engine>,
    callee: Arc<Callee>,
    external: bool,
}

impl<S> ClientService<S> {
    pub(super) fn new(inner: S, engine: Arc<Engine>, callee: Arc<Callee>, external: bool) -> Self {
        Self { inner, is_ready: false, engine, callee, external }
    }

    /// The context of the request being served: handed over in the request's extensions, or the task's.
    fn context(&self, request: &Request<Body>, route: &Route) -> Option<Context> {
        let context = request.extensions().get::<Context>().cloned().or_else(Context::current);
        if context.as_ref().is_some_and(|context| context.chain().has_failed(route.id())) {
            route.state().counters.count_outer_loop();
        }
        if self.engine.serves() && route.policy().is_some() {
            self.engine.count_governed_call();
            if context.is_none() {
                route.state().counters.count_without_context();
            }
        }
        context
    }

    /// What a call is told that a kill refuses.
    fn refusal(&self, method: &str, now: Time) -> Box<OwnAnswer> {
        let kill = self.engine.kills().refusing(self.callee.name(), method, now);
        Box::new(OwnAnswer::killed(kill.as_ref(), now))
    }
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

    /// Always ready: waiting for the inner service is part of the attempt. If that is ready already, the
    /// first attempt goes to it directly.
    fn poll_ready(&mut self, cx: &mut Task<'_>) -> Poll<Result<(), BoxError>> {
        self.is_ready = matches!(self.inner.poll_ready(cx), Poll::Ready(Ok(())));
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ResponseFuture<S, B> {
        let route = self.engine.route(&self.callee, method_of(&request));
        let context = self.context(&request, &route);
        let mut requests = Requests::new(&mut request, route.policy(), self.engine.memory(), self.external);
        let clock = self.engine.clock();
        let now = clock.now();
        let own_deadline = requests.own_timeout().map(|timeout| now + timeout);
        let replayable = requests.are_replayable();
        let watch = CallWatch::begin(&route, &self.callee, method_of(&request), now);
        let trail = Trail::begin(requests.ids(&request), now);
        let told = (watch, trail);
        let hang_up = requests.take_hang_up();
        let call = || ActiveCall::begin(route, context, told, own_deadline, replayable, now, clock);
        let mut calling = Calling::begin(call, requests, self.external);
        calling.call.hang_up_at_end(hang_up);
        let step = calling.call.first_step();
        calling.refusal = is_killed(&step).then(|| self.refusal(method_of(&request), now));
        let is_ready = std::mem::take(&mut self.is_ready);
        ResponseFuture::begin(calling, step, request, &mut self.inner, is_ready)
    }
}

impl<S: Clone> Clone for ClientService<S> {
    /// The inner service's readiness is not cloned with it.
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
