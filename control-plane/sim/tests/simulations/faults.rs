//! Each kind of fault does what it is said to do, from when until when and where it is said to.

use std::time::Duration;

use damper_core::{Code, Ratio};
use damper_sim::Spread;
use damper_sim::scenario::{Balance, Fault, FaultKind, Flapping, Peer, Scenario};
use damper_sim::{Figures, Phase};

use crate::harness::{METHOD, chain, damper, ms, only, peer, service, small, three_attempts};

fn fault(kind: FaultKind) -> Fault {
    let (from, until) = (Duration::from_secs(2), Some(Duration::from_secs(6)));
    Fault { service: "a".to_owned(), method: None, instances: None, from, until, flapping: None, kind }
}

fn error() -> FaultKind {
    FaultKind::Error { code: Code::Internal, share: Ratio::ONE }
}

/// Ten even requests a second, sent once, with a deadline of a second.
fn under(kind: FaultKind) -> Scenario {
    let mut scenario = Scenario { faults: vec![fault(kind)], ..small(peer(Peer::naive(1))) };
    scenario.load[0].timeout = Some(ms(1_000));
    scenario
}

/// Requests that succeeded, second by second.
fn succeeded(figures: &Figures) -> Vec<u64> {
    figures.timeline.iter().map(|second| second.succeeded).collect()
}

#[test]
fn error_answers_at_once_with_its_code_while_it_holds() {
    let mut scenario = under(error());
    scenario.services[0].workers = Some(1);
    let figures = only(&scenario);
    // Requests are made at 0.1, 0.2, ...: the one at 2.0 s meets the fault, the one at 6.0 s does not.
    assert_eq!(succeeded(&figures), [9, 10, 0, 0, 0, 0, 10, 10, 10, 10]);
    assert_eq!(figures.codes["INTERNAL"], 40);
    assert_eq!(figures.services[0].busy_us, 59 * 1_000, "no worker is taken");
    let names: Vec<_> = figures.phases.iter().map(|phase| (phase.name, phase.requests)).collect();
    assert_eq!(names, [("before", 19), ("during", 40), ("after", 40)]);
}

#[test]
fn error_hits_its_share_and_its_method_alone() {
    let mut scenario = under(FaultKind::Error { code: Code::Internal, share: Ratio::from_bp(2_500) });
    scenario.duration = Duration::from_secs(2_000);
    scenario.faults[0].until = None;
    let failed = only(&scenario).codes["INTERNAL"];
    assert!(failed.abs_diff(5_000) < 250, "{failed}");
    scenario.services[0].methods.push(damper_sim::scenario::Method {
        name: "test.Hop/Other".to_owned(),
        time: Spread::Fixed(ms(1)),
        calls: Vec::new(),
    });
    scenario.faults[0].method = Some("test.Hop/Other".to_owned());
    assert_eq!(only(&scenario).succeeded, 19_999);
}

#[test]
fn slow_adds_and_multiplies() {
    let figures =
        only(&under(FaultKind::Slow { add: ms(7), factor: Ratio::from_bp(35_000), share: Ratio::ONE }));
    let longest = |phase: &Phase| phase.latency.max_us;
    assert_eq!(figures.phases.iter().map(longest).collect::<Vec<_>>(), [1_000, 10_500, 1_000]);
}

#[test]
fn no_answer_and_lost_answer_end_at_the_deadline() {
    let swallowed = only(&under(FaultKind::NoAnswer { share: Ratio::ONE }));
    assert_eq!((swallowed.codes["DEADLINE_EXCEEDED"], swallowed.services[0].handler_runs), (40, 59));
    let lost = only(&under(FaultKind::LostAnswer { share: Ratio::ONE }));
    assert_eq!((lost.codes["DEADLINE_EXCEEDED"], lost.services[0].handler_runs), (40, 99));
}

#[test]
fn unanswered_call_without_a_deadline_never_ends() {
    let mut scenario = under(FaultKind::NoAnswer { share: Ratio::ONE });
    scenario.load[0].timeout = None;
    let figures = only(&scenario);
    assert_eq!((figures.unfinished, figures.succeeded), (40, 59));
    assert_eq!(figures.hops[0].unfinished, 40);
}

#[test]
fn crash_fails_requests_in_flight_and_new_ones() {
    let mut scenario = under(FaultKind::Crash);
    scenario.services[0] = service("a", Spread::Fixed(ms(250)), &[]);
    let figures = only(&scenario);
    // Of 1.8 and 1.9 s too: they were being worked on.
    assert_eq!(succeeded(&figures), [9, 8, 0, 0, 0, 0, 10, 10, 10, 10]);
    assert_eq!(figures.codes["UNAVAILABLE"], 42);
    assert_eq!(figures.services[0].arrived, 99 - 40);
}

#[test]
fn crash_of_one_instance_of_three_fails_a_third() {
    let mut scenario = under(FaultKind::Crash);
    scenario.services[0].instances = 3;
    scenario.services[0].balance = Balance::RoundRobin;
    scenario.faults[0].instances = Some(1);
    let figures = only(&scenario);
    assert!((13..=14).contains(&figures.codes["UNAVAILABLE"]), "{:?}", figures.codes);
}

#[test]
fn requests_wait_until_workers_return() {
    let figures = only(&under(FaultKind::Workers { count: 0 }));
    // Those up to 5.0 s give up after a second; those after it wait until 6.0 s.
    assert_eq!(succeeded(&figures), [9, 10, 0, 0, 0, 9, 10, 10, 10, 10]);
    assert_eq!(figures.services[0].longest_queue, 40);
    assert_eq!(figures.services[0].handler_runs, 99, "what nobody waits for is worked on all the same");
}

#[test]
fn cancellable_service_stops_work_of_gone_callers() {
    let mut scenario = under(FaultKind::Workers { count: 0 });
    scenario.services[0].cancellable = true;
    let figures = only(&scenario);
    assert_eq!(figures.services[0].handler_runs, 59 + 10, "the one of 5.0 s gives up when it begins");
    assert_eq!(figures.services[0].longest_queue, 10);
}

#[test]
fn cancelling_climbs_down_the_chain_as_far_as_services_heed_it() {
    let cancelled = |heeds: bool| {
        let mut scenario = chain(3, peer(Peer::naive(1)));
        scenario.services[1].methods[0].time = Spread::Fixed(ms(2_000));
        scenario.services.iter_mut().for_each(|service| service.cancellable = heeds);
        scenario.load[0].timeout = Some(ms(500));
        let figures = only(&scenario);
        assert_eq!(figures.succeeded, 0);
        (figures.services[2].handler_runs, figures.hops[1].fates.clone())
    };
    let (below, fates) = cancelled(true);
    assert_eq!((below, fates["cancelled"]), (0, 99));
    let (below, fates) = cancelled(false);
    assert_eq!((below, fates["ok"]), (99, 99));
}

#[test]
fn flapping_comes_and_goes_with_its_period() {
    for kind in [error(), FaultKind::Crash] {
        let mut scenario = under(kind);
        scenario.faults[0].flapping = Some(Flapping { period: ms(1_000), on: ms(300) });
        assert_eq!(succeeded(&only(&scenario)), [9, 10, 7, 7, 7, 7, 10, 10, 10, 10], "{kind:?}");
    }
}

#[test]
fn restarted_process_has_no_credit() {
    // By the time `b` begins to fail `a` has saved a retry, unless it has crashed four calls before.
    let retries = |crashes: bool| {
        let mut policy = three_attempts();
        policy.retry_breaker = Some(damper_core::RetryBreaker::default());
        let mut scenario = chain(2, damper(policy));
        let below = Fault {
            service: "b".to_owned(),
            from: ms(4_000),
            until: None,
            ..fault(FaultKind::Error { code: Code::Unavailable, share: Ratio::ONE })
        };
        scenario.faults = vec![below];
        if crashes {
            let (from, until) = (ms(3_500), Some(ms(3_590)));
            scenario.faults.push(Fault { from, until, ..fault(FaultKind::Crash) });
        }
        only(&scenario).hops[1].retries
    };
    assert_eq!((retries(false), retries(true)), (1, 0));
}

#[test]
fn deadlines_propagate_and_stop_late_attempts() {
    let mut policy = three_attempts();
    policy.timeout = Some(ms(5_000));
    let mut scenario = chain(3, damper(policy));
    scenario.load[0].timeout = Some(ms(100));
    scenario.services[0].methods[0].time = Spread::Fixed(ms(150));
    let figures = only(&scenario);
    assert_eq!(figures.hops[0].fates["deadline"], 99);
    // `a` goes on with its work, then makes its call in a context whose time is over.
    assert_eq!((figures.hops[1].fates["deadline"], figures.hops[1].attempts), (99, 0));
    assert_eq!(figures.services[1].arrived, 0);
    assert_eq!(METHOD, figures.hops[1].method);
}
