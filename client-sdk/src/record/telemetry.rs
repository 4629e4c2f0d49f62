//! Spans and times of a call: one span per call under a rule, one child span per attempt.
//!
//! Names and fields follow gRFC A72 and OpenTelemetry's RPC conventions (1.37), so exporters need no mapping;
//! additional fields begin with `damper.`. Attempt spans have kind `client`, as each is a request that a
//! server may continue. The call span is `internal`, so client spans are not counted twice. An attempt
//! dropped in favour of another has code 1 and is no error.
//!
//! Each extra attempt and each failed call is also a debug event in the call's span, so that retries appear
//! in a service's log.
//!
//! A call without a rule has no span, and none is made without a subscriber. Times are recorded only with the
//! feature `metrics`.

use damper_core::{Answer, AttemptKind, Code, Fate, Finish, Route, SendAttempt, Time, Verdict, deadline};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::background::clock::Clock;
use crate::metrics::{AttemptTimes, CallTimes};
use crate::routes::{Callee, RouteHandle};

/// Span and times of a call.
#[derive(Debug)]
pub(crate) struct CallSpan {
    span: Span,
    /// Names repeated in attempt spans; only if spans are enabled.
    names: Option<Box<Names>>,
    /// Code of the attempt that ended last.
    code: Code,
    times: CallTimes,
}

/// Protocol of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    /// Any other call.
    Operation,
}

#[derive(Debug)]
struct Names {
    protocol: Protocol,
    callee: String,
    /// `package.Service/Method`
    method: String,
}

impl CallSpan {
    /// Begins the span of a call.
    pub(crate) fn begin(
        protocol: Protocol,
        route: &RouteHandle,
        callee: &Callee,
        method: &str,
        now: Time,
    ) -> Self {
        let span = call_span(protocol, route, callee.name(), method);
        let names =
            || Box::new(Names { protocol, callee: callee.name().to_owned(), method: method.to_owned() });
        let names = (!span.is_disabled()).then(names);
        let times = callee.call_begins(route, method, now);
        Self { span, names, code: Code::Unknown, times }
    }

    /// Records an attempt that is sent.
    pub(crate) fn sent(&mut self, send: &SendAttempt, now: Time, clock: Clock) -> AttemptSpan {
        let span = self.names.as_ref().map_or_else(Span::none, |names| attempt_span(&self.span, names, send));
        self.log_repeat(send);
        let limit = send.limit.map(|limit| now + limit);
        let times = self.times.sent(send.kind, now);
        AttemptSpan { number: send.attempt, span, sent_at: now, limit, clock: Some(clock), times }
    }

    /// Records the end of an attempt and returns its code.
    pub(crate) fn attempt_ended(&mut self, mut attempt: AttemptSpan, verdict: &Verdict, now: Time) -> Code {
        let code = match verdict.code() {
            // A timer elsewhere with the same limit usually fires first and reports a cancellation.
            Code::Cancelled => attempt.code_of_end(now),
            code => code,
        };
        self.record_end(&mut attempt, code, now);
        code
    }

    /// Records the timeout of an attempt.
    pub(crate) fn attempt_timed_out(&mut self, mut attempt: AttemptSpan, now: Time) {
        self.record_end(&mut attempt, Code::DeadlineExceeded, now);
    }

    /// Returns the code that the application gets.
    pub(crate) fn code_of(&self, finish: &Finish) -> Code {
        match finish.answer {
            Answer::Attempt(_) => self.code,
            Answer::CircuitOpen | Answer::Killed | Answer::Blocked => Code::Unavailable,
            Answer::TimedOut if finish.ending.fate == Fate::Cancelled => Code::Cancelled,
            Answer::TimedOut => Code::DeadlineExceeded,
        }
    }

    /// Records the end of the call, after this number of attempts.
    pub(crate) fn ended(&mut self, finish: &Finish, sends: u32, now: Time) {
        self.times.ended(now);
        if self.span.is_disabled() {
            return;
        }
        let code = self.code_of(finish);
        record_code(&self.span, code, code != Code::Ok && finish.ending.fate != Fate::Cancelled);
        self.span.record("damper.fate", display(finish.ending));
        self.span.record("damper.attempts", sends);
        self.log_end(finish, code, sends);
    }

    /// Logs each extra attempt in the call's span, which names the rule.
    fn log_repeat(&self, send: &SendAttempt) {
        let Some(Names { callee, method, .. }) = self.names.as_deref() else { return };
        if send.kind == AttemptKind::First {
            return;
        }
        let (attempt, kind) = (send.attempt, kind_name(send.kind));
        // A hedge follows no failure.
        let after = (send.kind != AttemptKind::Hedge).then(|| self.code.name());
        tracing::debug!(target: "damper", parent: &self.span, callee, method, attempt, kind, after, "extra attempt");
    }

    /// Logs each failed call with its fate.
    fn log_end(&self, finish: &Finish, code: Code, attempts: u32) {
        let Some(Names { callee, method, .. }) = self.names.as_deref() else { return };
        let fate = finish.ending.fate;
        if fate.is_ok() || fate == Fate::Cancelled {
            return;
        }
        let (fate, code) = (finish.ending, code.name());
        tracing::debug!(target: "damper", parent: &self.span, callee, method, %fate, code, attempts, "call failed");
    }

    fn record_end(&mut self, attempt: &mut AttemptSpan, code: Code, now: Time) {
        self.code = code;
        self.times.attempt_ended(now);
        attempt.record_end(code, code != Code::Ok, now);
    }
}

/// Span and times of an attempt. If dropped before its end it was cancelled or timed out.
#[derive(Debug)]
pub(crate) struct AttemptSpan {
    number: u32,
    span: Span,
    sent_at: Time,
    limit: Option<Time>,
    /// `None` if there is no attempt.
    clock: Option<Clock>,
    times: AttemptTimes,
}

impl AttemptSpan {
    /// Returns the span of no attempt.
    pub(crate) fn none() -> Self {
        let (span, times) = (Span::none(), AttemptTimes::none());
        Self { number: 0, span, sent_at: Time::ZERO, limit: None, clock: None, times }
    }

    /// Returns the engine's number of the attempt.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn sent_at(&self) -> Time {
        self.sent_at
    }

    /// Ends the attempt because the call ended without it: another attempt was first, or the deadline has
    /// passed.
    pub(crate) fn lost(&mut self) {
        let Some(now) = self.now_if_recorded() else { return };
        let is_over = self.limit.is_some_and(|limit| limit <= now);
        self.record_end(if is_over { Code::DeadlineExceeded } else { Code::Cancelled }, is_over, now);
    }

    /// Returns what ended an attempt that reports a cancellation.
    fn code_of_end(&self, now: Time) -> Code {
        if deadline::ended_by(self.limit, self.sent_at, now) {
            Code::DeadlineExceeded
        } else {
            Code::Cancelled
        }
    }

    /// Reads the clock only if the end is recorded.
    fn now_if_recorded(&self) -> Option<Time> {
        let is_recorded = !self.span.is_disabled() || self.times.are_kept();
        self.clock.filter(|_| is_recorded).map(|clock| clock.now())
    }

    fn record_end(&mut self, code: Code, is_error: bool, now: Time) {
        self.times.ended(now);
        if self.span.is_disabled() {
            return;
        }
        let span = std::mem::replace(&mut self.span, Span::none());
        record_code(&span, code, is_error);
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        if let Some(now) = self.now_if_recorded() {
            let code = self.code_of_end(now);
            self.record_end(code, code == Code::DeadlineExceeded, now);
        }
    }
}

fn record_code(span: &Span, code: Code, is_error: bool) {
    span.record("rpc.grpc.status_code", code.number());
    if is_error {
        span.record("otel.status_code", "ERROR");
    }
}

fn call_span(protocol: Protocol, route: &Route, callee: &str, method: &str) -> Span {
    let Some(rule) = route.rule().filter(|rule| rule.policy().governs()) else {
        return Span::none();
    };
    if protocol == Protocol::Operation {
        return tracing::info_span!(
            target: "damper",
            "damper.operation",
            otel.name = %format_args!("{callee} {method}"),
            otel.kind = "internal",
            otel.status_code = Empty,
            peer.service = callee,
            damper.method = method,
            damper.rule = %rule.pattern(),
            damper.revision = rule.revision(),
            damper.fate = Empty,
            damper.attempts = Empty,
        );
    }
    // Arguments are not evaluated if the span is disabled.
    tracing::info_span!(
        target: "damper",
        "grpc.client.call",
        otel.name = %format_args!("Sent.{}.{}", service_of(method), name_of(method)),
        otel.kind = "internal",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.service = service_of(method),
        rpc.method = name_of(method),
        rpc.grpc.status_code = Empty,
        peer.service = callee,
        damper.rule = %rule.pattern(),
        damper.revision = rule.revision(),
        damper.fate = Empty,
        damper.attempts = Empty,
    )
}

fn attempt_span(call: &Span, names: &Names, send: &SendAttempt) -> Span {
    let kind = kind_name(send.kind);
    let method = &names.method;
    if names.protocol == Protocol::Operation {
        return tracing::info_span!(
            target: "damper",
            parent: call,
            "damper.operation.attempt",
            otel.name = %format_args!("Attempt {} {method}", names.callee),
            otel.kind = "client",
            otel.status_code = Empty,
            peer.service = names.callee,
            damper.method = method,
            damper.attempt = send.attempt,
            damper.attempt_kind = kind,
        );
    }
    tracing::info_span!(
        target: "damper",
        parent: call,
        "grpc.client.attempt",
        otel.name = %format_args!("Attempt.{}.{}", service_of(method), name_of(method)),
        otel.kind = "client",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.service = service_of(method),
        rpc.method = name_of(method),
        rpc.grpc.status_code = Empty,
        peer.service = names.callee,
        "previous-rpc-attempts" = send.previous_attempts(),
        "transparent-retry" = send.kind == AttemptKind::Resend,
        damper.attempt = send.attempt,
        damper.attempt_kind = kind,
    )
}

fn kind_name(kind: AttemptKind) -> &'static str {
    match kind {
        AttemptKind::First => "first",
        AttemptKind::Retry => "retry",
        AttemptKind::Hedge => "hedge",
        AttemptKind::Resend => "transparent_resend",
    }
}

fn service_of(method: &str) -> &str {
    service_and_name(method).0
}

fn name_of(method: &str) -> &str {
    service_and_name(method).1
}

/// Only methods of this form have rules, see `damper_core::key::is_method`.
fn service_and_name(method: &str) -> (&str, &str) {
    method.split_once('/').unwrap_or(("", method))
}
