//! What strategies come to at most, hop by hop: naive retries multiply, Damper's do not.

use std::time::Duration;

use damper_core::{Code, CodeSet, Mode, Policy, Ratio, RetryBreaker};
use damper_sim::Figures;
use damper_sim::scenario::{Fault, FaultKind, Peer, PeerBudget, PeerCap, Scenario, Strategy};

use crate::harness::{chain, damper, ms, only, peer, three_attempts};

fn failing(service: &str, kind: FaultKind) -> Fault {
    let (service, from) = (service.to_owned(), Duration::ZERO);
    Fault { service, method: None, instances: None, from, until: None, flapping: None, kind }
}

fn unavailable(share_bp: u32) -> FaultKind {
    FaultKind::Error { code: Code::Unavailable, share: Ratio::from_bp(share_bp) }
}

/// A chain of so many services whose last one fails.
fn failing_chain(services: usize, kind: FaultKind, strategy: Strategy) -> Scenario {
    let mut scenario = chain(services, strategy);
    let last = scenario.services[services - 1].name.clone();
    scenario.faults = vec![failing(&last, kind)];
    scenario
}

fn attempts(figures: &Figures) -> Vec<u64> {
    figures.hops.iter().map(|hop| hop.attempts).collect()
}

#[test]
fn naive_retries_multiply_at_every_layer() {
    for services in 1..=4 {
        let figures = only(&failing_chain(services, unavailable(10_000), peer(Peer::naive(3))));
        let expected: Vec<u64> = (1..=services as u32).map(|layer| 99 * 3_u64.pow(layer)).collect();
        assert_eq!(attempts(&figures), expected);
        assert_eq!(figures.succeeded, 0);
    }
}

#[test]
fn only_the_hop_nearest_the_fault_retries_under_the_flags() {
    for services in 1..=4 {
        let figures = only(&failing_chain(services, unavailable(10_000), damper(three_attempts())));
        let mut expected = vec![99; services];
        expected[services - 1] = 3 * 99;
        assert_eq!(attempts(&figures), expected, "1 above, r at the fault");
        if services > 1 {
            assert_eq!(figures.hops[0].fates["chain_no_more_retry"], 99);
        }
    }
}

#[test]
fn rules_that_ignore_the_flags_multiply_as_naive_ones_do() {
    let mut policy = three_attempts();
    policy.chain.ignore_retry_flag = true;
    policy.chain.ignore_no_more_retry = true;
    let figures = only(&failing_chain(3, unavailable(10_000), damper(policy)));
    assert_eq!(attempts(&figures), [99 * 3, 99 * 9, 99 * 27]);
}

/// Three attempts, each given up after a time that is enough for those of the hop below.
fn lost_answers(retries: fn(&mut Scenario)) -> Vec<u64> {
    let mut scenario = chain(3, damper(three_attempts()));
    let every = ["a", "b", "c"];
    scenario.faults =
        every.iter().map(|name| failing(name, FaultKind::LostAnswer { share: Ratio::ONE })).collect();
    scenario.load[0].arrivals = crate::harness::load("a", 1).arrivals;
    retries(&mut scenario);
    attempts(&only(&scenario))
}

#[test]
fn lost_answers_add_up_instead_of_multiplying() {
    let each = |scenario: &mut Scenario| {
        let rules = ["a", "b", "c"].into_iter().zip([1_000, 300, 50]).map(|(callee, timeout)| {
            let mut policy = three_attempts();
            let retry = policy.retry.as_mut().unwrap();
            retry.per_attempt_timeout = Some(ms(timeout));
            retry.codes = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);
            let pattern = damper_core::Pattern::parse("*", "*", callee, "*").unwrap();
            damper_core::Rule::new(pattern, policy, 1).unwrap()
        });
        scenario.strategies[0].retries =
            damper_sim::scenario::Retries::Damper { rules: rules.collect(), guards: Vec::new() };
    };
    // Hop i from the top carries i x r - (i - 1).
    assert_eq!(lost_answers(each), [9 * 3, 9 * 5, 9 * 7]);
}

#[test]
fn governed_retries_stop_near_one_attempt_per_request() {
    for share_bp in [2_000, 5_000, 10_000] {
        let policy = Policy { retry_breaker: Some(RetryBreaker::default()), ..three_attempts() };
        let mut scenario = failing_chain(4, unavailable(share_bp), damper(policy));
        scenario.duration = Duration::from_secs(60);
        scenario.load[0].arrivals = crate::harness::load("a", 40).arrivals;
        let figures = only(&scenario);
        let steady = &figures.timeline[20..];
        let requests: u64 = steady.iter().map(|second| second.requests).sum();
        let last: u64 = steady.iter().map(|second| second.attempts[3]).sum();
        assert!(last * 100 <= requests * 111, "{share_bp} bp: {last} attempts for {requests}");
        for second in &figures.timeline {
            assert!(second.attempts[3] <= 3 * (second.requests + 1), "never more than r");
        }
    }
}

#[test]
fn budget_of_a_peer_bounds_each_layer_but_not_their_product() {
    let budget = PeerBudget { min_per_sec: 1, ..Default::default() };
    let strategy = peer(Peer { cap: Some(PeerCap::Budget(budget)), ..Peer::naive(3) });
    let mut scenario = failing_chain(3, unavailable(10_000), strategy);
    scenario.duration = Duration::from_secs(60);
    let figures = only(&scenario);
    // Nothing succeeds, so each layer has its reserve alone, 10, whenever tower has forgotten that it was used.
    assert!(figures.hops.iter().all(|hop| hop.retries == 100), "{:?}", attempts(&figures));
}

#[test]
fn observe_mode_sends_no_retries_and_counts_them() {
    let policy = Policy { mode: Mode::Observe, ..three_attempts() };
    let figures = only(&failing_chain(2, unavailable(10_000), damper(policy)));
    assert_eq!(attempts(&figures), [99, 99]);
    assert_eq!(figures.hops[1].fates["would_retry"], 99);
}
