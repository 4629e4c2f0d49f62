//! Queues whose figures are known: computed by hand, or by queueing theory.

use std::time::Duration;

use damper_core::Ratio;
use damper_sim::Spread;
use damper_sim::scenario::{Arrivals, Peer, RateFrom, Scenario, Service};

use crate::harness::{load, ms, only, peer, service, small};

fn one_worker(time: Spread, per_second: u64) -> Scenario {
    let api = Service { workers: Some(1), ..service("a", time, &[]) };
    Scenario { services: vec![api], load: vec![load("a", per_second)], ..small(peer(Peer::naive(1))) }
}

#[test]
fn even_arrivals_that_fit_never_wait() {
    let figures = only(&one_worker(Spread::Fixed(ms(8)), 100));
    assert_eq!((figures.requests, figures.succeeded), (999, 999), "the one at 10 s is after the end");
    assert_eq!((figures.latency.p50_us, figures.latency.max_us), (8_000, 8_000));
    assert_eq!((figures.services[0].mean_wait_us, figures.services[0].longest_queue), (0.0, 0));
    assert_eq!(figures.services[0].busy_us, 999 * 8_000);
}

#[test]
fn even_arrivals_that_do_not_fit_wait_longer_and_longer() {
    let figures = only(&one_worker(Spread::Fixed(ms(15)), 100));
    // The nth request waits n x 5 ms; the last of 999 is the 998th after the first.
    assert_eq!(figures.latency.max_us, 15_000 + 998 * 5_000);
    assert_eq!(figures.services[0].mean_wait_us, 998.0 / 2.0 * 5_000.0);
    // When it comes, at 9.99 s, the first 665 have been worked on (9.985 s), one is, and the rest waits.
    assert_eq!(figures.services[0].longest_queue, 999 - 666);
}

#[test]
fn a_full_queue_refuses_and_bounds_the_wait() {
    let mut scenario = one_worker(Spread::Fixed(ms(15)), 100);
    scenario.services[0].queue = Some(2);
    let figures = only(&scenario);
    assert_eq!(figures.services[0].longest_queue, 2);
    assert!(figures.latency.max_us <= 45_000, "two before it, and its own work");
    assert_eq!(figures.services[0].queue_full, figures.codes["UNAVAILABLE"]);
    // 10 s of work at 15 ms, and what the queue holds at the end.
    assert!((666..=669).contains(&figures.succeeded), "{}", figures.succeeded);
}

#[test]
fn costly_rejections_reduce_capacity() {
    let served = |full_cost| {
        let mut scenario = one_worker(Spread::Fixed(ms(15)), 100);
        scenario.services[0].queue = Some(2);
        scenario.services[0].full_cost = Ratio::from_bp(full_cost);
        only(&scenario).succeeded
    };
    // Of 15 ms for one served a refusal costs 3: s requests served and 100 - s refused a second make 1000 ms.
    assert!((582..=587).contains(&served(2_000)), "{}", served(2_000));
    // Half of the 15: 7.5.
    assert!((333..=340).contains(&served(5_000)), "{}", served(5_000));
}

#[test]
fn network_adds_its_delay_each_way() {
    let mut scenario = one_worker(Spread::Fixed(ms(8)), 10);
    scenario.network = Spread::Fixed(Duration::from_micros(700));
    assert_eq!(only(&scenario).latency.max_us, 8_000 + 2 * 700);
}

#[test]
fn stages_run_in_sequence_and_their_calls_at_once() {
    let mut scenario = small(peer(Peer::naive(1)));
    let below = |name: &str, time| service(name, Spread::Fixed(ms(time)), &[]);
    let mut top = service("a", Spread::Fixed(ms(1)), &["b", "c", "d"]);
    scenario.services = vec![top.clone(), below("b", 10), below("c", 20), below("d", 5)];
    assert_eq!(only(&scenario).latency.max_us, 36_000);
    let stages = std::mem::take(&mut top.methods[0].calls);
    top.methods[0].calls = vec![stages.concat()];
    scenario.services[0] = top;
    assert_eq!(only(&scenario).latency.max_us, 21_000);
}

#[test]
fn a_worker_that_is_held_waits_for_the_calls_below() {
    let mut scenario = small(peer(Peer::naive(1)));
    let top = Service { workers: Some(1), ..service("a", Spread::Fixed(ms(1)), &["b"]) };
    scenario.services = vec![top, service("b", Spread::Fixed(ms(149)), &[])];
    let free = only(&scenario);
    assert_eq!((free.latency.max_us, free.services[0].busy_us), (150_000, 99 * 1_000));
    scenario.services[0].holds_worker = true;
    let held = only(&scenario);
    assert_eq!(held.services[0].busy_us, 99 * 150_000);
    // Arrivals each 100 ms, one done each 150 ms.
    assert_eq!(held.latency.max_us, 150_000 + 98 * 50_000);
}

/// Mean wait of M/M/1 in ms: rho / (mu - lambda).
fn mm1_wait_ms(per_second: f64, mean_ms: f64) -> f64 {
    let (lambda, mu) = (per_second / 1000.0, 1.0 / mean_ms);
    lambda / mu / (mu - lambda)
}

#[test]
fn poisson_arrivals_wait_as_in_queueing_theory() {
    for per_second in [50, 80] {
        let mut scenario = one_worker(Spread::Exponential { mean: ms(10) }, per_second);
        scenario.duration = Duration::from_secs(4_000);
        let rates = vec![RateFrom { from: Duration::ZERO, milli_per_second: per_second * 1_000 }];
        scenario.load[0].arrivals = Arrivals::Open { even: false, rates };
        let found = only(&scenario).services[0].mean_wait_us / 1000.0;
        let expected = mm1_wait_ms(per_second as f64, 10.0);
        assert!((found / expected - 1.0).abs() < 0.05, "{per_second}/s: {found} for {expected} ms");
    }
}

#[test]
fn closed_load_is_limited_by_wait_and_think_time() {
    let mut scenario = small(peer(Peer::naive(1)));
    scenario.services[0] = service("a", Spread::Fixed(ms(40)), &[]);
    scenario.load[0].arrivals = Arrivals::Closed { users: 5, think: Spread::Fixed(ms(60)) };
    let figures = only(&scenario);
    // The first at 60 ms, then one each 100 ms.
    assert_eq!((figures.requests, figures.succeeded), (5 * 100, 5 * 100));
}

#[test]
fn rates_change_on_schedule() {
    let mut scenario = small(peer(Peer::naive(1)));
    let rate =
        |s, per_second: u64| RateFrom { from: Duration::from_secs(s), milli_per_second: per_second * 1_000 };
    scenario.load[0].arrivals =
        Arrivals::Open { even: true, rates: vec![rate(1, 10), rate(3, 0), rate(5, 100)] };
    let begun: Vec<_> = only(&scenario).timeline.iter().map(|second| second.requests).collect();
    assert_eq!(begun[0], 0);
    assert_eq!(begun[1] + begun[2], 19, "one that would be due when the rate ends is not made");
    assert_eq!(begun[3..5], [0, 0]);
    assert_eq!(begun[5..].iter().sum::<u64>(), 499);
}

#[test]
fn poisson_rates_change_on_schedule() {
    let mut scenario = small(peer(Peer::naive(1)));
    let rate = |s, milli_per_second| RateFrom { from: Duration::from_secs(s), milli_per_second };
    scenario.duration = Duration::from_secs(2_000);
    scenario.load[0].arrivals =
        Arrivals::Open { even: false, rates: vec![rate(0, 10_000), rate(1_000, 30_000)] };
    let begun: Vec<_> = only(&scenario).timeline.iter().map(|second| second.requests).collect();
    let (first, second) = (begun[..1_000].iter().sum::<u64>(), begun[1_000..].iter().sum::<u64>());
    assert!(first.abs_diff(10_000) < 400 && second.abs_diff(30_000) < 700, "{first} {second}");
}
