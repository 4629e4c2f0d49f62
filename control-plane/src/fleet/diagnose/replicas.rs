//! The replicas of the control plane among themselves.

use std::time::{Duration, SystemTime};

use damper_proto::v1;

use super::clients::age;
use super::{Check, Picture, codes, finding};
use crate::figures::many;

/// So long a replica may be elsewhere than this one before one of the two is said to be behind.
const APART_FOR: Duration = Duration::from_secs(10);

pub(super) const CHECKS: &[Check] = &[
    Check { what: "replicas hear each other", scope: count, find: unheard },
    Check { what: "replicas are at the same revision", scope: count, find: behind },
];

fn count(picture: &Picture) -> String {
    many(picture.replicas.len(), "replica")
}

fn unheard(picture: &Picture) -> Vec<v1::Finding> {
    let unheard = picture.replicas.iter().filter(|replica| !replica.problem.is_empty());
    let told = unheard.map(|v1::Replica { id, address, problem, unheard_since, .. }| {
        let since = unheard_since.and_then(|since| SystemTime::try_from(since).ok()).unwrap_or(picture.now);
        let ago = age(since, picture.now);
        finding(codes::REPLICA_UNHEARD, id, format!("{address} has not been heard for {ago}: {problem}"))
    });
    told.collect()
}

fn behind(picture: &Picture) -> Vec<v1::Finding> {
    let own = picture.table.revision();
    let long = picture
        .apart
        .iter()
        .filter(|apart| picture.now.duration_since(apart.since).is_ok_and(|since| since >= APART_FOR));
    let told = long.map(|apart| {
        let there = apart.revision;
        let message = match there < own {
            true => format!("it is at revision {there}, this replica at {own}"),
            false => format!("it is at revision {there}, and this replica has come to {own} only"),
        };
        finding(codes::REPLICA_BEHIND, &apart.id, message)
    });
    told.collect()
}
