//! What credit promises, for four fleets that make 300 calls a second together: one process, twenty, three hundred and
//! a thousand, the last with a call every three seconds each.
//!
//! Each scenario is calm for a minute, has its fault for two, and is calm again.

use damper_sim::{Figures, Outcome};

use crate::harness::{of, read, simulated};

const FLEETS: [u32; 4] = [1, 20, 300, 1_000];
/// A worker has 15 requests a second in it.
const PER_WORKER: &str = "66666us";

/// A fault, what serves, and how the strategies differ from the default.
struct World<'a> {
    fault: &'a str,
    time: &'a str,
    queue: u32,
    workers: u32,
    timeout: &'a str,
    load: &'a str,
    /// More settings of the callee, and of the load.
    more: &'a str,
    restart: &'a str,
}

impl World<'_> {
    /// A callee without a bound of its own, whose requests meet this fault.
    fn failing(fault: &str) -> World<'_> {
        World {
            fault,
            time: "5ms",
            queue: 1_000,
            workers: 100_000,
            timeout: "5s",
            load: "{ rate: 300 }",
            more: "",
            restart: "",
        }
    }

    /// Under the strategies of these names.
    fn simulated(&self, processes: u32, names: &[&str]) -> Outcome {
        let Self { fault, time, queue, workers, timeout, load, more, restart } = self;
        let damper = |name: &str, breaker: &str, guard: &str| {
            format!(
                r#"
  - name: {name}
    damper:
      - kind: Rule
        key: {{ caller_service: "*", caller_cluster: "*", callee_service: "*", callee_method: "*" }}
        policy:
          mode: enforce
          retry:
            per_attempt_timeout: {timeout}
            codes: {{ allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }}
            backoff: {{ random: {{ min: 10ms, max: 100ms }} }}
          {breaker}{guard}"#
            )
        };
        let limit = r#"
      - kind: Guard
        key: { caller_service: "*", caller_cluster: "*", callee_service: "*", callee_method: "*" }
        ceiling: { repeat_limit: { mode: enforce } }"#;
        let peer = |name: &str, attempts: u32| {
            format!(
                "\n  - {{ name: {name}, peer: {{ attempts: {attempts}, per_attempt_timeout: {timeout}, \
                 codes: [UNAVAILABLE, DEADLINE_EXCEEDED], backoff: {{ base: 50ms, max: 100ms }} }} }}"
            )
        };
        let strategies = names.iter().map(|name| match *name {
            "none" => peer(name, 1),
            "naive" => peer(name, 3),
            "tenth" => damper(name, "retry_breaker: { earn: 0.1 }", ""),
            "limited" => damper(name, "", limit),
            _ => damper(name, "", ""),
        });
        let strategies: String = strategies.collect();
        let scenario = format!(
            "duration: 240s\nservices:\n  api: {{ workers: {workers}, queue: {queue}, {more} methods: {{ a.B/C: {{ time: {time} }} }} }}\n\
             load:\n  - {{ caller: fleet, processes: {processes}, call: api a.B/C, timeout: 5s, {restart} open: {load} }}\n\
             faults:\n  - {{ service: api, {fault} }}\nstrategies:{strategies}"
        );
        simulated(&read(&scenario).unwrap_or_else(|faults| panic!("{scenario}\n{faults}")))
    }
}

/// Attempts per request that began in these seconds.
fn attempts(figures: &Figures, from: usize, until: usize) -> f64 {
    let seconds = &figures.timeline[from..until];
    let sent: u64 = seconds.iter().flat_map(|second| &second.attempts).sum();
    sent as f64 / seconds.iter().map(|second| second.requests).sum::<u64>() as f64
}

/// The share of requests that began in the steady part of the fault and succeeded, in percent.
fn success(figures: &Figures) -> f64 {
    let seconds = &figures.timeline[75..180];
    let good: u64 = seconds.iter().map(|second| second.succeeded).sum();
    good as f64 * 100.0 / seconds.iter().map(|second| second.requests).sum::<u64>() as f64
}

fn errors(share: &str) -> String {
    format!("from: 60s, until: 180s, error: {{ code: UNAVAILABLE, share: {share} }}")
}

#[test]
fn a_total_outage_costs_little_once_and_then_nothing() {
    for (processes, most) in FLEETS.into_iter().zip([1.03, 1.03, 1.12, 1.35]) {
        let outcome = World::failing(&errors("1")).simulated(processes, &["credit"]);
        let credit = of(&outcome, "credit");
        assert!(attempts(credit, 60, 70) <= most, "{processes}: {}", attempts(credit, 60, 70));
        assert!(attempts(credit, 75, 180) <= 1.01, "{processes}: {}", attempts(credit, 75, 180));
    }
}

#[test]
fn busy_process_masks_errors_nearly_as_naive_retries() {
    for (share, within, within_tenth) in
        [("0.01", 1.0, 2.0), ("0.05", 1.0, 2.0), ("0.1", 1.0, 2.0), ("0.15", 6.0, 2.0), ("0.2", 14.0, 2.0)]
    {
        let outcome = World::failing(&errors(share)).simulated(1, &["naive", "credit", "tenth"]);
        let [naive, credit, tenth] = ["naive", "credit", "tenth"].map(|name| of(&outcome, name));
        assert!(success(credit) >= success(naive) - within, "{share}: {}", success(credit));
        assert!(success(tenth) >= success(naive) - within_tenth, "{share}: {}", success(tenth));
        assert!(attempts(credit, 75, 180) <= attempts(naive, 75, 180) + 0.002, "{share}");
    }
}

#[test]
fn an_overloaded_callee_gets_a_tenth_more_at_most() {
    for workers in [19, 18, 14] {
        let fault = format!("from: 60s, until: 180s, workers: {{ count: {workers} }}");
        let world = World { time: PER_WORKER, workers: 40, queue: 15, ..World::failing(&fault) };
        for processes in FLEETS {
            let outcome = world.simulated(processes, &["credit"]);
            let steady = attempts(of(&outcome, "credit"), 75, 180);
            assert!(steady <= 1.10, "{processes} with {workers} of 20 workers: {steady}");
        }
    }
}

#[test]
fn a_callee_that_comes_and_goes_gets_hardly_more() {
    let world = World::failing("from: 60s, until: 180s, period: 4s, on: 2s, error: { code: UNAVAILABLE }");
    for processes in FLEETS {
        let steady = attempts(of(&world.simulated(processes, &["credit"]), "credit"), 75, 180);
        assert!(steady <= 1.05, "{processes}: {steady}");
    }
}

/// A callee at 0.8 of what it can do stands still for 10 s, while attempts wait for 200 ms.
fn stall() -> World<'static> {
    World {
        fault: "from: 60s, until: 70s, workers: { count: 0 }",
        time: "26666us",
        workers: 10,
        queue: 150,
        timeout: "200ms",
        load: "{ rate: 300 }",
        more: "",
        restart: "",
    }
}

#[test]
fn every_governed_fleet_recovers_from_a_stall() {
    for processes in FLEETS {
        let outcome = stall().simulated(processes, &["none", "naive", "credit", "limited"]);
        let [none, naive, credit, limited] =
            ["none", "naive", "credit", "limited"].map(|name| of(&outcome, name).recovered_after_s);
        assert_eq!(naive, None, "{processes}");
        let none = none.unwrap();
        assert!(credit.is_some_and(|seconds| seconds <= none + 3), "{processes}: {credit:?} after {none}");
        assert!(limited.is_some_and(|seconds| seconds <= 5), "{processes}: {limited:?}");
    }
}

#[test]
fn callers_that_restart_every_minute_come_back_after_a_stall() {
    let world = World { restart: "restart: 1m,", ..stall() };
    for processes in FLEETS {
        let outcome = world.simulated(processes, &["none", "credit", "limited"]);
        let [none, credit, limited] =
            ["none", "credit", "limited"].map(|name| of(&outcome, name).recovered_after_s);
        let none = none.unwrap();
        assert!(credit.is_some_and(|seconds| seconds <= none + 3), "{processes}: {credit:?} after {none}");
        assert!(limited.is_some_and(|seconds| seconds <= 5), "{processes}: {limited:?}");
    }
}

#[test]
fn refusals_that_cost_capacity_are_not_multiplied() {
    let fault = "from: 60s, until: 180s, workers: { count: 18 }";
    let world =
        World { time: PER_WORKER, workers: 40, queue: 15, more: "full_cost: 0.3,", ..World::failing(fault) };
    for processes in [1, 1_000] {
        let outcome = world.simulated(processes, &["none", "naive", "credit"]);
        let [none, naive, credit] = ["none", "naive", "credit"].map(|name| success(of(&outcome, name)));
        assert!(credit >= none - 4.0, "{processes}: {credit} with credit, {none} when nobody repeats");
        assert!(naive < none - 30.0, "{processes}: {naive} with naive retries, {none} when nobody repeats");
        assert!(attempts(of(&outcome, "credit"), 75, 180) <= 1.10, "{processes}");
    }
}

/// A hundredth of a call a second each: whoever fails first has a retry left from minutes ago.
#[test]
fn ten_thousand_callers_that_hardly_call_are_never_metastable() {
    let world = World {
        // An hour's calls in four minutes would save nothing: so they call often first, and rarely then.
        load: "{ rates: [ { from: 0s, rate: 2500 }, { from: 50s, rate: 100 } ] }",
        time: "80ms",
        ..stall()
    };
    let outcome = world.simulated(10_000, &["none", "credit", "limited"]);
    let [none, credit, limited] =
        ["none", "credit", "limited"].map(|name| of(&outcome, name).recovered_after_s);
    let none = none.unwrap();
    assert!(credit.is_some_and(|seconds| seconds <= 60), "{credit:?} after {none}");
    assert!(limited.is_some_and(|seconds| seconds <= 5), "{limited:?} after {none}");
}

/// Requests that succeed and attempts per request, with one of three instances refusing everything: in the first
/// ten seconds, and in the last minute.
fn one_bad_of_three(processes: u32) -> [(f64, f64); 2] {
    let more = "instances: 3, balance: balanced,";
    let world = World {
        more,
        ..World::failing("from: 60s, until: 180s, instances: 1, error: { code: UNAVAILABLE }")
    };
    let outcome = world.simulated(processes, &["credit"]);
    let credit = of(&outcome, "credit");
    [60..70, 120..180].map(|part| {
        let seconds = &credit.timeline[part.clone()];
        let (good, all) = seconds
            .iter()
            .fold((0, 0), |(good, all), second| (good + second.succeeded, all + second.requests));
        (good as f64 * 100.0 / all as f64, attempts(credit, part.start, part.end))
    })
}

#[test]
fn a_balanced_channel_makes_up_for_one_bad_instance_of_three() {
    for (processes, most) in FLEETS.into_iter().zip([1.10, 1.10, 1.40, 1.40]) {
        let [(first_success, _), (success, attempts)] = one_bad_of_three(processes);
        assert!(first_success >= 99.0 && success >= 99.0, "{processes}: {first_success} %, {success} %");
        assert!(attempts <= most, "{processes}: {attempts}");
    }
}
