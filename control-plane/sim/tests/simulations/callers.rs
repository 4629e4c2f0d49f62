//! Who calls, and with which times: callers without a retry layer, timeouts by callee, and which request at the top an
//! attempt is made for.

use std::time::Duration;

use damper_core::{Code, CodeSet, Ratio};
use damper_sim::scenario::{Fault, FaultKind, Peer, PeerCap, PeerQuota, Scenario, Strategy};
use damper_sim::{Trace, trace};

use crate::harness::{chain, damper, ms, only, peer, simulated, three_attempts};

fn never_answers(scenario: &mut Scenario, service: &str) {
    let kind = FaultKind::NoAnswer { share: Ratio::ONE };
    let (service, from) = (service.to_owned(), ms(0));
    scenario.faults =
        vec![Fault { service, method: None, instances: None, from, until: None, flapping: None, kind }];
}

/// A chain of two whose last service is silent, asked by customers who wait for 400 ms.
fn silent(strategy: Strategy, bare: bool) -> Scenario {
    let mut scenario = chain(2, strategy);
    never_answers(&mut scenario, "b");
    scenario.load[0].bare = bare;
    scenario.load[0].timeout = Some(ms(400));
    scenario
}

#[test]
fn bare_callers_send_once_under_every_strategy() {
    for strategy in [peer(Peer::naive(3)), damper(three_attempts())] {
        let mut scenario = chain(1, strategy);
        let kind = FaultKind::Error { code: Code::Unavailable, share: Ratio::ONE };
        never_answers(&mut scenario, "a");
        scenario.faults[0].kind = kind;
        assert_eq!(only(&scenario).hops[0].attempts_per_request, 3.0);
        scenario.load[0].bare = true;
        assert_eq!(only(&scenario).hops[0].attempts_per_request, 1.0);
    }
}

/// A caller of a callee that always fails, whose quota has one retry.
fn with_one_retry(processes: u32, restart: Option<Duration>) -> u64 {
    let quota = PeerQuota { tokens: 5, ..PeerQuota::default() };
    let mut scenario = chain(1, peer(Peer { cap: Some(PeerCap::Quota(quota)), ..Peer::naive(3) }));
    never_answers(&mut scenario, "a");
    scenario.faults[0].kind = FaultKind::Error { code: Code::Unavailable, share: Ratio::ONE };
    let load = &mut scenario.load[0];
    (load.processes, load.restart, load.timeout) = (processes, restart, Some(ms(500)));
    only(&scenario).hops[0].retries
}

#[test]
fn restarting_callers_take_turns_and_lose_state() {
    let every = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!([with_one_retry(1, None), with_one_retry(2, None)], [1, 2]);
    assert_eq!(with_one_retry(1, every(2)), 5, "of 10 s");
    assert_eq!(with_one_retry(2, every(2)), 5 + 6, "one ends at 1 s and then every 2 s, the other every 2 s");
}

#[test]
fn bare_callers_disconnect_silently() {
    let ended = |bare| {
        let mut policy = three_attempts();
        policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(1_000));
        let figures = only(&silent(damper(policy), bare));
        assert_eq!(figures.codes["DEADLINE_EXCEEDED"], figures.requests);
        figures.hops[1].fates.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(ended(false), ["deadline"], "it came with the request");
    // Nobody told this service, and work for a caller that is gone goes on to its attempt's own end.
    assert_eq!(ended(true), ["not_retryable"]);
}

#[test]
fn peer_attempts_time_out_by_callee_or_default() {
    let codes = CodeSet::of(&[Code::DeadlineExceeded]);
    let timeouts = Peer { codes, per_attempt_timeout: Some(ms(300)), ..Peer::naive(3) };
    let attempts = |peer_of: Peer| {
        let figures = only(&silent(peer(peer_of), true));
        figures.hops[1].attempts_per_request
    };
    // The bare caller hangs up at 400 ms, but what it began goes on to its end.
    assert_eq!(attempts(timeouts.clone()), 3.0);
    let own = vec![("b".to_owned(), ms(100))];
    let scenario = silent(peer(Peer { callee_timeouts: own, ..timeouts }), true);
    let ended: Vec<_> = trace(&scenario).unwrap().remove(0).iter().map(took).collect();
    assert!(ended.iter().all(|took| (300_000..310_000).contains(took)), "three times 100 ms: {ended:?}");
}

fn took(trace: &Trace) -> u64 {
    trace.ended_us.unwrap() - trace.begun_us
}

#[test]
fn trace_assigns_attempts_to_requests_and_sums_up() {
    let codes = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);
    let slow = Peer { codes, per_attempt_timeout: Some(ms(700)), ..Peer::naive(3) };
    let mut scenario = silent(peer(slow), true);
    scenario.load[0].timeout = None;
    scenario.faults[0].until = Some(ms(5_000));
    let figures = simulated(&scenario).strategies.remove(0);
    let traces = trace(&scenario).unwrap().remove(0);
    assert_eq!(traces.len() as u64, figures.requests);
    assert_eq!(traces.iter().filter(|trace| trace.succeeded).count() as u64, figures.succeeded);
    for (hop, of) in figures.hops.iter().enumerate() {
        let sum: u64 = traces.iter().map(|trace| u64::from(trace.arrivals[hop])).sum();
        assert_eq!(sum, of.attempts);
    }
    // Those made in the outage's last 700 ms had their second attempt after it, and it is theirs.
    let late = traces.iter().find(|trace| trace.begun_us == 4_900_000).unwrap();
    assert_eq!((late.arrivals.as_slice(), late.succeeded), ([1, 2].as_slice(), true));
}
