//! Checks after a failed attempt, in a fixed order. The first that fails is the call's fate.
//!
//! in time? -> may the rule retry? -> retryable code? -> no-more-retry flag, pushback -> kill switch ->
//! retry flag -> committed or not replayable? -> attempts left? -> `stop_when` -> `max_duration`, deadline
//! with the wait -> retry breaker -> budget
//!
//! A request that is still arriving passes here; the call waits for it afterwards, see `arriving`.
//!
//! Nothing is reserved before all checks pass. Before a hedge the same checks run from the kill switch on.
//! While another attempt is in flight, a failed check does not end the call, unless the code may not be
//! retried or the call's own time has expired: it is remembered, and nothing more is sent.

use std::time::Duration;

use super::ending::Failed;
use super::hints::Hints;
use super::in_flight::Pending;
use super::{AttemptKind, Call, Next};
use crate::gates::breaker;
use crate::gates::budget::Reservation;
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::Code;
use crate::outcome::fate::Fate;
use crate::policy::{Mode, Policy, StopWhen};
use crate::route::{Paid, Route};
use crate::time::Time;
use crate::time::deadline;

/// Longest accepted pushback; a longer one means "do not retry".
const MAX_PUSHBACK: Duration = Duration::from_secs(60);
/// Samples needed before the median predicts the time of a retry.
const MEDIAN_MIN_SAMPLES: u32 = 20;

/// Decision after a failed attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum RetryDecision {
    /// Continue with this, or with the attempts in flight.
    Next(Next),
    /// Send nothing more; the call's fate if no attempt in flight wins.
    Remember(Fate),
    /// End the call.
    End(Fate),
}

impl Call {
    /// Decides what follows a failed attempt.
    pub(super) fn decide(
        &mut self,
        route: &Route,
        policy: &Policy,
        (pending, failed, hints): (&Pending, Failed, &Hints<'_>),
        now: Time,
        random: u64,
    ) -> RetryDecision {
        let failure = failed.failure;
        // In observe mode an attempt can outlive its limit.
        let overdue = policy.mode != Mode::Enforce && pending.limit.is_some_and(|limit| limit <= now);
        let failure = if overdue { Failure { code: Code::DeadlineExceeded, ..failure } } else { failure };
        if failure.code == Code::DeadlineExceeded
            && deadline::ended_by(self.rule_deadline, self.start.now, now)
        {
            return RetryDecision::End(Fate::Deadline);
        }
        let is_alone = self.in_flight.is_empty();
        // An attempt with the flag may have been rejected for being a retry, and one ended by a timer had no
        // response: neither is evidence about the others, whatever the code.
        let ends_all = !failure.no_more_retry && !failed.timed_out;
        match self.stopped {
            Some(fate) if is_alone => return RetryDecision::End(fate),
            Some(_) if ends_all && !policy.retryable().contains(failure.code) => {
                return RetryDecision::End(Fate::NotRetryable);
            }
            Some(_) => return RetryDecision::Next(Next::Nothing),
            None => {}
        }
        let decided = self.may_retry(route, policy, (pending, failure, hints), now).and_then(|pushback| {
            // A pushback applies until the next attempt, whatever fails in the meantime.
            self.not_before = self.not_before.max(pushback.map(|wait| now + wait));
            if is_alone {
                self.repeat(route, policy, (failure.code, hints), now, random)
            } else {
                Ok(self.hedge_early(now))
            }
        });
        match decided {
            Ok(next) => RetryDecision::Next(next),
            Err(fate) if is_alone || ends_all && fate == Fate::NotRetryable => RetryDecision::End(fate),
            Err(fate) => RetryDecision::Remember(fate),
        }
    }

    /// Checks if this failure allows another attempt, and returns the pushback.
    fn may_retry(
        &self,
        route: &Route,
        policy: &Policy,
        (pending, failure, hints): (&Pending, Failure, &Hints<'_>),
        now: Time,
    ) -> Result<Option<Duration>, Fate> {
        deny(!policy.repeats() || self.max_attempts <= 1, Fate::PolicyOff)?;
        deny(hints.never || !policy.retryable().contains(failure.code), Fate::NotRetryable)?;
        let heeded = failure.no_more_retry && !policy.chain.ignore_no_more_retry;
        deny(heeded, Fate::ChainNoMoreRetry)?;
        let pushback = self.pushback(&failure, hints.spread, now)?;
        deny(route.switch().stops_repeats(now), Fate::Killed)?;
        self.may_send_more(policy, pending.committed)?;
        Self::check_hints(hints)?;
        Ok(pushback)
    }

    /// Checks request flag, committed and replayable, and attempts.
    pub(super) fn may_send_more(&self, policy: &Policy, committed: bool) -> Result<(), Fate> {
        deny(self.start.flag.is_some() && !policy.chain.ignore_retry_flag, Fate::ChainRetryFlag)?;
        deny(committed, Fate::Committed)?;
        deny(self.is_not_replayable(policy.mode), Fate::NotReplayable)?;
        let max_attempts = policy.max_attempts().min(self.max_attempts);
        deny(self.counted_attempts() >= max_attempts, Fate::AttemptsExhausted)
    }

    /// Plans the next attempt if no other is in flight. A policy that only hedges sends it at once.
    fn repeat(
        &mut self,
        route: &Route,
        policy: &Policy,
        (code, hints): (Code, &Hints<'_>),
        now: Time,
        random: u64,
    ) -> Result<Next, Fate> {
        let mut waits = self.waits;
        let kind = if policy.retry.is_some() { AttemptKind::Retry } else { AttemptKind::Hedge };
        // An expired pushback does not affect the next wait.
        let not_before = self.not_before.filter(|not_before| *not_before >= now);
        let wait = match (not_before, hints.wait, &policy.retry) {
            (Some(not_before), ..) => {
                waits.restart();
                not_before.since(now)
            }
            (None, Some(wait), _) => wait,
            (None, None, Some(retry)) => {
                waits.next(&retry.backoff, code, random).ok_or(Fate::AttemptsExhausted)?
            }
            (None, None, None) => Duration::ZERO,
        };
        self.check_stop(hints, wait, now)?;
        self.may_send_after(route, policy, wait, now)?;
        let taken = admit(route, policy, kind, self.is_counted(now), now)?;
        self.waits = waits;
        let max_duration = policy.retry.as_ref().and_then(|retry| retry.max_duration);
        self.wait_for_request(max_duration.map(|max| self.start.now + max), now);
        Ok(Next::Repeat { at: now + wait, kind, taken })
    }

    /// Brings the next hedge forward after a failure while others are in flight. Its checks run then.
    fn hedge_early(&self, now: Time) -> Next {
        match self.hedges_left {
            0 => Next::Nothing,
            _ => Next::Hedge { at: self.not_before.map_or(now, |not_before| not_before.max(now)) },
        }
    }

    /// Checks if a hedge may be sent; if so, counts and reserves it.
    pub(super) fn may_hedge(&mut self, route: &Route, policy: &Policy, now: Time) -> bool {
        let checked = deny(route.switch().stops_repeats(now), Fate::Killed)
            .and_then(|()| self.may_send_more(policy, false))
            .and_then(|()| self.may_send_after(route, policy, Duration::ZERO, now));
        if checked.is_err() {
            return false;
        }
        let is_counted = self.is_counted(now);
        let Some(newest) = self.in_flight.newest_mut() else {
            // In observe mode, after the attempt has ended and was counted.
            return admit(route, policy, AttemptKind::Hedge, true, now).is_ok();
        };
        // The overtaken attempt counts as failed before the breaker is checked.
        let is_counted = is_counted && newest.overtaken;
        let admitted = admit(route, policy, AttemptKind::Hedge, is_counted, now).is_ok();
        if admitted && !is_counted {
            newest.overtaken = true;
        }
        admitted
    }

    /// Returns true if a failure of this call was just counted. One counted earlier may have left the window.
    fn is_counted(&self, now: Time) -> bool {
        self.counted_at == Some(now)
    }

    /// Checks `stop_when`, `max_duration` and the deadline, with the wait.
    fn may_send_after(&self, route: &Route, policy: &Policy, wait: Duration, now: Time) -> Result<(), Fate> {
        let stops = policy.stop_when.is_some_and(|stop_when| self.stops(&stop_when, route, now));
        deny(stops, Fate::StopWhen)?;
        let max_duration = policy.retry.as_ref().and_then(|retry| retry.max_duration);
        let next_send = now + wait;
        let too_late = max_duration.is_some_and(|max| next_send.since(self.start.now) >= max);
        deny(too_late, Fate::MaxDuration)?;
        deny(self.could_not_finish(route, wait, now), Fate::Deadline)
    }

    fn stops(&self, stop_when: &StopWhen, route: &Route, now: Time) -> bool {
        let took = now.since(self.start.now);
        route.state().recent().is_some_and(|recent| stop_when.is_slow(recent, took, now))
            || stop_when.has_few_successes(route.window(), now)
    }

    /// Returns the wait that the server asked for, with its random part if time is left for it. Errors if the
    /// server forbids retries or the wait is too long.
    fn pushback(&self, failure: &Failure, spread: Duration, now: Time) -> Result<Option<Duration>, Fate> {
        match failure.pushback {
            None => Ok(None),
            // The flag came with its translation for plain gRPC clients, and the rule ignores the flag.
            Some(Pushback::Stop) if failure.no_more_retry => Ok(None),
            Some(Pushback::Stop) => Err(Fate::Pushback),
            Some(Pushback::After(wait)) => {
                let is_beyond =
                    |wait| self.rule_deadline.is_some_and(|deadline: Time| now + wait >= deadline);
                deny(wait > MAX_PUSHBACK || is_beyond(wait), Fate::Pushback)?;
                let later = wait.saturating_add(spread);
                Ok(Some(if is_beyond(later) { wait } else { later }))
            }
        }
    }

    fn could_not_finish(&self, route: &Route, wait: Duration, now: Time) -> bool {
        let Some(deadline) = self.rule_deadline else {
            return false;
        };
        let typical = route.state().recent().and_then(|recent| recent.median(now, MEDIAN_MIN_SAMPLES));
        let typical = typical.unwrap_or(Duration::ZERO);
        deadline.since(now) <= wait.saturating_add(typical)
    }
}

/// Reservations of a planned attempt: used when it is sent, or returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) paid: Option<Paid>,
    budget: Option<Reservation>,
}

impl Taken {
    pub(super) fn give_back(self, route: &Route) {
        route.give_back(self.paid);
        if let Some(reservation) = self.budget {
            route.spending().refund(reservation);
        }
    }
}

/// Checks retry breaker, then budget. The bound of a ratio requires that each attempt counts as a failure
/// when it is checked, because it has failed or because it is slow.
pub(super) fn admit(
    route: &Route,
    policy: &Policy,
    kind: AttemptKind,
    is_counted: bool,
    now: Time,
) -> Result<Taken, Fate> {
    if is_counted {
        return take(route, policy, kind, now);
    }
    route.count(true, now);
    take(route, policy, kind, now).inspect_err(|_| route.window().take_back_failure(now))
}

fn take(route: &Route, policy: &Policy, kind: AttemptKind, now: Time) -> Result<Taken, Fate> {
    let paid = match (&policy.retry_breaker, kind) {
        (None, _) => None,
        (Some(breaker), AttemptKind::Hedge) => {
            deny(!breaker::admits_hedge(breaker, route.window().counts(now)), Fate::RetryBreaker)?;
            None
        }
        (Some(breaker), _) => Some(route.pay(breaker, now).ok_or(Fate::RetryBreaker)?),
    };
    let Some(budget) = policy.budget else { return Ok(Taken { paid, budget: None }) };
    let reserved = route.spending().reserve(&budget, now);
    if reserved.is_none() {
        route.give_back(paid);
    }
    Ok(Taken { paid, budget: Some(reserved.ok_or(Fate::Budget)?) })
}

pub(super) fn deny(denied: bool, fate: Fate) -> Result<(), Fate> {
    if denied { Err(fate) } else { Ok(()) }
}
