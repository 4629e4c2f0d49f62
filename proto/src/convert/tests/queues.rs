//! Queues: their defaults, and what is wrong with them by field, value and bound.

use damper_core::Mode;
use damper_core::job::{Queue, QueueSettings};

use super::{paths, seconds};
use crate::v1;

fn wire_queue() -> v1::Queue {
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), ..Default::default() };
    v1::Queue { name: "stock-later".to_owned(), policy: Some(policy), ..Default::default() }
}

fn with(change: impl FnOnce(&mut v1::Queue, &mut v1::Policy)) -> v1::Queue {
    let mut queue = wire_queue();
    let mut policy = queue.policy.take().unwrap();
    change(&mut queue, &mut policy);
    v1::Queue { policy: Some(policy), ..queue }
}

fn read(change: impl FnOnce(&mut v1::Queue, &mut v1::Policy)) -> Queue {
    super::super::queue(&with(change)).unwrap()
}

fn refused(queue: &v1::Queue, expected: &[(&str, &str)]) {
    let faults = super::super::queue(queue).unwrap_err();
    let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.problem.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn absent_settings_take_the_defaults_of_a_queue() {
    assert_eq!(*read(|_, _| ()).settings(), QueueSettings::new(Mode::Enforce));
    let retry = v1::Retry { max_attempts: Some(3), ..Default::default() };
    let given = read(|_, policy| policy.retry = Some(retry)).settings().retry();
    let expected = damper_core::Retry { max_attempts: 3, ..QueueSettings::default_retry() };
    assert_eq!(given, expected);
    assert_eq!(read(|_, policy| policy.retry = Some(v1::Retry::default())), read(|_, _| ()));
}

#[test]
fn absent_parts_of_a_queue_are_named() {
    let faults = super::super::queue(&v1::Queue::default()).unwrap_err();
    assert_eq!(faults.to_string(), "policy: required; name: must have 1 to 64 characters, not 0");
}

#[test]
fn settings_of_rules_are_refused_in_a_queue() {
    let queue = with(|_, policy| {
        policy.mode = v1::Mode::Observe.into();
        policy.timeout = seconds(-1, 0);
        policy.hedge = Some(v1::Hedge::default());
        policy.retry_breaker = Some(v1::RetryBreaker { enabled: Some(false), ..Default::default() });
        policy.budget = Some(v1::Budget::default());
        policy.circuit_breaker = Some(v1::CircuitBreaker::default());
        policy.chain = Some(v1::Chain::default());
        policy.replay_limit_bytes = Some(65_536);
        (policy.hold_unary, policy.call_id) = (true, true);
    });
    let faults = super::super::queue(&queue).unwrap_err();
    let names =
        "timeout hedge retry_breaker budget circuit_breaker chain replay_limit_bytes hold_unary call_id";
    let expected: Vec<String> = names.split(' ').map(|name| format!("policy.{name}")).collect();
    assert_eq!(paths(&faults), expected);
    let problem = "a queue has no such setting; it has mode, retry and stop_when";
    assert!(faults.iter().all(|fault| fault.problem == problem), "{faults}");
}

#[test]
fn every_setting_of_a_queue_is_refused_by_field_and_bound() {
    let queue = with(|queue, policy| {
        policy.mode = 0;
        policy.retry = Some(v1::Retry {
            max_attempts: Some(1001),
            max_duration: seconds(-1, 0),
            per_attempt_timeout: seconds(86_401, 0),
            codes: Some(v1::Codes { kind: None }),
            backoff: None,
        });
        policy.stop_when = Some(v1::StopWhen::default());
        *queue = v1::Queue {
            name: "Orders".to_owned(),
            policy: None,
            workers: vec!["ok".to_owned(), "a*b".to_owned()],
            submitters: vec![String::new()],
            methods: vec!["stock".to_owned(), "stock x".to_owned()],
            max_in_flight: Some(0),
            rate: Some(0.15),
            expires_after: seconds(0, 0),
            lease: seconds(4, 0),
            max_lost: Some(0),
            hold_after: Some(1001),
            on_stop: 7,
            keep_done: seconds(-5, 0),
            keep_dead: seconds(1, 0),
            max_jobs: Some(0),
            max_bytes: Some(1),
            max_body_bytes: Some(1023),
            max_submitter_share: Some(1.5),
            metadata: vec!["traceparent".to_owned(), "authorization".to_owned()],
            paused: "x".repeat(1025),
            owner: "x".repeat(256),
            revision: 0,
            updated_at: None,
            updated_by: String::new(),
        };
    });
    refused(
        &queue,
        &[
            ("policy.mode", "required (off, observe or enforce)"),
            ("policy.retry.max_duration", "must be between 1s and 30d, not -1s"),
            ("policy.retry.codes", "required (allow or deny)"),
            ("keep_done", "must be between 0ms and 7d, not -5s"),
            ("workers[1]", "\"a*b\" contains '*'; only visible ASCII without '*' is allowed"),
            ("submitters[0]", "must not be empty"),
            ("methods[0]", "must be CALLEE METHOD, such as \"inventory *\", not \"stock\""),
            (
                "methods[1]",
                "\"x\" must have the form package.Service/Method, GET:/path of HTTP, or group/name of another \
                 operation",
            ),
            ("on_stop", "must be hold or dead, not 7"),
            ("name", "\"Orders\" contains 'O'; allowed are a-z, 0-9, '-' and '.'"),
            ("policy.retry.max_attempts", "must be between 1 and 1000, not 1001"),
            ("policy.retry.per_attempt_timeout", "must be between 1ms and 24h, not 86401s"),
            ("policy.stop_when", "requires latency_above_percentile or success_rate_below"),
            ("max_in_flight", "must be between 1 and 10000, not 0"),
            ("rate", "must be in steps of 0.1 (0.1 to 10000), not 0.15"),
            ("expires_after", "must be between 1s and 30d, not 0ms"),
            ("lease", "must be between 5s and 1h, not 4s"),
            ("max_lost", "must be between 1 and 1000, not 0"),
            ("hold_after", "must be between 1 and 1000, not 1001"),
            ("keep_dead", "must be between 1h and 90d, not 1s"),
            ("max_jobs", "must be between 1 and 10000000, not 0"),
            ("max_bytes", "must be between 1048576 and 1099511627776, not 1"),
            ("max_body_bytes", "must be between 1024 and 786432, not 1023"),
            ("max_submitter_share", "must be between 0.01 and 1, not 1.5"),
            ("metadata[1]", "\"authorization\" cannot be kept: it can carry a credential"),
            ("paused", "must have at most 1024 bytes, not 1025"),
            ("owner", "must have at most 255 bytes, not 256"),
        ],
    );
}

#[test]
fn lists_of_a_queue_are_bounded() {
    let many = |count: usize| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
    let queue = with(|queue, _| {
        (queue.workers, queue.submitters) = (many(257), many(256));
        queue.methods = vec!["* *".to_owned(); 257];
        queue.metadata = many(33);
    });
    let at_most = |most: u32| format!("must have at most {most} entries, not {}", most + 1);
    refused(&queue, &[("workers", &at_most(256)), ("methods", &at_most(256)), ("metadata", &at_most(32))]);
}

#[test]
fn empty_metadata_is_the_default() {
    assert_eq!(read(|_, _| ()).settings().metadata, ["traceparent"]);
    let given = read(|queue, _| queue.metadata = vec!["x-tenant".to_owned()]);
    assert_eq!(given.settings().metadata, ["x-tenant"]);
}
