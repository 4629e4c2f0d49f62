//! Queues: a policy for jobs, as written by operators.
//!
//! Absent settings take the defaults of a queue, also inside a given `retry`: those of a rule are far shorter.
//! Settings that only rules have are rejected if they are present, whatever their value.

use damper_core::fault::Bounds;
use damper_core::job::{
    EXPIRES_AFTER, KEEP_DEAD, KEEP_DONE, LEASE, MAX_DURATION, OnStop, PER_ATTEMPT_TIMEOUT, Queue,
    QueueSettings, RATE, SUBMITTER_SHARE, ServiceName, Submittable,
};
use damper_core::policy::NOT_OF_QUEUES;
use damper_core::{Faults, Mode, Policy};

use super::policy::{mode, part};
use super::retry::{RetryDefaults, retry_or};
use super::{add_new, amount, gates, required};
use crate::v1;

/// Reads a queue. The server sets time and author of its last change.
///
/// # Errors
/// All faults by path: `name`, `policy.retry.max_attempts`, `workers[0]`.
pub fn queue(wire: &v1::Queue) -> Result<Queue, Faults> {
    let mut faults = Faults::none();
    let settings = read(wire, &mut faults);
    match Queue::new(wire.name.clone(), settings, wire.owner.clone(), wire.revision) {
        Ok(queue) => faults.or(queue),
        Err(found) => {
            add_new(&found, &mut faults);
            Err(faults)
        }
    }
}

/// Reads the settings, with stand-ins for rejected values.
fn read(wire: &v1::Queue, faults: &mut Faults) -> QueueSettings {
    let v1::Queue {
        name: _,
        policy,
        workers,
        submitters,
        methods,
        max_in_flight,
        rate,
        expires_after,
        lease,
        max_lost,
        hold_after,
        on_stop: stop,
        keep_done,
        keep_dead,
        max_jobs,
        max_bytes,
        max_body_bytes,
        max_submitter_share: share,
        metadata,
        paused,
        owner: _,
        revision: _,
        updated_at: _,
        updated_by: _,
    } = wire;
    let policy = required("policy", policy.as_ref(), |wire, faults| Some(read_policy(wire, faults)), faults);
    // A missing policy was reported.
    let default = QueueSettings::new(Mode::Off);
    let mut time = |path, wire: &Option<_>, bounds: Bounds<_>, default| {
        amount::duration(path, wire.as_ref(), bounds, faults).unwrap_or(default)
    };
    let expires_after = time("expires_after", expires_after, EXPIRES_AFTER, default.expires_after);
    let lease = time("lease", lease, LEASE, default.lease);
    let keep_done = time("keep_done", keep_done, KEEP_DONE, default.keep_done);
    let keep_dead = time("keep_dead", keep_dead, KEEP_DEAD, default.keep_dead);
    QueueSettings {
        policy: policy.unwrap_or(default.policy),
        workers: each("workers", workers, faults, |path, text, faults| {
            Some(ServiceName::parse(path, text, faults))
        }),
        submitters: each("submitters", submitters, faults, |path, text, faults| {
            Some(ServiceName::parse(path, text, faults))
        }),
        methods: each("methods", methods, faults, Submittable::parse),
        max_in_flight: max_in_flight.unwrap_or(default.max_in_flight),
        rate: amount::ratio("rate", *rate, RATE, faults),
        expires_after,
        lease,
        max_lost: max_lost.unwrap_or(default.max_lost),
        hold_after: hold_after.unwrap_or(default.hold_after),
        on_stop: on_stop(*stop, faults),
        keep_done,
        keep_dead,
        max_jobs: max_jobs.unwrap_or(default.max_jobs),
        max_bytes: max_bytes.unwrap_or(default.max_bytes),
        max_body: max_body_bytes.unwrap_or(default.max_body),
        max_submitter_share: amount::ratio("max_submitter_share", *share, SUBMITTER_SHARE, faults)
            .unwrap_or(default.max_submitter_share),
        metadata: if metadata.is_empty() { default.metadata } else { metadata.clone() },
        paused: paused.clone(),
    }
}

/// Reads mode, retry and `stop_when`. The engine checks their ranges with the whole queue.
fn read_policy(wire: &v1::Policy, faults: &mut Faults) -> Policy {
    let v1::Policy {
        mode: number,
        timeout,
        retry,
        retry_breaker,
        chain,
        replay_limit_bytes,
        hedge,
        budget,
        stop_when,
        circuit_breaker,
        hold_unary,
        call_id,
    } = wire;
    let of_rules = [
        ("timeout", timeout.is_some()),
        ("hedge", hedge.is_some()),
        ("retry_breaker", retry_breaker.is_some()),
        ("budget", budget.is_some()),
        ("circuit_breaker", circuit_breaker.is_some()),
        ("chain", chain.is_some()),
        ("replay_limit_bytes", replay_limit_bytes.is_some()),
        ("hold_unary", *hold_unary),
        ("call_id", *call_id),
    ];
    // A missing mode was reported.
    let mode = mode(*number, faults).unwrap_or(Mode::Off);
    let default = QueueSettings::default_retry();
    let defaults =
        RetryDefaults { retry: default.clone(), max_duration: MAX_DURATION, attempt: PER_ATTEMPT_TIMEOUT };
    let retry = part("retry", retry.as_ref(), |wire, faults| retry_or(wire, defaults, faults), faults);
    let stop_when = part("stop_when", stop_when.as_ref(), gates::stop_when, faults);
    for (path, _) in of_rules.iter().filter(|(_, is_set)| *is_set) {
        faults.add(*path, NOT_OF_QUEUES);
    }
    let policy = QueueSettings::new(mode).policy;
    Policy { retry: Some(retry.unwrap_or(default)), stop_when, ..policy }
}

/// Reads each entry of a list, with its place as path.
fn each<T>(
    path: &str,
    wire: &[String],
    faults: &mut Faults,
    read: impl Fn(&str, &str, &mut Faults) -> Option<T>,
) -> Vec<T> {
    let entries = wire.iter().enumerate();
    entries.filter_map(|(n, text)| read(&format!("{path}[{n}]"), text, faults)).collect()
}

fn on_stop(number: i32, faults: &mut Faults) -> OnStop {
    match v1::OnStop::try_from(number) {
        Ok(v1::OnStop::Unspecified | v1::OnStop::Hold) => OnStop::Hold,
        Ok(v1::OnStop::Dead) => OnStop::Dead,
        Err(_) => {
            faults.add("on_stop", format!("must be hold or dead, not {number}"));
            OnStop::Hold
        }
    }
}

impl From<&Queue> for v1::Queue {
    /// Omits fields set by the server: time and author of the last change.
    fn from(queue: &Queue) -> Self {
        let QueueSettings {
            policy,
            workers,
            submitters,
            methods,
            max_in_flight,
            rate,
            expires_after,
            lease,
            max_lost,
            hold_after,
            on_stop,
            keep_done,
            keep_dead,
            max_jobs,
            max_bytes,
            max_body,
            max_submitter_share,
            metadata,
            paused,
        } = queue.settings();
        Self {
            name: queue.name().to_owned(),
            policy: Some(policy_to_wire(policy)),
            workers: workers.iter().map(ToString::to_string).collect(),
            submitters: submitters.iter().map(ToString::to_string).collect(),
            methods: methods.iter().map(ToString::to_string).collect(),
            max_in_flight: Some(*max_in_flight),
            rate: rate.map(amount::ratio_to_wire),
            expires_after: Some(amount::to_wire(*expires_after)),
            lease: Some(amount::to_wire(*lease)),
            max_lost: Some(*max_lost),
            hold_after: Some(*hold_after),
            on_stop: v1::OnStop::from(*on_stop).into(),
            keep_done: Some(amount::to_wire(*keep_done)),
            keep_dead: Some(amount::to_wire(*keep_dead)),
            max_jobs: Some(*max_jobs),
            max_bytes: Some(*max_bytes),
            max_body_bytes: Some(*max_body),
            max_submitter_share: Some(amount::ratio_to_wire(*max_submitter_share)),
            metadata: metadata.clone(),
            paused: paused.clone(),
            owner: queue.owner().to_owned(),
            revision: queue.revision(),
            updated_at: None,
            updated_by: String::new(),
        }
    }
}

/// Returns the settings that a queue has.
fn policy_to_wire(policy: &Policy) -> v1::Policy {
    let Policy { mode, retry, stop_when, .. } = policy;
    v1::Policy {
        mode: v1::Mode::from(*mode).into(),
        retry: Some(retry.as_ref().unwrap_or(&QueueSettings::default_retry()).into()),
        stop_when: stop_when.as_ref().map(Into::into),
        ..v1::Policy::default()
    }
}

impl From<OnStop> for v1::OnStop {
    fn from(on_stop: OnStop) -> Self {
        match on_stop {
            OnStop::Hold => Self::Hold,
            OnStop::Dead => Self::Dead,
        }
    }
}
