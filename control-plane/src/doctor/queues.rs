//! Checks of queues: jobs that are not delivered, dead jobs, quotas, and the job store.
//!
//! A lane is one route of a queue. How long it has been held is not kept: the age of its job that has been
//! due the longest stands for it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use damper_core::job::Wall;
use damper_proto::v1;
use damper_queue::store::Burden;
use damper_queue::{LaneStats, QueueStats};
use futures_util::future::join;
use tokio::time::timeout;

use crate::doctor::{Attempt, Check, DoctorInput, codes, finding};
use crate::jobs::Jobs;
use crate::state::text::many;

/// Lateness without a finding.
const LATE_AFTER: Duration = Duration::from_secs(5 * 60);
/// Time that jobs may be held without a finding.
const HELD_AFTER: Duration = Duration::from_secs(15 * 60);
/// Time without a worker that is not a finding: workers reconnect.
const WITHOUT_WORKER_AFTER: Duration = Duration::from_secs(30);
/// Share of a quota that is a finding, in percent.
const NEARLY_FULL_PERCENT: u64 = 80;
/// Age of a transaction that is a finding.
const OLD_TRANSACTION: Duration = Duration::from_secs(5 * 60);
/// Dead rows for each live one that are a finding, and their number that is none.
const DEAD_FOR_EACH: u64 = 10;
const FEW_DEAD_ROWS: u64 = 50_000;
/// Time for the job store to answer.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Reasons that are part of normal deliveries: jobs that wait for them are late, not held.
const BUSY: [&str; 4] = ["pace", "rate", "max_in_flight", "no_credits"];

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "the job store works", scope: store, find: job_store },
    Check { what: "jobs have a queue", scope: count, find: without_policy },
    Check { what: "due jobs are delivered", scope: count, find: late },
    Check { what: "jobs are not held for long", scope: count, find: held },
    Check { what: "due jobs have a worker", scope: count, find: without_worker },
    Check { what: "no job is dead", scope: count, find: dead },
    Check { what: "queues have room", scope: count, find: nearly_full },
];

/// Checks that ask the job store.
pub(crate) const ATTEMPTS: &[Attempt] = &[
    Attempt { what: "the database of the jobs is cleaned", scope: store, find: burden },
    Attempt { what: "no job is missing", scope: store, find: ledger },
];

/// What the doctor knows of the jobs.
pub(crate) struct JobsInput {
    pub(crate) queues: Vec<QueueStats>,
    /// Why the job store does not respond, since when.
    pub(crate) away: Option<(Duration, String)>,
    /// Submissions were refused within the last minute, because the store is full.
    pub(crate) is_full: bool,
    /// What slows the store down, or why that is not known.
    pub(crate) burden: Result<Burden, String>,
    /// Jobs that the store has too few; negative: too many. Or why that is not known.
    pub(crate) gap: Result<i64, String>,
}

/// Reads what the doctor needs; `None` without a job store.
pub(crate) async fn read(jobs: &Jobs) -> Option<JobsInput> {
    let server = jobs.server()?;
    let late = |_| format!("the job store did not answer within {} s", READ_WITHIN.as_secs());
    let burden = async { server.burden().await.map_err(|error| error.to_string()) };
    let gap = async { server.ledger_gap().await.map_err(str::to_owned) };
    let (burden, gap) = join(timeout(READ_WITHIN, burden), timeout(READ_WITHIN, gap)).await;
    Some(JobsInput {
        queues: server.stats(""),
        away: server.away(),
        is_full: server.is_full(),
        burden: burden.map_err(late).flatten(),
        gap: gap.map_err(late).flatten(),
    })
}

fn store(input: &DoctorInput) -> String {
    if input.jobs.is_some() { "1 job store" } else { "none on this server" }.to_owned()
}

fn count(input: &DoctorInput) -> String {
    many(queues(input).count(), "queue")
}

/// The queues of the diagnosis: all, or those with a route from or to its service.
fn queues(input: &DoctorInput) -> impl Iterator<Item = &QueueStats> {
    let all = input.jobs.iter().flat_map(|jobs| &jobs.queues);
    all.filter(|queue| {
        let concerns = |lane: &LaneStats| {
            input.is_about(lane.route.caller_service()) || input.is_about(lane.route.callee_service())
        };
        input.service.is_empty() || queue.lanes.iter().any(concerns)
    })
}

fn job_store(input: &DoctorInput) -> Vec<v1::Finding> {
    let Some(jobs) = &input.jobs else { return Vec::new() };
    let away = jobs.away.as_ref().map(|(since, problem)| {
        let message = format!("for {} s: {problem}", since.as_secs());
        finding(codes::JOB_STORE_AWAY, "", message)
    });
    let full =
        || finding(codes::JOB_STORE_FULL, "", "submissions were refused within the last minute".to_owned());
    away.into_iter().chain(jobs.is_full.then(full)).collect()
}

fn burden(input: &DoctorInput) -> Result<Vec<v1::Finding>, String> {
    let Some(JobsInput { burden, .. }) = &input.jobs else { return Ok(Vec::new()) };
    let burden = burden.as_ref().map_err(String::clone)?;
    let old = burden.oldest_transaction >= OLD_TRANSACTION;
    let old = old.then(|| {
        let message = format!("open for {}", minutes(burden.oldest_transaction));
        finding(codes::JOB_STORE_OLD_TRANSACTION, "", message)
    });
    let Burden { live_rows, dead_rows, .. } = *burden;
    let dead = dead_rows > FEW_DEAD_ROWS && dead_rows > live_rows.saturating_mul(DEAD_FOR_EACH);
    let dead = dead.then(|| {
        let message = format!("{dead_rows} dead rows, {live_rows} live ones");
        finding(codes::JOB_STORE_DEAD_ROWS, "", message)
    });
    Ok(old.into_iter().chain(dead).collect())
}

fn ledger(input: &DoctorInput) -> Result<Vec<v1::Finding>, String> {
    let gap = input.jobs.as_ref().map_or(Ok(0), |jobs| jobs.gap.clone())?;
    let message =
        format!("{} too {}", many(jobs(gap.unsigned_abs()), "job"), if gap > 0 { "few" } else { "many" });
    Ok((gap != 0).then(|| finding(codes::JOB_LEDGER_DIFFERS, "", message)).into_iter().collect())
}

fn without_policy(input: &DoctorInput) -> Vec<v1::Finding> {
    let without = queues(input).filter(|queue| !queue.has_policy && queue.counts.live() > 0);
    let findings = without.map(|queue| {
        let message = format!("{} that have not ended wait", many(jobs(queue.counts.live()), "job"));
        finding(codes::QUEUE_WITHOUT_POLICY, &queue.queue, message)
    });
    findings.collect()
}

/// Lanes whose jobs have been due for this time, of queues that deliver.
fn due_lanes(
    input: &DoctorInput,
    since: Duration,
) -> impl Iterator<Item = (&QueueStats, &LaneStats, Duration)> {
    let delivering = queues(input).filter(|queue| queue.held.is_empty());
    let lanes = delivering.flat_map(|queue| queue.lanes.iter().map(move |lane| (queue, lane)));
    let now = input.now;
    lanes.filter_map(move |(queue, lane)| {
        let late = lateness(lane.next_due?, now).filter(|late| *late >= since)?;
        Some((queue, lane, late))
    })
}

fn lateness(due: Wall, now: SystemTime) -> Option<Duration> {
    now.duration_since(UNIX_EPOCH + Duration::from_millis(due.0)).ok()
}

/// Returns one finding per queue, about the lane that is worst.
fn by_queue<'a>(
    code: damper_core::lint::codes::FindingCode,
    lanes: impl Iterator<Item = (&'a QueueStats, &'a LaneStats, Duration)>,
    message: impl Fn(&LaneStats, Duration) -> String,
) -> Vec<v1::Finding> {
    let mut worst: Vec<(&QueueStats, &LaneStats, Duration)> = Vec::new();
    for found in lanes {
        match worst.iter_mut().find(|other| other.0.queue == found.0.queue) {
            Some(other) if other.2 < found.2 => *other = found,
            Some(_) => {}
            None => worst.push(found),
        }
    }
    let findings =
        worst.into_iter().map(|(queue, lane, late)| finding(code, &queue.queue, message(lane, late)));
    findings.collect()
}

fn late(input: &DoctorInput) -> Vec<v1::Finding> {
    let is_busy = |lane: &LaneStats| lane.held.is_none_or(|held| BUSY.contains(&held.why));
    let lanes = due_lanes(input, LATE_AFTER).filter(|(_, lane, _)| is_busy(lane));
    by_queue(codes::QUEUE_LATE, lanes, |lane, late| {
        let why = lane.held.map(|held| format!(", last held by {}", held.why)).unwrap_or_default();
        format!("{}: {} behind{why}", lane.route, minutes(late))
    })
}

fn held(input: &DoctorInput) -> Vec<v1::Finding> {
    let is_held =
        |lane: &LaneStats| lane.held.is_some_and(|held| held.why != "no_worker" && !BUSY.contains(&held.why));
    let lanes = due_lanes(input, HELD_AFTER).filter(|(_, lane, _)| is_held(lane));
    let mut findings = by_queue(codes::QUEUE_HELD, lanes, |lane, late| {
        let why = lane.held.map_or("", |held| held.why);
        format!("{}: {why}, {} behind", lane.route, minutes(late))
    });
    let whole = queues(input).filter(|queue| queue.has_policy && !queue.held.is_empty());
    findings.extend(whole.filter_map(|queue| {
        let late = lateness(queue.oldest_due?, input.now).filter(|late| *late >= HELD_AFTER)?;
        Some(finding(codes::QUEUE_HELD, &queue.queue, format!("{}, {} behind", queue.held, minutes(late))))
    }));
    findings
}

fn without_worker(input: &DoctorInput) -> Vec<v1::Finding> {
    if input.is_settling() {
        return Vec::new();
    }
    let lanes = due_lanes(input, WITHOUT_WORKER_AFTER)
        .filter(|(_, lane, _)| lane.held.is_some_and(|held| held.why == "no_worker"));
    by_queue(codes::QUEUE_LACKS_WORKER, lanes, |lane, _| {
        format!("{}: {} and no worker", lane.route, many(jobs(lane.counts.waiting), "job"))
    })
}

fn dead(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings = queues(input).filter(|queue| queue.counts.dead > 0).map(|queue| {
        finding(codes::QUEUE_DEAD, &queue.queue, format!("{} dead", many(jobs(queue.counts.dead), "job")))
    });
    findings.collect()
}

fn nearly_full(input: &DoctorInput) -> Vec<v1::Finding> {
    let findings = queues(input).filter_map(|queue| {
        let (most_jobs, most_bytes) = queue.limits?;
        let is_near = |is: u64, most: u64| is.saturating_mul(100) > most.saturating_mul(NEARLY_FULL_PERCENT);
        let (live, bytes) = (queue.counts.live(), queue.counts.bytes);
        let message = if is_near(live, most_jobs) {
            format!("{live} of {most_jobs} jobs")
        } else if is_near(bytes, most_bytes) {
            format!("{bytes} of {most_bytes} bytes")
        } else {
            return None;
        };
        Some(finding(codes::QUEUE_NEARLY_FULL, &queue.queue, message))
    });
    findings.collect()
}

fn jobs(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn minutes(time: Duration) -> String {
    format!("{} min", time.as_secs() / 60)
}
