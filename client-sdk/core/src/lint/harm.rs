//! What repeating a call can do to the callee's data, guessed from the method's name.

use super::methods::changes_something;
use super::{Finding, Notes, codes, names};
use crate::code::{Code, CodeSet};
use crate::pattern::MethodPart;
use crate::policy::Mode;
use crate::table::Rule;

/// Codes that a call can end with although it was carried out.
const AMBIGUOUS: CodeSet =
    CodeSet::of(&[Code::Cancelled, Code::Unknown, Code::DeadlineExceeded, Code::Aborted, Code::Internal]);

pub(super) fn check(rule: &Rule, findings: &mut Vec<Finding>) {
    let MethodPart::Exact(method) = &rule.pattern().callee_method else { return };
    let policy = rule.policy();
    if policy.call_id || !changes_something(method) {
        return;
    }
    let mut notes = Notes { findings };
    let name = method.rsplit('/').next().unwrap_or(method);
    let ambiguous = policy.retryable().intersection(AMBIGUOUS);
    let retried = policy.retry.is_some() && !ambiguous.is_empty();
    if retried {
        notes.add(
            codes::NON_IDEMPOTENT_REPEATED,
            "retry.codes",
            format!("{name} may have been carried out when it ends with {}", names(ambiguous)),
        );
    }
    if policy.hedge.is_some() {
        notes.add(
            codes::NON_IDEMPOTENT_HEDGED,
            "hedge",
            format!(
                "{name} is carried out by every attempt that reaches the callee, also by those that lose"
            ),
        );
    }
    if !retried && policy.hedge.is_none() && policy.mode == Mode::Enforce {
        notes.add(codes::CALL_ID_MISSING, "call_id", format!("is false, and {name} is repeated"));
    }
}
