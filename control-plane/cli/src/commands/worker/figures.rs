//! Readiness and figures of the workers of a process.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use damper_sdk::queue::{WorkerHandle, WorkerStats};

/// The workers that run, by queue.
pub(super) struct Running {
    workers: Vec<(String, WorkerHandle)>,
    drains: AtomicBool,
}

type Value = fn(&WorkerStats) -> u64;
/// A family of figures: name, kind, help, value.
type Family = (&'static str, &'static str, &'static str, Value);

const FAMILIES: [Family; 8] = [
    ("connected", "gauge", "1 if the control plane has accepted the worker.", |stats| {
        u64::from(stats.connected)
    }),
    ("running", "gauge", "Deliveries that run.", |stats| count(stats.running)),
    ("unconfirmed", "gauge", "Ends of deliveries that the server has not confirmed.", |stats| {
        count(stats.unconfirmed)
    }),
    ("begun_total", "counter", "Deliveries that began.", |stats| stats.begun),
    ("unreadable_total", "counter", "Deliveries whose body could not be decrypted.", |stats| {
        stats.unreadable
    }),
    ("cancelled_total", "counter", "Deliveries that were cancelled.", |stats| stats.cancelled),
    ("lost_total", "counter", "Deliveries that ended after another worker got the job.", |stats| stats.lost),
    ("stuck", "gauge", "Deliveries that do not end although they were cancelled.", |stats| {
        count(stats.stuck)
    }),
];

/// How deliveries ended.
const ENDS: [(&str, Value); 4] = [
    ("done", |stats| stats.done),
    ("failed", |stats| stats.failed),
    ("released", |stats| stats.released),
    ("dead", |stats| stats.dead),
];

impl Running {
    pub(super) fn new(workers: Vec<(String, WorkerHandle)>) -> Self {
        Self { workers, drains: AtomicBool::new(false) }
    }

    /// Returns the names of the queues, for a message.
    pub(super) fn queues(&self) -> String {
        self.workers.iter().map(|(queue, _)| queue.as_str()).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn begin_drain(&self) {
        self.drains.store(true, Ordering::Relaxed);
    }

    /// Returns why the process is not ready: it drains, or the control plane has not accepted a worker.
    /// Callees are no part of it: while they fail, their jobs are held.
    pub(super) fn problem(&self) -> Option<String> {
        if self.drains.load(Ordering::Relaxed) {
            return Some("draining".to_owned());
        }
        self.workers.iter().find_map(|(queue, worker)| {
            let stats = worker.stats();
            let problem = stats.last_problem.unwrap_or_else(|| "not connected yet".to_owned());
            (!stats.connected).then(|| format!("queue {queue}: {problem}"))
        })
    }

    /// Returns the figures in the text format of Prometheus.
    pub(super) fn text(&self) -> String {
        let all: Vec<_> = self.workers.iter().map(|(queue, worker)| (queue, worker.stats())).collect();
        let mut text = String::new();
        for (name, kind, help, value) in FAMILIES {
            let name = format!("damper_worker_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (queue, stats) in &all {
                let _ = writeln!(text, "{name}{{queue=\"{queue}\"}} {}", value(stats));
            }
        }
        let name = "damper_worker_ended_total";
        let _ = writeln!(text, "# HELP {name} Deliveries by how they ended.\n# TYPE {name} counter");
        for (queue, stats) in &all {
            for (how, value) in ENDS {
                let _ = writeln!(text, "{name}{{queue=\"{queue}\",how=\"{how}\"}} {}", value(stats));
            }
        }
        text
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
