//! Counts the routes and clients that a rule or guard applies to, and suggests similar names if there are
//! none, or a similar pattern if none is stored.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use damper_core::{Pattern, RouteKey, Rule};
use damper_proto::v1;

use crate::push::delivery::{Delivery, DeliveryCounts};
use crate::push::fleet_state::FleetState;
use crate::state::error::ApiError;

/// The most names that are suggested.
const NEAREST: usize = 3;
/// Names with a greater edit distance are not suggested.
const MAX_DISTANCE: usize = 3;
const WILDCARD_SLIPS: usize = 2;

/// The known routes and connected clients at one moment.
pub(crate) struct ReachSurvey {
    routes: Vec<Arc<RouteKey>>,
    delivery: Delivery,
    /// Known names by part of a pattern.
    known: OnceLock<[BTreeSet<String>; 4]>,
}

impl ReachSurvey {
    pub(crate) fn new(fleet: &FleetState) -> Self {
        Self {
            routes: fleet.stats.keys(),
            delivery: Delivery::of(&fleet.hub, &fleet.table()),
            known: OnceLock::new(),
        }
    }

    /// Returns the reach of a rule.
    pub(crate) fn reach(&self, rule: &Rule) -> v1::RuleReach {
        self.to_wire(
            std::slice::from_ref(rule.pattern()),
            self.delivery.delivered(rule.pattern(), 0, Some(rule)),
        )
    }

    /// Returns the reach of a guard.
    pub(crate) fn reach_of_guard(&self, pattern: &Pattern) -> v1::RuleReach {
        self.to_wire(std::slice::from_ref(pattern), self.delivery.guarded(pattern))
    }

    /// Returns the reach of kills with these patterns, each client and route counted once.
    pub(crate) fn reach_of_kills(&self, patterns: &[Pattern]) -> v1::RuleReach {
        self.to_wire(patterns, self.delivery.killed(patterns))
    }

    fn to_wire(&self, patterns: &[Pattern], delivered: DeliveryCounts) -> v1::RuleReach {
        let matches = |route: &&Arc<RouteKey>| patterns.iter().any(|pattern| pattern.matches(route));
        let routes = self.routes.iter().filter(matches).count();
        v1::RuleReach {
            routes: u32::try_from(routes).unwrap_or(u32::MAX),
            clients: delivered.clients,
            clients_lacking_features: delivered.lacking,
            nearest: patterns
                .first()
                .filter(|_| routes == 0)
                .map_or_else(Vec::new, |first| self.nearest(first)),
        }
    }

    /// Returns the known names that are most similar to the unknown names of a pattern.
    fn nearest(&self, pattern: &Pattern) -> Vec<String> {
        let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern.into();
        let written = [caller_service, caller_cluster, callee_service, callee_method];
        let known = self.known.get_or_init(|| self.names());
        let fields = ["caller_service", "caller_cluster", "callee_service", "callee_method"];
        let mut near: Vec<(usize, String)> = Vec::new();
        for ((field, name), known) in fields.into_iter().zip(&written).zip(known) {
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

    fn names(&self) -> [BTreeSet<String>; 4] {
        let mut known: [BTreeSet<String>; 4] = Default::default();
        let mut put = |part: usize, name: &str| {
            if !known[part].contains(name) {
                known[part].insert(name.to_owned());
            }
        };
        for class in self.delivery.classes() {
            put(0, &class.service);
            put(1, &class.cluster);
        }
        for route in &self.routes {
            put(0, route.caller_service());
            put(1, route.caller_cluster());
            put(2, route.callee_service());
            put(3, route.callee_method());
        }
        known
    }
}

/// Returns the error for a pattern that is not stored. It names the most similar one, which `near` finds,
/// unless too much work waits.
pub(crate) async fn unknown(
    fleet: &FleetState,
    kind: &str,
    pattern: Pattern,
    near: impl FnOnce(&Pattern) -> Option<Pattern> + Send + 'static,
) -> ApiError {
    let missing = format!("there is no {kind} {pattern}");
    ApiError::NotFound(match fleet.state.worker.run(move |_| Ok(near(&pattern))).await {
        Ok(Some(near)) => format!("{missing}; did you mean {near}?"),
        _ => missing,
    })
}

/// Returns the most similar pattern. A wildcard in place of a name counts as two slips.
pub(crate) fn nearest<'a>(
    written: &Pattern,
    known: impl Iterator<Item = &'a Pattern>,
) -> Option<&'a Pattern> {
    let parts = |pattern: &Pattern| {
        let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern.into();
        [callee_service, caller_service, callee_method, caller_cluster]
    };
    let written = parts(written);
    let slips = |known: &Pattern| {
        parts(known).iter().zip(&written).try_fold(0, |slips, (known, written)| {
            let more = match (&**known, &**written) {
                (known, written) if known == written => 0,
                ("*", _) | (_, "*") => WILDCARD_SLIPS,
                (known, written) => distance(known, written),
            };
            (more <= MAX_DISTANCE).then_some(slips + more)
        })
    };
    known.filter_map(|known| Some((slips(known)?, known))).min().map(|(_, known)| known)
}

/// Returns the edit distance of two names, at least for distances up to the limit.
pub(crate) fn distance(a: &str, b: &str) -> usize {
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
    use super::*;

    #[test]
    fn nearest_pattern_is_the_one_with_fewest_slips() {
        let pattern = |words: &str| {
            let parts: Vec<&str> = words.split(' ').collect();
            Pattern::parse(parts[0], parts[1], parts[2], parts[3]).unwrap()
        };
        let known =
            ["orders * stock *", "* * stock *", "orders * price a.P/Get", "orders eu stock *"].map(pattern);
        for (written, expected) in [
            ("orders * stok *", Some("orders * stock *")),
            ("order eu stock *", Some("orders eu stock *")),
            ("* * stock a.S/Get", Some("* * stock *")),
            ("orders * price a.P/Gte", Some("orders * price a.P/Get")),
            ("shop * ledger *", None),
        ] {
            let found = nearest(&pattern(written), known.iter()).map(ToString::to_string);
            assert_eq!(found.as_deref(), expected, "{written}");
        }
    }

    #[test]
    fn a_slip_is_near_and_another_name_is_far() {
        for (a, b, expected) in
            [("stock", "stock", 0), ("stock", "stok", 1), ("inventory", "inventroy", 2), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
        assert!(distance("orders", "payments") > MAX_DISTANCE);
    }
}
