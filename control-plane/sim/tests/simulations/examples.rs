//! The scenarios that come with the crate: each shows what its comment says.

use damper_sim::scenario::Arrivals;
use damper_sim::{Figures, Outcome, Scenario};

use crate::harness::{of, only, read, simulated};

fn example(name: &str) -> Outcome {
    simulated(&scenario(name))
}

fn scenario(name: &str) -> Scenario {
    let path = format!("{}/scenarios/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    read(&text).unwrap_or_else(|faults| panic!("{path}: {faults}"))
}

fn phase<'a>(figures: &'a Figures, name: &str) -> &'a damper_sim::Phase {
    figures.phases.iter().find(|phase| phase.name == name).unwrap()
}

fn success(figures: &Figures, name: &str) -> f64 {
    phase(figures, name).success_rate
}

/// Attempts per request on the last hop.
fn at_the_bottom(figures: &Figures, name: &str) -> f64 {
    *phase(figures, name).attempts_per_request.last().unwrap()
}

#[test]
fn chain_multiplies_naive_retries_and_not_governed_ones() {
    let outcome = example("chain");
    let bottom = |strategy| at_the_bottom(of(&outcome, strategy), "during");
    // Of the requests that began in the outage a few had their last attempts after it.
    assert!((26.5..=27.0).contains(&bottom("naive")), "{}", bottom("naive"));
    assert!(bottom("backoff") > 26.0);
    assert!(bottom("budget (reserve 10/s)") > 1.5, "each layer has a budget of its own");
    assert!(bottom("damper") <= 1.1, "{}", bottom("damper"));
    let damper = of(&outcome, "damper");
    assert_eq!(phase(damper, "during").attempts_per_request[..2], [1.0, 1.0], "1 above the fault");
    assert!(damper.timeline.iter().all(|second| second.attempts[2] <= 3 * second.requests));
}

#[test]
fn overload_ends_within_a_window_when_governed() {
    let outcome = example("overload");
    for strategy in ["naive", "backoff"] {
        let figures = of(&outcome, strategy);
        assert_eq!(figures.recovered_after_s, None, "{strategy}");
        assert!(success(figures, "after") < 0.05, "it stays collapsed for a minute");
    }
    let damper = of(&outcome, "damper");
    assert!(damper.recovered_after_s.is_some_and(|seconds| seconds <= 10), "{:?}", damper.recovered_after_s);
    let after = &damper.timeline[40..];
    let (answered, made) = after
        .iter()
        .fold((0, 0), |(answered, made), second| (answered + second.answered, made + second.requests));
    assert!(answered * 100 >= made * 95, "goodput {answered} of {made} one window after the outage");
}

#[test]
fn chain_recovers_from_a_stall_only_under_governed_retries() {
    let outcome = example("stall");
    let naive = of(&outcome, "naive");
    assert_eq!(naive.recovered_after_s, None);
    assert!(success(naive, "after") < 0.05, "{}", success(naive, "after"));
    let damper = of(&outcome, "damper");
    assert!(damper.recovered_after_s.is_some_and(|seconds| seconds <= 10), "{:?}", damper.recovered_after_s);
}

#[test]
fn partial_outage_is_masked_by_enough_retries() {
    let outcome = example("partial");
    let during = |strategy| success(of(&outcome, strategy), "during");
    let attempts = |strategy| at_the_bottom(of(&outcome, strategy), "during");
    assert!((during("none") - 2.0 / 3.0).abs() < 0.03);
    assert!(during("naive") > 0.95);
    assert!(during("ratio") < 0.74, "{}", during("ratio"));
    assert!(
        during("credit") > 0.71 && attempts("credit") < 1.1,
        "{} {}",
        during("credit"),
        attempts("credit")
    );
    assert!(during("credit of 0.2") > 0.9, "{}", during("credit of 0.2"));
    assert!(during("ratio of 1") > 0.94, "{}", during("ratio of 1"));
    assert!(attempts("ratio of 1") < 1.6, "a third fails, and a third of that");
}

#[test]
fn hedges_cut_off_the_slow_tail_for_few_attempts_more() {
    let outcome = example("hedging");
    let p99 = |strategy| phase(of(&outcome, strategy), "during").latency.p99_us;
    assert!(p99("none") > 500_000);
    assert!(p99("hedge") < 60_000, "{}", p99("hedge"));
    assert!(at_the_bottom(of(&outcome, "hedge"), "during") < 1.1);
}

#[test]
fn retry_limit_bounds_a_thousand_small_callers() {
    let outcome = example("fleet");
    let runs = |strategy| phase(of(&outcome, strategy), "during").handler_runs_per_request[0];
    assert_eq!(runs("none"), 1.0);
    assert!(runs("budget (reserve 10/s)") > 2.9, "ten a second for each of them");
    assert!(runs("budget (no reserve)") < 1.05, "{}", runs("budget (no reserve)"));
    // One for each process, of the 18 calls that it makes meanwhile.
    assert!((1.04..=1.06).contains(&runs("rule alone")), "{}", runs("rule alone"));
    assert!(runs("repeat limit") < runs("rule alone"), "{}", runs("repeat limit"));
    assert!(of(&outcome, "repeat limit").services[0].shed_repeats > 0);
}

#[test]
fn outage_costs_ratio_hundreds_and_credit_two_percent() {
    let outcome = example("outage");
    let extra = |strategy| of(&outcome, strategy).hops[0].retries;
    assert!(extra("naive") > 39_000);
    assert!((400..=800).contains(&extra("ratio")), "{}", extra("ratio"));
    assert!((170..=210).contains(&extra("credit")), "{}", extra("credit"));
    // Calls overlap, and some succeed that were under way; one after the other they would come to 3, 333 and 100.
    assert!((3..=6).contains(&extra("gRPC (10 tokens)")), "{}", extra("gRPC (10 tokens)"));
    assert!((330..=340).contains(&extra("gRPC (1000 tokens)")), "{}", extra("gRPC (1000 tokens)"));
    assert!((100..=103).contains(&extra("AWS quota")), "{}", extra("AWS quota"));
}

#[test]
fn balanced_channel_leaves_the_bad_instance_out() {
    let outcome = example("balanced");
    let [none, credit] = ["none", "credit"].map(|name| success(of(&outcome, name), "during"));
    assert!(
        (0.95..0.999).contains(&none),
        "without retries the failures until it is ejected are seen: {none}"
    );
    assert!(credit > 0.999, "{credit}");
    assert!(at_the_bottom(of(&outcome, "credit"), "during") < 1.05);
}

/// The queue example under one strategy, with this backlog.
fn queue_example(strategy: &str, backlog: u32) -> Figures {
    let mut scenario = scenario("queue");
    scenario.strategies.retain(|kept| kept.name == strategy);
    let Arrivals::Queued(queued) = &mut scenario.load[1].arrivals else {
        panic!("the second load is queued")
    };
    assert_eq!(queued.backlog, 100_000);
    queued.backlog = backlog;
    only(&scenario)
}

#[test]
fn hour_of_outage_costs_a_queue_one_probe_a_second() {
    let figures = queue_example("damper", 100_000);
    let jobs = &figures.jobs[0];
    assert!((3_590..=3_700).contains(&jobs.failed), "{}", jobs.failed);
    assert_eq!((jobs.done, jobs.dead, jobs.expired, jobs.waiting), (100_000, 0, 0, 0));
    assert_eq!(jobs.deliveries, jobs.done + jobs.failed);
    // The outage ends at 3720 s; windows of 10 s from one window after it, while the backlog is sent.
    for (number, window) in figures.timeline[3_730..].chunks(10).enumerate() {
        let answered: u64 = window.iter().map(|second| second.answered).sum();
        let made: u64 = window.iter().map(|second| second.requests).sum();
        assert!(answered * 100 >= made * 95, "window {number}: {answered} of {made}");
    }
}

#[test]
fn plain_backoff_sends_each_waiting_job_a_dozen_times() {
    let jobs = &queue_example("plain backoff", 2_000).jobs[0];
    assert!((25_000..=27_000).contains(&jobs.failed), "{}", jobs.failed);
    assert!(jobs.waiting > 1_500, "{} wait 18 minutes after the outage", jobs.waiting);
}
