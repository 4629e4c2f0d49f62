//! Queued loads: bounds of the queue, holds, and what is wrong in a scenario.

use std::time::Duration;

use damper_core::job::{Queue, QueueSettings};
use damper_core::{Code, Mode, Ratio};
use damper_sim::scenario::{Arrivals, Fault, FaultKind, Load, Peer, Queued, RateFrom, Scenario, Strategy};
use damper_sim::{Jobs, Spread};

use crate::harness::{damper, load, ms, only, peer, read, service, small, three_attempts};

fn settings() -> QueueSettings {
    QueueSettings::new(Mode::Enforce)
}

fn queue(settings: QueueSettings) -> Vec<Queue> {
    vec![Queue::new("later".to_owned(), settings, String::new(), 1).unwrap()]
}

fn queued(backlog: u32) -> Load {
    let rates = Vec::new();
    let (queue, from) = ("later".to_owned(), Duration::ZERO);
    let arrivals = Queued { queue, backlog, from, concurrency: 32, even: true, rates };
    Load { arrivals: Arrivals::Queued(arrivals), ..load("a", 1) }
}

/// Ten seconds of jobs for a service that takes 100 ms.
fn scenario(strategy: Strategy, load: Load) -> Scenario {
    Scenario {
        services: vec![service("a", Spread::Fixed(ms(100)), &[])],
        load: vec![load],
        ..small(strategy)
    }
}

fn jobs(scenario: &Scenario) -> Jobs {
    only(scenario).jobs.remove(0)
}

fn fails_between(from: u64, until: u64) -> Fault {
    Fault {
        service: "a".to_owned(),
        method: None,
        instances: None,
        from: Duration::from_secs(from),
        until: Some(Duration::from_secs(until)),
        flapping: None,
        kind: FaultKind::Error { code: Code::Unavailable, share: Ratio::ONE },
    }
}

#[test]
fn max_in_flight_bounds_the_deliveries_of_a_backlog() {
    let queues = queue(QueueSettings { max_in_flight: 2, ..settings() });
    let jobs = jobs(&scenario(Strategy { queues, ..damper(three_attempts()) }, queued(60)));
    assert_eq!((jobs.done, jobs.waiting), (60, 0));
    // Two at once, 100 ms each.
    assert_eq!(jobs.drained_after_us, Some(30 * 100_000));
}

#[test]
fn rate_spaces_the_deliveries_of_a_backlog() {
    let queues = queue(QueueSettings { rate: Some(Ratio::from_bp(50_000)), ..settings() });
    let jobs = jobs(&scenario(Strategy { queues, ..damper(three_attempts()) }, queued(60)));
    // 5 per second for 10 s, and the first one.
    assert!((50..=51).contains(&jobs.deliveries), "{}", jobs.deliveries);
    assert_eq!(jobs.waiting, 60 - jobs.done);
}

#[test]
fn slots_of_the_workers_bound_the_deliveries() {
    let mut load = queued(60);
    let Arrivals::Queued(queued) = &mut load.arrivals else { unreachable!() };
    (queued.concurrency, load.processes) = (1, 3);
    let jobs = jobs(&scenario(Strategy { queues: queue(settings()), ..damper(three_attempts()) }, load));
    assert_eq!(jobs.drained_after_us, Some(20 * 100_000));
}

#[test]
fn jobs_submitted_at_a_rate_are_delivered_at_once() {
    let mut load = queued(0);
    let Arrivals::Queued(queued) = &mut load.arrivals else { unreachable!() };
    queued.rates.push(RateFrom { from: Duration::ZERO, milli_per_second: 10_000 });
    let jobs = jobs(&scenario(Strategy { queues: queue(settings()), ..damper(three_attempts()) }, load));
    assert_eq!((jobs.submitted, jobs.done), (99, 99), "the one at 10 s is after the end");
    assert_eq!((jobs.wait.p50_us, jobs.wait.max_us), (100_000, 100_000));
}

#[test]
fn held_jobs_use_no_attempts_and_plain_ones_do() {
    let mut settings = settings();
    settings.policy.retry.as_mut().unwrap().max_attempts = 3;
    let of = |strategy: Strategy| {
        let mut scenario = scenario(Strategy { queues: queue(settings.clone()), ..strategy }, queued(200));
        scenario.duration = Duration::from_secs(60);
        scenario.faults = vec![fails_between(0, 30)];
        jobs(&scenario)
    };
    let held = of(damper(three_attempts()));
    assert_eq!((held.done, held.dead), (200, 0));
    // 20 until the hold, those in flight then, and a probe a second.
    assert!((49..=60).contains(&held.failed), "{}", held.failed);
    let plain = of(peer(Peer::naive(1)));
    assert_eq!((plain.done, plain.dead, plain.failed), (0, 200, 600));
}

#[test]
fn faults_of_queued_loads_are_reported_with_their_paths() {
    let text = r"
duration: 10s
services: { a: { methods: { p.S/M: { time: 1ms } } } }
load:
  - { caller: w, call: a p.S/M, timeout: 1s, bare: true, queued: { queue: later, backlog: 1 } }
  - { caller: v, call: a p.S/M, queued: { queue: off, from: 20s, concurrency: 0 } }
  - { caller: u, call: a p.S/M, queued: { backlog: 1 }, closed: { users: 1 } }
strategies:
  - { name: one, none: }
  - name: two
    none:
    queues:
      - { kind: Queue, name: later, policy: { mode: enforce }, workers: [x] }
      - { kind: Queue, name: off, policy: { mode: off } }
";
    let found = read(text).unwrap_err().to_string();
    for fault in [
        "load[0].timeout: conflicts with `queued`: the queue has `per_attempt_timeout`",
        "load[0].bare: conflicts with `queued`: workers are services",
        "load[1].queued: requires `backlog`, `rate` or `rates`",
        "load[1].queued.from: must be before the end, 10s, not 20s",
        "load[1].queued.concurrency: must be between 1 and 1000, not 0",
        "load[2].queued: conflicts with `closed`",
        "load[2].queued.queue: required",
        "strategies[0].queues: requires the queue \"later\" of a load",
        "strategies[1].queues: \"later\" does not accept the jobs of the load",
        "strategies[1].queues: \"off\" must have `mode: enforce`",
    ] {
        assert!(found.contains(fault), "{fault} is not in\n{found}");
    }
}
