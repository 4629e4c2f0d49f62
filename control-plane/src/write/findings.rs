//! Findings about rules, guards and queues at the time of writing, and the check against guards.
//!
//! The engine provides most findings ([`lint`](damper_core::lint)). The others depend on guards, clients and
//! traffic. Findings along the chain are in [`chain_limit`](crate::write::chain_limit).
//!
//! A rule inside a guard that exceeds it on all its routes is rejected. A rule that exceeds a guard on some
//! routes is accepted with a finding.
//!
//! A rule that is already stored unchanged is not rejected: nothing is written, and applying the same set
//! again keeps working after a new guard. Concurrent writes of a rule and a guard are not checked against
//! each other; the guard then cuts the rule.

use std::cell::OnceCell;
use std::sync::Arc;

use damper_core::job::Queue;
use damper_core::lint::codes::{self, FindingCode};
use damper_core::lint::{self, Severity};
use damper_core::{Faults, Guard, Mode, Pattern, Rule};
use damper_proto::v1;

use crate::push::fleet_state::FleetState;
use crate::state::guards::{CeilingExceeded, GuardTable};
use crate::state::snapshot::Snapshot;
use crate::stats::rate_window::RateWindow;
use crate::stats::summary::RouteSummary;

/// The most findings in one response.
const MAX_FINDINGS: usize = 1000;

/// Creates a finding with this code.
pub(crate) fn finding(known: FindingCode, subject: &str, field: &str, message: String) -> v1::Finding {
    to_wire(subject, lint::Finding::new(known, field, message))
}

fn to_wire(subject: &str, found: lint::Finding) -> v1::Finding {
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

/// Current call rates for findings that depend on them, read on first use.
pub(crate) struct Traffic<'a> {
    fleet: &'a FleetState,
    rows: OnceCell<Arc<[Arc<RouteSummary>]>>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(fleet: &'a FleetState) -> Self {
        Self { fleet, rows: OnceCell::new() }
    }

    fn rows(&self) -> &[Arc<RouteSummary>] {
        self.rows.get_or_init(|| self.fleet.stats.rows_over(RateWindow::default(), &self.fleet.table()))
    }

    /// Returns calls per second and process on the busiest route of a pattern, rounded up; `None` if no route
    /// is known.
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

/// Returns the findings of the engine about a rule, as written or as cut by guards.
pub(crate) fn of_rule_itself(
    rule: &Rule,
    traffic: &Traffic<'_>,
) -> impl Iterator<Item = v1::Finding> + use<> {
    let subject = rule.pattern().to_string();
    lint::findings(rule, &traffic.context(rule)).into_iter().map(move |found| to_wire(&subject, found))
}

/// Returns all findings about a rule at the time of writing, except those along the chain.
pub(crate) fn of_rule<'a>(
    guards: &'a GuardTable,
    rule: &'a Rule,
    traffic: &Traffic<'_>,
    reach: &v1::RuleReach,
) -> impl Iterator<Item = v1::Finding> + use<'a> {
    let lacking = lacking(&rule.pattern().to_string(), reach, "it is off there");
    cuts(guards, rule).chain(lacking).chain(of_rule_itself(rule, traffic))
}

/// Returns a finding if a new rule that is not enforced replaces an enforced one on its routes.
pub(crate) fn displaces(before: &Snapshot, rule: &Rule) -> Option<v1::Finding> {
    let pattern = rule.pattern();
    if rule.policy().mode == Mode::Enforce || before.stored(pattern).is_some() {
        return None;
    }
    let (covering, stored) = before.stored_of(pattern.covering()).next()?;
    stored.rule.as_ref().filter(|covering| covering.policy().mode == Mode::Enforce)?;
    let message = format!("the enforced rule \"{covering}\" no longer applies to these routes");
    Some(finding(codes::DISPLACES_ENFORCED, &pattern.to_string(), "policy.mode", message))
}

/// Returns all findings about a guard at the time of writing, except the rules that it cuts.
pub(crate) fn of_guard(guard: &Guard, reach: &v1::RuleReach) -> impl Iterator<Item = v1::Finding> + use<> {
    let subject = guard.pattern().to_string();
    let lacking = lacking(&subject, reach, "rules that it cuts are off there");
    let from_lint = lint::guard_findings(guard).into_iter().map(move |found| to_wire(&subject, found));
    lacking.into_iter().chain(from_lint)
}

/// Returns all findings about a queue at the time of writing.
pub(crate) fn of_queue(queue: &Queue) -> impl Iterator<Item = v1::Finding> + use<> {
    let subject = queue.name().to_owned();
    lint::queue_findings(queue).into_iter().map(move |found| to_wire(&subject, found))
}

fn lacking(subject: &str, reach: &v1::RuleReach, so: &str) -> Option<v1::Finding> {
    let v1::RuleReach { clients, clients_lacking_features: lacking, .. } = reach;
    let message = format!("{lacking} of {clients} clients lack a feature that it needs; {so}");
    (*lacking > 0).then(|| finding(codes::CLIENTS_LACK_FEATURE, subject, "", message))
}

/// A bounded list of findings; those beyond the bound are counted.
#[derive(Default)]
pub(crate) struct FindingList {
    listed: usize,
    omitted: usize,
}

impl FindingList {
    /// Returns the findings of a response that has no others.
    pub(crate) fn all(found: impl IntoIterator<Item = v1::Finding>) -> Vec<v1::Finding> {
        let mut findings = Self::default();
        let mut listed = findings.take(found);
        listed.extend(findings.rest(0));
        listed
    }

    /// Adds findings and returns those within the bound.
    pub(crate) fn take(&mut self, more: impl IntoIterator<Item = v1::Finding>) -> Vec<v1::Finding> {
        let mut taken = Vec::new();
        for finding in more {
            // The last place is for the number of omitted findings.
            if self.listed + 1 < MAX_FINDINGS {
                self.listed += 1;
                taken.push(finding);
            } else {
                self.omitted += 1;
            }
        }
        taken
    }

    /// Returns the number of omitted findings, `None` if 0. `unchecked` is the number of resources without a
    /// check.
    pub(crate) fn rest(&self, unchecked: usize) -> Option<v1::Finding> {
        let message = match (self.omitted, unchecked) {
            (0, 0) => return None,
            (omitted, 0) => format!("and {omitted} more findings"),
            (0, unchecked) => format!("{unchecked} more resources, not checked for findings"),
            (omitted, unchecked) => {
                format!("and {omitted} more findings; {unchecked} more resources, not checked for them")
            }
        };
        Some(finding(codes::MORE_FINDINGS, "", "", message))
    }
}

/// Errors if a guard around the rule does not allow one of its settings.
pub(crate) fn check_guards(guards: &GuardTable, rule: &Rule) -> Result<(), Faults> {
    let mut faults = Faults::none();
    for exceeded in guards.exceeded_by(rule).filter(|exceeded| exceeded.is_whole(rule)) {
        let CeilingExceeded { excess, .. } = &exceeded;
        let guard = exceeded.describe_guard();
        faults.add(format!("policy.{}", excess.field), format!("{}, the ceiling of {guard}", excess.problem));
    }
    faults.or(())
}

/// Returns a finding for every setting of a rule that guards cut.
pub(crate) fn cuts<'a>(guards: &'a GuardTable, rule: &'a Rule) -> impl Iterator<Item = v1::Finding> + 'a {
    guards.exceeded_by(rule).map(|exceeded| cut(&exceeded, rule))
}

/// Returns the finding for a setting that a guard cuts.
pub(crate) fn cut(CeilingExceeded { guard, excess }: &CeilingExceeded, rule: &Rule) -> v1::Finding {
    to_wire(&rule.pattern().to_string(), lint::cut(guard, excess, rule))
}
