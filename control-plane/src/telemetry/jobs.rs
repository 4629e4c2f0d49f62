//! Metrics of queues: jobs by state, lateness, and what became of submissions and deliveries.
//!
//! Gauges are of the job store; counters are of this server since it started. The label `queue` has at most
//! 1,000 values.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use damper_queue::{QueueStats, Totals};

use crate::jobs::Jobs;
use crate::telemetry::{Family, escaped};

/// Writes the metrics; nothing without a job store.
pub(crate) fn write_figures(text: &mut String, jobs: &Jobs) {
    let Some(server) = jobs.server() else { return };
    let queues = server.stats("");
    write_gauges(text, &queues);
    write_counters(text, &queues);
    let (count, seconds) = server.commits();
    for (name, help, value) in [
        ("damper_queue_commits_total", "Requests to the job store for due jobs.", count as f64),
        ("damper_queue_commit_seconds_total", "Time of the requests for due jobs, with commits.", seconds),
    ] {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n"));
    }
}

fn write_gauges(text: &mut String, queues: &[QueueStats]) {
    let mut families = [
        ("damper_queue_jobs", "Jobs of a queue, by state."),
        ("damper_queue_bytes", "Bytes of all jobs of a queue."),
        ("damper_queue_oldest_due_seconds", "Age of the job of a queue that has been due the longest."),
        ("damper_queue_held_lanes", "Routes of a queue whose due jobs are not delivered, by reason."),
        ("damper_queue_workers", "Workers of a queue that are connected to this server."),
    ]
    .map(Family::gauge);
    let [jobs, bytes, oldest, held, workers] = &mut families;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for stats in queues {
        let queue = format!("queue=\"{}\"", escaped(&stats.queue));
        let counts = stats.counts;
        for (state, count) in [
            ("waiting", counts.waiting),
            ("behind", counts.behind),
            ("leased", counts.leased),
            ("dead", counts.dead),
            ("ended", counts.ended),
        ] {
            jobs.add(&format!("{queue},state=\"{state}\""), count);
        }
        bytes.add(&queue, counts.bytes);
        let since = |due: damper_core::job::Wall| now.as_secs_f64() - due.0 as f64 / 1_000.0;
        oldest.add(&queue, stats.oldest_due.map_or(0.0, |due| since(due).max(0.0)));
        workers.add(&queue, stats.workers);
        for (why, count) in held_lanes(stats) {
            held.add(&format!("{queue},why=\"{why}\""), count);
        }
    }
    text.extend(families.map(|family| family.text));
}

/// Returns the number of held lanes by reason.
fn held_lanes(stats: &QueueStats) -> BTreeMap<&str, usize> {
    let mut held = BTreeMap::new();
    if !stats.held.is_empty() {
        held.insert(stats.held.as_str(), stats.lanes.iter().filter(|lane| lane.counts.waiting > 0).count());
        return held;
    }
    for lane in stats.lanes.iter().filter_map(|lane| lane.held) {
        *held.entry(lane.why).or_default() += 1;
    }
    held
}

fn write_counters(text: &mut String, queues: &[QueueStats]) {
    let mut families = [
        ("damper_queue_submitted_total", "Submissions to a queue, by result."),
        ("damper_queue_deliveries_total", "Deliveries of a queue: of jobs never sent before, or again."),
        ("damper_queue_failed_total", "Deliveries of a queue that failed."),
        ("damper_queue_released_total", "Deliveries of a queue that were not tried."),
        ("damper_queue_lost_total", "Deliveries of a queue whose worker disappeared."),
        ("damper_queue_ended_total", "Jobs of a queue that ended, by end."),
    ]
    .map(Family::counter);
    let [submitted, deliveries, failed, released, lost, ended] = &mut families;
    for QueueStats { queue, totals, .. } in queues {
        let queue = format!("queue=\"{}\"", escaped(queue));
        let Totals { done, died, expired, cancelled, .. } = *totals;
        for (result, count) in [
            ("stored", totals.submitted),
            ("existing", totals.existing),
            ("conflict", totals.conflicts),
            ("rejected", totals.rejected),
        ] {
            submitted.add(&format!("{queue},result=\"{result}\""), count);
        }
        deliveries.add(&format!("{queue},how=\"first\""), totals.delivered_first);
        deliveries.add(&format!("{queue},how=\"again\""), totals.delivered_again);
        failed.add(&queue, totals.failed);
        released.add(&queue, totals.released);
        lost.add(&queue, totals.lost);
        for (end, count) in [("done", done), ("dead", died), ("expired", expired), ("cancelled", cancelled)] {
            ended.add(&format!("{queue},end=\"{end}\""), count);
        }
    }
    text.extend(families.map(|family| family.text));
}
