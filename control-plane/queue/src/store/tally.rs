//! Counts of a lane as they change with each row.

use std::sync::Arc;

use damper_core::job::Wall;

use super::interface::LaneCounts;
use super::record::{Lane, Record, StateKind};

/// Jobs by state, and bytes: a sum, or its change in one commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) waiting: i64,
    pub(super) behind: i64,
    pub(super) leased: i64,
    pub(super) dead: i64,
    pub(super) ended: i64,
    pub(super) bytes: i64,
}

impl Tally {
    /// Counts a job, or takes it out with `times` = -1.
    pub(super) fn count(&mut self, record: &Record, times: i64) {
        *match record.state.kind() {
            StateKind::Waiting => &mut self.waiting,
            StateKind::Behind => &mut self.behind,
            StateKind::Leased => &mut self.leased,
            StateKind::Dead => &mut self.dead,
            StateKind::Done | StateKind::Cancelled | StateKind::Expired => &mut self.ended,
        } += times;
        self.bytes += times * i64::try_from(record.bytes()).unwrap_or(i64::MAX);
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            behind: self.behind + other.behind,
            leased: self.leased + other.leased,
            dead: self.dead + other.dead,
            ended: self.ended + other.ended,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Returns true if the lane has no job.
    pub(super) fn is_empty(&self) -> bool {
        let Self { waiting, behind, leased, dead, ended, bytes: _ } = *self;
        [waiting, behind, leased, dead, ended].iter().all(|count| *count == 0)
    }

    /// Returns the jobs in these states; empty: in all.
    pub(super) fn in_states(&self, states: &[StateKind]) -> i64 {
        let all = [
            (self.waiting, StateKind::Waiting),
            (self.behind, StateKind::Behind),
            (self.leased, StateKind::Leased),
            (self.dead, StateKind::Dead),
            (self.ended, StateKind::Done),
        ];
        let is_ended = |state: &StateKind| !state.is_live() && *state != StateKind::Dead;
        let wanted = |state: StateKind| match state {
            StateKind::Done => states.iter().any(is_ended),
            _ => states.contains(&state),
        };
        all.iter().filter(|(_, state)| states.is_empty() || wanted(*state)).map(|(count, _)| count).sum()
    }

    /// Returns the counts of a lane.
    pub(super) fn of_lane(
        self,
        lane: Arc<Lane>,
        next_due: Option<Wall>,
        next_first_due: Option<Wall>,
    ) -> LaneCounts {
        LaneCounts {
            lane,
            waiting: self.waiting.cast_unsigned(),
            behind: self.behind.cast_unsigned(),
            leased: self.leased.cast_unsigned(),
            dead: self.dead.cast_unsigned(),
            ended: self.ended.cast_unsigned(),
            bytes: self.bytes.cast_unsigned(),
            next_due,
            next_first_due,
        }
    }
}
