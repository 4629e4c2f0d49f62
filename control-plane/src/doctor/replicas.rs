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
    Check { what: "replicas are connected to each other", scope: count, find: unreachable },
    Check { what: "all expected replicas are running", scope: wanted, find: missing },
    Check { what: "rules and guards were exported in the last week", scope: exported, find: export_old },
    Check { what: "replicas are at the same revision", scope: count, find: behind },
    Check { what: "the clocks of the replicas agree", scope: count, find: clocks_differ },
];

fn count(input: &DoctorInput) -> String {
    many(input.replicas.len(), "replica")
}

fn unreachable(input: &DoctorInput) -> Vec<v1::Finding> {
    let unreachable = input.replicas.iter().filter(|replica| !replica.problem.is_empty());
    let findings = unreachable.map(|v1::Replica { id, address, problem, unheard_since, .. }| {
        let since = unheard_since.and_then(|since| SystemTime::try_from(since).ok()).unwrap_or(input.now);
        let ago = age(since, input.now);
        finding(
            codes::REPLICA_UNREACHABLE,
            id,
            format!("{address} has been unreachable for {ago}: {problem}"),
        )
    });
    findings.collect()
}

fn wanted(input: &DoctorInput) -> String {
    match input.replicas_wanted {
        Some(wanted) => format!("{} of {wanted}", count(input)),
        None => format!("{}; --replicas is not set", count(input)),
    }
}

fn missing(input: &DoctorInput) -> Vec<v1::Finding> {
    let there = input.replicas.len();
    let wanted = input.replicas_wanted.filter(|wanted| there < *wanted as usize && !input.is_settling());
    let found = wanted.map(|wanted| {
        let message = format!("{} of {wanted} known: {}", there, names(&input.replicas));
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

fn exported(input: &DoctorInput) -> String {
    match input.last_export {
        Some(at) => format!("last {} ago", age(at, input.now)),
        None => "none since this replica started".to_owned(),
    }
}

/// Without rules and guards there is no finding.
fn export_old(input: &DoctorInput) -> Vec<v1::Finding> {
    let since = input.last_export.unwrap_or(input.started);
    let is_old = input.now.duration_since(since).is_ok_and(|age| age >= EXPORT_EVERY);
    let is_empty = input.table.iter().next().is_none() && input.table.guards().iter().next().is_none();
    if !is_old || is_empty {
        return Vec::new();
    }
    let days = input.now.duration_since(since).unwrap_or_default().as_secs() / (24 * 3600);
    vec![finding(codes::EXPORT_OLD, "", format!("no export for {days} days"))]
}

fn clocks_differ(input: &DoctorInput) -> Vec<v1::Finding> {
    let differs = input.replicas.iter().filter_map(|replica| {
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

fn behind(input: &DoctorInput) -> Vec<v1::Finding> {
    let own = input.table.revision();
    let long = input
        .apart
        .iter()
        .filter(|apart| input.now.duration_since(apart.since).is_ok_and(|since| since >= APART_FOR));
    let findings = long.map(|apart| {
        let there = apart.revision;
        let message = match there < own {
            true => format!("it is at revision {there}, this replica at {own}"),
            false => format!("it is at revision {there}, this replica only at {own}"),
        };
        finding(codes::REPLICA_BEHIND, &apart.id, message)
    });
    findings.collect()
}
