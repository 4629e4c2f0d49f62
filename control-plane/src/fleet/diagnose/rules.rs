//! What has become of the rules in the fleet.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Mode, Part, Pattern, Rule};
use damper_proto::v1;

use super::{Check, Picture, codes, finding};
use crate::figures::many;
use crate::stats::Row;
use crate::table::StoredRule;

/// Observing is a step on the way, not a place to stay.
const OBSERVED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) const CHECKS: &[Check] = &[
    Check { what: "rules match routes", scope: count, find: without_routes },
    Check { what: "rules do not stay in observe", scope: count, find: observed },
    Check { what: "guards leave rules as they are", scope: count, find: cut },
];

/// The rules that it is about, as far as they can be read: those that name the service or match one of its routes.
fn rules(picture: &Picture) -> impl Iterator<Item = (&Arc<StoredRule>, &Arc<Rule>)> {
    let matching = matching(picture.rows());
    let read = picture.table.iter().filter_map(|(_, stored)| Some((stored, stored.rule.as_ref()?)));
    read.filter(move |(_, rule)| {
        let pattern = rule.pattern();
        let names = |part: &Part| matches!(part, Part::Exact(name) if *name == picture.service);
        picture.service.is_empty()
            || names(&pattern.caller_service)
            || names(&pattern.callee_service)
            || matching.contains(pattern)
    })
}

/// Every pattern that matches one of the routes: few for each, so that rules are not compared with all of them.
fn matching<'a>(rows: impl Iterator<Item = &'a Row>) -> HashSet<Pattern> {
    let keys = rows.filter_map(|row| row.route.key());
    keys.flat_map(|key| Pattern::candidates(&key).collect::<Vec<_>>()).collect()
}

fn count(picture: &Picture) -> String {
    many(rules(picture).count(), "rule")
}

fn without_routes(picture: &Picture) -> Vec<v1::Finding> {
    // Before anything is known of any route, nothing is known of rules either.
    if picture.rows.is_empty() {
        return Vec::new();
    }
    let matching = matching(picture.rows.iter().map(|row| &**row));
    let told = rules(picture).filter(|(_, rule)| !matching.contains(rule.pattern())).map(|(_, rule)| {
        let message = format!("none of {} that processes report matches", many(picture.rows.len(), "route"));
        finding(codes::MATCHES_NOTHING, &rule.pattern().to_string(), message)
    });
    told.collect()
}

fn observed(picture: &Picture) -> Vec<v1::Finding> {
    let told = rules(picture).filter(|(_, rule)| rule.policy().mode == Mode::Observe).filter_map(
        |(stored, rule)| {
            let since = SystemTime::try_from(stored.wire.updated_at?).ok()?;
            let age = picture.now.duration_since(since).ok().filter(|age| *age > OBSERVED_FOR)?;
            let days = age.as_secs() / (24 * 3600);
            let message = format!("has been in observe for {days} days at least");
            Some(finding(codes::OBSERVED_FOR_LONG, &rule.pattern().to_string(), message))
        },
    );
    told.collect()
}

fn cut(picture: &Picture) -> Vec<v1::Finding> {
    let guards = picture.table.guards();
    rules(picture).flat_map(|(_, rule)| crate::judgement::cuts(guards, rule)).collect()
}
