//! Checks of the replicas of the control plane.

use std::time::{Duration, SystemTime};

use damper_proto::v1;

use crate::doctor::clients::age;
use crate::doctor::{Check, DoctorInput, codes, finding};
use crate::state::text::many;

/// The time that a replica may be at another revision before one of the two counts as behind.
const APART_FOR: Duration = Duration::from_secs(10);

/// The longest accepted time between two runs of `damper export`.
const EXPORT_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Clocks synchronised by NTP differ by less, including the latency of a message.
const CLOCKS_AGREE: Duration = Duration::from_secs(2);

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "replicas are connected to each other", scope: count, find: unheard },
    Check { what: "all expected replicas are running", scope: wanted, find: missing },
    Check { what: "rules and guards were exported in the last week", scope: exported, find: export_old },
    Check { what: "replicas are at the same revision", scope: count, find: behind },
    Check { what: "the clocks of the replicas agree", scope: count, find: clocks_differ },
];

fn count(picture: &DoctorInput) -> String {
    many(picture.replicas.len(), "replica")
}

fn unheard(picture: &DoctorInput) -> Vec<v1::Finding> {
    let unheard = picture.replicas.iter().filter(|replica| !replica.problem.is_empty());
    let told = unheard.map(|v1::Replica { id, address, problem, unheard_since, .. }| {
        let since = unheard_since.and_then(|since| SystemTime::try_from(since).ok()).unwrap_or(picture.now);
        let ago = age(since, picture.now);
        finding(codes::REPLICA_UNHEARD, id, format!("{address} has been unreachable for {ago}: {problem}"))
    });
    told.collect()
}

fn wanted(picture: &DoctorInput) -> String {
    match picture.replicas_wanted {
        Some(wanted) => format!("{} of {wanted}", count(picture)),
        None => format!("{}; --replicas is not set", count(picture)),
    }
}

fn missing(picture: &DoctorInput) -> Vec<v1::Finding> {
    let there = picture.replicas.len();
    let wanted = picture.replicas_wanted.filter(|wanted| there < *wanted as usize && !picture.is_settling());
    let found = wanted.map(|wanted| {
        let message = format!("{} of {wanted} known: {}", there, names(&picture.replicas));
        finding(codes::REPLICA_MISSING, "", message)
    });
    found.into_iter().collect()
}

fn names(replicas: &[v1::Replica]) -> String {
    replicas
        .iter()
        .map(|replica| format!("{} ({})", replica.id, replica.address))
        .collect::<Vec<_>>()
        .join(", ")
}

fn exported(picture: &DoctorInput) -> String {
    match picture.last_export {
        Some(at) => format!("last {} ago", age(at, picture.now)),
        None => "none since this replica started".to_owned(),
    }
}

/// Without rules and guards there is no finding.
fn export_old(picture: &DoctorInput) -> Vec<v1::Finding> {
    let since = picture.last_export.unwrap_or(picture.started);
    let is_old = picture.now.duration_since(since).is_ok_and(|age| age >= EXPORT_EVERY);
    let is_empty = picture.table.iter().next().is_none() && picture.table.guards().iter().next().is_none();
    if !is_old || is_empty {
        return Vec::new();
    }
    let days = picture.now.duration_since(since).unwrap_or_default().as_secs() / (24 * 3600);
    vec![finding(codes::EXPORT_OLD, "", format!("no export for {days} days"))]
}

fn clocks_differ(picture: &DoctorInput) -> Vec<v1::Finding> {
    let differs = picture.replicas.iter().filter_map(|replica| {
        let offset = replica.clock_offset?;
        let seconds = offset.seconds as f64 + f64::from(offset.nanos) / 1e9;
        (seconds.abs() > CLOCKS_AGREE.as_secs_f64()).then_some((replica, seconds))
    });
    let found = differs.map(|(replica, seconds)| {
        let ahead = if seconds > 0.0 { "ahead of" } else { "behind" };
        let message = format!("the clock is {:.1} s {ahead} that of this replica", seconds.abs());
        finding(codes::CLOCKS_DIFFER, &replica.id, message)
    });
    found.collect()
}

fn behind(picture: &DoctorInput) -> Vec<v1::Finding> {
    let own = picture.table.revision();
    let long = picture
        .apart
        .iter()
        .filter(|apart| picture.now.duration_since(apart.since).is_ok_and(|since| since >= APART_FOR));
    let told = long.map(|apart| {
        let there = apart.revision;
        let message = match there < own {
            true => format!("it is at revision {there}, this replica at {own}"),
            false => format!("it is at revision {there}, this replica only at {own}"),
        };
        finding(codes::REPLICA_BEHIND, &apart.id, message)
    });
    told.collect()
}
