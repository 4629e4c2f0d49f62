//! Governed operations: any async call as a route, with the rules of the control plane.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

#[cfg(feature = "http")]
use damper_core::Policy;
use damper_core::{Code, CodeSet, Failure, Finish, Mode, Route, SendAttempt, Time, Verdict};
use damper_retry::Retry;
use damper_retry::driver::{Begun, Source, Watch};

use crate::background::clock::Clock;
use crate::context::{Context, LazyContext};
use crate::outcome::cause::Cause;
use crate::record::telemetry::{AttemptSpan, CallSpan, Protocol};
use crate::record::trail::AttemptTrail;
use crate::routes::failed_calls::Ids;
use crate::routes::kills::KillWaker;
use crate::routes::{Callee, RouteHandle, Runtime};

/// Any async call as a route: a database statement, an HTTP request, a message to a broker. Made by
/// [`Damper::operation`](crate::Damper::operation).
///
/// It has the methods of [`Retry`](damper_retry::Retry) for predicates, listeners and calls. Attempts, waits,
/// limits and gates come from the rule of its route.
pub type Operation<P = damper_retry::ByType> = Retry<P, Governed>;

/// An operation with predicates whose type can be named, for a field of a struct; see
/// [`Retry::boxed`](damper_retry::Retry::boxed).
pub type BoxOperation<T, E> = Operation<damper_retry::BoxHandlers<T, E>>;

/// Codes into which handlers turn the failure of an operation.
const SEEN_AS: CodeSet =
    CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded, Code::Internal, Code::Unknown, Code::Aborted]);

/// Source of an operation's rules.
#[derive(Clone)]
pub struct Governed {
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    method: Arc<str>,
}

impl Governed {
    pub(crate) fn new(engine: Arc<Runtime>, callee: Arc<Callee>, method: &str) -> Self {
        Self { engine, callee, method: method.into() }
    }

    /// Reads the policy of the route; `None` without an active rule.
    #[cfg(feature = "http")]
    pub(crate) fn policy<T>(&self, read: impl FnOnce(&Policy) -> T) -> Option<T> {
        self.engine.route(&self.callee, &self.method).policy().map(read)
    }
}

impl fmt::Debug for Governed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Governed").field("callee", &self.callee.name()).field("method", &self.method).finish()
    }
}

impl Source for Governed {
    type Call = OperationCall;

    fn clock(&self) -> Clock {
        self.engine.clock()
    }

    fn begin(&self, now: Time) -> Begun<OperationCall> {
        let route = self.engine.route(&self.callee, &self.method);
        let context = Context::current();
        self.engine.count_context(&route, context.as_ref(), false);
        let clock = self.engine.clock();
        let (deadline, flag) = Context::inherited(context.as_ref(), clock);
        let span = CallSpan::begin(Protocol::Operation, &route, &self.callee, &self.method, now);
        let trail = AttemptTrail::begin((), now);
        let call = OperationCall {
            route,
            context,
            clock,
            span,
            trail,
            main: None,
            hedges: Vec::new(),
            kills: KillWaker::default(),
        };
        Begun { call, deadline, flag }
    }
}

/// One call of an operation.
#[derive(Debug)]
pub struct OperationCall {
    route: Arc<RouteHandle>,
    context: Option<Context>,
    clock: Clock,
    span: CallSpan,
    trail: AttemptTrail<()>,
    main: Option<Running>,
    hedges: Vec<Running>,
    kills: KillWaker,
}

/// An attempt in flight.
#[derive(Debug)]
struct Running {
    span: AttemptSpan,
    /// The calls made within the attempt belong to it: those of a retry are sent once, and one that gives up
    /// stops this operation too. `None` if nothing is retried here.
    context: Option<LazyContext>,
}

impl OperationCall {
    fn running(&mut self, attempt: u32) -> Option<&mut Running> {
        let mut all = self.main.iter_mut().chain(&mut self.hedges);
        all.find(|running| running.span.number() == attempt)
    }

    fn take(&mut self, attempt: u32) -> Option<Running> {
        if self.main.as_ref().is_some_and(|main| main.span.number() == attempt) {
            return self.main.take();
        }
        let at = self.hedges.iter().position(|hedge| hedge.span.number() == attempt)?;
        Some(self.hedges.swap_remove(at))
    }
}

impl Watch for OperationCall {
    fn route(&self) -> &Route {
        &self.route
    }

    fn sent(&mut self, send: &SendAttempt, now: Time) {
        self.trail.sent(send, now, self.route.failures());
        let span = self.span.sent(send, now, self.clock);
        let retries =
            self.route.policy().is_some_and(|policy| policy.mode == Mode::Enforce && policy.repeats());
        let limit = send.limit.map(|limit| now + limit);
        let context = retries.then(|| LazyContext::new(send.flag, limit));
        let running = Some(Running { span, context });
        if self.main.is_none() {
            self.main = running;
        } else {
            self.hedges.extend(running);
        }
    }

    fn enter<T>(&mut self, attempt: u32, run: impl FnOnce() -> T) -> T {
        let clock = self.clock;
        let Some(Running { span, context }) = self.running(attempt) else { return run() };
        span.span().in_scope(|| match context {
            Some(context) => context.sync_scope(clock, run),
            None => run(),
        })
    }

    fn classify(&self, attempt: u32, verdict: Verdict) -> Verdict {
        let mut all = self.main.iter().chain(&self.hedges);
        let running = all.find(|running| running.span.number() == attempt);
        match (verdict, running.and_then(|running| running.context.as_ref()?.made())) {
            // A call within the attempt was retried already, or must not be.
            (Verdict::Failure(failure), Some(context)) if context.chain().has_marks() => {
                Verdict::Failure(Failure { no_more_retry: true, ..failure })
            }
            _ => verdict,
        }
    }

    fn attempt_ended(&mut self, attempt: u32, verdict: Option<&Verdict>, now: Time) {
        let Some(Running { span, .. }) = self.take(attempt) else { return };
        let failures = self.route.failures();
        match verdict {
            Some(verdict) => {
                let code = self.span.attempt_ended(span, verdict, now);
                self.trail.attempt_ended(attempt, code, verdict, Cause::Trailers, now, failures);
            }
            None => {
                self.span.attempt_timed_out(span, now);
                let code = Code::DeadlineExceeded;
                let verdict = Verdict::Failure(Failure::new(code));
                self.trail.attempt_ended(attempt, code, &verdict, Cause::Over, now, failures);
            }
        }
    }

    fn ended(&mut self, finish: &Finish, now: Time) {
        self.span.ended(finish, self.trail.sends(), now);
        let code = self.span.code_of(finish);
        self.trail.ended_with(Ids::default(), finish, code, now, self.route.failures());
        if let Some(context) = &self.context {
            context.call_ended(&self.route, finish, SEEN_AS.union(CodeSet::of(&[code])));
        }
    }

    fn listen_for_kills(&mut self, is_between_attempts: bool) {
        self.kills.listen(self.route.bell(), is_between_attempts);
    }

    fn poll_kill(&mut self, cx: &mut Task<'_>) -> Poll<()> {
        self.kills.poll(cx)
    }
}
