//! All rules at one revision, and the look-up of the one that applies.
//!
//! A route has at most 24 patterns that can match it (2 x 3 x 2 x 2), so the winner is found by asking for
//! each, the most exact first: the cost does not grow with the number of rules. Drivers look a route up when
//! they first see it and when the table changes, never per call.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fault::Faults;
use crate::key::RouteKey;
use crate::pattern::Pattern;
use crate::policy::{Mode, Policy};

/// A checked policy for the routes of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pattern: Pattern,
    policy: Policy,
    revision: u64,
}

impl Rule {
    /// Binds a policy to a pattern; `revision` is that of the rule's last change, 0 for one made in code.
    ///
    /// # Errors
    /// Every setting of the policy that is out of range, by its path below `policy`.
    pub fn new(pattern: Pattern, policy: Policy, revision: u64) -> Result<Self, Faults> {
        let mut inner = Faults::none();
        policy.check(&mut inner);
        let mut faults = Faults::none();
        faults.nest("policy", inner);
        faults.or(Self { pattern, policy, revision })
    }

    /// The same rule doing no more than `mode`: for a local override, which can only reduce.
    #[must_use]
    pub fn at_most(&self, mode: Mode) -> Self {
        let policy = Policy { mode: self.policy.mode.min(mode), ..self.policy.clone() };
        Self { policy, ..self.clone() }
    }

    /// The routes it is for.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// What it says.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The revision of its last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

/// All rules at one revision.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rules: HashMap<Pattern, Arc<Rule>>,
}

impl Table {
    /// Adds the rule; an older one with the same pattern is replaced and returned.
    pub fn insert(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        self.rules.insert(rule.pattern().clone(), rule)
    }

    /// Takes out the rule with this very pattern.
    pub fn remove(&mut self, pattern: &Pattern) -> Option<Arc<Rule>> {
        self.rules.remove(pattern)
    }

    /// The rule with this very pattern.
    #[must_use]
    pub fn exactly(&self, pattern: &Pattern) -> Option<&Arc<Rule>> {
        self.rules.get(pattern)
    }

    /// The rule that applies to a route, whole: nothing is merged.
    #[must_use]
    pub fn winner(&self, route: &RouteKey) -> Option<&Arc<Rule>> {
        self.matching(route).next()
    }

    /// Every rule that matches a route, the winner first.
    pub fn matching(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<Rule>> {
        Pattern::candidates(route).filter_map(|pattern| self.rules.get(&pattern))
    }

    /// All rules, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values()
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True if there is no rule.
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
