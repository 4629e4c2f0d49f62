//! A policy bound to its pattern, as operators write it and as it is sent to services.

use damper_core::{Faults, Policy, Rule};

use super::{pattern, policy, within};
use crate::v1;

/// Reads a rule as an operator writes it. When and by whom it was changed is the server's to say.
///
/// # Errors
/// Everything that is wrong with it, by its path: `key.callee_method`, `policy.retry.max_attempts`.
pub fn rule(wire: &v1::Rule) -> Result<Rule, Faults> {
    let v1::Rule { key, policy, revision, updated_at: _, updated_by: _ } = wire;
    bind(key.as_ref(), policy.as_ref(), *revision)
}

/// Reads a rule that was sent to this process.
///
/// # Errors
/// Everything that is wrong with it, by its path; one that this process lacks a feature for, at
/// `needs_feature`.
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

fn bind(key: Option<&v1::Pattern>, said: Option<&v1::Policy>, revision: u64) -> Result<Rule, Faults> {
    let mut faults = Faults::none();
    let key = part("key", key, pattern, &mut faults);
    let policy: Option<Policy> = part("policy", said, policy, &mut faults);
    match (key, policy) {
        (Some(key), Some(policy)) => Rule::new(key, policy, revision),
        _ => Err(faults),
    }
}

/// A part that must be there; `None` was reported.
fn part<W, T>(
    path: &str,
    wire: Option<&W>,
    read: impl FnOnce(&W) -> Result<T, Faults>,
    faults: &mut Faults,
) -> Option<T> {
    within(path, faults, |faults| {
        let Some(wire) = wire else {
            faults.add("", "must be given");
            return None;
        };
        read(wire).map_err(|refused| faults.nest("", refused)).ok()
    })
}

impl From<&Rule> for v1::Rule {
    /// Without what the server adds: when and by whom it was changed.
    fn from(rule: &Rule) -> Self {
        Self {
            key: Some(rule.pattern().into()),
            policy: Some(rule.policy().into()),
            revision: rule.revision(),
            updated_at: None,
            updated_by: String::new(),
        }
    }
}
