//! Guards of a snapshot and their effect on rules.
//!
//! Sorted by callee, since a guard can only meet rules of its own callee or of all callees. So the guards of
//! a rule are found without a scan of those of other callees. Snapshots of neighbouring revisions share them,
//! as rules.

use std::sync::Arc;

use damper_core::guard::CeilingExcess;
use damper_core::{Guard, MethodPart, Mode, Part, Pattern, RouteKey, Rule};
use rpds::RedBlackTreeMapSync;

use crate::state::stored::StoredGuard;

/// All guards at one revision.
#[derive(Clone, Debug)]
pub(crate) struct GuardTable {
    guards: RedBlackTreeMapSync<ByCallee, Arc<StoredGuard>>,
    /// Number of guards that this version cannot read.
    unread: usize,
}

/// Pattern in the order of its callee.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ByCallee {
    callee_service: Part,
    callee_method: MethodPart,
    caller_service: Part,
    caller_cluster: Part,
}

/// Setting of a rule beyond a guard's ceiling on some of its routes.
#[derive(Clone, Debug)]
pub(crate) struct CeilingExceeded {
    pub(crate) guard: Arc<Guard>,
    pub(crate) excess: CeilingExcess,
}

impl GuardTable {
    /// No guard.
    pub(crate) fn none() -> Self {
        Self { guards: RedBlackTreeMapSync::new_sync(), unread: 0 }
    }

    /// Creates a table of one guard.
    pub(crate) fn only(guard: Arc<StoredGuard>) -> Self {
        let mut guards = Self::none();
        guards.put(guard);
        guards
    }

    /// Adds a guard, or replaces the one with its pattern.
    pub(crate) fn put(&mut self, stored: Arc<StoredGuard>) {
        self.remove(&stored.pattern);
        self.unread += usize::from(stored.guard.is_none());
        self.guards.insert_mut(ByCallee::of(&stored.pattern), stored);
    }

    /// Removes the guard with this pattern.
    pub(crate) fn remove(&mut self, pattern: &Pattern) {
        let place = ByCallee::of(pattern);
        if let Some(stored) = self.guards.get(&place) {
            self.unread -= usize::from(stored.guard.is_none());
            self.guards.remove_mut(&place);
        }
    }

    /// Returns the number of guards.
    pub(crate) fn len(&self) -> usize {
        self.guards.size()
    }

    /// True if this version can read all of them.
    pub(crate) fn all_read(&self) -> bool {
        self.unread == 0
    }

    /// The guard with this pattern.
    pub(crate) fn stored(&self, pattern: &Pattern) -> Option<&Arc<StoredGuard>> {
        self.guards.get(&ByCallee::of(pattern))
    }

    /// All guards in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<StoredGuard>> {
        self.guards.values()
    }

    /// The guards behind a pattern, in order; `None` = all.
    pub(crate) fn behind(&self, pattern: Option<&Pattern>) -> impl Iterator<Item = &Arc<StoredGuard>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = pattern.map(ByCallee::of).map_or(Unbounded, Excluded);
        self.guards.range((start, Unbounded)).map(|(_, stored)| stored)
    }

    /// The guards that match a route.
    pub(crate) fn of_route(&self, route: &RouteKey) -> impl Iterator<Item = &Arc<StoredGuard>> {
        let candidates = (self.len() > 0).then(|| Pattern::candidates(route));
        candidates.into_iter().flatten().filter_map(|pattern| self.stored(&pattern))
    }

    /// The guards that share a route with a pattern.
    pub(crate) fn overlapping(&self, pattern: &Pattern) -> impl Iterator<Item = &Arc<StoredGuard>> {
        let callees = match &pattern.callee_service {
            Part::Any => vec![None],
            exact => vec![Some(Part::Any), Some(exact.clone())],
        };
        let near = callees.into_iter().flat_map(|callee| {
            let first = ByCallee::first_of(callee.clone().unwrap_or(Part::Any));
            let all = self.guards.range(first..);
            all.take_while(move |(place, _)| {
                callee.as_ref().is_none_or(|callee| place.callee_service == *callee)
            })
        });
        near.map(|(_, stored)| stored).filter(|stored| stored.pattern.overlaps(pattern))
    }

    /// Yields each setting of a rule that a guard cuts on some route, whether or not the rule wins there. A
    /// rule that is off exceeds nothing, so a rule can always be switched off.
    pub(crate) fn exceeded_by(&self, rule: &Rule) -> impl Iterator<Item = CeilingExceeded> {
        let on = rule.policy().mode != Mode::Off && self.len() > 0;
        let guards = on.then(|| self.overlapping(rule.pattern())).into_iter().flatten();
        guards.filter_map(|stored| stored.guard.as_ref()).flat_map(|guard| {
            let (_, excesses) = guard.ceiling().tighten(rule.policy());
            excesses.into_iter().map(|excess| CeilingExceeded { guard: guard.clone(), excess })
        })
    }
}

impl ByCallee {
    fn of(pattern: &Pattern) -> Self {
        let Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern.clone();
        Self { callee_service, callee_method, caller_service, caller_cluster }
    }

    /// First place of this callee: `*` sorts before every name.
    fn first_of(callee_service: Part) -> Self {
        Self {
            callee_service,
            callee_method: MethodPart::Any,
            caller_service: Part::Any,
            caller_cluster: Part::Any,
        }
    }
}

impl CeilingExceeded {
    /// Returns true if the guard covers the whole rule, so the rule is never in force as written.
    pub(crate) fn is_whole(&self, rule: &Rule) -> bool {
        self.guard.pattern().covers(rule.pattern())
    }

    /// Describes the guard and its owner: `guard "* * stock *" (owner team-stock)`.
    pub(crate) fn describe_guard(&self) -> String {
        damper_core::lint::describe_guard(&self.guard)
    }
}
