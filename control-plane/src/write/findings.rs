//! What is found of rules and guards where they are written, and what is refused for a guard.
//!
//! Findings are the engine's ([`lint`](damper_core::lint)), and those that need what a server knows: guards, clients,
//! traffic; what the chain comes to is found in [`chain`](crate::graph).
//!
//! A rule that lies wholly inside a guard and exceeds it would never be in force as it stands: it is refused. Any
//! other excess is accepted, since the rule is right on some of its routes, and told as a finding. A rule that is
//! stored just so already is not refused either: nothing is written, and whoever applies the same set again is
//! not stopped by a guard that came in between. A rule and a guard that are written at the same moment may pass each
//! other; then the guard cuts what it would have refused.

use std::cell::OnceCell;
use std::sync::Arc;

use damper_core::lint::codes::{self, FindingCode};
use damper_core::lint::{self, Severity};
use damper_core::{Faults, Guard, Pattern, Rule};
use damper_proto::v1;

use crate::push::fleet_state::FleetState;
use crate::state::guards::{CeilingExceeded, GuardTable};
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::RouteSummary;

/// The most findings in one answer.
const MAX_FINDINGS: usize = 1000;

/// A finding of this code.
pub(crate) fn finding(known: FindingCode, subject: &str, field: &str, message: String) -> v1::Finding {
    told(subject, lint::Finding::new(known, field, message))
}

fn told(subject: &str, found: lint::Finding) -> v1::Finding {
    let lint::Finding { code, severity, field, message, remedy } = found;
    let severity = match severity {
        Severity::Hint => v1::Severity::Hint,
        Severity::Warning => v1::Severity::Warning,
        Severity::Danger => v1::Severity::Danger,
    };
    v1::Finding {
        code: code.to_owned(),
        subject: subject.to_owned(),
        field,
        message,
        severity: severity.into(),
        remedy: remedy.to_owned(),
    }
}

/// How much is called at present, for findings that go by it: looked at only if there is one.
pub(crate) struct Traffic<'a> {
    fleet: &'a FleetState,
    rows: OnceCell<Arc<[Arc<RouteSummary>]>>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn of(fleet: &'a FleetState) -> Self {
        Self { fleet, rows: OnceCell::new() }
    }

    fn rows(&self) -> &[Arc<RouteSummary>] {
        self.rows.get_or_init(|| self.fleet.stats.rows_over(RateWindow::default(), &self.fleet.table()))
    }

    /// Calls per second and process on the busiest route of a pattern, rounded up; none where none is known.
    fn busiest(&self, pattern: &Pattern) -> Option<u32> {
        let of_pattern =
            self.rows().iter().filter(|row| row.route.key().is_some_and(|key| pattern.matches(&key)));
        let calls = of_pattern.map(|row| row.stats.calls_per_s / f64::from(row.stats.clients.max(1)));
        // Casts of floats saturate.
        calls.reduce(f64::max).map(|calls| calls.ceil() as u32)
    }

    fn context(&self, rule: &Rule) -> lint::LintContext {
        let calls_per_s = if lint::depends_on_traffic(rule) { self.busiest(rule.pattern()) } else { None };
        lint::LintContext { calls_per_s }
    }
}

/// Everything about a rule, as it is written or as guards leave it, that the engine finds.
pub(crate) fn of_rule_itself(
    rule: &Rule,
    traffic: &Traffic<'_>,
) -> impl Iterator<Item = v1::Finding> + use<> {
    let subject = rule.pattern().to_string();
    lint::findings(rule, &traffic.context(rule)).into_iter().map(move |found| told(&subject, found))
}

/// Everything about a rule that deserves a look where it is written, but for the chain.
pub(crate) fn of_rule<'a>(
    guards: &'a GuardTable,
    rule: &'a Rule,
    traffic: &Traffic<'_>,
    reach: &v1::RuleReach,
) -> impl Iterator<Item = v1::Finding> + use<'a> {
    let lacking = lacking(&rule.pattern().to_string(), reach, "it is off there");
    cuts(guards, rule).chain(lacking).chain(of_rule_itself(rule, traffic))
}

/// Everything about a guard that deserves a look where it is written, but for the rules that it cuts.
pub(crate) fn of_guard(guard: &Guard, reach: &v1::RuleReach) -> impl Iterator<Item = v1::Finding> + use<> {
    let subject = guard.pattern().to_string();
    let lacking = lacking(&subject, reach, "rules that it cuts are off there");
    let of_itself = lint::guard_findings(guard).into_iter().map(move |found| told(&subject, found));
    lacking.into_iter().chain(of_itself)
}

fn lacking(subject: &str, reach: &v1::RuleReach, so: &str) -> Option<v1::Finding> {
    let v1::RuleReach { clients, clients_lacking_features: lacking, .. } = reach;
    let message = format!("{lacking} of {clients} clients lack a feature that it needs; {so}");
    (*lacking > 0).then(|| finding(codes::CLIENTS_LACK_FEATURE, subject, "", message))
}

/// Findings up to a bound; beyond it they are counted.
#[derive(Default)]
pub(crate) struct FindingList {
    told: usize,
    untold: usize,
}

impl FindingList {
    /// Findings that are all of an answer.
    pub(crate) fn all(found: impl IntoIterator<Item = v1::Finding>) -> Vec<v1::Finding> {
        let mut findings = Self::default();
        let mut told = findings.take(found);
        told.extend(findings.rest(0));
        told
    }

    /// Takes more findings; answers those that there is room for.
    pub(crate) fn take(&mut self, more: impl IntoIterator<Item = v1::Finding>) -> Vec<v1::Finding> {
        let mut taken = Vec::new();
        for finding in more {
            // The last place is for the number of those that are left out.
            if self.told + 1 < MAX_FINDINGS {
                self.told += 1;
                taken.push(finding);
            } else {
                self.untold += 1;
            }
        }
        taken
    }

    /// How many were left out, if any were; `unchecked` rules and guards were not looked at.
    pub(crate) fn rest(&self, unchecked: usize) -> Option<v1::Finding> {
        let message = match (self.untold, unchecked) {
            (0, 0) => return None,
            (untold, 0) => format!("and {untold} more findings"),
            (0, unchecked) => format!("{unchecked} more rules or guards, not checked for findings"),
            (untold, unchecked) => {
                format!("and {untold} more findings; {unchecked} more rules or guards, not checked for them")
            }
        };
        Some(finding(codes::MORE_FINDINGS, "", "", message))
    }
}

/// Refuses a rule that is never in force as it stands: every setting that a guard around it does not allow.
pub(crate) fn refuse(guards: &GuardTable, rule: &Rule) -> Result<(), Faults> {
    let mut faults = Faults::none();
    for exceeded in guards.exceeded_by(rule).filter(|exceeded| exceeded.is_whole(rule)) {
        let CeilingExceeded { excess, .. } = &exceeded;
        let guard = exceeded.guard_in_words();
        faults.add(format!("policy.{}", excess.field), format!("{}, the ceiling of {guard}", excess.problem));
    }
    faults.or(())
}

/// Every setting of a rule that guards cut.
pub(crate) fn cuts<'a>(guards: &'a GuardTable, rule: &'a Rule) -> impl Iterator<Item = v1::Finding> + 'a {
    guards.exceeded_by(rule).map(|exceeded| cut(&exceeded, rule))
}

/// One setting that a guard cuts.
pub(crate) fn cut(CeilingExceeded { guard, excess }: &CeilingExceeded, rule: &Rule) -> v1::Finding {
    told(&rule.pattern().to_string(), lint::cut(guard, excess, rule))
}
