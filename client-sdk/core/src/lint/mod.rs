//! What is accepted but deserves a look: settings that can make a fault worse, or that do not do what their author
//! most likely wants.
//!
//! A rule is within its ranges before it comes here, so nothing is refused. Checks go by the rule alone, as the
//! guards leave it where they are known, and by the little that [`Context`] says. A rule that is off does nothing
//! and has no finding; one that is observed is read as if it were enforced, because that is what comes next. Each
//! check is narrow on purpose: a false alarm teaches people to ignore findings.
//!
//! - [`codes`]: every code there is. - `load`: what a rule adds to the load. - `harm`: what repeating can do to data.
//! - `effect`: settings without effect. - `timing`: waits and times. - `guards`: ceilings.

pub mod codes;
mod effect;
mod guards;
mod harm;
mod load;
mod methods;
mod timing;
mod waits;

use std::fmt;

use self::codes::FindingCode;
pub use self::methods::only_reads;
use crate::outcome::code::CodeSet;
use crate::policy::{Mode, Policy};
use crate::rules::guard::{CeilingExcess, Guard};
use crate::rules::table::Rule;

/// How grave a finding is; each is graver than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Could be better, or is good to know.
    Hint,
    /// Does most likely not do what its author wants.
    Warning,
    /// Can make a fault worse.
    Danger,
}

impl Severity {
    /// Its name: `hint`, `warning`, `danger`.
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

/// Something that deserves a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// One of [`codes::ALL`].
    pub code: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// The setting, by its path from the rule or guard: `policy.retry.max_attempts`.
    pub field: String,
    /// What is so, with the values.
    pub message: String,
    /// What to do about it, in one sentence.
    pub remedy: &'static str,
}

impl Finding {
    /// A finding of this code.
    #[must_use]
    pub fn new(known: FindingCode, field: impl Into<String>, message: impl Into<String>) -> Self {
        let FindingCode { code, severity, remedy, .. } = known;
        Self { code, severity, field: field.into(), message: message.into(), remedy }
    }
}

/// What is known of a rule's routes beside the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LintContext {
    /// Calls per second that one process makes on the busiest of the routes, rounded up. None: not known.
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
    gravest_first(findings)
}

/// True if findings of the rule depend on [`Context::calls_per_s`].
#[must_use]
pub fn goes_by_traffic(rule: &Rule) -> bool {
    load::has_high_minimum(rule.policy())
}

/// Returns the findings about a guard, most severe first.
#[must_use]
pub fn guard_findings(guard: &Guard) -> Vec<Finding> {
    gravest_first(guards::check(guard))
}

/// Every setting of a rule that a guard cuts where both match, whether the rule wins there or not. A rule that is off
/// exceeds nothing.
#[must_use]
pub fn cuts(guard: &Guard, rule: &Rule) -> Vec<Finding> {
    if rule.policy().mode == Mode::Off || !guard.pattern().overlaps(rule.pattern()) {
        return Vec::new();
    }
    let (_, excesses) = guard.ceiling().tighten(rule.policy());
    excesses.iter().map(|excess| cut(guard, excess, rule)).collect()
}

/// One setting of a rule that a guard cuts.
#[must_use]
pub fn cut(guard: &Guard, excess: &CeilingExcess, rule: &Rule) -> Finding {
    let place = if guard.pattern().covers(rule.pattern()) { "everywhere" } else { "where both match" };
    let CeilingExcess { field, problem } = excess;
    let message = format!("{problem}, the ceiling of {}; cut {place}", guard_in_words(guard));
    Finding::new(codes::GUARD_CUTS, format!("policy.{field}"), message)
}

/// A guard and whom to ask about it: `guard "* * stock *" (owner team-stock)`.
#[must_use]
pub fn guard_in_words(guard: &Guard) -> String {
    match guard.owner() {
        "" => format!("guard \"{}\"", guard.pattern()),
        owner => format!("guard \"{}\" (owner {owner})", guard.pattern()),
    }
}

fn gravest_first(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// What checks of one policy write into.
struct Notes<'a> {
    findings: &'a mut Vec<Finding>,
}

impl Notes<'_> {
    /// Notes a finding about the setting at this path below the policy.
    fn add(&mut self, known: FindingCode, field: &str, message: impl Into<String>) {
        self.findings.push(Finding::new(known, format!("policy.{field}"), message));
    }
}

/// The codes by name, for a message.
fn names(codes: CodeSet) -> String {
    codes.iter().map(crate::outcome::code::Code::name).collect::<Vec<_>>().join(", ")
}

/// Retries per call at most.
fn retries(policy: &Policy) -> u32 {
    policy.retry.as_ref().map_or(0, |retry| retry.max_attempts.saturating_sub(1))
}

#[cfg(test)]
mod tests;
