//! The table of rules and guards at one revision, and its look-ups.
//!
//! At most 24 patterns match a route (2 x 3 x 2 x 2), so a look-up tries each, most specific first: the cost
//! does not grow with the number of rules. Drivers look a route up when they first see it and when the table
//! changes, never per call.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fault::Faults;
use crate::policy::{MAX_ATTEMPTS_IN_CODE, Mode, Policy};
use crate::rules::guard::{CeilingExcess, Guard};
use crate::rules::key::RouteKey;
use crate::rules::pattern::{MethodPart, Pattern};

/// A checked policy for the routes of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pattern: Pattern,
    policy: Policy,
    revision: u64,
}

impl Rule {
    /// Binds a policy to a pattern. `revision` is that of the rule's last change, 0 for a rule made in code.
    ///
    /// # Errors
    /// One fault per setting out of range, with its path below `policy`.
    pub fn new(pattern: Pattern, policy: Policy, revision: u64) -> Result<Self, Faults> {
        let mut inner = Faults::none();
        policy.check(&mut inner);
        if policy.hold_unary && !matches!(pattern.callee_method, MethodPart::Exact(_)) {
            let problem = format!("needs an exact callee_method, not {}", pattern.callee_method);
            inner.add("hold_unary", problem);
        }
        let mut faults = Faults::none();
        faults.nest("policy", inner);
        faults.or(Self { pattern, policy, revision })
    }

    /// Returns a rule for every route, from a policy that code sets: its attempts have no upper bound.
    ///
    /// # Errors
    /// One fault per setting out of range.
    pub fn in_code(policy: Policy) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        policy.check_with(MAX_ATTEMPTS_IN_CODE, &mut faults);
        faults.or(Self { pattern: Pattern::any(), policy, revision: 0 })
    }

    /// Returns the rule with at most this mode, for a local override, which can only reduce.
    #[must_use]
    pub fn at_most(&self, mode: Mode) -> Self {
        let policy = Policy { mode: self.policy.mode.min(mode), ..self.policy.clone() };
        Self { policy, ..self.clone() }
    }

    /// Returns the pattern of its routes.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

/// All rules and guards at one revision.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rules: HashMap<Pattern, Arc<Rule>>,
    guards: HashMap<Pattern, Arc<Guard>>,
}

/// A setting of the winning rule that a guard cut on a route.
#[derive(Clone, Debug)]
pub struct Tightened {
    /// The guard.
    pub guard: Arc<Guard>,
    /// The cut.
    pub excess: CeilingExcess,
}

impl Table {
    /// Adds the rule. Returns the rule that it replaces.
    pub fn insert(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        self.rules.insert(rule.pattern().clone(), rule)
    }

    /// Removes the rule with exactly this pattern.
    pub fn remove(&mut self, pattern: &Pattern) -> Option<Arc<Rule>> {
        self.rules.remove(pattern)
    }

    /// Returns the rule with exactly this pattern.
    #[must_use]
    pub fn exactly(&self, pattern: &Pattern) -> Option<&Arc<Rule>> {
        self.rules.get(pattern)
    }

    /// Returns the rule that applies to a route. Rules are not merged.
    #[must_use]
    pub fn winner(&self, route: &RouteKey) -> Option<&Arc<Rule>> {
        self.matching(route).next()
    }

    /// Returns the rule in force on a route: the winner, tightened by all guards that match.
    #[must_use]
    pub fn in_force(&self, route: &RouteKey) -> Option<Arc<Rule>> {
        let winner = self.winner(route)?;
        if self.guards.is_empty() {
            return Some(Arc::clone(winner));
        }
        let (rule, cuts) = self.tighten(winner, route);
        Some(if cuts.is_empty() { Arc::clone(winner) } else { Arc::new(rule) })
    }

    /// Returns the rule tightened by the guards of a route, and the cuts.
    #[must_use]
    pub fn tighten(&self, rule: &Rule, route: &RouteKey) -> (Rule, Vec<Tightened>) {
        let mut rule = rule.clone();
        let mut cuts = Vec::new();
        for guard in self.guards_of(route) {
            let (policy, excesses) = guard.ceiling().tighten(&rule.policy);
            rule.policy = policy;
            cuts.extend(excesses.into_iter().map(|excess| Tightened { guard: Arc::clone(guard), excess }));
        }
        (rule, cuts)
    }

    /// Adds the guard. Returns the guard that it replaces.
    pub fn insert_guard(&mut self, guard: Arc<Guard>) -> Option<Arc<Guard>> {
        self.guards.insert(guard.pattern().clone(), guard)
    }

    /// Removes the guard with exactly this pattern.
    pub fn remove_guard(&mut self, pattern: &Pattern) -> Option<Arc<Guard>> {
        self.guards.remove(pattern)
    }

    /// Returns the guards that match a route, most specific first.
    pub fn guards_of(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<Guard>> {
        // Candidates allocate, and most tables have no guard.
        let candidates = (!self.guards.is_empty()).then(|| Pattern::candidates(route));
        candidates.into_iter().flatten().filter_map(|pattern| self.guards.get(&pattern))
    }

    /// Returns all guards, in no particular order.
    pub fn guards(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.guards.values()
    }

    /// Returns the rules that match a route, the winner first.
    pub fn matching(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<Rule>> {
        Pattern::candidates(route).filter_map(|pattern| self.rules.get(&pattern))
    }

    /// Returns all rules, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values()
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl FromIterator<Arc<Rule>> for Table {
    fn from_iter<I: IntoIterator<Item = Arc<Rule>>>(rules: I) -> Self {
        let mut table = Self::default();
        for rule in rules {
            table.insert(rule);
        }
        table
    }
}
