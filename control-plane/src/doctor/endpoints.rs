//! Checks of the endpoints of callees.

use damper_core::Mode;
use damper_proto::v1;

use crate::doctor::{Check, DoctorInput, codes, finding};
use crate::state::text::many;
use crate::stats::summary::RouteSummary;

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "no single endpoint fails", scope, find: failing },
    Check { what: "retries can reach another endpoint", scope, find: single },
];

/// The callees of the diagnosis, and those that its service calls.
fn callees(input: &DoctorInput) -> impl Iterator<Item = &v1::CalleeEndpoints> {
    input.endpoints.iter().filter(|callee| {
        input.is_about(&callee.callee_service)
            || to(input, callee).any(|row| input.is_about(&row.route.caller_service))
    })
}

/// The routes to a callee.
fn to<'a>(input: &'a DoctorInput, callee: &'a v1::CalleeEndpoints) -> impl Iterator<Item = &'a RouteSummary> {
    let rows = input.rows.iter().map(|row| &**row);
    rows.filter(|row| *row.route.callee_service == *callee.callee_service)
}

fn scope(input: &DoctorInput) -> String {
    let (mut endpoints, mut known) = (0, 0);
    for callee in callees(input) {
        known += 1;
        endpoints += callee.count as usize;
    }
    format!("{} of {}", many(endpoints, "endpoint"), many(known, "callee"))
}

fn failing(input: &DoctorInput) -> Vec<v1::Finding> {
    // The state of a callee without calls may be old.
    let is_called = |callee: &&v1::CalleeEndpoints| to(input, callee).any(|row| row.stats.calls_per_s > 0.0);
    let bad = callees(input).filter(|callee| !callee.problem.is_empty()).filter(is_called);
    bad.map(|callee| finding(codes::ENDPOINT_FAILING, &subject(callee), callee.problem.clone())).collect()
}

fn single(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings = callees(input).filter(|callee| callee.count == 1).filter_map(|callee| {
        let most = to(input, callee).filter_map(|row| attempts(input, row)).max().filter(|most| *most > 1)?;
        let message = match callee.clients {
            1 => format!("the only client knows one endpoint, and a rule allows {most} attempts"),
            clients => {
                format!("all {clients} clients know the same one endpoint, and a rule allows {most} attempts")
            }
        };
        Some(finding(codes::RETRIES_MEET_ONE_ENDPOINT, &subject(callee), message))
    });
    findings.collect()
}

/// Returns the most attempts of the enforced rule of a route.
fn attempts(input: &DoctorInput, row: &RouteSummary) -> Option<u32> {
    let rule = input.table.winner(&row.route.key()?)?;
    let policy = rule.policy();
    (policy.mode == Mode::Enforce).then_some(policy.retry.as_ref()?.max_attempts)
}

fn subject(callee: &v1::CalleeEndpoints) -> String {
    format!("* * {} *", callee.callee_service)
}
