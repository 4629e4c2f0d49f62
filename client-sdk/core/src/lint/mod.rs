//! Lint: findings about valid rules, guards and queues that make a fault worse or have no effect.
//!
//! Settings are within their ranges here, so nothing is rejected. Checks use the rule alone, tightened by guards
//! if these are known, and the [`LintContext`]. A rule that is off has no findings; an observed rule is
//! checked as if it were enforced. Each check is narrow: false alarms teach operators to ignore findings.
//!
//! - [`codes`]: all codes
//! - `load`: load by extra attempts
//! - `harm`: effects on data
//! - `effect`: settings without effect
//! - `timing`: waits and timeouts
//! - `guards`: ceilings
//! - `queues`: attempts of jobs

pub mod codes;
mod effect;
mod guards;
mod harm;
mod load;
mod methods;
mod queues;
mod timing;
mod waits;

use std::fmt;

use self::codes::FindingCode;
pub use self::methods::only_reads;
use crate::job::Queue;
use crate::outcome::code::CodeSet;
use crate::policy::{Mode, Policy};
use crate::rules::guard::{CeilingExcess, Guard};
use crate::rules::table::Rule;

/// Severity of a finding, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Could be better, or is useful to know.
    Hint,
    /// Probably not what its author wants.
    Warning,
    /// Can make a fault worse.
    Danger,
}

impl Severity {
    /// Returns the name: `hint`, `warning`, `danger`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hint => "hint",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A finding about a rule, guard or queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// One of [`codes::ALL`].
    pub code: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Path of the setting from the rule, guard or queue: `policy.retry.max_attempts`.
    pub field: String,
    /// Problem, with the values.
    pub message: String,
    /// Remedy, one sentence.
    pub remedy: &'static str,
}

impl Finding {
    /// Creates a finding of this code.
    #[must_use]
    pub fn new(known: FindingCode, field: impl Into<String>, message: impl Into<String>) -> Self {
        let FindingCode { code, severity, remedy, .. } = known;
        Self { code, severity, field: field.into(), message: message.into(), remedy }
    }
}

/// Facts about a rule's routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LintContext {
    /// Calls per second of one process on the busiest route, rounded up. `None`: unknown.
    pub calls_per_s: Option<u32>,
}

/// Returns the findings about a rule, most severe first.
#[must_use]
pub fn findings(rule: &Rule, context: &LintContext) -> Vec<Finding> {
    let policy = rule.policy();
    let mut findings = Vec::new();
    if policy.mode == Mode::Off {
        return findings;
    }
    timing::streams(rule, &mut findings);
    if policy.retry.is_none() && policy.hedge.is_none() {
        return findings;
    }
    if policy.repeats() {
        load::check(rule, context, &mut findings);
        harm::check(rule, &mut findings);
        effect::check(policy, &mut findings);
        timing::check(policy, &mut findings);
    } else {
        effect::never_repeats(policy, &mut findings);
    }
    by_severity(findings)
}

/// Returns true if findings about the rule depend on [`LintContext::calls_per_s`].
#[must_use]
pub fn depends_on_traffic(rule: &Rule) -> bool {
    load::has_high_minimum(rule.policy())
}

/// Returns the findings about a guard, most severe first.
#[must_use]
pub fn guard_findings(guard: &Guard) -> Vec<Finding> {
    by_severity(guards::check(guard))
}

/// Returns the findings about a queue, most severe first. One that is off has none.
#[must_use]
pub fn queue_findings(queue: &Queue) -> Vec<Finding> {
    by_severity(queues::check(queue))
}

/// Returns the settings of a rule that a guard cuts where both match, whether or not the rule wins there. A
/// rule that is off exceeds nothing.
#[must_use]
pub fn cuts(guard: &Guard, rule: &Rule) -> Vec<Finding> {
    if rule.policy().mode == Mode::Off || !guard.pattern().overlaps(rule.pattern()) {
        return Vec::new();
    }
    let (_, excesses) = guard.ceiling().tighten(rule.policy());
    excesses.iter().map(|excess| cut(guard, excess, rule)).collect()
}

/// Returns the finding of one setting that a guard cuts.
#[must_use]
pub fn cut(guard: &Guard, excess: &CeilingExcess, rule: &Rule) -> Finding {
    let place = if guard.pattern().covers(rule.pattern()) { "everywhere" } else { "where both match" };
    let CeilingExcess { field, problem } = excess;
    let message = format!("{problem}, the ceiling of {}; cut {place}", describe_guard(guard));
    Finding::new(codes::GUARD_CUTS, format!("policy.{field}"), message)
}

/// Returns the guard with its owner: `guard "* * stock *" (owner team-stock)`.
#[must_use]
pub fn describe_guard(guard: &Guard) -> String {
    match guard.owner() {
        "" => format!("guard \"{}\"", guard.pattern()),
        owner => format!("guard \"{}\" (owner {owner})", guard.pattern()),
    }
}

fn by_severity(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// The findings of one policy, filled by the checks.
struct Notes<'a> {
    findings: &'a mut Vec<Finding>,
}

impl Notes<'_> {
    /// Adds a finding about the setting at this path below the policy.
    fn add(&mut self, known: FindingCode, field: &str, message: impl Into<String>) {
        self.findings.push(Finding::new(known, format!("policy.{field}"), message));
    }
}

/// Returns the names of codes, for a message.
fn names(codes: CodeSet) -> String {
    codes.iter().map(crate::outcome::code::Code::name).collect::<Vec<_>>().join(", ")
}

/// Returns the maximum number of retries per call.
fn retries(policy: &Policy) -> u32 {
    policy.retry.as_ref().map_or(0, |retry| retry.max_attempts.saturating_sub(1))
}

#[cfg(test)]
mod tests;
