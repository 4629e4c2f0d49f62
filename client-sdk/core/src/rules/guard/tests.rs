use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::policy::{Backoff, Budget, Hedge, HedgeDelay, Mode, Retry};
use crate::rules::key::RouteKey;
use crate::rules::table::{Rule, Table};

fn pattern(words: &str) -> Pattern {
    let parts: Vec<&str> = words.split(' ').collect();
    Pattern::parse(parts[0], parts[1], parts[2], parts[3]).unwrap()
}

fn retrying() -> Policy {
    Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) }
}

fn hedging(max_hedges: u32) -> Policy {
    let delay = HedgeDelay::Fixed(Duration::from_millis(50));
    Policy { hedge: Some(Hedge { delay, max_hedges }), ..Policy::new(Mode::Enforce) }
}

/// Returns the cuts as `field: problem`.
fn cut(ceiling: Ceiling, policy: &Policy) -> (Policy, Vec<String>) {
    let (tightened, excesses) = ceiling.tighten(policy);
    let excesses = excesses.iter().map(|excess| format!("{}: {}", excess.field, excess.problem)).collect();
    (tightened, excesses)
}

#[test]
fn policy_within_the_ceiling_is_left_as_it_is() {
    let ceiling = Ceiling {
        max_attempts: Some(3),
        codes: Some(CodeSet::of(&[Code::Unavailable])),
        max_retry_breaker_ratio: Some(Ratio::from_bp(1_000)),
        min_per_attempt_timeout: Some(Duration::from_secs(1)),
        forbid_hedge: true,
        repeat_limit: None,
    };
    let (policy, cuts) = cut(ceiling, &retrying());
    assert_eq!((written(&policy), cuts), (retrying(), vec![]));
    let single = Policy { retry_breaker: None, ..Policy::new(Mode::Enforce) };
    assert_eq!(
        cut(ceiling, &single),
        (single.clone(), vec![]),
        "a policy without extra attempts exceeds nothing"
    );
}

#[test]
fn attempts_are_cut_and_hedges_count_as_attempts() {
    let two = Ceiling { max_attempts: Some(2), ..Ceiling::default() };
    let (policy, cuts) = cut(two, &retrying());
    assert_eq!((policy.max_attempts(), cuts), (2, vec!["retry.max_attempts: 3 is more than 2".to_owned()]));
    let (policy, cuts) = cut(two, &hedging(3));
    assert_eq!((policy.max_attempts(), cuts), (2, vec!["hedge.max_hedges: 3 is more than 1".to_owned()]));
    let one = Ceiling { max_attempts: Some(1), ..Ceiling::default() };
    assert_eq!(cut(one, &hedging(3)).0.hedge, None);
}

#[test]
fn hedging_is_forbidden_and_retries_stay() {
    let ceiling = Ceiling { forbid_hedge: true, ..Ceiling::default() };
    let mixed = Policy { hedge: hedging(1).hedge, ..retrying() };
    assert_eq!(cut(ceiling, &mixed), (retrying(), vec!["hedge: is forbidden".to_owned()]));
}

#[test]
fn codes_are_intersected_and_none_left_means_no_retries() {
    let allowed = |codes: &[Code]| Ceiling { codes: Some(CodeSet::of(codes)), ..Ceiling::default() };
    let mut policy = retrying();
    policy.retry.as_mut().unwrap().codes = CodeSet::of(&[Code::Unavailable, Code::Internal]);
    let (tightened, cuts) = cut(allowed(&[Code::Unavailable, Code::Aborted]), &policy);
    assert_eq!(tightened.retryable(), CodeSet::of(&[Code::Unavailable]));
    assert_eq!(cuts, ["retry.codes: INTERNAL may not be retried"]);
    assert!(!cut(allowed(&[]), &policy).0.repeats());
    let (tightened, cuts) = cut(allowed(&[]), &hedging(1));
    assert_eq!(
        (tightened.repeats(), cuts),
        (false, vec!["hedge: UNAVAILABLE may not be retried".to_owned()])
    );
}

#[test]
fn breaker_is_tightened_and_switched_on_and_keeps_its_mode() {
    let ceiling = Ceiling { max_retry_breaker_ratio: Some(Ratio::from_bp(500)), ..Ceiling::default() };
    let under = |retry_breaker: Option<RetryBreaker>| {
        let (policy, cuts) = cut(ceiling, &Policy { retry_breaker, ..retrying() });
        let RetryBreaker { mode, ratio, max_ratio, .. } = policy.retry_breaker.unwrap();
        assert_eq!((ratio.bp(), max_ratio), (500, Some(Ratio::from_bp(500))));
        (mode, cuts)
    };
    let ratio = RetryBreaker { mode: BreakerMode::Ratio, ..RetryBreaker::default() };
    let cuts = vec!["retry_breaker.ratio: 0.1 is more than 0.05".to_owned()];
    assert_eq!(under(Some(ratio)), (BreakerMode::Ratio, cuts));
    let cuts = vec!["retry_breaker.enabled: false: the retry breaker must be on".to_owned()];
    assert_eq!(under(None), (BreakerMode::Credit, cuts));
    // The ratio bounds credit too; its own ratio is for hedges, and there are none.
    assert_eq!(under(Some(RetryBreaker::default())), (BreakerMode::Credit, vec![]));
    let both = Policy { retry: Some(Retry::default()), ..hedging(1) };
    assert_eq!(cut(ceiling, &both).1, ["retry_breaker.ratio: 0.1 is more than 0.05"]);
}

#[test]
fn per_attempt_timeout_is_raised_to_the_minimum() {
    let ceiling = Ceiling { min_per_attempt_timeout: Some(Duration::from_secs(1)), ..Ceiling::default() };
    let mut policy = retrying();
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(Duration::from_millis(200));
    let (tightened, cuts) = cut(ceiling, &policy);
    assert_eq!(tightened.retry.unwrap().per_attempt_timeout, Some(Duration::from_secs(1)));
    assert_eq!(cuts, ["retry.per_attempt_timeout: 200ms is less than 1s"]);
    assert_eq!(cut(ceiling, &retrying()).1, Vec::<String>::new(), "no limit at all is long enough");
}

#[test]
fn guard_that_forbids_retries_leaves_the_limit_of_an_attempt() {
    let limit = |policy: &Policy| policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    let mut policy = retrying();
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(Duration::from_millis(200));
    let no_codes = Ceiling { codes: Some(CodeSet::EMPTY), ..Ceiling::default() };
    let (tightened, cuts) = cut(no_codes, &policy);
    assert!(!tightened.repeats());
    assert_eq!(limit(&tightened), Some(Duration::from_millis(200)));
    assert_eq!(cuts, ["retry.codes: UNAVAILABLE may not be retried"]);
    let one = Ceiling { max_attempts: Some(1), ..Ceiling::default() };
    let longer = Ceiling { min_per_attempt_timeout: Some(Duration::from_secs(1)), ..Ceiling::default() };
    for [first, second] in [[one, longer], [longer, one], [no_codes, longer], [longer, no_codes]] {
        let both = second.tighten(&first.tighten(&policy).0).0;
        assert_eq!((limit(&both), both.repeats()), (Some(Duration::from_secs(1)), false));
    }
}

#[test]
fn guard_is_checked_field_by_field() {
    let faults = |words: &str, ceiling: Ceiling| {
        Guard::new(pattern(words), ceiling, String::new(), 0).unwrap_err().to_string()
    };
    assert_eq!(faults("* * orders *", Ceiling::default()), "ceiling: requires at least one limit");
    let ceiling = Ceiling {
        max_attempts: Some(11),
        codes: Some(CodeSet::of(&[Code::Ok])),
        max_retry_breaker_ratio: Some(Ratio::from_bp(9)),
        min_per_attempt_timeout: Some(Duration::ZERO),
        repeat_limit: Some(RepeatLimit {
            ratio: Ratio::from_bp(10_001),
            min: 1_001,
            ..RepeatLimit::default()
        }),
        forbid_hedge: false,
    };
    let expected = [
        "ceiling.max_attempts: must be between 1 and 10, not 11",
        "ceiling.codes: OK is not a failure",
        "ceiling.max_retry_breaker_ratio: must be between 0.001 and 1, not 0.0009",
        "ceiling.min_per_attempt_timeout: must be between 1ms and 1h, not 0ms",
        "ceiling.repeat_limit.ratio: must be between 0.001 and 1, not 1.0001",
        "ceiling.repeat_limit.min: must be between 0 and 1000, not 1001",
        "ceiling.repeat_limit: limits all callers together: caller_service and caller_cluster must be `*`",
    ];
    assert_eq!(faults("shop * orders *", ceiling), expected.join("; "));
    let limited = Ceiling { repeat_limit: Some(RepeatLimit::default()), ..Ceiling::default() };
    assert!(faults("* online orders *", limited).contains("caller_cluster must be"));
    let guard = Guard::new(pattern("* * orders *"), limited, "team-orders".to_owned(), 7).unwrap();
    assert_eq!((guard.revision(), guard.owner(), guard.ceiling()), (7, "team-orders", &limited));
}

#[test]
fn rule_in_force_is_the_winner_within_all_matching_guards() {
    let mut table: Table =
        [Arc::new(Rule::new(pattern("* * orders *"), retrying(), 1).unwrap())].into_iter().collect();
    let route = RouteKey::new("shop", "online", "orders", "a.B/M").unwrap();
    let guard = |words: &str, most: u32| {
        let ceiling = Ceiling { max_attempts: Some(most), ..Ceiling::default() };
        Arc::new(Guard::new(pattern(words), ceiling, "team-orders".to_owned(), 1).unwrap())
    };
    table.insert_guard(guard("* * orders a.C/*", 1));
    assert!(Arc::ptr_eq(&table.in_force(&route).unwrap(), table.winner(&route).unwrap()), "another method");
    table.insert_guard(guard("shop * orders *", 2));
    assert_eq!(table.in_force(&route).unwrap().policy().max_attempts(), 2);
    let (_, cuts) = table.tighten(table.winner(&route).unwrap(), &route);
    assert_eq!(cuts.len(), 1);
    assert_eq!((cuts[0].guard.owner(), cuts[0].excess.field), ("team-orders", "retry.max_attempts"));
}

prop_compose! {
    fn any_policy()(
        attempts in prop::option::of(1_u32..=10),
        hedges in prop::option::of(1_u32..=4),
        codes in 1_u32..(1 << 16),
        breaker in prop::option::of((10_u32..=10_000, any::<bool>(), prop::option::of(10_u32..=10_000))),
        timeout in prop::option::of(1_u64..5_000),
        budget in any::<bool>(),
    ) -> Policy {
        let codes = Code::ALL.into_iter().filter(|code| code.number() > 0 && codes >> (code.number() - 1) & 1 == 1);
        let codes: CodeSet = codes.collect();
        Policy {
            retry: attempts.map(|max_attempts| Retry {
                max_attempts,
                codes,
                per_attempt_timeout: timeout.map(Duration::from_millis),
                max_duration: None,
                backoff: Backoff::default(),
            }),
            hedge: hedges.and_then(|hedges| hedging(hedges).hedge),
            retry_breaker: breaker.map(|(bp, credit, most)| RetryBreaker {
                ratio: Ratio::from_bp(bp),
                max_ratio: most.map(Ratio::from_bp),
                mode: if credit { BreakerMode::Credit } else { BreakerMode::Ratio },
                ..RetryBreaker::default()
            }),
            budget: budget.then(Budget::default),
            ..Policy::new(Mode::Enforce)
        }
    }
}

prop_compose! {
    fn any_ceiling()(
        max_attempts in prop::option::of(1_u32..=10),
        forbid_hedge in any::<bool>(),
        codes in prop::option::of(0_u32..(1 << 16)),
        ratio in prop::option::of(10_u32..=10_000),
        timeout in prop::option::of(1_u64..5_000),
    ) -> Ceiling {
        let set = |bits: u32| Code::ALL.into_iter().filter(|code| code.number() > 0 && bits >> (code.number() - 1) & 1 == 1).collect();
        Ceiling {
            max_attempts,
            forbid_hedge,
            codes: codes.map(set),
            max_retry_breaker_ratio: ratio.map(Ratio::from_bp),
            min_per_attempt_timeout: timeout.map(Duration::from_millis),
            repeat_limit: None,
        }
    }
}

/// The policy as written, without the condition that a guard's ratio adds for retries paid by credit.
fn written(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    let hedges = policy.hedge.is_some();
    if let Some(breaker) = &mut policy.retry_breaker {
        breaker.max_ratio = None;
        if breaker.mode == BreakerMode::Credit && !hedges {
            breaker.ratio = RetryBreaker::default().ratio;
        }
    }
    policy
}

/// Returns true if `tight` allows nothing that `loose` does not.
fn is_within(tight: &Policy, loose: &Policy) -> bool {
    let ratio = |policy: &Policy| policy.retry_breaker.map_or(u32::MAX, |breaker| breaker.ratio.bp());
    let timeout = |policy: &Policy| policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    tight.max_attempts() <= loose.max_attempts()
        && tight.hedge.map_or(0, |hedge| hedge.max_hedges) <= loose.hedge.map_or(0, |hedge| hedge.max_hedges)
        && tight.retryable().without(loose.retryable()).is_empty()
        && (!tight.repeats() || ratio(tight) <= ratio(loose))
        && timeout(tight).is_none_or(|tight| timeout(loose).is_some_and(|loose| tight >= loose))
        && (tight.budget, tight.mode, tight.timeout) == (loose.budget, loose.mode, loose.timeout)
}

proptest! {
    #[test]
    fn guard_never_loosens_and_lists_exactly_its_cuts(policy in any_policy(), ceiling in any_ceiling()) {
        let (tightened, excesses) = ceiling.tighten(&policy);
        prop_assert!(is_within(&tightened, &policy), "{tightened:?}");
        prop_assert_eq!(excesses.is_empty(), written(&tightened) == written(&policy));
        let (again, excesses) = ceiling.tighten(&tightened);
        prop_assert_eq!((again, excesses), (tightened, vec![]), "tightening twice changes nothing");
    }

    #[test]
    fn tightened_policy_is_within_the_ceiling(policy in any_policy(), ceiling in any_ceiling()) {
        let (policy, _) = ceiling.tighten(&policy);
        if policy.repeats() {
            prop_assert!(ceiling.max_attempts.is_none_or(|most| policy.max_attempts() <= most));
            prop_assert!(!ceiling.forbid_hedge || policy.hedge.is_none());
            prop_assert!(ceiling.codes.is_none_or(|codes| policy.retryable().without(codes).is_empty()));
            let ratio = policy.retry_breaker.and_then(|breaker| breaker.max_ratio);
            prop_assert!(ceiling.max_retry_breaker_ratio.is_none_or(|most| ratio.is_some_and(|ratio| ratio <= most)));
        }
    }

    #[test]
    fn order_of_guards_does_not_matter(policy in any_policy(), a in any_ceiling(), b in any_ceiling()) {
        let both = |first: Ceiling, second: Ceiling| second.tighten(&first.tighten(&policy).0).0;
        let (ab, ba) = (both(a, b), both(b, a));
        // Policies without extra attempts may differ in settings without effect. The limit of an attempt has
        // one.
        prop_assert_eq!(ab.repeats(), ba.repeats());
        let limit = |policy: &Policy| policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
        prop_assert_eq!(limit(&ab), limit(&ba));
        if ab.repeats() {
            prop_assert_eq!(ab, ba);
        }
    }
}
