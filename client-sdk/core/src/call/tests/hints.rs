//! Inputs that only code gives: stop conditions, classes of errors, chosen waits, progress, earlier calls.

use super::*;

const NONE: Hints<'static> = Hints {
    never: false,
    exhausted: false,
    progressed: false,
    wait: None,
    spread: Duration::ZERO,
    class: None,
    stop: None,
    earlier: Duration::ZERO,
};

/// Any number of attempts, 100 ms apart.
fn unlimited() -> Route {
    let rule = Rule::in_code(with_retry(|retry| retry.max_attempts = u32::MAX)).unwrap();
    Route::new(Some(Arc::new(rule)))
}

/// Fails attempts that take no time until the call ends. Returns its fate and the attempts.
fn fail(route: &Route, hints: impl Fn(u32) -> Hints<'static>) -> (Fate, Vec<u64>) {
    let (mut call, mut now, mut sends) = (Call::begin(route, start()), CALLS_BEGIN, Vec::new());
    loop {
        match call.next_step(route, now) {
            Step::Send(send) => {
                sends.push(now.since(CALLS_BEGIN).as_millis() as u64);
                call.attempt_ended_with(route, send.attempt, UNAVAILABLE, &hints(send.attempt), now, 0);
            }
            Step::Wait { until } => now = until.unwrap(),
            Step::Cancel { .. } => panic!("no attempt has a limit"),
            Step::Finish(finish) => return (finish.ending.fate, sends),
        }
    }
}

fn stopped(stop: &'static Stop) -> (Fate, usize) {
    let (fate, sends) = fail(&unlimited(), |_| Hints { stop: Some(stop), ..NONE });
    (fate, sends.len())
}

#[test]
fn stop_conditions_compose() {
    const THREE: Stop = Stop::AfterAttempts(3);
    const SECOND: Stop = Stop::After(Duration::from_secs(1));
    static ATTEMPTS: Stop = THREE;
    static TIME: Stop = SECOND;
    assert_eq!(stopped(&ATTEMPTS), (Fate::AttemptsExhausted, 3));
    assert_eq!(stopped(&TIME), (Fate::MaxDuration, 10), "the eleventh would start after one second");
    let leak = |stop: Stop| &*Box::leak(Box::new(stop));
    assert_eq!(stopped(leak(THREE.or(SECOND))), (Fate::AttemptsExhausted, 3));
    assert_eq!(stopped(leak(THREE.and(SECOND))), (Fate::MaxDuration, 10));
    assert_eq!(stopped(leak(Stop::Never.or(THREE))).1, 3);
    assert_eq!(stopped(leak(Stop::Any(vec![]).or(THREE))).1, 3, "no condition is met");
    assert_eq!(stopped(leak(Stop::All(vec![]).or(THREE))).1, 3);
    assert_eq!(stopped(leak(Stop::Never.and(THREE).or(SECOND))).1, 10);
}

/// Returns the fate of a call whose first attempt is pushed back, and the start of the second one.
fn pushed_back(wait: Duration, spread: Duration, deadline: Option<Duration>) -> (Option<Fate>, Option<Time>) {
    let (route, now) = (unlimited(), CALLS_BEGIN);
    let deadline = deadline.map(|left| now + left);
    let mut call = Call::begin(&route, CallStart { deadline, ..start() });
    let Step::Send(send) = call.next_step(&route, now) else { panic!("the first attempt") };
    let failure = Failure { pushback: Some(Pushback::After(wait)), ..Failure::new(Code::Unavailable) };
    let hints = Hints { spread, ..NONE };
    call.attempt_ended_with(&route, send.attempt, Verdict::Failure(failure), &hints, now, 0);
    match call.next_step(&route, now) {
        Step::Finish(finish) => (Some(finish.ending.fate), None),
        Step::Wait { until } => (None, until),
        step => panic!("{step:?}"),
    }
}

#[test]
fn spread_of_a_pushback_makes_it_no_longer() {
    let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
    let at = |wait| (None, Some(CALLS_BEGIN + wait));
    assert_eq!(pushed_back(minute, second, None), at(minute + second));
    assert_eq!(pushed_back(minute + ms(1), Duration::ZERO, None).0, Some(Fate::Pushback));
    // The time left is enough for the pushback, and not for the rest.
    assert_eq!(pushed_back(second, second, Some(ms(1500))), at(second));
    assert_eq!(pushed_back(second, second, Some(ms(2500))), at(2 * second));
    assert_eq!(pushed_back(second, second, Some(second)).0, Some(Fate::Pushback));
}

#[test]
fn unlimited_attempts_end_by_the_code_that_counts_them() {
    let (fate, sends) = fail(&unlimited(), |attempt| Hints { exhausted: attempt == 1_000, ..NONE });
    assert_eq!((fate, sends.len()), (Fate::AttemptsExhausted, 1_000));
}

#[test]
fn error_that_is_never_retried_ends_the_call() {
    let (fate, sends) = fail(&unlimited(), |attempt| Hints { never: attempt == 2, ..NONE });
    assert_eq!((fate, sends.len()), (Fate::NotRetryable, 2));
}

#[test]
fn class_of_errors_has_a_limit_of_its_own() {
    let class = |failures| Hints { class: Some(ClassCount { failures, max_attempts: 2 }), ..NONE };
    assert_eq!(fail(&unlimited(), class).1.len(), 2);
    assert_eq!(fail(&unlimited(), |attempt| if attempt < 5 { NONE } else { class(2) }).1.len(), 5);
}

#[test]
fn chosen_wait_replaces_the_backoff_and_a_pushback_goes_first() {
    let wait = |attempt| Hints { wait: (attempt == 1).then(|| ms(7)), exhausted: attempt == 3, ..NONE };
    assert_eq!(fail(&unlimited(), wait).1, [0, 7, 107]);
    let (route, now) = (unlimited(), CALLS_BEGIN);
    let mut call = Call::begin(&route, start());
    call.next_step(&route, now);
    let pushback = Failure { pushback: Some(Pushback::After(ms(50))), ..Failure::new(Code::Unavailable) };
    let hints = Hints { wait: Some(ms(7)), ..NONE };
    call.attempt_ended_with(&route, 1, Verdict::Failure(pushback), &hints, now, 0);
    assert_eq!(call.next_step(&route, now), Step::Wait { until: Some(at(50)) });
}

#[test]
fn progress_restarts_attempts_and_waits() {
    let growth = Growth { max: ms(10_000), over_max: OverMax::Cap, jitter: Jitter::None };
    let route = route(with_retry(|retry| {
        let multiplier = Ratio::from_bp(20_000);
        retry.backoff = Backoff::Always(Waits::Exponential { base: ms(100), multiplier, growth });
    }));
    let (fate, sends) = fail(&route, |attempt| Hints { progressed: attempt == 3, ..NONE });
    assert_eq!((fate, sends), (Fate::AttemptsExhausted, vec![0, 100, 300, 400, 600]));
}

fn resumed(route: &Route, earlier: Earlier, stop: Option<&Stop>) -> Step {
    let mut call = Call::begin(route, start());
    call.resume(route, earlier, stop, CALLS_BEGIN);
    call.next_step(route, CALLS_BEGIN)
}

fn fate(step: Step) -> Fate {
    let Step::Finish(finish) = step else { panic!("{step:?}") };
    finish.ending.fate
}

#[test]
fn resumed_call_counts_the_attempts_of_earlier_calls() {
    let route = route(policy());
    let earlier = |attempts| Earlier { attempts, ..Earlier::default() };
    let Step::Send(send) = resumed(&route, earlier(2), None) else { panic!("one attempt is left") };
    assert_eq!((send.attempt, send.kind), (3, AttemptKind::First));
    assert_eq!(fate(resumed(&route, earlier(3), None)), Fate::AttemptsExhausted);
    let counters = &route.state().counters;
    assert_eq!((counters.calls(), counters.attempts()), (2, 1), "the second call sent nothing");
}

#[test]
fn resumed_call_keeps_within_the_time_of_all_calls() {
    let stop = Stop::After(ms(500));
    let earlier = Earlier { attempts: 1, elapsed: ms(500), blocked: false };
    assert_eq!(fate(resumed(&route(policy()), earlier, Some(&stop))), Fate::MaxDuration);
    let route = route(with_retry(|retry| retry.max_duration = Some(ms(500))));
    assert_eq!(fate(resumed(&route, earlier, None)), Fate::MaxDuration);
    assert!(matches!(resumed(&route, Earlier { elapsed: ms(499), ..earlier }, None), Step::Send(_)));
}

#[test]
fn resumed_call_that_a_gate_blocked_asks_again() {
    let retry_breaker = Some(RetryBreaker { mode: BreakerMode::Ratio, ..RetryBreaker::default() });
    let route = route(Policy { retry_breaker, ..policy() });
    let earlier = Earlier { attempts: 1, elapsed: ms(0), blocked: true };
    assert_eq!(fate(resumed(&route, earlier, None)), Fate::RetryBreaker);
    assert!(matches!(resumed(&route, Earlier { blocked: false, ..earlier }, None), Step::Send(_)));
    for _ in 0..10 {
        assert_eq!(drive(&route, start(), &[Verdict::Success]).finish.ending.fate, Fate::Ok);
    }
    let steps: Vec<_> = (0..3).map(|_| resumed(&route, earlier, None)).collect();
    assert!(matches!(steps[..], [Step::Send(_), Step::Send(_), Step::Finish(_)]), "each is counted");
}

#[test]
fn left_retry_ends_the_call_with_its_payment_spent() {
    let route = route(Policy { retry_breaker: Some(RetryBreaker::default()), ..policy() });
    for _ in 0..100 {
        drive(&route, start(), &[Verdict::Success]);
    }
    let leave = || {
        let mut call = Call::begin(&route, start());
        call.next_step(&route, CALLS_BEGIN);
        assert_eq!(call.leave_retry(&route, CALLS_BEGIN), None, "nothing has failed");
        call.attempt_ended(&route, 1, UNAVAILABLE, CALLS_BEGIN, 0);
        let left = call.leave_retry(&route, CALLS_BEGIN).map(|finish| finish.ending.fate);
        assert!(matches!(call.next_step(&route, CALLS_BEGIN), Step::Finish(_)));
        left
    };
    let left: Vec<_> = (0..4).map(|_| leave()).collect();
    assert!(left.contains(&Some(Fate::Retry)) && left.ends_with(&[None]), "{left:?}");
}

#[test]
fn call_dropped_before_its_first_attempt_sent_nothing() {
    let route = route(policy());
    let mut call = Call::begin(&route, start());
    assert_eq!(call.dropped(&route, CALLS_BEGIN).unwrap().ending, Ending::real(Fate::Cancelled));
    assert_eq!(call.dropped(&route, CALLS_BEGIN), None);
    assert_eq!((route.state().counters.calls(), route.state().counters.attempts()), (1, 0));
}
