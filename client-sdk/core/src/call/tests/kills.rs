//! Tests of kill switches, by the millisecond: stopped attempts, continued attempts and refunds.

use super::gates::Dice;
use super::timeline::{Goes, Thrown, Timeline, play_while};
use super::*;
use crate::gates::circuit::Phase;
use crate::policy::{Budget, CircuitBreaker, Hedge, HedgeDelay};
use crate::rules::kill::{Kill, TimedKill};

use AttemptKind::{First, Hedge as Hedged, Resend, Retry as Retried};
use Goes::{Begins, Ends, Never};

const OK: Verdict = Verdict::Success;
const FAILS: Goes = Ends(10, UNAVAILABLE);

pub(super) fn held(calls: bool, until: u64) -> TimedKill {
    let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    TimedKill {
        kill: Arc::new(Kill::new(pattern, calls, "an incident".to_owned(), 1).unwrap()),
        until: at(until),
    }
}

/// Stops retries from one millisecond to another.
fn repeats(from: u64, until: u64) -> Thrown {
    Thrown { at: from, kills: vec![held(false, until)] }
}

/// Stops all attempts from one millisecond to another.
fn calls(from: u64, until: u64) -> Thrown {
    Thrown { at: from, kills: vec![held(true, until)] }
}

fn lifted(at: u64) -> Thrown {
    Thrown { at, kills: Vec::new() }
}

/// Runs each case on its own route; returns the fate, its time, and the times of the attempts after the
/// first.
#[track_caller]
fn check(
    policy: Policy,
    script: &[Goes],
    thrown: &[Thrown],
    sends: &[(u64, AttemptKind)],
    end: (u64, &str),
) -> Timeline {
    let route = route(policy);
    let timeline = play_while(&route, start(), script, thrown);
    assert_eq!(timeline.sends, sends);
    let finish = timeline.finish.unwrap();
    assert_eq!((timeline.ended, finish.ending.to_string().as_str()), end);
    let counters = &route.state().counters;
    let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
    assert_eq!((counters.calls(), ended), (1, 1), "one fate per call");
    assert_eq!(counters.attempts(), sends.len() as u64);
    timeline
}

fn observing(policy: Policy) -> Policy {
    Policy { mode: Mode::Observe, ..policy }
}

/// Hedges after 50 ms, retries after 100 ms.
fn mixed(max_hedges: u32) -> Policy {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges });
    Policy { hedge, ..with_retry(|retry| retry.max_attempts = 5) }
}

#[test]
fn kill_stops_retries_and_sets_the_flag_up() {
    let timeline = check(policy(), &[FAILS], &[repeats(0, 1000)], &[(0, First)], (10, "killed"));
    let finish = timeline.finish.unwrap();
    assert_eq!((finish.answer, finish.marks_context), (Answer::Attempt(1), true));
}

#[test]
fn response_counts_as_usual_under_a_kill() {
    check(policy(), &[Ends(10, OK)], &[repeats(0, 1000)], &[(0, First)], (10, "ok"));
}

#[test]
fn observe_mode_counts_would_be_killed_and_off_nothing() {
    let timeline =
        check(observing(policy()), &[FAILS], &[repeats(0, 1000)], &[(0, First)], (10, "would_killed"));
    assert!(!timeline.finish.unwrap().marks_context, "nothing was carried out");
    let off = Policy { mode: Mode::Off, ..policy() };
    check(off, &[FAILS], &[repeats(0, 1000)], &[(0, First)], (10, "policy_off"));
    let once = with_retry(|retry| retry.max_attempts = 1);
    check(once, &[FAILS], &[repeats(0, 1000)], &[(0, First)], (10, "policy_off"));
}

#[test]
fn observe_counts_no_hedge_that_a_kill_would_have_stopped() {
    let would_hedges = |thrown: &[Thrown]| {
        let route = route(observing(mixed(1)));
        play_while(&route, start(), &[Ends(80, OK)], thrown);
        route.state().counters.would_hedges()
    };
    assert_eq!((would_hedges(&[]), would_hedges(&[repeats(20, 1000)])), (1, 0));
}

#[test]
fn kill_switch_is_checked_after_pushback_and_before_the_flag() {
    let kill = [repeats(0, 1000)];
    let ends = |failure| Ends(10, Verdict::Failure(failure));
    let unavailable = Failure::new(Code::Unavailable);
    check(policy(), &[ends(Failure::new(Code::NotFound))], &kill, &[(0, First)], (10, "not_retryable"));
    let flagged = Failure { no_more_retry: true, ..unavailable };
    check(policy(), &[ends(flagged)], &kill, &[(0, First)], (10, "chain_no_more_retry"));
    let pushed = Failure { pushback: Some(Pushback::Stop), ..unavailable };
    check(policy(), &[ends(pushed)], &kill, &[(0, First)], (10, "pushback"));
    let waiting = Failure { pushback: Some(Pushback::After(ms(5))), ..unavailable };
    check(policy(), &[ends(waiting)], &kill, &[(0, First)], (10, "killed"));
    for below in [
        CallStart { flag: Some(1), ..start() },
        CallStart { replayable: false, ..start() },
        CallStart { deadline: Some(at(60)), ..start() },
    ] {
        let route = route(policy());
        assert_eq!(play_while(&route, below, &[FAILS], &kill).fate(), "killed", "{below:?}");
    }
}

#[test]
fn waiting_call_ends_at_once_with_its_last_error() {
    let long = with_retry(|retry| {
        retry.backoff = Backoff::Always(Waits::Fixed { delay: ms(30_000), jitter: Jitter::None });
    });
    let sends = [(0, First), (30_010, Retried)];
    let timeline = check(long, &[FAILS, FAILS], &[repeats(40_000, 90_000)], &sends, (40_000, "killed"));
    let finish = timeline.finish.unwrap();
    assert_eq!((finish.answer, finish.marks_context), (Answer::Attempt(2), true));
}

#[test]
fn waiting_call_after_a_cut_attempt_ends_with_timeout() {
    let cut = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(50));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    let timeline = check(cut, &[Never], &[repeats(60, 1000)], &[(0, First)], (60, "killed"));
    assert_eq!(timeline.finish.unwrap().answer, Answer::TimedOut);
}

#[test]
fn call_in_flight_ends_only_with_its_attempt() {
    check(policy(), &[Ends(500, OK)], &[repeats(100, 1000)], &[(0, First)], (500, "ok"));
    check(policy(), &[Begins(500)], &[calls(100, 1000)], &[(0, First)], (510, "ok"));
    check(policy(), &[Ends(500, UNAVAILABLE)], &[repeats(100, 1000)], &[(0, First)], (500, "killed"));
    let second = [FAILS, Ends(500, OK)];
    check(policy(), &second, &[calls(200, 1000)], &[(0, First), (110, Retried)], (610, "ok_after_retry"));
}

#[test]
fn kill_stops_hedges_and_attempts_in_flight_may_win() {
    let kill = [repeats(60, 10_000)];
    let sends = [(0, First), (50, Hedged)];
    check(mixed(3), &[Ends(300, OK), Never], &kill, &sends, (300, "ok"));
    check(mixed(3), &[Never, Ends(300, OK)], &kill, &sends, (350, "ok_by_hedge"));
    check(mixed(3), &[FAILS], &[repeats(5, 10_000)], &[(0, First)], (10, "killed"));
    // The first failure sets the fate if no attempt succeeds.
    let both = [Ends(100, UNAVAILABLE), Ends(100, UNAVAILABLE)];
    let timeline = check(mixed(3), &both, &kill, &sends, (150, "killed"));
    assert_eq!(timeline.finish.unwrap().answer, Answer::Attempt(2));
    check(mixed(3), &[Ends(100, UNAVAILABLE), Ends(100, OK)], &kill, &sends, (150, "ok_by_hedge"));
}

#[test]
fn killed_hedges_do_not_wake_the_call_at_every_delay() {
    let route = route(mixed(3));
    route.switch().obey(&[held(false, 3_600_000)]);
    let mut call = Call::begin(&route, start());
    assert!(matches!(call.next_step(&route, at(0)), Step::Send(_)));
    assert_eq!(call.next_step(&route, at(0)), Step::Wait { until: Some(at(3_600_000)) });
    assert!(!call.is_between_attempts(), "an attempt is in flight");
}

#[test]
fn hedges_resume_when_the_kill_expires() {
    let sends = [(0, First), (400, Hedged)];
    check(mixed(1), &[Never, Ends(10, OK)], &[repeats(0, 400)], &sends, (410, "ok_by_hedge"));
}

#[test]
fn killed_retry_refunds_its_reservation() {
    let budget = Budget { ratio: Ratio::from_bp(10_000), min_per_second: 0 };
    let route = route(Policy { budget: Some(budget), ..policy() });
    let may_spend_once = |route: &Route| {
        let reserved = route.spending().reserve(&budget, at(50));
        reserved.inspect(|reserved| route.spending().refund(*reserved)).is_some()
    };
    let timeline = play_while(&route, start(), &[FAILS], &[repeats(50, 1000)]);
    assert_eq!(timeline.fate(), "killed");
    assert!(may_spend_once(&route), "nothing was sent");
    let timeline = play_while(&route, start(), &[FAILS], &[repeats(0, 1000)]);
    assert_eq!(timeline.fate(), "killed");
    assert!(may_spend_once(&route), "nothing is taken before every question was answered");
}

#[test]
fn killed_hedge_counts_nothing() {
    let breaking = Policy { retry_breaker: Some(RetryBreaker::default()), ..mixed(1) };
    let route = route(breaking);
    let timeline = play_while(&route, start(), &[Ends(200, OK)], &[repeats(0, 100), lifted(300)]);
    assert_eq!(timeline.sends, [(0, First), (100, Hedged)], "the kill's time was over");
    let route = self::route(Policy { retry_breaker: Some(RetryBreaker::default()), ..mixed(1) });
    play_while(&route, start(), &[Ends(200, OK)], &[repeats(0, 1000)]);
    assert_eq!(route.window().counts(at(200)), crate::Counts { failures: 0, successes: 1 });
}

#[test]
fn kill_of_calls_rejects_first_attempts_under_any_rule() {
    let modes = [Mode::Off, Mode::Observe, Mode::Enforce];
    let routes = modes.map(|mode| route(Policy { mode, ..policy() }));
    for route in routes.iter().chain([&Route::new(None)]) {
        let timeline = play_while(route, start(), &[], &[calls(0, 1000)]);
        let finish = timeline.finish.unwrap();
        assert_eq!((timeline.ended, timeline.sends.len()), (0, 0));
        assert_eq!(finish.ending, Ending::real(Fate::Killed));
        assert_eq!((finish.answer, finish.marks_context), (Answer::Killed, true));
        let counters = &route.state().counters;
        assert_eq!((counters.calls(), counters.attempts()), (1, 0));
        assert_eq!(counters.ended(Ending::real(Fate::Killed)), 1);
        assert_eq!(route.window().counts(at(0)), crate::Counts::default());
    }
}

#[test]
fn rejected_call_takes_no_probe_and_no_budget() {
    let settings = CircuitBreaker { probes: 1, ..CircuitBreaker::default() };
    let budget = Budget { ratio: Ratio::from_bp(10_000), min_per_second: 0 };
    let both = Policy { circuit_breaker: Some(settings), budget: Some(budget), ..policy() };
    let route = route(Policy { retry: None, ..both });
    for _ in 0..settings.consecutive_failures {
        play_while(&route, start(), &[FAILS], &[]);
    }
    let later = CallStart { now: at(10) + settings.open_for, ..start() };
    assert_eq!(route.state().circuit.phase(&settings, later.now), Phase::HalfOpen);
    let calls_before = route.spending().has_room(&budget, later.now);
    route.switch().obey(&[held(true, 3_600_000)]);
    for _ in 0..5 {
        let mut call = Call::begin(&route, later);
        let Step::Finish(finish) = call.next_step(&route, later.now) else { panic!("it was sent") };
        assert_eq!(finish.answer, Answer::Killed);
    }
    assert_eq!(route.spending().has_room(&budget, later.now), calls_before);
    route.switch().obey(&[]);
    let mut probe = Call::begin(&route, later);
    assert!(matches!(probe.next_step(&route, later.now), Step::Send(_)), "the one probe is still to be had");
}

#[test]
fn probe_waiting_for_its_retry_fails_when_killed() {
    let settings = CircuitBreaker { probes: 1, consecutive_failures: 1, ..CircuitBreaker::default() };
    let route = route(Policy { circuit_breaker: Some(settings), ..policy() });
    route.state().circuit.ended(
        &settings,
        CircuitDecision::Closed { since_ms: 0 },
        Outcome::Failed,
        route.calls(),
        CALLS_BEGIN,
    );
    let later = CallStart { now: CALLS_BEGIN + settings.open_for, ..start() };
    let open_for = settings.open_for.as_millis() as u64;
    let timeline = play_while(&route, later, &[FAILS], &[repeats(50, open_for + 1000)]);
    assert_eq!((timeline.ended, timeline.fate()), (50, "killed"));
    assert_eq!(route.state().circuit.phase(&settings, later.now + ms(50)), Phase::Open);
}

#[test]
fn unprocessed_request_is_resent_unless_calls_are_rejected() {
    let unseen = Ends(10, Verdict::Unprocessed);
    let resent = [(0, First), (10, Resend)];
    check(policy(), &[unseen, Ends(10, OK)], &[repeats(5, 1000)], &resent, (20, "ok"));
    check(policy(), &[unseen, FAILS], &[repeats(5, 1000)], &resent, (20, "killed"));
    check(policy(), &[unseen], &[calls(5, 1000)], &[(0, First)], (10, "killed"));
}

#[test]
fn calls_behave_as_before_after_a_kill() {
    let script = [FAILS, Ends(10, OK)];
    let retried = [(0, First), (110, Retried)];
    check(policy(), &script, &[repeats(0, 10)], &retried, (120, "ok_after_retry"));
    check(policy(), &script, &[repeats(0, 11)], &[(0, First)], (10, "killed"));
    check(policy(), &script, &[repeats(0, 1000), lifted(9)], &retried, (120, "ok_after_retry"));
    check(policy(), &script, &[calls(0, 0)], &retried, (120, "ok_after_retry"));
    check(policy(), &script, &[calls(0, 0), repeats(5, 200)], &[(0, First)], (10, "killed"));
}

#[test]
fn kill_of_calls_applies_among_other_kills() {
    let both = |until_calls, until_repeats| {
        [Thrown { at: 0, kills: vec![held(false, until_repeats), held(true, until_calls)] }]
    };
    check(policy(), &[], &both(1000, 1), &[], (0, "killed"));
    // The kill of calls has expired, the other has not.
    check(policy(), &[FAILS], &both(0, 1000), &[(0, First)], (10, "killed"));
}

#[test]
fn rule_change_keeps_the_kill_state() {
    let before = route(policy());
    let after = before.under(None).under(Some(Arc::clone(route(mixed(1)).rule().unwrap())));
    before.switch().obey(&[held(false, 1000)]);
    assert!(after.switch().stops_repeats(at(999)));
    let apart = after.apart();
    apart.switch().obey(&[held(true, 1000)]);
    assert!(!after.switch().refuses_calls(at(0)), "it has a switch of its own");
    assert_eq!(apart.id(), after.id(), "and counts as the same route");
}

/// Runs calls of any kind while kills of any kind start and end.
fn storm(seed: u64) {
    let mut dice = Dice::new(seed);
    let budget = Budget { ratio: Ratio::from_bp(5_000), min_per_second: 10 };
    let mut policy = mixed(dice.roll() as u32 % 3 + 1);
    policy.mode = [Mode::Off, Mode::Observe, Mode::Enforce, Mode::Enforce][dice.roll() as usize % 4];
    policy.budget = dice.one_in(2).then_some(budget);
    policy.circuit_breaker = dice.one_in(3).then(CircuitBreaker::default);
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(200));
    let route = if dice.one_in(8) { Route::new(None) } else { route(policy) };
    let mut extra = 0;
    for number in 1..=20 {
        let thrown: Vec<_> = (0..dice.roll() % 4)
            .map(|_| Thrown {
                at: dice.roll() % 600,
                kills: (0..dice.roll() % 3).map(|_| held(dice.one_in(3), dice.roll() % 900)).collect(),
            })
            .collect();
        let mut thrown = thrown;
        thrown.sort_by_key(|thrown| thrown.at);
        let script: Vec<_> = (0..10)
            .map(|_| match dice.roll() % 6 {
                0 => Ends(dice.roll() % 150, OK),
                1 => Ends(dice.roll() % 150, Verdict::Unprocessed),
                2 => Begins(dice.roll() % 150),
                _ => Ends(dice.roll() % 150, UNAVAILABLE),
            })
            .collect();
        route.switch().obey(&[]);
        let timeline = play_while(&route, start(), &script, &thrown);
        // A resend is not a retry; all other attempts after the first were sent while nothing was stopped.
        for (sent, kind) in &timeline.sends {
            let last = thrown.iter().rev().find(|thrown| thrown.at <= *sent);
            let stopped = |calls: bool| {
                last.is_some_and(|thrown| {
                    let matching = thrown.kills.iter().filter(|held| !calls || held.kill.calls());
                    matching.map(|held| held.until).max().is_some_and(|until| at(*sent) < until)
                })
            };
            let is_repeat = matches!(kind, Retried | Hedged);
            extra += u64::from(is_repeat);
            // A kill set in the same millisecond may come before or after the attempt.
            let is_moot = thrown.iter().any(|thrown| thrown.at == *sent && *sent > 0);
            assert!(is_moot || !(is_repeat && stopped(false)), "{kind:?} at {sent} of seed {seed}");
            assert!(is_moot || !stopped(true), "{kind:?} at {sent} of seed {seed}");
        }
        let counters = &route.state().counters;
        let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
        assert_eq!((counters.calls(), ended), (number, number), "one fate per call, seed {seed}");
    }
    let counters = &route.state().counters;
    assert_eq!(counters.retries() + counters.hedges(), extra, "seed {seed}");
}

proptest! {
    #[test]
    fn no_attempt_is_sent_against_a_kill_and_fates_sum_to_calls(seed: u64) {
        storm(seed);
    }
}
