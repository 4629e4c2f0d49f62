//! Spans: one per call under a rule, one child per attempt.
//!
//! Names and fields are those of OpenTelemetry's RPC conventions and of gRFC A72 (`Sent.`, `Attempt.`), so that
//! a subscriber that exports to it needs no mapping; ours begin with `damper.`. A call without a rule has no
//! span, and where no subscriber wants them none is made.

use damper_core::{Code, Ending, Route, Send, SendKind, Verdict};
use tracing::Span;
use tracing::field::{Empty, display};

/// The span of a call.
pub(super) fn call(route: &Route, callee: &str, method: &str) -> Span {
    let Some(rule) = route.rule().filter(|rule| rule.policy().governs()) else {
        return Span::none();
    };
    let (service, name) = method.split_once('/').unwrap_or(("", method));
    tracing::info_span!(
        target: "damper",
        "grpc.client.call",
        otel.name = %format_args!("Sent.{method}"),
        otel.kind = "client",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = name,
        peer.service = callee,
        damper.rule = %rule.pattern(),
        damper.revision = rule.revision(),
        damper.fate = Empty,
    )
}

/// The call ended.
pub(super) fn call_ended(call: &Span, ending: Ending) {
    call.record("damper.fate", display(ending));
}

/// The span of an attempt.
pub(super) fn attempt(call: &Span, send: &Send) -> Span {
    if call.is_none() {
        return Span::none();
    }
    let kind = match send.kind {
        SendKind::First => "first",
        SendKind::Retry => "retry",
        SendKind::Hedge => "hedge",
        SendKind::Resend => "transparent_resend",
    };
    tracing::info_span!(
        target: "damper",
        parent: call,
        "grpc.client.attempt",
        otel.name = "Attempt",
        previous_rpc_attempts = send.previous_attempts(),
        transparent_retry = send.kind == SendKind::Resend,
        damper.attempt = send.attempt,
        damper.attempt_kind = kind,
        rpc.grpc.status_code = Empty,
    )
}

/// An attempt ended so.
pub(super) fn attempt_ended(attempt: &Span, verdict: &Verdict) {
    let code = match verdict {
        Verdict::Success => Code::Ok,
        Verdict::Failure(failure) => failure.code,
        Verdict::Unprocessed => Code::Unavailable,
    };
    attempt.record("rpc.grpc.status_code", code.number());
}

/// An attempt was given up.
pub(super) fn attempt_cancelled(attempt: &Span) {
    attempt.record("rpc.grpc.status_code", Code::Cancelled.number());
}
