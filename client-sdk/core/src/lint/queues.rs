//! Queues whose jobs end too early, or too late for their attempts.
//!
//! Waits count without the deliveries between them. While a callee fails, its jobs are held and only probes
//! use attempts; but a method that fails alone, and a delivery that is lost, use theirs at the pace of the
//! backoff.

use std::time::Duration;

use super::waits::{End, waits};
use super::{Finding, Notes, codes, effect, retries};
use crate::fault::Millis;
use crate::job::Queue;
use crate::policy::Mode;

/// An outage that the attempts of a job should span.
const OUTAGE: Duration = Duration::from_secs(3600);

pub(super) fn check(queue: &Queue) -> Vec<Finding> {
    let mut findings = Vec::new();
    if queue.settings().policy.mode == Mode::Off {
        return findings;
    }
    let mut notes = Notes { findings: &mut findings };
    if let Some(retry) = &queue.settings().policy.retry {
        effect::codes_of(retry, &mut notes);
    }
    waits_fit(queue, &mut notes);
    spans_outage(queue, &mut notes);
    findings
}

fn waits_fit(queue: &Queue, notes: &mut Notes<'_>) {
    let (settings, retry) = (queue.settings(), queue.settings().retry());
    let expires = ("expires_after", settings.expires_after);
    let max_duration = retry.max_duration.map(|end| ("policy.retry.max_duration", end));
    let all = waits(&retry.backoff, retry.codes, retries(&settings.policy), End::Shortest);
    let ends = [Some(expires), max_duration];
    let Some((name, end)) = ends.into_iter().flatten().min_by_key(|(_, end)| *end) else { return };
    let mut waited = Duration::ZERO;
    for (n, wait) in all.iter().enumerate() {
        waited = waited.saturating_add(*wait);
        if waited >= end {
            let message = format!(
                "attempt {} starts {} after the first at the earliest, and {name} is {}",
                n + 2,
                Millis(waited),
                Millis(end)
            );
            return notes.add(codes::QUEUE_WAITS_DO_NOT_FIT, "retry.backoff", message);
        }
    }
}

fn spans_outage(queue: &Queue, notes: &mut Notes<'_>) {
    let retry = queue.settings().retry();
    let all = waits(&retry.backoff, retry.codes, retries(&queue.settings().policy), End::Longest);
    let longest = all.iter().fold(Duration::ZERO, |sum, wait| sum.saturating_add(*wait));
    if longest < OUTAGE {
        let attempts = all.len().saturating_add(1);
        let message = format!("{attempts} attempts with waits of {} in all", Millis(longest));
        notes.add(codes::QUEUE_GIVES_UP_EARLY, "retry.max_attempts", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::QueueSettings;
    use crate::lint::queue_findings;
    use crate::outcome::code::{Code, CodeSet};
    use crate::policy::{Backoff, Jitter, Retry, Waits};

    fn found(change: impl FnOnce(&mut QueueSettings, &mut Retry)) -> Vec<(&'static str, String)> {
        let mut settings = QueueSettings::new(Mode::Enforce);
        let mut retry = settings.retry();
        change(&mut settings, &mut retry);
        settings.policy.retry = Some(retry);
        let queue = Queue::new("later".to_owned(), settings, String::new(), 1).unwrap();
        queue_findings(&queue).into_iter().map(|found| (found.code, found.field)).collect()
    }

    fn fixed(seconds: u64) -> Backoff {
        let delay = Duration::from_secs(seconds);
        Backoff::Always(Waits::Fixed { delay, jitter: Jitter::None })
    }

    #[test]
    fn default_queue_has_no_finding() {
        assert_eq!(found(|_, _| ()), []);
        assert_eq!(found(|settings, _| settings.policy.mode = Mode::Observe), []);
    }

    #[test]
    fn queue_that_is_off_has_no_finding() {
        let off = |settings: &mut QueueSettings, retry: &mut Retry| {
            (settings.policy.mode, retry.max_attempts) = (Mode::Off, 1);
        };
        assert_eq!(found(off), []);
    }

    #[test]
    fn attempts_within_an_hour_are_found() {
        let with = |max_attempts, wait| {
            found(|_, retry| (retry.max_attempts, retry.backoff) = (max_attempts, fixed(wait)))
        };
        let early = vec![(codes::QUEUE_GIVES_UP_EARLY.code, "policy.retry.max_attempts".to_owned())];
        assert_eq!(with(61, 60), []);
        assert_eq!(with(60, 60), early);
        assert_eq!(with(1, 86_400), early);
    }

    #[test]
    fn waits_longer_than_the_job_are_found() {
        let with = |expires_after, max_duration: Option<u64>| {
            found(|settings, retry| {
                (retry.max_attempts, retry.backoff) = (4, fixed(3_600));
                settings.expires_after = Duration::from_secs(expires_after);
                retry.max_duration = max_duration.map(Duration::from_secs);
            })
        };
        let late = vec![(codes::QUEUE_WAITS_DO_NOT_FIT.code, "policy.retry.backoff".to_owned())];
        assert_eq!(with(10_801, None), []);
        assert_eq!(with(10_800, None), late);
        assert_eq!(with(20_000, Some(10_801)), []);
        assert_eq!(with(20_000, Some(10_800)), late);
    }

    #[test]
    fn codes_that_never_pass_are_found() {
        let codes = CodeSet::of(&[Code::Unavailable, Code::InvalidArgument]);
        let expected = vec![(codes::CODE_NEVER_HELPS.code, "policy.retry.codes".to_owned())];
        assert_eq!(found(|_, retry| retry.codes = codes), expected);
    }
}
