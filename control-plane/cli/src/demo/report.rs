//! Results of a run of the demo as JSON, for tests and the picture in the README.
//!
//! Calls and attempts come from the ledger: arrivals at each layer, in the second in which their request
//! started. Fates are counters of the SDKs, read at the end of a phase; calls then in flight belong to the
//! next phase, so fates can differ from the calls of the ledger by a few.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::chain::HOPS;
use super::kept::KeptOrders;
use super::ledger::{LAYERS, Second, Sums};
use super::operator::Applied;

const BOTTOM: usize = LAYERS.len() - 1;

/// Number of calls of one hop by fate.
pub(super) type Fates = BTreeMap<String, u64>;

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) chain: [&'static str; LAYERS.len()],
    pub(super) load_per_s: u32,
    pub(super) seed: u64,
    /// The retry breaker's window.
    pub(super) window_s: f64,
    /// Time from sending the governed rules to the last acknowledgement.
    pub(super) apply_to_last_ack_ms: Option<f64>,
    pub(super) apply: Option<Apply>,
    pub(super) phases: Vec<Phase>,
    pub(super) governed: Option<Governed>,
    pub(super) healed: Option<Healed>,
    pub(super) kept: Option<KeptReport>,
    pub(super) prediction: Option<Prediction>,
}

/// Delivery of the governed rules.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Apply {
    pub(super) revision: u64,
    pub(super) acknowledged: Vec<Acknowledged>,
    /// Requests started between the apply and the last acknowledgement; they belong to no phase.
    pub(super) requests_meanwhile: u64,
    pub(super) bottom_attempts_meanwhile: u64,
}

/// One service's acknowledgement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Acknowledged {
    pub(super) service: String,
    pub(super) after_ms: f64,
}

/// One phase of the scenario.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) seconds: u64,
    /// Share of calls that stock failed, in percent.
    pub(super) fault_percent: f64,
    pub(super) requests: u64,
    pub(super) succeeded: u64,
    pub(super) success_percent: Option<f64>,
    pub(super) bottom_attempts: u64,
    pub(super) bottom_amplification: Option<f64>,
    pub(super) bottom_amplification_by_second: Vec<Option<f64>>,
    pub(super) requests_by_second: Vec<u64>,
    pub(super) success_percent_by_second: Vec<Option<f64>>,
    pub(super) layers: Vec<Layer>,
}

/// One hop: a layer that retries, and its callee.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Layer {
    pub(super) caller: &'static str,
    pub(super) callee: &'static str,
    pub(super) calls: u64,
    pub(super) attempts: u64,
    pub(super) amplification: Option<f64>,
    pub(super) fates: Fates,
}

/// The outage under governed rules.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Governed {
    /// Requests started in the first second after the last acknowledgement.
    pub(super) first_second_amplification: Option<f64>,
    /// Requests started after a window.
    pub(super) after_window_amplification: Option<f64>,
}

/// The time after the outage.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Healed {
    /// Start of the last request with a failure at the bottom that was not retried; `None`: all were.
    pub(super) last_not_retried_after_s: Option<f64>,
    /// Start of the first request with a failure at the bottom that was retried.
    pub(super) first_retry_after_s: Option<f64>,
    /// Requests started after a window.
    pub(super) after_window_success_percent: Option<f64>,
}

/// Orders kept during an outage.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct KeptReport {
    #[serde(flatten)]
    pub(super) orders: KeptOrders,
    /// From the recovery of stock to the last delivery.
    pub(super) delivered_after_s: f64,
}

/// Predicted and measured effect of the naive rules.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Prediction {
    pub(super) hops: Vec<PredictedHop>,
    /// Product over the hops, since the flags are off.
    pub(super) bottom_amplification: f64,
    pub(super) measured: Option<f64>,
}

/// Prediction for one hop.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PredictedHop {
    pub(super) caller: &'static str,
    pub(super) callee: &'static str,
    pub(super) calls: u64,
    pub(super) would_retry: u64,
    pub(super) max_attempts: u32,
    /// Sum of p^k for k < `max_attempts`, with p the share of calls that would have been retried.
    pub(super) attempts_per_call: f64,
}

impl Phase {
    /// Sums up a phase of this length.
    pub(super) fn of(
        name: &'static str,
        seconds: u64,
        fault_percent: f64,
        sums: &Sums,
        fates: &[Fates],
    ) -> Self {
        let whole = total(&sums.seconds);
        let full_seconds = || sums.seconds.iter().take(usize::try_from(seconds).unwrap_or(usize::MAX));
        Self {
            name,
            seconds,
            fault_percent,
            requests: whole.started,
            succeeded: whole.succeeded,
            success_percent: success_percent(&whole),
            bottom_attempts: whole.arrivals[BOTTOM],
            bottom_amplification: bottom_amplification(&whole),
            bottom_amplification_by_second: full_seconds().map(bottom_amplification).collect(),
            requests_by_second: full_seconds().map(|second| second.started).collect(),
            success_percent_by_second: full_seconds().map(success_percent).collect(),
            layers: layers(&whole, fates),
        }
    }
}

impl Apply {
    pub(super) fn of(applied: &Applied, meanwhile: &Sums) -> Self {
        let acknowledged = applied
            .acknowledged
            .iter()
            .map(|(service, after)| Acknowledged { service: service.clone(), after_ms: millis(*after) });
        let meanwhile = total(&meanwhile.seconds);
        Self {
            revision: applied.revision,
            acknowledged: acknowledged.collect(),
            requests_meanwhile: meanwhile.started,
            bottom_attempts_meanwhile: meanwhile.arrivals[BOTTOM],
        }
    }
}

impl Governed {
    pub(super) fn of(sums: &Sums, window: Duration) -> Self {
        Self {
            first_second_amplification: sums.seconds.first().and_then(bottom_amplification),
            after_window_amplification: bottom_amplification(&total(from(&sums.seconds, window))),
        }
    }
}

impl Healed {
    pub(super) fn of(sums: &Sums, window: Duration) -> Self {
        Self {
            last_not_retried_after_s: sums.last_not_repeated.map(|after| after.as_secs_f64()),
            first_retry_after_s: sums.first_repeated.map(|after| after.as_secs_f64()),
            after_window_success_percent: success_percent(&total(from(&sums.seconds, window))),
        }
    }
}

impl Prediction {
    /// Predicts from the fates in observe mode and the attempts per call of each hop.
    pub(super) fn of(observed: &[Fates], max_attempts: &[u32]) -> Self {
        let hops: Vec<_> = HOPS
            .iter()
            .zip(observed)
            .zip(max_attempts)
            .map(|((hop, fates), &max_attempts)| {
                let calls = fates.values().sum();
                let would_retry = fates.get("would_retry").copied().unwrap_or(0);
                let share = ratio(would_retry, calls).unwrap_or(0.0);
                PredictedHop {
                    caller: hop.caller,
                    callee: hop.callee,
                    calls,
                    would_retry,
                    max_attempts,
                    attempts_per_call: attempts_per_call(share, max_attempts),
                }
            })
            .collect();
        Self {
            bottom_amplification: hops.iter().map(|hop| hop.attempts_per_call).product(),
            hops,
            measured: None,
        }
    }
}

/// Sum of p^k for k < r.
fn attempts_per_call(p: f64, r: u32) -> f64 {
    (0..r).map(|k| p.powf(f64::from(k))).sum()
}

/// Returns the difference of two counts.
pub(super) fn since(earlier: &[Fates], now: &[Fates]) -> Vec<Fates> {
    let difference = |(earlier, now): (&Fates, &Fates)| -> Fates {
        let counts = now.iter().map(|(fate, count)| {
            let before = earlier.get(fate).copied().unwrap_or(0);
            (fate.clone(), count.saturating_sub(before))
        });
        counts.filter(|(_, count)| *count > 0).collect()
    };
    earlier.iter().zip(now).map(difference).collect()
}

fn layers(whole: &Second, fates: &[Fates]) -> Vec<Layer> {
    let layer = |(caller, hop): (usize, &super::chain::Hop)| {
        let (calls, attempts) = (whole.arrivals[caller], whole.arrivals[caller + 1]);
        Layer {
            caller: hop.caller,
            callee: hop.callee,
            calls,
            attempts,
            amplification: ratio(attempts, calls),
            fates: fates.get(caller).cloned().unwrap_or_default(),
        }
    };
    HOPS.iter().enumerate().map(layer).collect()
}

/// Attempts at the bottom per request; `None` without requests.
pub(super) fn bottom_amplification(second: &Second) -> Option<f64> {
    ratio(second.arrivals[BOTTOM], second.started)
}

/// Successful requests in percent.
pub(super) fn success_percent(second: &Second) -> Option<f64> {
    ratio(second.succeeded, second.started).map(|share| share * 100.0)
}

/// Returns the seconds after `after`.
fn from(seconds: &[Second], after: Duration) -> &[Second] {
    let skipped = usize::try_from(after.as_millis().div_ceil(1000)).unwrap_or(usize::MAX);
    seconds.get(skipped..).unwrap_or_default()
}

pub(super) fn total(seconds: &[Second]) -> Second {
    seconds.iter().fold(Second::default(), |mut sum, second| {
        sum.started += second.started;
        sum.succeeded += second.succeeded;
        sum.ended += second.ended;
        for (sum, arrivals) in sum.arrivals.iter_mut().zip(second.arrivals) {
            *sum += arrivals;
        }
        sum
    })
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    #[allow(clippy::cast_precision_loss, reason = "counts of a demo are far below 2^53")]
    (whole > 0).then(|| part as f64 / whole as f64)
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(started: u64, succeeded: u64, arrivals: [u64; 4]) -> Second {
        Second { started, succeeded, ended: started, arrivals }
    }

    fn sums(seconds: Vec<Second>) -> Sums {
        Sums { seconds, ..Sums::default() }
    }

    fn fates(counts: &[(&str, u64)]) -> Fates {
        counts.iter().map(|&(fate, count)| (fate.to_owned(), count)).collect()
    }

    #[test]
    fn phase_divides_attempts_by_requests() {
        let sums = sums(vec![
            second(40, 30, [40, 120, 360, 1080]),
            second(0, 0, [0; 4]),
            second(10, 10, [10, 10, 10, 20]),
            second(1, 1, [1, 1, 1, 1]),
        ]);
        let phase = Phase::of("naive", 3, 100.0, &sums, &[fates(&[("ok", 3)]), fates(&[]), fates(&[])]);
        assert_eq!(phase.bottom_amplification_by_second, [Some(27.0), None, Some(2.0)]);
        assert_eq!(phase.success_percent_by_second, [Some(75.0), None, Some(100.0)]);
        assert_eq!(phase.requests_by_second, [40, 0, 10]);
        assert_eq!((phase.requests, phase.bottom_attempts), (51, 1101));
        assert_eq!(phase.bottom_amplification, Some(1101.0 / 51.0));
        let hops: Vec<_> = phase.layers.iter().map(|layer| (layer.calls, layer.attempts)).collect();
        assert_eq!(hops, [(51, 131), (131, 371), (371, 1101)]);
        assert_eq!(phase.layers[0].fates, fates(&[("ok", 3)]));
    }

    #[test]
    fn phase_without_requests_has_no_figures_instead_of_false_ones() {
        let phase = Phase::of("healthy", 2, 0.0, &sums(Vec::new()), &[]);
        assert_eq!(phase.bottom_amplification, None);
        assert_eq!(phase.success_percent, None);
        assert!(serde_json::to_string(&phase).unwrap().contains("\"bottom_amplification\":null"));
    }

    #[test]
    fn governed_results_cover_first_second_and_after_window() {
        let mut seconds = vec![second(10, 0, [10, 10, 10, 25])];
        seconds.extend(vec![second(10, 0, [10, 10, 10, 20]); 9]);
        seconds.extend(vec![second(10, 0, [10, 10, 10, 11]); 2]);
        let governed = Governed::of(&sums(seconds), Duration::from_secs(10));
        assert_eq!(governed.first_second_amplification, Some(2.5));
        assert_eq!(governed.after_window_amplification, Some(1.1));
        let short = Governed::of(&sums(vec![second(1, 0, [1; 4])]), Duration::from_secs(10));
        assert_eq!(short.after_window_amplification, None);
    }

    #[test]
    fn prediction_is_the_product_of_each_hops_geometric_sum() {
        let observed = [
            fates(&[("ok", 50), ("would_retry", 50)]),
            fates(&[("ok", 100)]),
            fates(&[("would_retry", 100)]),
        ];
        let prediction = Prediction::of(&observed, &[3, 3, 2]);
        let per_hop: Vec<_> = prediction.hops.iter().map(|hop| hop.attempts_per_call).collect();
        assert_eq!(per_hop, [1.75, 1.0, 2.0]);
        assert_eq!(prediction.bottom_amplification, 3.5);
        let idle = Prediction::of(&[fates(&[]), fates(&[]), fates(&[])], &[3, 3, 3]);
        assert_eq!(idle.bottom_amplification, 1.0);
    }

    #[test]
    fn fates_of_a_phase_are_its_own_counts() {
        let earlier = [fates(&[("ok", 5), ("cancelled", 1)])];
        let now = [fates(&[("ok", 9), ("cancelled", 1), ("retry_breaker", 2)])];
        assert_eq!(since(&earlier, &now), [fates(&[("ok", 4), ("retry_breaker", 2)])]);
    }
}
