//! Risk of extra attempts for the callee's data, estimated from the method's name.

use super::methods::{adds_data, only_reads};
use super::{Finding, Notes, codes, names};
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{Mode, Policy};
use crate::rules::pattern::MethodPart;
use crate::rules::table::Rule;

/// Codes that can follow a call that was executed.
const AMBIGUOUS: CodeSet =
    CodeSet::of(&[Code::Cancelled, Code::Unknown, Code::DeadlineExceeded, Code::Aborted, Code::Internal]);

pub(super) fn check(rule: &Rule, findings: &mut Vec<Finding>) {
    let policy = rule.policy();
    if policy.call_id {
        return;
    }
    let mut notes = Notes { findings };
    let ambiguous = policy.retryable().intersection(AMBIGUOUS);
    let retried = policy.retry.is_some() && !ambiguous.is_empty();
    match &rule.pattern().callee_method {
        MethodPart::Exact(method) if adds_data(method) => {
            named(policy, method, retried.then_some(ambiguous), &mut notes);
        }
        MethodPart::Exact(method) if retried && !only_reads(method) => {
            let name = method.rsplit('/').next().unwrap_or(method);
            let message = format!("{name} may have run although it failed with {}", names(ambiguous));
            notes.add(codes::UNCLEAR_REPEATED, "retry.codes", message);
        }
        MethodPart::Exact(_) => {}
        methods if retried => notes.add(
            codes::UNNAMED_REPEATED,
            "retry.codes",
            format!("calls of {methods} may have run although they failed with {}", names(ambiguous)),
        ),
        _ => {}
    }
}

/// Checks a method whose name suggests that it changes data; `ambiguous` are the codes after which it is
/// retried.
fn named(policy: &Policy, method: &str, ambiguous: Option<CodeSet>, notes: &mut Notes<'_>) {
    let name = method.rsplit('/').next().unwrap_or(method);
    if let Some(ambiguous) = ambiguous {
        notes.add(
            codes::NON_IDEMPOTENT_REPEATED,
            "retry.codes",
            format!("{name} may have run although it failed with {}", names(ambiguous)),
        );
    }
    if policy.hedge.is_some() {
        notes.add(
            codes::NON_IDEMPOTENT_HEDGED,
            "hedge",
            format!("every attempt that reaches the callee runs {name}, including those that lose"),
        );
    }
    if ambiguous.is_none() && policy.hedge.is_none() && policy.mode == Mode::Enforce {
        notes.add(codes::CALL_ID_MISSING, "call_id", format!("is false, and {name} is retried"));
    }
}
