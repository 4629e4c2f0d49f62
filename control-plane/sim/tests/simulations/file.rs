//! Scenarios as they are written: everything that is wrong is told at once, by its path.

use std::time::Duration;

use damper_core::Ratio;
use damper_sim::scenario::{
    Arrivals, FaultKind, PeerBudget, PeerCap, PeerJitter, PeerQuota, PeerThrottling, Retries,
};
use damper_sim::{Scenario, Spread};

use crate::harness::{ms, read};

const GOOD: &str = "
name: small
duration: 30s
services:
  a: { methods: { p.S/M: { time: 5ms } } }
load: [ { caller: top, call: a p.S/M, open: { rate: 0.3 } } ]
strategies: [ { name: none, none: } ]
";

fn faults_of(text: &str) -> Vec<String> {
    let error = read(text).expect_err("it is wrong");
    error.problems.iter().map(|problem| format!("{}: {}", problem.path, problem.problem)).collect()
}

#[test]
fn absent_fields_have_defaults() {
    let scenario: Scenario = read(GOOD).unwrap();
    assert_eq!((scenario.seed, scenario.network.clone()), (1, Spread::Fixed(Duration::from_micros(500))));
    assert_eq!((scenario.duration, scenario.faults.len()), (Duration::from_secs(30), 0));
    let service = &scenario.services[0];
    assert_eq!((service.instances, service.workers, service.queue), (1, None, None));
    assert!(!service.cancellable && !service.holds_worker);
    let Arrivals::Open { even, rates } = &scenario.load[0].arrivals else { panic!("not open") };
    assert!(!even);
    assert_eq!((rates[0].from, rates[0].milli_per_second), (Duration::ZERO, 300));
    assert_eq!(scenario.load[0].processes, 1);
}

#[test]
fn every_field_can_be_set() {
    let scenario = read("
name: all of it
duration: 1h
seed: 18446744073709551615
network: { uniform: { min: 100us, max: 2ms } }
services:
  a:
    instances: 3
    workers: 8
    queue: 0
    full: RESOURCE_EXHAUSTED
    full_cost: 0.3
    holds_worker: true
    cancellable: true
    balance: round_robin
    methods:
      p.S/M: { time: { lognormal: { median: 5ms, p99: 50ms } }, calls: [ b p.T/M, [ b p.T/M, b p.T/N ] ] }
  b:
    methods:
      p.T/M: { time: { exponential: { mean: 3ms } } }
      p.T/N: { time: { list: [1ms, 2ms, 2ms] } }
load:
  - { caller: top, processes: 10, call: a p.S/M, timeout: 1m, restart: 2m, open: { even: true, rates: [ { rate: 10 }, { from: 10s, rate: 0 } ] } }
  - { caller: top, bare: true, call: b p.T/M, closed: { users: 5, think: 1s } }
faults:
  - { service: a, instances: 1, from: 1s, until: 2s, period: 100ms, on: 50ms, crash: }
  - { service: b, method: p.T/N, slow: { add: 1s, factor: 1.5, share: 0.25 } }
  - { service: b, workers: { count: 0 } }
strategies:
  - { name: naive, peer: { attempts: 2, codes: [INTERNAL], per_attempt_timeout: 1s, callee_timeouts: { b: 200ms, a: 700ms }, backoff: { jitter: added }, budget: { ttl: 5s, min_per_sec: 0, retry_percent: 0.5 } } }
  - name: damper
    damper:
      - kind: Rule
        key: { caller_service: a, caller_cluster: '*', callee_service: b, callee_method: '*' }
        policy: { mode: enforce, retry: {} }
      - { kind: Guard, key: { caller_service: '*', caller_cluster: '*', callee_service: b, callee_method: '*' }, ceiling: { max_attempts: 2 } }
").unwrap();
    assert_eq!(scenario.services[0].methods[0].calls.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(scenario.services[1].methods[1].time, Spread::List(vec![ms(1), ms(2), ms(2)]));
    let FaultKind::Slow { factor, share, .. } = scenario.faults[1].kind else { panic!("not slow") };
    assert_eq!((factor.bp(), share.bp()), (15_000, 2_500));
    assert_eq!([&scenario.load[0], &scenario.load[1]].map(|load| load.bare), [false, true]);
    let restart = [&scenario.load[0], &scenario.load[1]].map(|load| load.restart);
    assert_eq!(restart, [Some(Duration::from_secs(120)), None]);
    assert_eq!(
        [&scenario.services[0], &scenario.services[1]].map(|service| service.full_cost.bp()),
        [3_000, 0]
    );
    let Retries::Peer(peer) = &scenario.strategies[0].retries else { panic!("not a peer's") };
    assert_eq!(peer.callee_timeouts, [("a".to_owned(), ms(700)), ("b".to_owned(), ms(200))]);
    assert_eq!(peer.backoff.unwrap().jitter, PeerJitter::Added);
    let ttl = Duration::from_secs(5);
    let budget = PeerBudget { ttl, min_per_sec: 0, retry_percent: Ratio::from_bp(5_000) };
    assert_eq!(peer.cap, Some(PeerCap::Budget(budget)));
    let Retries::Damper { rules, guards } = &scenario.strategies[1].retries else { panic!("not Damper's") };
    assert_eq!((rules.len(), guards.len()), (1, 1));
}

#[test]
fn callers_that_restart_and_refusals_that_cost_are_in_range() {
    let faults = |load: &str| faults_of(&GOOD.replace("caller: top", load));
    let restart = "load[0].restart: requires a shorter `timeout`";
    assert_eq!(faults("caller: top, restart: 1m"), [restart]);
    assert_eq!(faults("caller: top, restart: 1m, timeout: 1m"), [restart]);
    assert_eq!(
        faults("caller: top, restart: 900ms, timeout: 1ms"),
        ["load[0].restart: must be between 1s and 24h, not 900ms"]
    );
    let costly = GOOD.replace("a: { methods", "a: { full_cost: 1.5, methods");
    assert_eq!(faults_of(&costly), ["services.a.full_cost: must be between 0 and 1, not 1.5"]);
}

/// The cap of the only strategy, which is a peer with these fields.
fn cap(peer: &str) -> Option<PeerCap> {
    let text = GOOD.replace("none: }", &format!("peer: {{ {peer} }} }}"));
    let Retries::Peer(peer) = read(&text).unwrap().strategies.remove(0).retries else {
        panic!("not a peer's")
    };
    peer.cap
}

#[test]
fn peer_has_the_given_cap_or_none() {
    assert_eq!(cap(""), None);
    assert_eq!(cap("throttling: {}"), Some(PeerCap::Throttling(PeerThrottling::default())));
    let throttling = PeerThrottling { max_tokens: 1_000, token_ratio: Ratio::from_bp(15_000) };
    let said = cap("throttling: { max_tokens: 1000, token_ratio: 1.5 }");
    assert_eq!(said, Some(PeerCap::Throttling(throttling)));
    assert_eq!(cap("quota: {}"), Some(PeerCap::Quota(PeerQuota::default())));
    let quota = PeerQuota { tokens: 100, cost: 14, timeout_cost: 15 };
    assert_eq!(cap("quota: { tokens: 100, cost: 14, timeout_cost: 15 }"), Some(PeerCap::Quota(quota)));
}

#[test]
fn caps_out_of_range_are_refused_and_so_are_two_of_them() {
    let faults = |peer: &str| faults_of(&GOOD.replace("none: }", &format!("peer: {{ {peer} }} }}")));
    assert_eq!(
        faults("throttling: { max_tokens: 1001, token_ratio: 0 }"),
        [
            "strategies[0].peer.throttling.max_tokens: must be between 1 and 1000, not 1001",
            "strategies[0].peer.throttling.token_ratio: must be between 0.001 and 1000, not 0",
        ]
    );
    assert_eq!(
        faults("quota: { tokens: 0, cost: 0, timeout_cost: 100001 }"),
        [
            "strategies[0].peer.quota.tokens: must be between 1 and 100000, not 0",
            "strategies[0].peer.quota.cost: must be between 1 and 100000, not 0",
            "strategies[0].peer.quota.timeout_cost: must be between 1 and 100000, not 100001",
        ]
    );
    assert_eq!(
        faults("budget: {}, quota: {}"),
        ["strategies[0].peer: allows only one of budget, throttling, quota"]
    );
}

#[test]
fn all_faults_are_reported_with_their_path() {
    let found = faults_of("
duration: 30
netwrok: 1ms
services:
  a: { workers: 0, instances: -1, methods: { p.S/M: { time: { uniform: { min: 2ms, max: 1ms } }, calls: [ b p.S/M ] } } }
  c d: { methods: { M: { time: 5 } } }
load: [ { caller: top, call: a p.S/N, open: { rate: fast }, closed: { users: 0 } } ]
faults:
  - { service: a, instances: 9, until: 0s, error: { share: 1.5, code: OOPS } }
  - { service: x, from: 2h, on: 1s }
strategies:
  - { name: one, none:, peer: {} }
  - { name: two, peer: { attempts: 11, callee_timeouts: { x: 1s, a: 3 } } }
  - { name: one, damper: [ { kind: Rule, key: { caller_service: a, caller_cluster: a, callee_service: a, callee_method: a.B/C }, policy: { mode: enforce, retry: { max_attempts: 99 } } } ] }
");
    let expected = [
        "netwrok: unknown field `netwrok`, expected one of `name`, `duration`, `seed`, `network`, `services`, `load`, \
         `faults`, `strategies`",
        "duration: must be a duration with a unit, such as 250ms, 2s or 1h, not 30",
        "services.a.workers: must be between 1 and 100000, not 0",
        "services.a.instances: must be a whole number from 0 to 4294967295, not -1",
        "services.a.methods.p.S/M.time.uniform.max: must be at least 2ms, not 1ms",
        "services.a.methods.p.S/M.calls[0]: unknown service \"b\"",
        "services.c d: \"c d\" contains ' '; only visible ASCII without '*' is allowed",
        "services.c d.methods.M.time: invalid type: integer `5`, expected a duration, or one of uniform, \
         exponential, lognormal, list",
        "load[0].open.rate: must be a number of at least 0, not \"fast\"",
        "load[0].closed: conflicts with `open`",
        "load[0].call: unknown method \"p.S/N\" of \"a\"",
        "faults[0].error.code: must be a gRPC code, such as UNAVAILABLE, not \"OOPS\"",
        "faults[0].until: must be later than `from`, 0ms, not 0ms",
        "faults[1]: requires one of error, slow, no_answer, lost_answer, crash, workers",
        "strategies[0]: requires one of none, peer, damper",
        "strategies[2].name: duplicate name \"one\"",
        "strategies[1].peer.attempts: must be between 1 and 10, not 11",
        "strategies[1].peer.callee_timeouts.a: must be a duration with a unit, such as 250ms, 2s or 1h, not 3",
        "strategies[2].damper[0].policy.retry.max_attempts: must be between 1 and 10, not 99",
    ];
    let missing: Vec<_> = expected.iter().filter(|line| !found.iter().any(|known| known == *line)).collect();
    assert!(missing.is_empty(), "missing {missing:#?} in {found:#?}");
    let follows = |line: &&String| line.contains("requires `") || line.contains("must be before the end");
    assert_eq!(found.iter().find(follows), None, "what only follows from another fault is not told");
}

#[test]
fn methods_that_call_themselves_are_refused_with_the_way_around() {
    let text = GOOD.replace(
        "a: { methods: { p.S/M: { time: 5ms } } }",
        "a: { methods: { p.S/M: { time: 5ms, calls: [ b p.S/M ] } } }\n  b: { methods: { p.S/M: { time: 5ms, calls: [ a p.S/M ] } } }",
    );
    assert_eq!(faults_of(&text), ["services: a p.S/M -> b p.S/M -> a p.S/M: endless cycle of calls"]);
}

#[test]
fn ranges_and_references_hold_for_scenarios_made_in_rust_too() {
    let mut scenario = read(GOOD).unwrap();
    scenario.services[0].instances = 0;
    scenario.duration = Duration::ZERO;
    scenario.load.clear();
    let faults = damper_sim::run(&scenario).unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["duration", "load", "services.a.instances"]);
}

#[test]
fn invalid_yaml_and_duplicates_are_rejected() {
    assert!(read("a: [").is_err());
    assert!(read(&format!("{GOOD}name: again\n")).is_err());
    assert_eq!(faults_of("7"), [": must be a map, not 7"]);
}
