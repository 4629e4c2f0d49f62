//! Detects restarts and shared instance ids in the reports of a process.
//!
//! An instance id should be unique, but may be shared by mistake, and an old stream can still deliver a
//! report after the first one of its successor. Both look like totals that fell; if taken for a restart, all
//! calls of a process would be counted again with every report. A report contains the age of its counters, so
//! their start is known. Lower totals with the same start are out of date. A start after the last report is a
//! restart. An earlier, different start is another process with the same id. The process that reported first
//! wins until it falls silent.

use std::time::Duration;

/// The tolerance between the starts computed from two reports of one process, for latency and clocks.
const SAME_START_WITHIN: Duration = Duration::from_secs(5);
/// If only doubtful reports arrive for this time, their process becomes the current one.
const BELIEVED_AFTER: Duration = Duration::from_secs(20);
/// One late part is no evidence of a second process; two, with valid reports in between, are.
const ENOUGH_DOUBTS: u32 = 2;
/// The time for which a shared instance id is listed after the last evidence.
const LISTED_FOR: Duration = Duration::from_secs(120);

/// The process of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportOrigin {
    /// The report has no age: lower totals mean a restart.
    Unknown,
    /// The process whose totals are known.
    Same,
    /// The restarted process.
    Next,
    /// Most likely another process with the same name.
    Doubtful,
}

/// The known processes behind one name.
#[derive(Debug, Default)]
pub(crate) struct RestartTracker {
    start: Option<Duration>,
    last_sound: Option<Duration>,
    doubt: Option<SuspectReports>,
    doubts: u32,
    doubted_at: Duration,
}

/// Doubtful reports without a valid one after them.
#[derive(Debug)]
struct SuspectReports {
    since: Duration,
    fell: bool,
}

impl RestartTracker {
    /// Identifies the process of a report by the start of its counters.
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

    /// The start of the counters, if known.
    pub(crate) fn start(&self) -> Option<Duration> {
        self.start
    }

    /// Records a report, and whether totals in it fell; returns whether it was valid.
    pub(crate) fn note(
        &mut self,
        now: Duration,
        start: Option<Duration>,
        from: ReportOrigin,
        fell: bool,
    ) -> bool {
        if from == ReportOrigin::Doubtful || (from == ReportOrigin::Same && fell) {
            if self.doubt.is_none() {
                let is_long_ago = now.saturating_sub(self.doubted_at) >= LISTED_FOR;
                self.doubts = if is_long_ago { 1 } else { self.doubts.saturating_add(1) };
                self.doubted_at = now;
            }
            let doubt = self.doubt.get_or_insert(SuspectReports { since: now, fell });
            doubt.fell |= fell;
            // A suspended process continues to count, with a clock that stays late.
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
        self.doubts >= ENOUGH_DOUBTS && now.saturating_sub(self.doubted_at) < LISTED_FOR
    }
}

impl SuspectReports {
    fn has_lasted(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= BELIEVED_AFTER
    }
}
