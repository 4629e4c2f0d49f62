//! Records the attempts of a call that fails: when each was sent and how it ended.
//!
//! A call whose first attempt succeeds stores a few words; a passthrough call starts its record when it
//! fails. The list begins with the first failure or the second attempt, and only while its route records any,
//! see `crate::routes::failed_calls`.

use std::borrow::Cow;
use std::time::SystemTime;

use damper_core::failed_call::MAX_ATTEMPTS;
use damper_core::{AttemptKind, Code, Finish, SendAttempt, Time, Verdict};

use crate::outcome::cause::{self, Cause};
use crate::record::report::CallReport;
use crate::routes::failed_calls::{FailedAttempt, FailedCall, Failures, Ids};

/// Attempts of one call.
#[derive(Debug)]
pub(crate) struct AttemptTrail<I = Ids> {
    began: Time,
    ids: I,
    sends: u32,
    /// Number of the first attempt.
    first: u32,
    attempts: Attempts,
}

#[derive(Debug)]
enum Attempts {
    /// At most the first attempt, sent at the start of the call and not ended.
    First,
    Listed(Vec<FailedAttempt>),
    /// Enough calls were recorded already.
    Skipped,
}

impl AttemptTrail {
    /// As [`ended_with`](Self::ended_with), with the ids given at the beginning.
    pub(crate) fn ended(&mut self, finish: &Finish, code: Code, now: Time, failures: &Failures) {
        self.ended_with(self.ids, finish, code, now, failures);
    }
}

impl<I> AttemptTrail<I> {
    /// Begins a trail. `ids`: of the call, or `()` if they are given at the end.
    pub(crate) fn begin(ids: I, now: Time) -> Self {
        Self { began: now, ids, sends: 0, first: 1, attempts: Attempts::First }
    }

    /// Returns the record of a call whose only attempt was sent at its start.
    pub(crate) fn of_first(ids: I, began: Time) -> Self {
        Self { sends: 1, ..Self::begin(ids, began) }
    }

    /// Returns the report of the call.
    pub(crate) fn report(&self, finish: &Finish, now: Time) -> CallReport {
        CallReport::new(finish, self.sends, now.since(self.began))
    }

    /// Number of attempts of any kind.
    pub(crate) fn sends(&self) -> u32 {
        self.sends
    }

    pub(crate) fn sent(&mut self, send: &SendAttempt, now: Time, failures: &Failures) {
        if self.sends > 0 {
            let attempt = self.in_flight(send.attempt, send.kind, now);
            if let Some(list) = self.list(failures, now).filter(|list| list.len() < MAX_ATTEMPTS) {
                list.push(attempt);
            }
        } else {
            self.first = send.attempt;
        }
        self.sends = self.sends.saturating_add(1);
    }

    /// Records the end of an attempt.
    pub(crate) fn attempt_ended(
        &mut self,
        number: u32,
        code: Code,
        verdict: &Verdict,
        cause: Cause<'_>,
        now: Time,
        failures: &Failures,
    ) {
        if *verdict == Verdict::Success {
            return;
        }
        let after = now.since(self.began);
        let Some(list) = self.list(failures, now) else { return };
        let in_flight = |attempt: &&mut FailedAttempt| attempt.number == number && attempt.took.is_none();
        if let Some(attempt) = list.iter_mut().rev().find(in_flight) {
            attempt.took = Some(after.saturating_sub(attempt.sent_after));
            attempt.code = code;
            attempt.detail = cause::detail(verdict, cause);
        }
    }

    /// Records a timeout for all attempts in flight.
    pub(crate) fn timed_out(&mut self, now: Time, failures: &Failures) {
        let after = now.since(self.began);
        let in_flight = self.list(failures, now).into_iter().flatten();
        for attempt in in_flight.filter(|attempt| attempt.took.is_none()) {
            attempt.took = Some(after.saturating_sub(attempt.sent_after));
            attempt.code = Code::DeadlineExceeded;
            attempt.detail = Cow::Borrowed(cause::OVER);
        }
    }

    /// Records the end of the call with the code that the application got.
    pub(crate) fn ended_with(
        &mut self,
        ids: Ids,
        finish: &Finish,
        code: Code,
        now: Time,
        failures: &Failures,
    ) {
        if finish.ending.fate.is_ok() {
            return;
        }
        self.list(failures, now);
        let Attempts::Listed(attempts) = std::mem::replace(&mut self.attempts, Attempts::Skipped) else {
            return;
        };
        let latency = now.since(self.began);
        let (ending, sends) = (finish.ending, self.sends);
        failures.put(now, || FailedCall {
            ending,
            code,
            ended_at: SystemTime::now(),
            latency,
            attempts,
            sends,
            ids: ids.kept(),
        });
    }

    /// Returns the list. Begins it if the route records any, with the first attempt if sent.
    fn list(&mut self, failures: &Failures, now: Time) -> Option<&mut Vec<FailedAttempt>> {
        if matches!(self.attempts, Attempts::First) {
            let first = (self.sends > 0).then(|| self.in_flight(self.first, AttemptKind::First, self.began));
            self.attempts = if failures.has_room_at(now) {
                Attempts::Listed(first.into_iter().collect())
            } else {
                Attempts::Skipped
            };
        }
        match &mut self.attempts {
            Attempts::Listed(list) => Some(list),
            Attempts::First | Attempts::Skipped => None,
        }
    }

    fn in_flight(&self, number: u32, kind: AttemptKind, now: Time) -> FailedAttempt {
        FailedAttempt {
            number,
            sent_after: now.since(self.began),
            took: None,
            code: Code::Cancelled,
            hedge: kind == AttemptKind::Hedge,
            detail: Cow::Borrowed(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use damper_core::{Answer, Ending, Failure, Fate};

    use super::*;

    #[test]
    fn attempts_of_a_continued_call_are_recorded_by_their_numbers() {
        let (failures, now) = (Failures::new(std::sync::Arc::default()), Time::from_micros(1));
        let mut trail = AttemptTrail::begin(Ids::default(), now);
        let send = SendAttempt { attempt: 5, kind: AttemptKind::Retry, limit: None, flag: Some(4) };
        trail.sent(&send, now, &failures);
        let verdict = Verdict::Failure(Failure::new(Code::Unavailable));
        trail.attempt_ended(5, Code::Unavailable, &verdict, Cause::Over, now, &failures);
        let (ending, answer) = (Ending::real(Fate::PolicyOff), Answer::Attempt(5));
        let finish = Finish { ending, answer, marks_context: false };
        trail.ended(&finish, Code::Unavailable, now, &failures);
        let attempts = failures.take().pop_front().unwrap().attempts;
        let found: Vec<_> = attempts.iter().map(|attempt| (attempt.number, attempt.code)).collect();
        assert_eq!(found, [(5, Code::Unavailable)]);
    }
}
