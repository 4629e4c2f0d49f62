//! What guards make of rules, where either is written.
//!
//! A rule that lies wholly inside a guard and exceeds it would never be in force as it stands: it is refused. Any
//! other excess is accepted, since the rule is right on some of its routes, and told as a finding. A rule that is
//! stored just so already is not refused either: nothing is written, and whoever applies the same set again is
//! not stopped by a guard that came in between. A rule and a guard that are written at the same moment may pass each
//! other; then the guard cuts what it would have refused.

use damper_core::{Faults, Rule};
use damper_proto::v1;

use crate::table::{Exceeded, Guards};

/// The most findings in one answer.
const MAX_FINDINGS: usize = 1000;
const GUARD_CUTS: &str = "guard_cuts";

/// Findings up to a bound; beyond it they are counted.
#[derive(Default)]
pub(crate) struct Findings {
    told: usize,
    untold: usize,
}

impl Findings {
    /// Findings that are all of an answer.
    pub(crate) fn all(found: impl IntoIterator<Item = v1::Finding>) -> Vec<v1::Finding> {
        let mut findings = Self::default();
        let mut told = findings.take(found);
        told.extend(findings.rest());
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

    /// Counts findings of what is not listed itself.
    pub(crate) fn leave_out(&mut self, count: usize) {
        self.untold += count;
    }

    /// How many were left out, where any were.
    pub(crate) fn rest(&self) -> Option<v1::Finding> {
        let message = format!("and {} more settings are cut", self.untold);
        (self.untold > 0).then(|| v1::Finding { code: GUARD_CUTS.to_owned(), message, ..Default::default() })
    }
}

/// Refuses a rule that is never in force as it stands: every setting that a guard around it does not allow.
pub(crate) fn refuse(guards: &Guards, rule: &Rule) -> Result<(), Faults> {
    let mut faults = Faults::none();
    for exceeded in guards.exceeded_by(rule).filter(|exceeded| exceeded.is_whole(rule)) {
        let Exceeded { excess, .. } = &exceeded;
        let guard = exceeded.guard_in_words();
        faults.add(format!("policy.{}", excess.field), format!("{}, the ceiling of {guard}", excess.problem));
    }
    faults.or(())
}

/// Every setting of a rule that guards cut.
pub(crate) fn cuts<'a>(guards: &'a Guards, rule: &'a Rule) -> impl Iterator<Item = v1::Finding> + 'a {
    guards.exceeded_by(rule).map(|exceeded| finding(&exceeded, rule))
}

/// One setting that a guard cuts.
pub(crate) fn finding(exceeded: &Exceeded, rule: &Rule) -> v1::Finding {
    let guard = exceeded.guard_in_words();
    let place = if exceeded.is_whole(rule) { "everywhere" } else { "where both match" };
    let problem = &exceeded.excess.problem;
    v1::Finding {
        code: GUARD_CUTS.to_owned(),
        subject: rule.pattern().to_string(),
        field: format!("policy.{}", exceeded.excess.field),
        message: format!("{problem}, the ceiling of {guard}; cut {place}"),
        ..Default::default()
    }
}
