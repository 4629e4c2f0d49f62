//! Tests of requests that are not complete when their call begins, by the millisecond.

use super::timeline::{Goes, Request, Thrown, Timeline, play_request};
use super::*;
use crate::policy::{Budget, Hedge, HedgeDelay};
use crate::rules::kill::{Kill, TimedKill};

use AttemptKind::{First, Hedge as Hedged, Resend, Retry as Retried};
use Goes::{Begins, Ends, Never};
use Request::{AsItStarts, Endless, Kept, NotKept};

const OK: Verdict = Verdict::Success;
const NO_WAIT: Backoff = Backoff::Always(Waits::Fixed { delay: Duration::ZERO, jitter: Jitter::None });

fn arriving() -> CallStart {
    CallStart { replayable: false, ..start() }
}

/// Retries without a wait.
fn at_once() -> Policy {
    with_retry(|retry| retry.backoff = NO_WAIT)
}

fn hedged() -> Policy {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 2 });
    Policy { retry: None, hedge, ..policy() }
}

fn run(policy: Policy, request: Request, script: &[Goes]) -> (Route, Timeline) {
    let route = route(policy);
    let timeline = play_request(&route, arriving(), script, &[], request);
    (route, timeline)
}

#[track_caller]
fn check(policy: Policy, request: Request, script: &[Goes], sends: &[(u64, AttemptKind)], end: (u64, &str)) {
    let (route, timeline) = run(policy, request, script);
    assert_eq!(timeline.sends, sends);
    assert_eq!((timeline.ended, timeline.fate()), end);
    let ended: u64 = Ending::all().map(|ending| route.state().counters.ended(ending)).sum();
    assert_eq!((route.state().counters.calls(), ended), (1, 1), "one fate per call");
}

#[test]
fn request_kept_in_time_is_retried() {
    let script = [Ends(10, UNAVAILABLE), Ends(5, OK)];
    for kept in [0, 1, 9, 10, 30] {
        check(policy(), Kept(kept), &script, &[(0, First), (110, Retried)], (115, "ok_after_retry"));
    }
    // During the wait before the retry, and after it.
    check(policy(), Kept(29), &script, &[(0, First), (110, Retried)], (115, "ok_after_retry"));
    check(at_once(), Kept(29), &script, &[(0, First), (29, Retried)], (34, "ok_after_retry"));
}

#[test]
fn request_that_stays_away_ends_the_call_after_20_ms() {
    let script = [Ends(10, UNAVAILABLE), Ends(5, OK)];
    for policy in [policy(), at_once()] {
        for request in [Kept(31), Kept(500), NotKept(30), Endless] {
            check(policy.clone(), request, &script, &[(0, First)], (30, "not_replayable"));
        }
    }
}

#[test]
fn request_that_is_not_kept_ends_the_wait_at_once() {
    let script = [Ends(10, UNAVAILABLE), Ends(5, OK)];
    for (lost, ended) in [(0, 10), (5, 10), (10, 10), (13, 13)] {
        check(policy(), NotKept(lost), &script, &[(0, First)], (ended, "not_replayable"));
    }
}

#[test]
fn only_a_call_that_would_be_retried_waits_for_its_request() {
    check(policy(), Endless, &[Ends(10, OK)], &[(0, First)], (10, "ok"));
    check(policy(), Endless, &[Begins(10)], &[(0, First)], (20, "ok"));
    check(policy(), Endless, &[Ends(10, failed(Code::NotFound))], &[(0, First)], (10, "not_retryable"));
    let once = with_retry(|retry| retry.max_attempts = 1);
    check(once, Endless, &[Ends(10, UNAVAILABLE)], &[(0, First)], (10, "policy_off"));
    let observe = Policy { mode: Mode::Observe, ..policy() };
    let fate = |request| {
        let (_, timeline) = run(observe.clone(), request, &[Ends(10, UNAVAILABLE)]);
        assert_eq!(timeline.ended, 10, "observing delays nothing");
        timeline.finish.unwrap().ending.to_string()
    };
    assert_eq!((fate(Kept(9)), fate(Kept(11))), ("would_retry".into(), "would_not_replayable".into()));
}

#[test]
fn wait_for_the_request_ends_at_the_deadline() {
    let script = [Ends(10, UNAVAILABLE), Ends(5, OK)];
    for verdict in [UNAVAILABLE, Verdict::Unprocessed] {
        let route = route(at_once());
        let start = CallStart { deadline: Some(at(15)), ..arriving() };
        let timeline = play_request(&route, start, &[Ends(10, verdict)], &[], Endless);
        assert_eq!((timeline.ended, timeline.fate()), (15, "deadline"));
    }
    let short = with_retry(|retry| {
        retry.backoff = NO_WAIT;
        retry.max_duration = Some(ms(15));
    });
    check(short, Kept(16), &script, &[(0, First)], (15, "not_replayable"));
}

#[test]
fn refused_request_is_resent_when_it_is_whole() {
    for verdict in [Verdict::Unprocessed, Verdict::Unsent] {
        let script = [Ends(10, verdict), Ends(5, OK)];
        check(policy(), Kept(5), &script, &[(0, First), (10, Resend)], (15, "ok"));
        check(policy(), Kept(29), &script, &[(0, First), (29, Resend)], (34, "ok"));
        for request in [Kept(31), Endless] {
            check(policy(), request, &script, &[(0, First)], (30, "not_replayable"));
        }
        check(policy(), NotKept(17), &script, &[(0, First)], (17, "not_replayable"));
    }
}

#[test]
fn attempt_that_is_cut_waits_for_its_request() {
    let cut = with_retry(|retry| {
        retry.backoff = NO_WAIT;
        retry.per_attempt_timeout = Some(ms(40));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    let sends = [(0, First), (55, Retried)];
    check(cut.clone(), Kept(55), &[Never, Ends(5, OK)], &sends, (60, "ok_after_retry"));
    check(cut, Endless, &[Never], &[(0, First)], (60, "not_replayable"));
}

#[test]
fn delay_of_a_hedge_begins_when_the_request_is_whole() {
    let script = [Never, Never, Ends(5, OK)];
    check(hedged(), Kept(30), &script, &[(0, First), (80, Hedged), (130, Hedged)], (135, "ok_by_hedge"));
    for request in [NotKept(30), Endless] {
        check(hedged(), request, &[Ends(500, OK)], &[(0, First)], (500, "ok"));
    }
    // A policy that only hedges sends the next attempt at once after a failure.
    let script = [Ends(10, UNAVAILABLE), Ends(5, OK)];
    check(hedged(), Kept(18), &script, &[(0, First), (18, Hedged)], (23, "ok_by_hedge"));
    check(hedged(), Endless, &script, &[(0, First)], (30, "not_replayable"));
    check(hedged(), Kept(30), &[Begins(10)], &[(0, First)], (20, "ok"));
}

fn killed(calls: bool) -> Vec<TimedKill> {
    let any = Pattern::parse("*", "*", "*", "*").unwrap();
    let kill = Kill::new(any, calls, "storm".to_owned(), 1).unwrap();
    vec![TimedKill { kill: Arc::new(kill), until: Time::from_micros(u64::MAX) }]
}

#[test]
fn kill_ends_the_wait_for_the_request() {
    for (verdict, calls, ended, fate) in [
        (UNAVAILABLE, false, 13, "killed"),
        (UNAVAILABLE, true, 13, "killed"),
        (Verdict::Unprocessed, true, 13, "killed"),
        // A resend is no retry.
        (Verdict::Unprocessed, false, 35, "ok"),
    ] {
        let script = [Ends(10, verdict), Ends(10, OK)];
        let thrown = Thrown { at: 13, kills: killed(calls) };
        let timeline = play_request(&route(policy()), arriving(), &script, &[thrown], Kept(25));
        assert_eq!((timeline.ended, timeline.fate()), (ended, fate), "{verdict:?} {calls}");
    }
}

#[test]
fn wait_in_vain_returns_what_was_reserved() {
    let budget = Some(Budget { min_per_second: 1, ..Budget::default() });
    let with_budget = Policy { budget, ..at_once() };
    let with_credit = Policy { retry_breaker: Some(RetryBreaker::default()), ..at_once() };
    for policy in [with_budget, with_credit] {
        let route = route(policy);
        for _ in 0..100 {
            play_request(&route, arriving(), &[Ends(10, OK)], &[], Endless);
        }
        let fates = |request| {
            let script = [Ends(10, UNAVAILABLE); 3];
            (0..100)
                .map(|_| play_request(&route, arriving(), &script, &[], request).fate())
                .collect::<Vec<_>>()
        };
        let refused = |fate: &&str| ["budget", "retry_breaker"].contains(fate);
        assert!(fates(Endless).iter().all(|fate| *fate == "not_replayable"));
        assert!(fates(Kept(5)).iter().any(refused), "retries that are sent use it up");
    }
}

#[test]
fn dropped_call_counts_no_resend_that_waited() {
    let route = route(policy());
    let mut call = Call::begin(&route, arriving());
    call.await_request();
    assert!(matches!(call.next_step(&route, at(0)), Step::Send(_)));
    call.attempt_ended(&route, 1, Verdict::Unprocessed, at(10), 0);
    assert_eq!(call.next_step(&route, at(10)), Step::Wait { until: Some(at(30)) });
    assert!(call.is_between_attempts());
    assert_eq!(call.dropped(&route, at(12)).unwrap().ending, Ending::real(Fate::Cancelled));
    call.request_kept(&route, at(13));
    assert!(matches!(call.next_step(&route, at(13)), Step::Finish(_)));
}

fn any_goes() -> impl Strategy<Value = Goes> {
    (0_u64..60, 0_u32..19).prop_map(|(after, code)| {
        Ends(
            after,
            match Code::from_number(code) {
                None if code == 17 => Verdict::Unprocessed,
                None => Verdict::Unsent,
                Some(Code::Ok) => OK,
                Some(code) => failed(code),
            },
        )
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (0_u64..40, 1_u32..5, proptest::option::of(5_u64..50), 0_u32..3).prop_map(
        |(wait, attempts, cut, hedges)| {
            let mut policy = with_retry(|retry| {
                retry.backoff = Backoff::Always(Waits::Fixed { delay: ms(wait), jitter: Jitter::None });
                retry.max_attempts = attempts;
                retry.codes = CodeSet::all_but(CodeSet::EMPTY);
                retry.per_attempt_timeout = cut.map(ms);
            });
            let hedge = Hedge { delay: HedgeDelay::Fixed(ms(20)), max_hedges: hedges };
            policy.hedge = Some(hedge).filter(|_| hedges > 0);
            policy
        },
    )
}

fn seen(policy: &Policy, start: CallStart, script: &[Goes], request: Request) -> Timeline {
    let route = route(policy.clone());
    let timeline = play_request(&route, start, script, &[], request);
    let ended: u64 = Ending::all().map(|ending| route.state().counters.ended(ending)).sum();
    assert_eq!((route.state().counters.calls(), ended), (1, 1), "one fate per call");
    assert_eq!(route.state().counters.attempts(), timeline.sends.len() as u64);
    timeline
}

proptest! {
    #[test]
    fn nothing_is_retried_before_the_request_is_kept(
        policy in any_policy(),
        script in proptest::collection::vec(any_goes(), 12),
        kept in 0_u64..120,
    ) {
        let timeline = seen(&policy, arriving(), &script, Kept(kept));
        prop_assert!(timeline.sends.iter().skip(1).all(|(at, _)| *at >= kept), "{:?}", timeline);
        // Waiting for it takes at most 20 ms after the attempt.
        if timeline.fate() == "not_replayable" {
            let (Goes::Ends(first, _) | Goes::Begins(first)) = script[0] else { unreachable!() };
            let cut = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
            let first = cut.map_or(first, |cut| first.min(cut.as_millis() as u64));
            prop_assert_eq!((timeline.ended, timeline.sends.len()), (first + 20, 1));
            prop_assert!(kept > timeline.ended);
        }
    }

    #[test]
    fn request_kept_at_once_is_as_one_kept_from_the_start(
        policy in any_policy(),
        script in proptest::collection::vec(any_goes(), 12),
    ) {
        let from_the_start = seen(&policy, start(), &script, AsItStarts);
        let at_once = seen(&policy, arriving(), &script, Kept(0));
        prop_assert_eq!(format!("{from_the_start:?}"), format!("{at_once:?}"));
    }

    #[test]
    fn request_that_is_never_kept_is_sent_once(
        policy in any_policy(),
        script in proptest::collection::vec(any_goes(), 12),
        lost in proptest::option::of(0_u64..120),
    ) {
        let request = lost.map_or(Endless, NotKept);
        let timeline = seen(&policy, arriving(), &script, request);
        prop_assert_eq!(timeline.sends.len(), 1);
        let once = seen(&policy, arriving(), &script, AsItStarts);
        prop_assert!(timeline.ended <= once.ended + 20);
        // Checks after that for the request may end the call first.
        prop_assert!(timeline.fate() == once.fate() || timeline.fate() == "attempts_exhausted");
    }
}
