//! What a translation keeps of a rule: each setting as kept, changed or lost.
//!
//! A target states what it makes of a rule as a policy of its own, and the report is the difference of both.
//! A setting that a target does not mention is therefore lost, never forgotten.

use damper_core::{Mode, Rule};
use damper_proto::v1;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What becomes of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The target does the same.
    Kept,
    /// The target does something else.
    Changed,
    /// The target does nothing.
    Lost,
}

/// A setting of a rule at a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Path of the setting, as in a manifest.
    pub setting: String,
    /// Its value, as in a manifest; null if only the target has it.
    pub value: Value,
    /// What becomes of it.
    pub outcome: Outcome,
    /// What a changed setting becomes, as in a manifest; none if another setting has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub becomes: Option<Value>,
    /// Reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// True for a setting without effect in this rule: kept, but not written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
}

/// A rule at a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// The rule's key: its four words.
    pub rule: String,
    /// Revision of its last change.
    pub revision: u64,
    /// Callee that it was written for; empty if none.
    pub callee: String,
    /// False if nothing was written for it.
    pub written: bool,
    /// Why the target would refuse the rule, or why it was not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Each setting.
    pub settings: Vec<Loss>,
}

impl RuleReport {
    /// Returns the worst outcome of its settings; a rule that was refused is lost.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let settings = self.settings.iter().map(|loss| loss.outcome);
        let refused = (!self.refused.is_empty()).then_some(Outcome::Lost);
        settings.chain(refused).max().unwrap_or(Outcome::Kept)
    }

    /// Returns the policy that is left, as in a manifest.
    #[must_use]
    pub fn left(&self) -> Value {
        let mut policy = Map::new();
        for loss in &self.settings {
            let value = match loss.outcome {
                Outcome::Kept if !loss.idle => Some(&loss.value),
                Outcome::Changed => loss.becomes.as_ref(),
                Outcome::Kept | Outcome::Lost => None,
            };
            if let Some((path, value)) = loss.setting.strip_prefix("policy.").zip(value) {
                put(&mut policy, path, value.clone());
            }
        }
        Value::Object(policy)
    }
}

/// Settings of a policy: each a field or a group that is kept, changed or lost as one.
pub const SETTINGS: [&str; 20] = [
    "mode",
    "timeout",
    "retry.max_attempts",
    "retry.max_duration",
    "retry.per_attempt_timeout",
    "retry.codes",
    "retry.backoff",
    "hedge.delay",
    "hedge.max_hedges",
    "retry_breaker",
    "budget.ratio",
    "budget.min_per_second",
    "stop_when",
    "circuit_breaker",
    "chain.ignore_retry_flag",
    "chain.ignore_no_more_retry",
    "chain.propagate_baggage",
    "replay_limit_bytes",
    "hold_unary",
    "call_id",
];

/// Settings that act on retries and hedges alone.
const OF_EXTRA_ATTEMPTS: [&str; 9] = [
    "retry_breaker",
    "budget.ratio",
    "budget.min_per_second",
    "stop_when",
    "chain.ignore_retry_flag",
    "chain.ignore_no_more_retry",
    "chain.propagate_baggage",
    "replay_limit_bytes",
    "hold_unary",
];

/// Settings that act on retries alone.
const OF_RETRIES: [&str; 4] = ["retry.max_attempts", "retry.max_duration", "retry.codes", "retry.backoff"];

/// What a target makes of a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expressed {
    /// Settings that the target has, in the words of a rule.
    pub(crate) policy: v1::Policy,
    /// Settings that differ even with the same value, and how.
    pub(crate) notes: Vec<(&'static str, String)>,
    /// Reasons, for settings that are changed or lost.
    pub(crate) why: Vec<(&'static str, String)>,
    /// Settings that become another one, and how.
    pub(crate) moved: Vec<(&'static str, String)>,
    /// Reason for all other settings, if nothing is written.
    pub(crate) all: Option<All>,
}

/// What becomes of all settings of a rule for which nothing is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum All {
    /// They are lost.
    Lost(&'static str),
    /// They have no effect.
    Idle(&'static str),
}

impl Expressed {
    pub(crate) fn note(&mut self, setting: &'static str, why: impl Into<String>) {
        self.notes.push((setting, why.into()));
    }

    pub(crate) fn why(&mut self, setting: &'static str, why: impl Into<String>) {
        self.why.push((setting, why.into()));
    }

    pub(crate) fn moved(&mut self, setting: &'static str, why: impl Into<String>) {
        self.moved.push((setting, why.into()));
    }

    /// Returns each setting of the rule. `target` names the target in reasons.
    pub(crate) fn report(&self, rule: &Rule, target: &str) -> Vec<Loss> {
        let full = full(rule);
        let expressed = serde_json::to_value(&self.policy).unwrap_or_default();
        let off = rule.policy().mode != Mode::Enforce;
        let extra = makes_extra_attempts(rule);
        let (without_effect, no_such) = match self.all {
            Some(All::Idle(why)) => (why, String::new()),
            Some(All::Lost(why)) => ("without effect in this rule", why.to_owned()),
            None => ("without effect in this rule", format!("{target} has no such setting")),
        };
        let idle = |setting: &str| {
            matches!(self.all, Some(All::Idle(_)))
                || (off && setting != "mode")
                || (OF_RETRIES.contains(&setting) && !retries(rule))
                || (OF_EXTRA_ATTEMPTS.contains(&setting) && !extra)
                || (setting == "retry_breaker" && rule.policy().retry_breaker.is_none())
        };
        let find = |list: &[(&'static str, String)], setting: &str| {
            list.iter().find(|(path, _)| *path == setting).map(|(_, why)| why.clone())
        };
        let loss = |setting: &&'static str| {
            let (value, becomes) = (at(&full, setting), at(&expressed, setting));
            let noted = find(&self.notes, setting);
            let loss = |outcome, why: Option<String>| Loss {
                setting: format!("policy.{setting}"),
                value: value.cloned().unwrap_or_default(),
                outcome,
                becomes: becomes.filter(|_| outcome == Outcome::Changed).cloned(),
                why: why.unwrap_or_default(),
                idle: false,
            };
            Some(match (value, becomes) {
                (None, None) => return None,
                (Some(old), Some(new)) if old == new && noted.is_none() => loss(Outcome::Kept, None),
                (_, Some(_)) => loss(Outcome::Changed, noted.or_else(|| find(&self.why, setting))),
                (Some(_), None) if find(&self.moved, setting).is_some() => {
                    loss(Outcome::Changed, find(&self.moved, setting))
                }
                (Some(_), None) if idle(setting) => {
                    Loss { idle: true, ..loss(Outcome::Kept, Some(without_effect.to_owned())) }
                }
                (Some(_), None) => {
                    let why = noted.or_else(|| find(&self.why, setting));
                    loss(Outcome::Lost, Some(why.unwrap_or_else(|| no_such.clone())))
                }
            })
        };
        SETTINGS.iter().filter_map(loss).collect()
    }
}

/// True if the rule makes more than one attempt.
fn makes_extra_attempts(rule: &Rule) -> bool {
    rule.policy().mode == Mode::Enforce && (retries(rule) || rule.policy().hedge.is_some())
}

/// True if the rule retries failed calls.
fn retries(rule: &Rule) -> bool {
    rule.policy().retry.as_ref().is_some_and(|retry| retry.max_attempts > 1 && !retry.codes.is_empty())
}

/// Returns the policy of a rule with all defaults written, as in a manifest.
fn full(rule: &Rule) -> Value {
    let mut policy = serde_json::to_value(v1::Policy::from(rule.policy())).unwrap_or_default();
    if let Some(policy) = policy.as_object_mut() {
        // Omitted as defaults, but a flag that is honoured is the first thing that a target loses.
        let chain = policy.entry("chain").or_insert_with(|| json!({}));
        for flag in ["ignore_retry_flag", "ignore_no_more_retry"] {
            if let Some(chain) = chain.as_object_mut() {
                chain.entry(flag).or_insert(Value::Bool(false));
            }
        }
    }
    policy
}

/// Returns the value at a path of fields.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, field| value.get(field))
}

/// Sets the value at a path of fields.
fn put(map: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            map.insert(path.to_owned(), value);
        }
        Some((field, rest)) => {
            if let Some(inner) = map.entry(field).or_insert_with(|| json!({})).as_object_mut() {
                put(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use damper_document::Value;

    use super::*;

    fn rule(policy: &str) -> Rule {
        let text = format!(
            "kind: Rule\nkey: {{ caller_service: a, caller_cluster: '*', callee_service: b, \
             callee_method: p.S/M }}\npolicy: {policy}\n"
        );
        let documents = damper_proto::manifest::parse(&text).unwrap();
        damper_proto::manifest::check(&documents).unwrap().rules.remove(0)
    }

    const ALL: &str = "{ mode: enforce, timeout: 2s, retry: { max_duration: 1s, per_attempt_timeout: 1s }, \
        hedge: { delay: { fixed: 5ms } }, budget: {}, stop_when: { success_rate_below: 50 }, \
        circuit_breaker: {}, chain: { propagate_baggage: true, ignore_retry_flag: true, \
        ignore_no_more_retry: true }, hold_unary: true, call_id: true }";

    #[test]
    fn every_setting_of_a_rule_is_in_the_report() {
        let losses = Expressed::default().report(&rule(ALL), "It");
        let found: BTreeSet<_> = losses.iter().map(|loss| loss.setting.as_str()).collect();
        let expected: BTreeSet<_> = SETTINGS.iter().map(|setting| format!("policy.{setting}")).collect();
        assert_eq!(found, expected.iter().map(String::as_str).collect());
        assert!(losses.iter().all(|loss| loss.outcome == Outcome::Lost && !loss.why.is_empty()));
        let full = full(&rule(ALL));
        let top: Vec<_> = full.as_object().unwrap().keys().collect();
        let known =
            |field: &&String| SETTINGS.iter().any(|path| path.split('.').next() == Some(field.as_str()));
        assert!(top.iter().all(known), "a field of the policy is in no setting: {top:?}");
        for group in ["retry", "hedge", "budget", "chain"] {
            for field in full[group].as_object().unwrap().keys() {
                assert!(SETTINGS.contains(&format!("{group}.{field}").as_str()), "{group}.{field}");
            }
        }
    }

    #[test]
    fn settings_of_retries_are_idle_without_retries() {
        let losses = Expressed::default().report(&rule("{ mode: enforce, timeout: 2s }"), "It");
        let worst: Vec<_> = losses.iter().filter(|loss| loss.outcome != Outcome::Kept).collect();
        let paths: Vec<_> = worst.iter().map(|loss| loss.setting.as_str()).collect();
        assert_eq!(paths, ["policy.mode", "policy.timeout"]);
        assert!(losses.iter().any(|loss| loss.setting == "policy.retry_breaker" && loss.idle));
    }

    #[test]
    fn what_is_left_is_the_rule_less_the_report() {
        let policy = v1::Policy {
            timeout: Some(crate::backoff::wire(std::time::Duration::from_secs(2))),
            ..Default::default()
        };
        let expressed = Expressed { policy, ..Expressed::default() };
        let rule = rule(ALL);
        let settings = expressed.report(&rule, "It");
        let report = RuleReport {
            rule: rule.pattern().to_string(),
            revision: 1,
            callee: String::new(),
            written: true,
            refused: vec![],
            settings,
        };
        assert_eq!(report.left(), serde_json::json!({ "timeout": "2s" }));
        assert_eq!(report.outcome(), Outcome::Lost);
        let _: Value = report.left();
    }
}
