//! The attempts of a call that have been sent and have not ended.
//!
//! There is one, unless a hedge was sent beside it: only then anything is allocated.

use std::time::Duration;

use crate::route::Paid;
use crate::time::Time;

use super::AttemptKind;

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) attempt: u32,
    pub(super) kind: AttemptKind,
    pub(super) sent_at: Time,
    /// Until when the rule gives it time; cuts it in enforce mode only.
    pub(super) limit: Option<Time>,
    /// What it was paid with, if it is a retry.
    pub(super) paid: Option<Paid>,
    /// Its answer has begun.
    pub(super) committed: bool,
    /// When, where hedges are timed by that.
    pub(super) begun_at: Option<Time>,
    /// A hedge was sent because of it, and it was counted as failed for that: its own end is not counted.
    pub(super) overtaken: bool,
}

impl Pending {
    /// How long it took; if it has begun to be answered, until then.
    pub(super) fn took(&self, now: Time) -> Duration {
        self.begun_at.unwrap_or(now).since(self.sent_at)
    }
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// The one that was sent last.
    newest: Option<Pending>,
    /// Those before it.
    older: Vec<Pending>,
}

impl InFlight {
    pub(super) fn push(&mut self, pending: Pending) {
        self.older.extend(self.newest.replace(pending));
    }

    /// Takes out an attempt that ended.
    pub(super) fn take(&mut self, attempt: u32) -> Option<Pending> {
        if self.newest.is_some_and(|newest| newest.attempt == attempt) {
            let taken = self.newest.take();
            self.newest = self.older.pop();
            return taken;
        }
        let index = self.older.iter().position(|pending| pending.attempt == attempt)?;
        Some(self.older.remove(index))
    }

    /// The attempt whose answer has begun; the others are given up and returned.
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

    /// The answer to the only attempt that is left has begun now.
    pub(super) fn begins(&mut self, now: Time) {
        if let Some(only) = &mut self.newest {
            only.begun_at = Some(now);
        }
    }

    /// All of them failed: what they were paid with does not come back.
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

    /// When the first of them runs out of time.
    pub(super) fn first_limit(&self) -> Option<(Time, u32)> {
        self.iter().filter_map(|pending| Some((pending.limit?, pending.attempt))).min()
    }
}
