//! The questions after a failed attempt, in their fixed order. The first "no" is the call's fate.
//!
//! in time? -> may the rule repeat? -> retryable code? -> flag from below, pushback -> flag from above ->
//! committed or not replayable? -> attempts left? -> `max_duration`, deadline with the wait -> retry breaker
//!
//! Nothing is taken before every question has been answered.

use std::time::Duration;

use super::{Call, Pending};
use crate::breaker;
use crate::classify::{Failure, Pushback};
use crate::code::Code;
use crate::deadline;
use crate::fate::Fate;
use crate::policy::{Policy, Retry};
use crate::route::Route;
use crate::time::Time;

/// A server that asks to wait longer than this means "not".
const MAX_PUSHBACK: Duration = Duration::from_secs(60);
/// So many successful attempts must be known before their median says how long a retry will take.
const MEDIAN_MIN_SAMPLES: u32 = 20;

impl Call {
    /// May this failed attempt be repeated, and after which wait? The first "no" is the call's fate.
    pub(super) fn refusal(
        &mut self,
        route: &Route,
        policy: &Policy,
        pending: Pending,
        failure: Failure,
        now: Time,
        random: u64,
    ) -> Result<Duration, Fate> {
        // Where nothing is cut an attempt can outlive the time that the rule gives it.
        let overdue = pending.limit.is_some_and(|limit| limit <= now);
        let code = if overdue { Code::DeadlineExceeded } else { failure.code };
        let timed_out = code == Code::DeadlineExceeded && deadline::ended_by(self.judged_deadline, now);
        refuse(timed_out, Fate::Deadline)?;
        refuse(!policy.repeats(), Fate::PolicyOff)?;
        let retry = policy.retry.as_ref().ok_or(Fate::PolicyOff)?;
        refuse(!retry.codes.contains(code), Fate::NotRetryable)?;
        let heeded = failure.no_more_retry && !policy.chain.ignore_no_more_retry;
        refuse(heeded, Fate::ChainNoMoreRetry)?;
        let pushback = self.pushback(&failure, now)?;
        refuse(self.start.flag.is_some() && !policy.chain.ignore_retry_flag, Fate::ChainRetryFlag)?;
        refuse(pending.committed, Fate::Committed)?;
        refuse(!self.start.replayable, Fate::NotReplayable)?;
        refuse(self.attempts >= retry.max_attempts, Fate::AttemptsExhausted)?;
        let wait = self.next_wait(retry, pushback, code, random).ok_or(Fate::AttemptsExhausted)?;
        refuse(self.exceeds_max_duration(retry, now + wait), Fate::MaxDuration)?;
        refuse(self.could_not_finish(route, wait, now), Fate::Deadline)?;
        let admitted =
            policy.retry_breaker.is_none_or(|breaker| breaker::admits(&breaker, route.window().counts(now)));
        refuse(!admitted, Fate::RetryBreaker)?;
        Ok(wait)
    }

    /// The wait that the server asked for, if it asked for one that there is time for.
    fn pushback(&self, failure: &Failure, now: Time) -> Result<Option<Duration>, Fate> {
        match failure.pushback {
            None => Ok(None),
            // The flag came with its translation for stock clients, and the rule ignores the flag.
            Some(Pushback::Stop) if failure.no_more_retry => Ok(None),
            Some(Pushback::Stop) => Err(Fate::Pushback),
            Some(Pushback::After(wait)) => {
                let beyond = self.judged_deadline.is_some_and(|deadline| now + wait >= deadline);
                refuse(wait > MAX_PUSHBACK || beyond, Fate::Pushback)?;
                Ok(Some(wait))
            }
        }
    }

    fn next_wait(
        &mut self,
        retry: &Retry,
        pushback: Option<Duration>,
        code: Code,
        random: u64,
    ) -> Option<Duration> {
        match pushback {
            Some(wait) => {
                self.waits.restart();
                Some(wait)
            }
            None => self.waits.next(&retry.backoff, code, random),
        }
    }

    fn exceeds_max_duration(&self, retry: &Retry, next_send: Time) -> bool {
        retry.max_duration.is_some_and(|max| next_send.since(self.start.now) >= max)
    }

    fn could_not_finish(&self, route: &Route, wait: Duration, now: Time) -> bool {
        let Some(deadline) = self.judged_deadline else {
            return false;
        };
        let typical = route.state().recent.median(now, MEDIAN_MIN_SAMPLES).unwrap_or(Duration::ZERO);
        deadline.since(now) <= wait.saturating_add(typical)
    }
}

fn refuse(refused: bool, fate: Fate) -> Result<(), Fate> {
    if refused { Err(fate) } else { Ok(()) }
}
