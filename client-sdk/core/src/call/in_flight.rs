//! Attempts of a call that are in flight.
//!
//! Usually there is one; only further ones, for hedges, allocate.

use std::time::Duration;

use crate::route::Paid;
use crate::time::Time;

use super::AttemptKind;

/// An attempt in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) attempt: u32,
    pub(super) kind: AttemptKind,
    pub(super) sent_at: Time,
    /// Time until which the rule lets it run; cuts it in enforce mode only.
    pub(super) limit: Option<Time>,
    /// Payment, if it is a retry.
    pub(super) paid: Option<Paid>,
    /// Its response has begun.
    pub(super) committed: bool,
    /// Time of that, if hedges are timed by it.
    pub(super) begun_at: Option<Time>,
    /// A hedge followed it and it was counted as failed for that; its own end is not counted.
    pub(super) overtaken: bool,
}

impl Pending {
    /// Returns its latency, until the response began if it did.
    pub(super) fn took(&self, now: Time) -> Duration {
        self.begun_at.unwrap_or(now).since(self.sent_at)
    }
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// The newest attempt.
    newest: Option<Pending>,
    /// Earlier attempts.
    older: Vec<Pending>,
}

impl InFlight {
    pub(super) fn push(&mut self, pending: Pending) {
        self.older.extend(self.newest.replace(pending));
    }

    /// Removes an attempt that ended.
    pub(super) fn take(&mut self, attempt: u32) -> Option<Pending> {
        if self.newest.is_some_and(|newest| newest.attempt == attempt) {
            let taken = self.newest.take();
            self.newest = self.older.pop();
            return taken;
        }
        let index = self.older.iter().position(|pending| pending.attempt == attempt)?;
        Some(self.older.remove(index))
    }

    /// Marks the attempt whose response has begun, and returns all others, which are given up.
    pub(super) fn commit(&mut self, attempt: u32) -> Self {
        if self.older.is_empty()
            && let Some(only) = self.newest.as_mut().filter(|newest| newest.attempt == attempt)
        {
            only.committed = true;
            return Self::default();
        }
        let Some(mut winner) = self.take(attempt) else {
            return Self::default();
        };
        winner.committed = true;
        std::mem::replace(self, Self { newest: Some(winner), older: Vec::new() })
    }

    /// Records that the response to the only attempt left begins now.
    pub(super) fn begins(&mut self, now: Time) {
        if let Some(only) = &mut self.newest {
            only.begun_at = Some(now);
        }
    }

    /// Records that all failed: their payments are not refunded.
    pub(super) fn forfeit(&mut self) {
        self.newest.iter_mut().chain(&mut self.older).for_each(|pending| pending.paid = None);
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Pending> {
        self.newest.as_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.newest.iter().chain(&self.older)
    }

    /// Returns the earliest limit, with its attempt.
    pub(super) fn first_limit(&self) -> Option<(Time, u32)> {
        self.iter().filter_map(|pending| Some((pending.limit?, pending.attempt))).min()
    }
}
