//! Whether a report is of the process whose totals are known.
//!
//! An instance id names one process, but two may have been given the same, and what an old stream still delivers can
//! arrive after the first report of its successor. Both look like totals that fell; taken for a restart, all that a
//! process ever counted would be counted again with every report. A report says how long its counters have been
//! counting, so the time at which they began is known, and with it: fallen totals of counters that began at the same
//! time are out of date; a process that began after the last report is the next one; what began earlier and at another
//! time is somebody else's. The process that reported first is believed until it falls silent.

use std::time::Duration;

/// So far apart two reports of one process can put its start: a report is under way for a while, and clocks differ.
const SAME_START_WITHIN: Duration = Duration::from_secs(5);
/// Whom only doubtful reports come from for so long, that is the process now.
const BELIEVED_AFTER: Duration = Duration::from_secs(20);
/// Once a late part is no sign of a second process; twice, with good reports in between, is.
const ENOUGH_DOUBTS: u32 = 2;
/// An instance id that is shared is told for so long after the last sign of it.
const TOLD_FOR: Duration = Duration::from_secs(120);

/// Whose report it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportOrigin {
    /// It does not say how long its counters have been counting: totals that fell are a restart's.
    Unknown,
    /// The process whose totals are known.
    Same,
    /// The process that came after it.
    Next,
    /// Most likely another one that has the same name.
    Doubtful,
}

/// What is known of the processes behind one name.
#[derive(Debug, Default)]
pub(crate) struct RestartTracker {
    start: Option<Duration>,
    last_sound: Option<Duration>,
    doubt: Option<SuspectReports>,
    doubts: u32,
    doubted_at: Duration,
}

/// Reports that no sound one came after.
#[derive(Debug)]
struct SuspectReports {
    since: Duration,
    fell: bool,
}

impl RestartTracker {
    /// Whose report it is whose counters began at this time.
    pub(crate) fn of(&self, now: Duration, start: Option<Duration>) -> ReportOrigin {
        let (Some(start), Some(known)) = (start, self.start) else { return ReportOrigin::Unknown };
        let is_believed = |doubt: &SuspectReports| doubt.fell && doubt.has_lasted(now);
        if self.doubt.as_ref().is_some_and(is_believed) {
            ReportOrigin::Next
        } else if start.abs_diff(known) <= SAME_START_WITHIN {
            ReportOrigin::Same
        } else if self.last_sound.is_none_or(|last| start + SAME_START_WITHIN >= last) {
            ReportOrigin::Next
        } else {
            ReportOrigin::Doubtful
        }
    }

    /// When the counters began, where that is known.
    pub(crate) fn start(&self) -> Option<Duration> {
        self.start
    }

    /// Notes a report, and whether totals in it fell; answers whether it was sound.
    pub(crate) fn note(
        &mut self,
        now: Duration,
        start: Option<Duration>,
        from: ReportOrigin,
        fell: bool,
    ) -> bool {
        if from == ReportOrigin::Doubtful || (from == ReportOrigin::Same && fell) {
            if self.doubt.is_none() {
                let is_long_ago = now.saturating_sub(self.doubted_at) >= TOLD_FOR;
                self.doubts = if is_long_ago { 1 } else { self.doubts.saturating_add(1) };
                self.doubted_at = now;
            }
            let doubt = self.doubt.get_or_insert(SuspectReports { since: now, fell });
            doubt.fell |= fell;
            // A process that was suspended counts on, and its clock was late for ever after.
            if doubt.fell || !doubt.has_lasted(now) {
                return false;
            }
        }
        self.start = start.or(self.start);
        self.last_sound = Some(now);
        self.doubt = None;
        true
    }

    /// True if several processes report under the name.
    pub(crate) fn are_several(&self, now: Duration) -> bool {
        self.doubts >= ENOUGH_DOUBTS && now.saturating_sub(self.doubted_at) < TOLD_FOR
    }
}

impl SuspectReports {
    fn has_lasted(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= BELIEVED_AFTER
    }
}
