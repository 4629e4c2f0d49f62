//! Results as tables: strategies, hops, services, jobs.

use damper_sim::{Figures, Outcome, Phase, RECOVERED_FOR};

use crate::output::figures::{amplification, rate, share};
use crate::output::{Align, Table, printable};

/// Returns all tables.
pub(super) fn text(outcome: &Outcome) -> String {
    let name = printable(&outcome.scenario);
    let duration = outcome.duration_us as f64 / 1e6;
    let trouble = outcome.trouble_us.map(|[from, until]| {
        format!(", faults from {:.1} s until {:.1} s", from as f64 / 1e6, until as f64 / 1e6)
    });
    let trouble = trouble.unwrap_or_default();
    format!(
        "{name}: {duration} s, seed {}{trouble}\n\n{}\n{}\n{}{}",
        outcome.seed,
        strategies(outcome),
        hops(outcome),
        services(outcome),
        jobs(outcome)
    )
}

/// Client view: one row per strategy and phase.
fn strategies(outcome: &Outcome) -> Table {
    let mut table = Table::new(&[
        ("STRATEGY", Align::Left),
        ("PHASE", Align::Left),
        ("REQUESTS", Align::Right),
        ("SUCCESS", Align::Right),
        ("GOODPUT/S", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("LAST HOP", Align::Right),
        ("RECOVERED", Align::Right),
    ]);
    for figures in &outcome.strategies {
        for phase in &figures.phases {
            table.row([
                figures.strategy.clone(),
                phase.name.to_owned(),
                phase.requests.to_string(),
                share(phase.success_rate),
                goodput(outcome, figures, phase),
                latency(phase.latency.p50_us),
                latency(phase.latency.p99_us),
                phase.attempts_per_request.last().copied().map(amplification).unwrap_or_default(),
                recovered(outcome, figures, phase),
            ]);
        }
    }
    table
}

/// Requests answered with OK per second of the phase.
fn goodput(outcome: &Outcome, figures: &Figures, phase: &Phase) -> String {
    let [from, until] = outcome.trouble_us.unwrap_or([outcome.duration_us; 2]);
    let (from, until) = match phase.name {
        "before" => (0, from),
        "during" => (from, until),
        "after" => (until, outcome.duration_us),
        _ => return rate(figures.goodput_per_second),
    };
    // Whole seconds within the phase.
    let (first, end) = (from.div_ceil(1_000_000), until / 1_000_000);
    let seconds = figures.timeline.iter().skip(first as usize).take(end.saturating_sub(first) as usize);
    let answered: u64 = seconds.map(|second| second.answered).sum();
    if end > first { rate(answered as f64 / (end - first) as f64) } else { String::new() }
}

fn recovered(outcome: &Outcome, figures: &Figures, phase: &Phase) -> String {
    // The phase is too short to decide.
    let least = RECOVERED_FOR as u64 * 1_000_000;
    let ends = outcome.trouble_us.is_some_and(|[_, until]| until + least <= outcome.duration_us);
    match figures.recovered_after_s {
        _ if phase.name != "after" || !ends => String::new(),
        Some(seconds) => format!("{seconds} s"),
        None => "never".to_owned(),
    }
}

/// Empty without successes.
fn latency(us: u64) -> String {
    match us {
        0 => String::new(),
        1..100_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Traffic of each hop: one row per strategy and hop.
fn hops(outcome: &Outcome) -> Table {
    let mut table = Table::new(&[
        ("STRATEGY", Align::Left),
        ("HOP", Align::Left),
        ("CALLS", Align::Right),
        ("RETRIES", Align::Right),
        ("HEDGES", Align::Right),
        ("PER REQUEST", Align::Right),
        ("DURING", Align::Right),
        ("FATES", Align::Left),
    ]);
    for figures in &outcome.strategies {
        for (index, hop) in figures.hops.iter().enumerate() {
            let mut fates: Vec<_> = hop.fates.iter().map(|(fate, count)| format!("{fate} {count}")).collect();
            if hop.unfinished > 0 {
                fates.push(format!("unfinished {}", hop.unfinished));
            }
            table.row([
                figures.strategy.clone(),
                format!("{} -> {} {}", hop.caller, hop.callee, hop.method),
                hop.calls.to_string(),
                hop.retries.to_string(),
                hop.hedges.to_string(),
                amplification(hop.attempts_per_request),
                during(figures, |phase| phase.attempts_per_request[index]),
                fates.join(", "),
            ]);
        }
    }
    table
}

/// Value per request during the fault; empty without one.
fn during(figures: &Figures, of: impl Fn(&Phase) -> f64) -> String {
    let during = figures.phases.iter().find(|phase| phase.name == "during");
    during.map(|phase| amplification(of(phase))).unwrap_or_default()
}

/// Load of each service: one row per strategy and service.
fn services(outcome: &Outcome) -> Table {
    let mut table = Table::new(&[
        ("STRATEGY", Align::Left),
        ("SERVICE", Align::Left),
        ("ARRIVED", Align::Right),
        ("HANDLER RUNS", Align::Right),
        ("PER REQUEST", Align::Right),
        ("DURING", Align::Right),
        ("REJECTED RETRIES", Align::Right),
        ("QUEUE FULL", Align::Right),
        ("MEAN WAIT", Align::Right),
        ("LONGEST QUEUE", Align::Right),
    ]);
    for figures in &outcome.strategies {
        for (index, service) in figures.services.iter().enumerate() {
            table.row([
                figures.strategy.clone(),
                service.service.clone(),
                service.arrived.to_string(),
                service.handler_runs.to_string(),
                amplification(service.handler_runs_per_request),
                during(figures, |phase| phase.handler_runs_per_request[index]),
                service.shed_repeats.to_string(),
                service.queue_full.to_string(),
                latency(service.mean_wait_us as u64),
                service.longest_queue.to_string(),
            ]);
        }
    }
    table
}

/// Jobs of the queued loads: one row per strategy and load; empty without such loads.
fn jobs(outcome: &Outcome) -> String {
    if outcome.strategies.iter().all(|figures| figures.jobs.is_empty()) {
        return String::new();
    }
    let mut table = Table::new(&[
        ("STRATEGY", Align::Left),
        ("QUEUE", Align::Left),
        ("CALLEE", Align::Left),
        ("JOBS", Align::Right),
        ("DONE", Align::Right),
        ("DEAD", Align::Right),
        ("WAITING", Align::Right),
        ("DELIVERIES", Align::Right),
        ("DURING", Align::Right),
        ("FAILED", Align::Right),
        ("WAIT P50", Align::Right),
        ("DRAINED", Align::Right),
    ]);
    for figures in &outcome.strategies {
        for jobs in &figures.jobs {
            let during = outcome.trouble_us.map(|_| jobs.deliveries_by_phase[1].to_string());
            table.row([
                figures.strategy.clone(),
                jobs.queue.clone(),
                format!("{} {}", jobs.callee, jobs.method),
                jobs.submitted.to_string(),
                jobs.done.to_string(),
                (jobs.dead + jobs.expired).to_string(),
                jobs.waiting.to_string(),
                jobs.deliveries.to_string(),
                during.unwrap_or_default(),
                jobs.failed.to_string(),
                latency(jobs.wait.p50_us),
                jobs.drained_after_us.map_or_else(|| "never".to_owned(), latency),
            ]);
        }
    }
    format!("\n{table}")
}
