//! What a run's record says in numbers.
//!
//! A request belongs to the part of the run in which it was **due**, with all that it caused, whenever that came.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::load::Ended;
use super::scenario::{Parts, Record, Scenario};
use crate::spread::quantile;

/// The share of requests that must succeed for a chain to be called recovered.
pub const RECOVERED: f64 = 0.95;

/// The numbers of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Before the fault.
    pub healthy: Part,
    /// The breaker's first window of the fault.
    pub first: Part,
    /// The rest of the fault, but for its end.
    pub steady: Part,
    /// After the fault.
    pub after: Part,
    /// The most attempts of one request at the faulty layer in the whole run.
    pub worst: u32,
    /// From the end of the fault to the first second of [`STABLE`] in a row in which [`RECOVERED`] of the requests
    /// due succeeded; none if that did not happen in the run. In milliseconds.
    pub recovery_ms: Option<u64>,
    /// Requests that succeeded, by the second of the run in which they were due, the warm-up included.
    pub goodput: Vec<u32>,
}

/// The numbers of one part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Requests that were due.
    pub requests: usize,
    /// Attempts per request at each layer, from the top, where it is 1.
    pub attempts: Vec<f64>,
    /// Attempts per request at the faulty layer, which is the last but for a fault in the middle.
    pub faulty: f64,
    /// The share of requests that succeeded.
    pub success: f64,
    /// Requests per second that succeeded.
    pub goodput: f64,
    /// How long requests took, failed ones included, from when they were due: the median, in milliseconds.
    pub p50_ms: f64,
    /// The same for the slowest hundredth.
    pub p99_ms: f64,
}

/// Seconds in a row after which a chain is believed to have recovered.
pub const STABLE: usize = 2;

/// The step in which recovery is looked for.
const STEP: Duration = Duration::from_millis(250);

impl Figures {
    /// The numbers of a scenario's run.
    #[must_use]
    pub fn of(record: &Record, scenario: &Scenario) -> Self {
        Self::at(record, &scenario.parts, scenario.faulty() - 1)
    }

    /// The same for any chain; `faulty` is the layer with the fault, the top is 0.
    pub(super) fn at(record: &Record, parts: &Parts, faulty: usize) -> Self {
        let part = |due| Part::of(record, faulty, due);
        Self {
            healthy: part(parts.warm_up..parts.broken()),
            first: part(parts.first()),
            steady: part(parts.steady()),
            after: part(parts.healed()..parts.all()),
            worst: record.arrivals[faulty].iter().copied().max().unwrap_or_default(),
            recovery_ms: recovery(&record.ended, parts)
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            goodput: goodput(&record.ended),
        }
    }
}

impl Part {
    pub(super) fn of(record: &Record, faulty: usize, due: Range<Duration>) -> Self {
        let range = requests(&record.ended, &due);
        let ended = &record.ended[range.clone()];
        let requests = ended.len();
        let per_request = |sum: f64| if requests == 0 { 0.0 } else { sum / requests as f64 };
        let at = |arrivals: &Vec<u32>| {
            let sum: u64 = arrivals[range.clone()].iter().map(|count| u64::from(*count)).sum();
            per_request(sum as f64)
        };
        let succeeded = ended.iter().filter(|ended| ended.success).count() as f64;
        let mut took: Vec<f64> = ended.iter().map(|ended| ended.took.as_secs_f64() * 1e3).collect();
        took.sort_by(f64::total_cmp);
        Self {
            requests,
            attempts: record.arrivals.iter().map(at).collect(),
            faulty: at(&record.arrivals[faulty]),
            success: per_request(succeeded),
            goodput: if requests == 0 { 0.0 } else { succeeded / (due.end - due.start).as_secs_f64() },
            p50_ms: quantile(&took, 0.5),
            p99_ms: quantile(&took, 0.99),
        }
    }
}

/// The requests due in a time.
fn requests(ended: &[Ended], due: &Range<Duration>) -> Range<usize> {
    let from = ended.partition_point(|ended| ended.due < due.start);
    from..ended.partition_point(|ended| ended.due < due.end)
}

fn goodput(ended: &[Ended]) -> Vec<u32> {
    let seconds = ended.last().map_or(0, |last| last.due.as_secs() + 1);
    let due = |second| Duration::from_secs(second)..Duration::from_secs(second + 1);
    let succeeded = |second| {
        let ended = &ended[requests(ended, &due(second))];
        u32::try_from(ended.iter().filter(|ended| ended.success).count()).unwrap_or(u32::MAX)
    };
    (0..seconds).map(succeeded).collect()
}

fn recovery(ended: &[Ended], parts: &Parts) -> Option<Duration> {
    let second = Duration::from_secs(1);
    let good = |from: Duration| {
        let ended = &ended[requests(ended, &(from..from + second))];
        let succeeded = ended.iter().filter(|ended| ended.success).count();
        !ended.is_empty() && succeeded as f64 >= RECOVERED * ended.len() as f64
    };
    let stable = |from: Duration| (0..STABLE as u32).all(|later| good(from + second * later));
    let last = parts.after.checked_sub(second * STABLE as u32)?;
    let steps = last.as_millis() / STEP.as_millis();
    (0..=steps as u32).map(|step| STEP * step).find(|after| stable(parts.healed() + *after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::load::Load;
    use crate::lab::scenario::Trouble;
    use crate::lab::strategy::{Strategy, Times};

    const S: Duration = Duration::from_secs(1);
    const PARTS: Parts =
        Parts { warm_up: S, healthy: S, first: S, steady: S, end: S, after: S.saturating_mul(5) };

    const SCENARIO: Scenario = Scenario {
        layers: 2,
        trouble: Trouble::Errors(100),
        strategy: Strategy::Naive,
        times: Times { attempt: S, bucket: S, deadline: S, hedge: S },
        load: Load { rate: 10, patience: S },
        fleet: None,
        parts: PARTS,
        capacity: None,
        seed: 1,
    };

    /// Ten requests a second; those due in `failing` fail, and arrive three times at the bottom.
    fn record(failing: Range<Duration>) -> Record {
        let due = |number: u32| S * number / 10;
        let fails = |number: u32| failing.contains(&due(number));
        let ended =
            |number| Ended { due: due(number), took: S / 100 * (number % 10), success: !fails(number) };
        let all = 0..u32::try_from(PARTS.all().as_secs()).unwrap() * 10;
        let bottom = |number| if fails(number) { 3 } else { 1 };
        let arrivals = vec![vec![1; all.len()], all.clone().map(bottom).collect()];
        Record { ended: all.map(ended).collect(), arrivals }
    }

    #[test]
    fn requests_belong_to_the_part_in_which_they_were_due() {
        let figures = Figures::of(&record(S * 2..S * 5), &SCENARIO);
        assert_eq!((figures.healthy.requests, figures.healthy.success), (10, 1.0));
        assert_eq!((figures.first.success, figures.first.attempts), (0.0, vec![1.0, 3.0]));
        assert_eq!((figures.worst, figures.steady.faulty, figures.steady.goodput), (3, 3.0, 0.0));
        assert_eq!((figures.after.success, figures.after.goodput), (1.0, 10.0));
        assert_eq!((figures.healthy.p50_ms, figures.healthy.p99_ms), (40.0, 90.0));
        assert_eq!(figures.goodput[..6], [10, 10, 0, 0, 0, 10]);
    }

    #[test]
    fn a_part_that_lasts_no_time_has_no_figures_and_no_division_by_zero() {
        let parts = Parts { steady: Duration::ZERO, ..PARTS };
        let figures = Figures::of(&record(S * 2..S * 5), &Scenario { parts, ..SCENARIO });
        assert_eq!((figures.steady.requests, figures.steady.success, figures.steady.goodput), (0, 0.0, 0.0));
    }

    #[test]
    fn recovery_is_when_two_good_seconds_begin() {
        let recovery = |until| Figures::of(&record(S * 2..until), &SCENARIO).recovery_ms;
        assert_eq!(recovery(S * 5), Some(0));
        assert_eq!(recovery(S * 6), Some(1000));
        assert_eq!(recovery(S * 9), None, "one good second is left, which is no proof");
    }
}
