//! Whom a rule or guard concerns at the moment, and what an operator may have meant where that is nobody.

use std::collections::BTreeSet;
use std::sync::Arc;

use damper_core::{Pattern, RouteKey, Rule};
use damper_proto::v1;

use crate::delivery::{Delivered, Delivery};
use crate::shared::Shared;

/// How many near names are told.
const NEAREST: usize = 3;
/// More changes to a name than this make another name, not a slip.
const MAX_DISTANCE: usize = 3;

/// The known routes and connected clients at one moment.
pub(crate) struct Survey {
    routes: Vec<Arc<RouteKey>>,
    delivery: Delivery,
}

impl Survey {
    pub(crate) fn of(shared: &Shared) -> Self {
        Self { routes: shared.stats.keys(), delivery: Delivery::of(&shared.hub, &shared.table()) }
    }

    /// Whom the rule concerns.
    pub(crate) fn reach(&self, rule: &Rule) -> v1::RuleReach {
        self.told(rule.pattern(), self.delivery.delivered(rule.pattern(), 0, Some(rule)))
    }

    /// Whom a guard concerns.
    pub(crate) fn reach_of_guard(&self, pattern: &Pattern) -> v1::RuleReach {
        self.told(pattern, self.delivery.guarded(pattern))
    }

    /// Whom a kill concerns.
    pub(crate) fn reach_of_kill(&self, pattern: &Pattern) -> v1::RuleReach {
        self.told(pattern, self.delivery.killed(std::slice::from_ref(pattern)))
    }

    fn told(&self, pattern: &Pattern, delivered: Delivered) -> v1::RuleReach {
        let routes = self.routes.iter().filter(|route| pattern.matches(route)).count();
        v1::RuleReach {
            routes: u32::try_from(routes).unwrap_or(u32::MAX),
            clients: delivered.clients,
            clients_lacking_features: delivered.lacking,
            nearest: if routes == 0 { self.nearest(pattern) } else { Vec::new() },
        }
    }

    /// The known names that come nearest to those that nobody has.
    fn nearest(&self, pattern: &Pattern) -> Vec<String> {
        let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern.into();
        let written = [caller_service, caller_cluster, callee_service, callee_method];
        let mut known: [BTreeSet<&str>; 4] = Default::default();
        for class in self.delivery.classes() {
            known[0].insert(&class.service);
            known[1].insert(&class.cluster);
        }
        for route in &self.routes {
            let names = [
                route.caller_service(),
                route.caller_cluster(),
                route.callee_service(),
                route.callee_method(),
            ];
            known.iter_mut().zip(names).for_each(|(known, name)| {
                known.insert(name);
            });
        }
        let fields = ["caller_service", "caller_cluster", "callee_service", "callee_method"];
        let mut near: Vec<(usize, String)> = Vec::new();
        for ((field, name), known) in fields.into_iter().zip(&written).zip(&known) {
            if name.contains('*') || known.contains(name.as_str()) {
                continue;
            }
            let distances = known.iter().map(|known| (distance(name, known), known));
            near.extend(
                distances
                    .filter(|(n, _)| *n <= MAX_DISTANCE)
                    .map(|(n, known)| (n, format!("{field}: {known}"))),
            );
        }
        near.sort();
        near.into_iter().take(NEAREST).map(|(_, name)| name).collect()
    }
}

/// How many characters must be inserted, removed or replaced to make one name of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len().abs_diff(b.len()) > MAX_DISTANCE {
        return a.len().abs_diff(b.len());
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn a_slip_is_near_and_another_name_is_far() {
        for (a, b, expected) in
            [("stock", "stock", 0), ("stock", "stok", 1), ("inventory", "inventroy", 2), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
        assert!(distance("orders", "payments") > super::MAX_DISTANCE);
    }
}
