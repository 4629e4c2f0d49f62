//! Settings of a queue, with all ranges and defaults.
//!
//! A queue is a policy for jobs. It enters the engine only as a [`Queue`], which checks it: a value out of
//! range is rejected with its path and range. Of [`Policy`] a queue has only `mode`, `retry` and `stop_when`;
//! the ranges of `retry` are wider than those of a rule, because no caller waits for a job.

use std::time::Duration;

use crate::fault::{Bounds, Faults, Ratio};
use crate::gates::breaker;
use crate::job::names::{ServiceName, Submittable};
use crate::policy::{Backoff, Growth, Jitter, Mode, OverMax, Policy, Retry, RetryBounds, Waits};
use crate::rules::guard::check_owner;
use crate::rules::key::RouteKey;

const DAY: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// Length of a queue's name, in bytes.
pub const NAME_BYTES: Bounds<u32> = Bounds { min: 1, max: 64 };
/// `policy.retry.max_attempts` of a queue.
pub const MAX_ATTEMPTS: Bounds<u32> = Bounds { min: 1, max: 1000 };
/// `policy.retry.max_duration` of a queue.
pub const MAX_DURATION: Bounds<Duration> =
    Bounds { min: Duration::from_secs(1), max: Duration::from_secs(30 * 24 * 3600) };
/// `policy.retry.per_attempt_timeout` of a queue.
pub const PER_ATTEMPT_TIMEOUT: Bounds<Duration> = Bounds { min: Duration::from_millis(1), max: DAY };
/// `max_in_flight`
pub const MAX_IN_FLIGHT: Bounds<u32> = Bounds { min: 1, max: 10_000 };
/// `rate`, in deliveries per second.
pub const RATE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1_000), max: Ratio::from_bp(100_000_000) };
/// `expires_after`
pub const EXPIRES_AFTER: Bounds<Duration> = MAX_DURATION;
/// `lease`
pub const LEASE: Bounds<Duration> = Bounds { min: Duration::from_secs(5), max: HOUR };
/// `max_lost`
pub const MAX_LOST: Bounds<u32> = Bounds { min: 1, max: 1000 };
/// `hold_after`
pub const HOLD_AFTER: Bounds<u32> = Bounds { min: 1, max: 1000 };
/// `keep_done`
pub const KEEP_DONE: Bounds<Duration> =
    Bounds { min: Duration::ZERO, max: Duration::from_secs(7 * 24 * 3600) };
/// `keep_dead`
pub const KEEP_DEAD: Bounds<Duration> = Bounds { min: HOUR, max: Duration::from_secs(90 * 24 * 3600) };
/// `max_jobs`
pub const MAX_JOBS: Bounds<u32> = Bounds { min: 1, max: 10_000_000 };
/// `max_bytes`
pub const MAX_BYTES: Bounds<u64> = Bounds { min: 1 << 20, max: 1 << 40 };
/// `max_body_bytes`
pub const MAX_BODY: Bounds<u32> = Bounds { min: 1 << 10, max: 768 << 10 };
/// `max_submitter_share`
pub const SUBMITTER_SHARE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(100), max: Ratio::ONE };
/// Number of names in `metadata`. An empty list is the default, so at least one is kept.
pub const METADATA_NAMES: Bounds<u32> = Bounds { min: 1, max: 32 };
/// Length of `paused`, in bytes.
pub const PAUSED_BYTES: Bounds<u32> = Bounds { min: 0, max: 1024 };
/// Number of entries in `workers`, `submitters` and `methods`.
pub const LIST_ENTRIES: Bounds<u32> = Bounds { min: 0, max: 256 };

/// A queue with checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    name: String,
    settings: QueueSettings,
    owner: String,
    revision: u64,
}

/// Settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Mode, attempts and waits. `retry` is always set; only `mode`, `retry` and `stop_when` are used.
    pub policy: Policy,
    /// Services that receive jobs. Empty: the service that submitted.
    pub workers: Vec<ServiceName>,
    /// Services that may submit. Empty: those in `workers`; if that is empty too, all, each for itself.
    pub submitters: Vec<ServiceName>,
    /// Routes that may be submitted. Empty: all.
    pub methods: Vec<Submittable>,
    /// Jobs that are delivered at the same time.
    pub max_in_flight: u32,
    /// Deliveries per second. `None`: no limit.
    pub rate: Option<Ratio>,
    /// Time from submission after which a job expires.
    pub expires_after: Duration,
    /// Longest silence of a worker.
    pub lease: Duration,
    /// Lost deliveries in a row, then the job is dead.
    pub max_lost: u32,
    /// Failures in a row, then the jobs of the callee are held.
    pub hold_after: u32,
    /// What `policy.stop_when` does.
    pub on_stop: OnStop,
    /// Time that ended jobs are kept, without body.
    pub keep_done: Duration,
    /// Time that dead jobs are kept.
    pub keep_dead: Duration,
    /// Jobs that have not ended.
    pub max_jobs: u32,
    /// Bytes of all jobs.
    pub max_bytes: u64,
    /// Bytes of one body.
    pub max_body: u32,
    /// Largest share of `max_jobs` and `max_bytes` of one submitting service.
    pub max_submitter_share: Ratio,
    /// Metadata names that are kept, in lower case.
    pub metadata: Vec<String>,
    /// Reason why nothing is delivered; empty: not paused.
    pub paused: String,
}

/// What `policy.stop_when` does to a job. With `latency_above_percentile` only `Dead` is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStop {
    /// The job waits until the condition has ended.
    #[default]
    Hold,
    /// The job is dead.
    Dead,
}

impl Queue {
    /// Binds settings to a name. `owner` is the contact, `revision` that of the last change.
    ///
    /// # Errors
    /// All faults with their paths, as in a manifest.
    pub fn new(name: String, settings: QueueSettings, owner: String, revision: u64) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        check_queue_name("name", &name, &mut faults);
        settings.check(&mut faults);
        check_owner(&owner, &mut faults);
        faults.or(Self { name, settings, owner, revision })
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// Returns the owner; empty if there is none.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns true if `worker` may receive jobs that `submitter` submitted.
    #[must_use]
    pub fn delivers_to(&self, worker: &str, submitter: &str) -> bool {
        let workers = &self.settings.workers;
        if workers.is_empty() { worker == submitter } else { workers.iter().any(|name| name.matches(worker)) }
    }

    /// Returns true if the service may submit jobs.
    #[must_use]
    pub fn accepts_from(&self, submitter: &str) -> bool {
        let QueueSettings { submitters, workers, .. } = &self.settings;
        let names = if submitters.is_empty() { workers } else { submitters };
        names.is_empty() || names.iter().any(|name| name.matches(submitter))
    }

    /// Returns true if jobs of this route may be submitted.
    #[must_use]
    pub fn accepts_route(&self, route: &RouteKey) -> bool {
        let methods = &self.settings.methods;
        methods.is_empty() || methods.iter().any(|allowed| allowed.matches(route))
    }
}

impl QueueSettings {
    /// Returns the defaults with this mode.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let mut policy = Policy::new(mode);
        policy.retry_breaker = None;
        policy.retry = Some(Self::default_retry());
        Self {
            policy,
            workers: Vec::new(),
            submitters: Vec::new(),
            methods: Vec::new(),
            max_in_flight: 100,
            rate: None,
            expires_after: Duration::from_secs(7 * 24 * 3600),
            lease: Duration::from_secs(30),
            max_lost: 5,
            hold_after: 20,
            on_stop: OnStop::default(),
            keep_done: HOUR,
            keep_dead: Duration::from_secs(7 * 24 * 3600),
            max_jobs: 1_000_000,
            max_bytes: 1 << 30,
            max_body: 256 << 10,
            max_submitter_share: Ratio::from_bp(5_000),
            metadata: vec!["traceparent".to_owned()],
            paused: String::new(),
        }
    }

    /// Returns the retries of a queue that sets none: 25 attempts, waits from 1 s to 1 h.
    #[must_use]
    pub fn default_retry() -> Retry {
        Retry {
            max_attempts: 25,
            max_duration: None,
            per_attempt_timeout: Some(Duration::from_secs(30)),
            codes: breaker::FAILURES,
            backoff: Backoff::Always(Waits::Exponential {
                base: Duration::from_secs(1),
                multiplier: Ratio::from_bp(20_000),
                growth: Growth { max: HOUR, over_max: OverMax::Cap, jitter: Jitter::Equal },
            }),
        }
    }

    /// Returns the retries.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.policy.retry.clone().unwrap_or_else(Self::default_retry)
    }

    /// Returns the limit of one delivery.
    #[must_use]
    pub fn per_attempt_timeout(&self) -> Duration {
        let limit = self.policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
        limit.unwrap_or(Duration::from_secs(30))
    }

    fn check(&self, faults: &mut Faults) {
        let mut inner = Faults::none();
        let bounds = RetryBounds {
            max_attempts: MAX_ATTEMPTS,
            max_duration: MAX_DURATION,
            attempt: PER_ATTEMPT_TIMEOUT,
        };
        self.policy.check_of_queue(&bounds, &mut inner);
        faults.nest("policy", inner);
        let latency = self.policy.stop_when.and_then(|stop_when| stop_when.latency_above_percentile);
        if latency.is_some() && self.on_stop == OnStop::Hold {
            let problem = "requires on_stop: dead; one slow delivery is no reason to hold the others";
            faults.add("policy.stop_when.latency_above_percentile", problem);
        }
        MAX_IN_FLIGHT.check("max_in_flight", self.max_in_flight, faults);
        if let Some(rate) = self.rate {
            check_rate(rate, faults);
        }
        EXPIRES_AFTER.check("expires_after", self.expires_after, faults);
        LEASE.check("lease", self.lease, faults);
        MAX_LOST.check("max_lost", self.max_lost, faults);
        HOLD_AFTER.check("hold_after", self.hold_after, faults);
        KEEP_DONE.check("keep_done", self.keep_done, faults);
        KEEP_DEAD.check("keep_dead", self.keep_dead, faults);
        MAX_JOBS.check("max_jobs", self.max_jobs, faults);
        MAX_BYTES.check("max_bytes", self.max_bytes, faults);
        MAX_BODY.check("max_body_bytes", self.max_body, faults);
        SUBMITTER_SHARE.check("max_submitter_share", self.max_submitter_share, faults);
        check_length("workers", self.workers.len(), LIST_ENTRIES, faults);
        check_length("submitters", self.submitters.len(), LIST_ENTRIES, faults);
        check_length("methods", self.methods.len(), LIST_ENTRIES, faults);
        check_length("metadata", self.metadata.len(), METADATA_NAMES, faults);
        for (i, name) in self.metadata.iter().enumerate() {
            check_metadata_name(&format!("metadata[{i}]"), name, faults);
        }
        let length = u32::try_from(self.paused.len()).unwrap_or(u32::MAX);
        if length > PAUSED_BYTES.max {
            faults.add("paused", format!("must have at most {} bytes, not {length}", PAUSED_BYTES.max));
        }
    }
}

/// Adds a fault if the name of a queue is invalid.
pub fn check_queue_name(path: &str, name: &str, faults: &mut Faults) {
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    if !(NAME_BYTES.min..=NAME_BYTES.max).contains(&length) {
        faults.add(path, format!("must have {NAME_BYTES} characters, not {length}"));
    } else if let Some(c) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '.')) {
        faults.add(path, format!("{name:?} contains {c:?}; allowed are a-z, 0-9, '-' and '.'"));
    }
}

/// Names of metadata are kept in the job store: none that carries a credential, and no binary one.
fn check_metadata_name(path: &str, name: &str, faults: &mut Faults) {
    let is_token = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_token) {
        faults.add(path, format!("{name:?} must have 1 to 64 of a-z, 0-9, '-', '_' and '.'"));
    } else if matches!(name, "authorization" | "cookie" | "proxy-authorization") || name.ends_with("-bin") {
        faults.add(path, format!("{name:?} cannot be kept: it can carry a credential"));
    }
}

fn check_length(path: &str, length: usize, bounds: Bounds<u32>, faults: &mut Faults) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if length > bounds.max {
        faults.add(path, format!("must have at most {} entries, not {length}", bounds.max));
    } else if length < bounds.min {
        faults.add(path, format!("must have at least {} entries, not {length}", bounds.min));
    }
}

/// A rate has one decimal.
fn check_rate(rate: Ratio, faults: &mut Faults) {
    if rate.bp().is_multiple_of(RATE.min.bp()) {
        RATE.check("rate", rate, faults);
    } else {
        faults.add("rate", format!("must be in steps of {} ({RATE}), not {rate}", RATE.min));
    }
}

#[cfg(test)]
mod tests;
