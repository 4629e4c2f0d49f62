//! Failed calls in the form of a report.

use damper_proto::v1;

use crate::routes::failed_calls::{FailedAttempt, FailedCall, Failures, HexId, Ids};

/// Takes the failed calls of a route.
pub(super) fn failed_calls(failures: &Failures) -> Vec<v1::FailedCall> {
    failures.take().into_iter().map(call).collect()
}

fn call(call: FailedCall) -> v1::FailedCall {
    let FailedCall { ending, code, ended_at, latency, attempts, sends, ids } = call;
    let Ids { trace, call } = ids.map_or_else(Ids::default, |ids| *ids);
    let text = |id: Option<HexId>| id.map_or_else(String::new, |id| id.as_str().to_owned());
    v1::FailedCall {
        fate: v1::Fate::from(ending.fate).into(),
        would: ending.would,
        code: v1::Code::from(code).into(),
        ended_at: Some(ended_at.into()),
        latency: prost_types::Duration::try_from(latency).ok(),
        attempts: attempts.into_iter().map(attempt).collect(),
        sends,
        trace_id: text(trace),
        call_id: text(call),
    }
}

fn attempt(attempt: FailedAttempt) -> v1::FailedAttempt {
    let FailedAttempt { number: _, sent_after, took, code, hedge, detail } = attempt;
    v1::FailedAttempt {
        sent_after: prost_types::Duration::try_from(sent_after).ok(),
        took: took.and_then(|took| prost_types::Duration::try_from(took).ok()),
        code: v1::Code::from(code).into(),
        hedge,
        detail: detail.into_owned(),
    }
}
