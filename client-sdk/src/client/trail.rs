//! What a call leaves behind if it does not end well: when each attempt was sent and what came of it.
//!
//! A call whose first attempt is answered keeps a few words; one that passes begins its trail when it fails. A list is
//! begun with the first failure or the second send, and only while its route takes any, see `crate::failures`.

use std::borrow::Cow;
use std::time::SystemTime;

use damper_core::failed_call::MAX_ATTEMPTS;
use damper_core::{AttemptKind, Code, Finish, SendAttempt, Time, Verdict};

use super::cause::{self, Cause};
use crate::failures::{FailedAttempt, FailedCall, Failures, Ids};

/// The traces of one call.
#[derive(Debug)]
pub(super) struct AttemptTrail {
    began: Time,
    ids: Ids,
    sends: u32,
    attempts: Attempts,
}

#[derive(Debug)]
enum Attempts {
    /// The first at most, sent at once and not ended.
    First,
    Listed(Vec<FailedAttempt>),
    /// Enough calls are told of already.
    Untold,
}

impl AttemptTrail {
    pub(super) fn begin(ids: Ids, now: Time) -> Self {
        Self { began: now, ids, sends: 0, attempts: Attempts::First }
    }

    /// That of a call whose only attempt was sent when it began.
    pub(super) fn of_first(ids: Ids, began: Time) -> Self {
        Self { sends: 1, ..Self::begin(ids, began) }
    }

    /// Sends of any kind.
    pub(super) fn sends(&self) -> u32 {
        self.sends
    }

    pub(super) fn sent(&mut self, send: &SendAttempt, now: Time, failures: &Failures) {
        if self.sends > 0 {
            let attempt = self.under_way(send.attempt, send.kind, now);
            if let Some(list) = self.list(failures, now).filter(|list| list.len() < MAX_ATTEMPTS) {
                list.push(attempt);
            }
        }
        self.sends = self.sends.saturating_add(1);
    }

    /// An attempt ended with this code.
    pub(super) fn attempt_ended(
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
        let under_way = |attempt: &&mut FailedAttempt| attempt.number == number && attempt.took.is_none();
        if let Some(attempt) = list.iter_mut().rev().find(under_way) {
            attempt.took = Some(after.saturating_sub(attempt.sent_after));
            attempt.code = code;
            attempt.detail = cause::detail(verdict, cause);
        }
    }

    /// The time of all that is under way was over.
    pub(super) fn timed_out(&mut self, now: Time, failures: &Failures) {
        let after = now.since(self.began);
        let under_way = self.list(failures, now).into_iter().flatten();
        for attempt in under_way.filter(|attempt| attempt.took.is_none()) {
            attempt.took = Some(after.saturating_sub(attempt.sent_after));
            attempt.code = Code::DeadlineExceeded;
            attempt.detail = Cow::Borrowed(cause::OVER);
        }
    }

    /// The call ended so, and the application got this code.
    pub(super) fn ended(&mut self, finish: &Finish, code: Code, now: Time, failures: &Failures) {
        if finish.ending.fate.is_ok() {
            return;
        }
        self.list(failures, now);
        let Attempts::Listed(attempts) = std::mem::replace(&mut self.attempts, Attempts::Untold) else {
            return;
        };
        let latency = now.since(self.began);
        let (ending, sends, ids) = (finish.ending, self.sends, self.ids);
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

    /// The list, begun now if the route takes any; with the first attempt if that was sent.
    fn list(&mut self, failures: &Failures, now: Time) -> Option<&mut Vec<FailedAttempt>> {
        if matches!(self.attempts, Attempts::First) {
            let first = (self.sends > 0).then(|| self.under_way(1, AttemptKind::First, self.began));
            self.attempts = if failures.has_room_at(now) {
                Attempts::Listed(first.into_iter().collect())
            } else {
                Attempts::Untold
            };
        }
        match &mut self.attempts {
            Attempts::Listed(list) => Some(list),
            Attempts::First | Attempts::Untold => None,
        }
    }

    fn under_way(&self, number: u32, kind: AttemptKind, now: Time) -> FailedAttempt {
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
