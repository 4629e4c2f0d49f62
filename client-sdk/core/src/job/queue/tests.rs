use super::*;
use crate::fault::{Fault, Percent};
use crate::outcome::code::CodeSet;
use crate::policy::{Budget, Chain, CircuitBreaker, Hedge, HedgeDelay, RetryBreaker, StopWhen};
use crate::rules::pattern::Pattern;

fn found(settings: QueueSettings) -> Vec<String> {
    let queue = Queue::new("later".to_owned(), settings, "team".to_owned(), 1);
    queue.err().map_or(Vec::new(), |faults| faults.iter().map(Fault::to_string).collect())
}

fn faults(change: impl FnOnce(&mut QueueSettings)) -> Vec<String> {
    let mut settings = QueueSettings::new(Mode::Enforce);
    change(&mut settings);
    found(settings)
}

fn retry(settings: &mut QueueSettings) -> &mut Retry {
    settings.policy.retry.as_mut().unwrap()
}

/// Checks both ends of a range, and the values next to them.
#[track_caller]
fn check_range<T: Copy>(set: impl Fn(&mut QueueSettings, T), accepted: [T; 2], rejected: &[(T, &str)]) {
    for value in accepted {
        assert_eq!(faults(|settings| set(settings, value)), Vec::<String>::new());
    }
    for (value, problem) in rejected {
        assert_eq!(faults(|settings| set(settings, *value)), [*problem]);
    }
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn defaults_are_within_every_range() {
    for mode in [Mode::Off, Mode::Observe, Mode::Enforce] {
        assert_eq!(found(QueueSettings::new(mode)), Vec::<String>::new());
    }
    let settings = QueueSettings::new(Mode::Enforce);
    assert_eq!((settings.retry().max_attempts, settings.per_attempt_timeout()), (25, 30 * SECOND));
    assert_eq!(settings.retry().codes, breaker::FAILURES);
}

#[test]
fn retry_has_wider_ranges_than_in_a_rule() {
    check_range(
        |settings, value| retry(settings).max_attempts = value,
        [1, 1_000],
        &[
            (0, "policy.retry.max_attempts: must be between 1 and 1000, not 0"),
            (1_001, "policy.retry.max_attempts: must be between 1 and 1000, not 1001"),
        ],
    );
    check_range(
        |settings, value| retry(settings).max_duration = Some(value),
        [SECOND, 30 * DAY],
        &[
            (999 * MS, "policy.retry.max_duration: must be between 1s and 30d, not 999ms"),
            (30 * DAY + SECOND, "policy.retry.max_duration: must be between 1s and 30d, not 2592001s"),
        ],
    );
    check_range(
        |settings, value| retry(settings).per_attempt_timeout = Some(value),
        [MS, DAY],
        &[
            (Duration::ZERO, "policy.retry.per_attempt_timeout: must be between 1ms and 24h, not 0ms"),
            (DAY + SECOND, "policy.retry.per_attempt_timeout: must be between 1ms and 24h, not 86401s"),
        ],
    );
    let empty = faults(|settings| retry(settings).codes = CodeSet::EMPTY);
    assert!(matches!(empty.as_slice(), [fault] if fault.starts_with("policy.retry.codes: ")), "{empty:?}");
}

#[test]
fn numbers_of_a_queue_are_accepted_up_to_both_ends() {
    check_range(
        |settings, value| settings.max_in_flight = value,
        [1, 10_000],
        &[
            (0, "max_in_flight: must be between 1 and 10000, not 0"),
            (10_001, "max_in_flight: must be between 1 and 10000, not 10001"),
        ],
    );
    let rate = |settings: &mut QueueSettings, bp| settings.rate = Some(Ratio::from_bp(bp));
    check_range(
        rate,
        [1_000, 100_000_000],
        &[
            (0, "rate: must be between 0.1 and 10000, not 0"),
            (100_001_000, "rate: must be between 0.1 and 10000, not 10000.1"),
        ],
    );
    check_range(
        |settings, value| settings.max_lost = value,
        [1, 1_000],
        &[
            (0, "max_lost: must be between 1 and 1000, not 0"),
            (1_001, "max_lost: must be between 1 and 1000, not 1001"),
        ],
    );
    check_range(
        |settings, value| settings.hold_after = value,
        [1, 1_000],
        &[
            (0, "hold_after: must be between 1 and 1000, not 0"),
            (1_001, "hold_after: must be between 1 and 1000, not 1001"),
        ],
    );
    check_range(
        |settings, value| settings.max_jobs = value,
        [1, 10_000_000],
        &[
            (0, "max_jobs: must be between 1 and 10000000, not 0"),
            (10_000_001, "max_jobs: must be between 1 and 10000000, not 10000001"),
        ],
    );
    check_range(
        |settings, value| settings.max_bytes = value,
        [1 << 20, 1 << 40],
        &[
            ((1 << 20) - 1, "max_bytes: must be between 1048576 and 1099511627776, not 1048575"),
            ((1 << 40) + 1, "max_bytes: must be between 1048576 and 1099511627776, not 1099511627777"),
        ],
    );
    check_range(
        |settings, value| settings.max_body = value,
        [1_024, 786_432],
        &[
            (1_023, "max_body_bytes: must be between 1024 and 786432, not 1023"),
            (786_433, "max_body_bytes: must be between 1024 and 786432, not 786433"),
        ],
    );
    let share = |settings: &mut QueueSettings, bp| settings.max_submitter_share = Ratio::from_bp(bp);
    check_range(
        share,
        [100, 10_000],
        &[
            (99, "max_submitter_share: must be between 0.01 and 1, not 0.0099"),
            (10_001, "max_submitter_share: must be between 0.01 and 1, not 1.0001"),
        ],
    );
}

#[test]
fn times_of_a_queue_are_accepted_up_to_both_ends() {
    check_range(
        |settings, value| settings.expires_after = value,
        [SECOND, 30 * DAY],
        &[
            (999 * MS, "expires_after: must be between 1s and 30d, not 999ms"),
            (30 * DAY + MS, "expires_after: must be between 1s and 30d, not 2592000001ms"),
        ],
    );
    check_range(
        |settings, value| settings.lease = value,
        [5 * SECOND, HOUR],
        &[
            (4_999 * MS, "lease: must be between 5s and 1h, not 4999ms"),
            (HOUR + MS, "lease: must be between 5s and 1h, not 3600001ms"),
        ],
    );
    check_range(
        |settings, value| settings.keep_done = value,
        [Duration::ZERO, 7 * DAY],
        &[(7 * DAY + MS, "keep_done: must be between 0ms and 7d, not 604800001ms")],
    );
    check_range(
        |settings, value| settings.keep_dead = value,
        [HOUR, 90 * DAY],
        &[
            (HOUR - MS, "keep_dead: must be between 1h and 90d, not 3599999ms"),
            (90 * DAY + MS, "keep_dead: must be between 1h and 90d, not 7776000001ms"),
        ],
    );
}

#[test]
fn lists_and_texts_are_limited() {
    let names = |count| vec![ServiceName::Exact("a".to_owned()); count];
    check_range(
        |settings, count| settings.workers = names(count),
        [0, 256],
        &[(257, "workers: must have at most 256 entries, not 257")],
    );
    check_range(
        |settings, count| settings.submitters = names(count),
        [0, 256],
        &[(257, "submitters: must have at most 256 entries, not 257")],
    );
    check_range(
        |settings, count| settings.metadata = vec!["a".to_owned(); count],
        [1, 32],
        &[(33, "metadata: must have at most 32 entries, not 33")],
    );
    check_range(
        |settings, count| settings.paused = "a".repeat(count),
        [0, 1_024],
        &[(1_025, "paused: must have at most 1024 bytes, not 1025")],
    );
    for (name, accepted) in [
        ("x-tenant_1.a", true),
        ("", false),
        ("X-Tenant", false),
        ("authorization", false),
        ("cookie", false),
        ("proxy-authorization", false),
        ("trace-bin", false),
    ] {
        let found = faults(|settings| settings.metadata = vec![name.to_owned()]);
        assert_eq!(found.is_empty(), accepted, "{name}: {found:?}");
    }
    let long = "a".repeat(65);
    assert_eq!(faults(|settings| settings.metadata = vec![long]).len(), 1);
}

#[test]
fn name_of_a_queue_has_1_to_64_plain_characters() {
    let check = |name: &str, expected: &str| {
        let mut found = Faults::none();
        check_queue_name("name", name, &mut found);
        assert_eq!(found.to_string(), expected);
    };
    check("stock-later.2", "");
    check(&"a".repeat(64), "");
    check("", "name: must have 1 to 64 characters, not 0");
    check(&"a".repeat(65), "name: must have 1 to 64 characters, not 65");
    for (name, c) in [("A", "'A'"), ("a b", "' '"), ("a_b", "'_'"), ("a/b", "'/'"), ("\u{e9}", "'\u{e9}'")] {
        check(name, &format!("name: {name:?} contains {c}; allowed are a-z, 0-9, '-' and '.'"));
    }
}

#[test]
fn settings_that_only_rules_have_are_faults() {
    let found = faults(|settings| {
        let policy = &mut settings.policy;
        policy.timeout = Some(SECOND);
        policy.hedge = Some(Hedge { delay: HedgeDelay::Fixed(MS), max_hedges: 1 });
        policy.retry_breaker = Some(RetryBreaker::default());
        policy.budget = Some(Budget { ratio: Ratio::ONE, min_per_second: 1 });
        policy.circuit_breaker = Some(CircuitBreaker::default());
        policy.chain = Chain { ignore_retry_flag: true, ..Chain::default() };
        (policy.replay_limit, policy.hold_unary, policy.call_id) = (0, true, true);
    });
    let paths: Vec<_> = found.iter().filter_map(|fault| fault.split(':').next()).collect();
    let expected = [
        "timeout",
        "hedge",
        "retry_breaker",
        "budget",
        "circuit_breaker",
        "chain",
        "replay_limit_bytes",
        "hold_unary",
        "call_id",
    ];
    assert_eq!(paths, expected.map(|path| format!("policy.{path}")));
}

#[test]
fn latency_stops_jobs_only_if_on_stop_is_dead() {
    let with = |on_stop, latency_above_percentile| {
        faults(|settings| {
            let success_rate_below = Some(Percent::from_hundredths(5_000));
            let stop_when = StopWhen { latency_above_percentile, success_rate_below, ..StopWhen::default() };
            (settings.policy.stop_when, settings.on_stop) = (Some(stop_when), on_stop);
        })
    };
    let latency = Some(Percent::from_hundredths(9_000));
    assert_eq!(with(OnStop::Hold, None), Vec::<String>::new());
    assert_eq!(with(OnStop::Dead, latency), Vec::<String>::new());
    let found = with(OnStop::Hold, latency);
    let expected = "policy.stop_when.latency_above_percentile: requires on_stop: dead";
    assert!(matches!(found.as_slice(), [fault] if fault.starts_with(expected)), "{found:?}");
}

#[test]
fn every_fault_is_reported_at_once() {
    let mut settings = QueueSettings::new(Mode::Enforce);
    retry(&mut settings).max_attempts = 0;
    settings.policy.timeout = Some(SECOND);
    (settings.max_in_flight, settings.max_lost, settings.hold_after) = (0, 0, 0);
    (settings.expires_after, settings.lease) = (Duration::ZERO, Duration::ZERO);
    settings.metadata = vec!["cookie".to_owned()];
    let owner = "o".repeat(256);
    let faults = Queue::new("Later".to_owned(), settings, owner, 1).unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "name",
            "policy.timeout",
            "policy.retry.max_attempts",
            "max_in_flight",
            "expires_after",
            "lease",
            "max_lost",
            "hold_after",
            "metadata[0]",
            "owner",
        ]
    );
}

fn queue(change: impl FnOnce(&mut QueueSettings)) -> Queue {
    let mut settings = QueueSettings::new(Mode::Enforce);
    change(&mut settings);
    Queue::new("later".to_owned(), settings, String::new(), 7).unwrap()
}

#[test]
fn jobs_go_to_their_submitter_or_to_the_listed_workers() {
    let own = queue(|_| {});
    assert!(own.delivers_to("orders", "orders") && !own.delivers_to("stock", "orders"));
    let listed = queue(|settings| {
        settings.workers =
            vec![ServiceName::Exact("mailer".to_owned()), ServiceName::Prefix("job-".to_owned())];
    });
    for (worker, expected) in [("mailer", true), ("job-1", true), ("mailer-2", false), ("orders", false)] {
        assert_eq!(listed.delivers_to(worker, "orders"), expected, "{worker}");
    }
}

#[test]
fn submitters_are_all_or_the_workers_or_those_listed() {
    let accepts = |queue: &Queue| ["orders", "mailer", "stock"].map(|service| queue.accepts_from(service));
    assert_eq!(accepts(&queue(|_| {})), [true; 3]);
    let mailer = || vec![ServiceName::Exact("mailer".to_owned())];
    assert_eq!(accepts(&queue(|settings| settings.workers = mailer())), [false, true, false]);
    let both = queue(|settings| {
        settings.workers = mailer();
        settings.submitters = vec![ServiceName::Exact("orders".to_owned())];
    });
    assert_eq!(accepts(&both), [true, false, false]);
}

#[test]
fn methods_limit_what_may_be_submitted() {
    let route = |service, method| RouteKey::new("orders", "eu", service, method).unwrap();
    let any = queue(|_| {});
    assert!(any.accepts_route(&route("stock", "p.S/M")));
    let pattern = Pattern::parse("*", "*", "stock", "p.S/M").unwrap();
    let limited = queue(|settings| {
        let (callee, method) = (pattern.callee_service.clone(), pattern.callee_method.clone());
        settings.methods = vec![Submittable { callee, method }];
    });
    assert!(limited.accepts_route(&route("stock", "p.S/M")));
    assert!(!limited.accepts_route(&route("stock", "p.S/N")) && !limited.accepts_route(&route("x", "p.S/M")));
}
