//! Rules: a policy with its pattern, as written by operators and as sent to services.

use damper_core::{Faults, Pattern, Rule, guard};

use super::{add_new, key, policy, required};
use crate::v1;

/// Reads a rule of an operator. The server sets time and author of its last change.
///
/// # Errors
/// All faults by path: `key.callee_method`, `policy.retry.max_attempts`.
pub fn rule(wire: &v1::Rule) -> Result<Rule, Faults> {
    let v1::Rule { key, policy, revision, updated_at: _, updated_by: _, owner } = wire;
    let rule = bind(key.as_ref(), policy.as_ref(), *revision);
    let mut faults = Faults::none();
    guard::check_owner(owner, &mut faults);
    match rule {
        Ok(rule) => faults.or(rule),
        Err(mut found) => {
            found.nest("", faults);
            Err(found)
        }
    }
}

/// Reads a rule that was sent to this process.
///
/// # Errors
/// All faults by path; a missing feature of this process is a fault of `needs_feature`.
pub fn distributed_rule(wire: &v1::DistributedRule) -> Result<Rule, Faults> {
    let v1::DistributedRule { key, revision, kind } = wire;
    match kind {
        Some(v1::distributed_rule::Kind::Policy(policy)) => bind(key.as_ref(), Some(policy), *revision),
        None => bind(key.as_ref(), None, *revision),
        Some(v1::distributed_rule::Kind::NeedsFeature(feature)) => {
            let mut faults = Faults::none();
            faults.add("needs_feature", format!("the rule is off here: it needs {feature:?}"));
            Err(faults)
        }
    }
}

fn bind(wire: Option<&v1::Pattern>, wire_part: Option<&v1::Policy>, revision: u64) -> Result<Rule, Faults> {
    let mut faults = Faults::none();
    let key = key(wire, &mut faults);
    let read = |wire: &_, faults: &mut Faults| Some(policy::read(wire, faults));
    let Some(policy) = required("policy", wire_part, read, &mut faults) else { return Err(faults) };
    // The engine checks both together; any policy is valid at this route.
    let pattern = key.or_else(|| Pattern::parse("*", "*", "*", "any.Service/Method").ok());
    let Some(pattern) = pattern else { return Err(faults) };
    match Rule::new(pattern, policy, revision) {
        Ok(rule) => faults.or(rule),
        Err(found) => {
            add_new(&found, &mut faults);
            Err(faults)
        }
    }
}

impl From<&Rule> for v1::Rule {
    /// Omits fields that the engine does not know: owner, time and author of the last change.
    fn from(rule: &Rule) -> Self {
        Self {
            key: Some(rule.pattern().into()),
            policy: Some(rule.policy().into()),
            revision: rule.revision(),
            updated_at: None,
            updated_by: String::new(),
            owner: String::new(),
        }
    }
}
