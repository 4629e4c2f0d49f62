//! Guards: what they mean, and what is wrong with them by field, value and bound.

use damper_core::{Ceiling, Code, CodeSet, Guard, Mode, RepeatLimit};

use super::{paths, seconds};
use crate::v1;

fn wire_guard() -> v1::Guard {
    let key = v1::Pattern {
        caller_service: "*".to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "inventory".to_owned(),
        callee_method: "*".to_owned(),
    };
    let ceiling = v1::Ceiling { max_attempts: Some(2), ..Default::default() };
    v1::Guard { key: Some(key), ceiling: Some(ceiling), revision: 7, ..Default::default() }
}

/// The guard with this ceiling besides its limit on attempts.
fn with(change: impl FnOnce(&mut v1::Ceiling)) -> v1::Guard {
    let mut guard = wire_guard();
    change(guard.ceiling.as_mut().unwrap());
    guard
}

fn read(change: impl FnOnce(&mut v1::Ceiling)) -> Ceiling {
    *super::super::guard(&with(change)).unwrap().ceiling()
}

fn refused(guard: &v1::Guard, expected: &[(&str, &str)]) {
    let faults = super::super::guard(guard).unwrap_err();
    let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.problem.as_str())).collect();
    assert_eq!(found, expected);
    let v1::Guard { key, ceiling, revision, .. } = guard.clone();
    let sent = v1::DistributedGuard { key, revision, ceiling };
    let ours: Vec<_> = paths(&faults).into_iter().filter(|path| *path != "owner").collect();
    match super::super::distributed_guard(&sent) {
        Ok(_) => assert!(ours.is_empty()),
        Err(faults) => assert_eq!(paths(&faults), ours),
    }
}

fn codes(kind: v1::codes::Kind) -> Option<v1::Codes> {
    Some(v1::Codes { kind: Some(kind) })
}

fn list(codes: &[i32]) -> v1::CodeList {
    v1::CodeList { codes: codes.to_vec() }
}

#[test]
fn absent_parts_of_a_guard_are_named() {
    refused(&v1::Guard::default(), &[("key", "required"), ("ceiling", "required")]);
}

#[test]
fn a_guard_that_limits_nothing_is_refused() {
    for hedge in [v1::HedgeCeiling::Unspecified, v1::HedgeCeiling::Allow] {
        let guard = with(|ceiling| (ceiling.max_attempts, ceiling.hedge) = (None, hedge.into()));
        refused(&guard, &[("ceiling", "requires at least one limit")]);
    }
}

#[test]
fn every_ceiling_is_refused_by_field_value_and_bound() {
    let guard = with(|ceiling| {
        *ceiling = v1::Ceiling {
            max_attempts: Some(11),
            hedge: 5,
            codes: codes(v1::codes::Kind::Allow(list(&[14, 0, -3]))),
            max_retry_breaker_ratio: Some(0.00015),
            min_per_attempt_timeout: seconds(3601, 0),
            repeat_limit: Some(v1::RepeatLimit { mode: 9, ratio: Some(0.0), min: Some(1001) }),
        }
    });
    refused(
        &guard,
        &[
            ("ceiling.hedge", "must be allow or forbid, not 5"),
            ("ceiling.codes.allow[1]", "OK is not a failure"),
            ("ceiling.codes.allow[2]", "must be a gRPC status code, not -3"),
            ("ceiling.max_retry_breaker_ratio", "must be in steps of 0.0001 (0.001 to 1), not 0.00015"),
            ("ceiling.repeat_limit.mode", "must be off, observe or enforce, not 9"),
            ("ceiling.max_attempts", "must be between 1 and 10, not 11"),
            ("ceiling.min_per_attempt_timeout", "must be between 1ms and 1h, not 3601s"),
            ("ceiling.repeat_limit.ratio", "must be between 0.001 and 1, not 0"),
            ("ceiling.repeat_limit.min", "must be between 0 and 1000, not 1001"),
        ],
    );
}

#[test]
fn a_refused_ceiling_is_not_taken_for_none() {
    let guard = with(|ceiling| {
        *ceiling = v1::Ceiling { max_retry_breaker_ratio: Some(f64::NAN), ..Default::default() };
    });
    refused(&guard, &[("ceiling.max_retry_breaker_ratio", "must be between 0.001 and 1, not NaN")]);
}

#[test]
fn faults_of_key_ceiling_and_owner_come_out_at_once() {
    let mut guard = with(|ceiling| ceiling.max_attempts = Some(0));
    guard.key.as_mut().unwrap().callee_service = String::new();
    guard.owner = "x".repeat(256);
    let faults = super::super::guard(&guard).unwrap_err();
    assert_eq!(paths(&faults), ["key.callee_service", "ceiling.max_attempts", "owner"]);
    guard = wire_guard();
    guard.owner = "\u{e9}".repeat(128);
    refused(&guard, &[("owner", "must have at most 255 bytes, not 256")]);
    guard.owner = "x".repeat(255);
    assert_eq!(super::super::guard(&guard).unwrap().owner().len(), 255);
}

#[test]
fn a_repeat_limit_is_for_all_callers() {
    let mut guard = with(|ceiling| ceiling.repeat_limit = Some(v1::RepeatLimit::default()));
    guard.key.as_mut().unwrap().caller_service = "checkout".to_owned();
    let problem = "limits all callers together: caller_service and caller_cluster must be `*`";
    refused(&guard, &[("ceiling.repeat_limit", problem)]);
    // A caller that is no name is blamed for that alone.
    guard.key.as_mut().unwrap().caller_service = "a b".to_owned();
    assert_eq!(paths(&super::super::guard(&guard).unwrap_err()), ["key.caller_service"]);
}

#[test]
fn repeat_limit_observes_by_default() {
    let limit = |mode: v1::Mode| {
        let limit = v1::RepeatLimit { mode: mode.into(), ratio: None, min: None };
        read(|ceiling| ceiling.repeat_limit = Some(limit)).repeat_limit.unwrap()
    };
    assert_eq!(limit(v1::Mode::Unspecified), RepeatLimit::default());
    assert_eq!(limit(v1::Mode::Unspecified).mode, Mode::Observe);
    assert_eq!(limit(v1::Mode::Enforce), RepeatLimit { mode: Mode::Enforce, ..RepeatLimit::default() });
}

#[test]
fn a_ceiling_of_no_codes_allows_no_retry() {
    let none = read(|ceiling| ceiling.codes = codes(v1::codes::Kind::Allow(list(&[]))));
    assert_eq!(none.codes, Some(CodeSet::EMPTY));
    let some = read(|ceiling| ceiling.codes = codes(v1::codes::Kind::Deny(list(&[14]))));
    assert_eq!(some.codes, Some(CodeSet::all_but(CodeSet::of(&[Code::Unavailable]))));
    assert_eq!(read(|_| ()).codes, None);
    let guard = with(|ceiling| ceiling.codes = Some(v1::Codes { kind: None }));
    refused(&guard, &[("ceiling.codes", "required (allow or deny)")]);
}

#[test]
fn absent_ceilings_are_not_written() {
    let guard: Guard = super::super::guard(&wire_guard()).unwrap();
    assert_eq!(v1::Guard::from(&guard), wire_guard());
}
