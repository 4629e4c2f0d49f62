//! Blocked retries: the share of failed calls that a gate kept from being retried, and the main reason.
//!
//! Calls that were not retryable, or that used all their attempts, were not blocked.

use damper_core::{BreakerMode, Ending, Fate, Ratio, RouteKey, Rule};
use damper_proto::v1;

use crate::state::snapshot::Snapshot;
use crate::stats::counters;

/// The settings of the route's retry breaker, and its window summed over the processes.
pub(crate) struct Breaker {
    /// `None`: no rule.
    pub(crate) mode: Option<BreakerMode>,
    /// The lowest ratio of the rule and its guards.
    pub(crate) max_ratio: Option<Ratio>,
    pub(crate) failures: u64,
    pub(crate) successes: u64,
}

impl Breaker {
    /// Reads the settings that apply to a route.
    pub(crate) fn of(
        table: &Snapshot,
        route: &RouteKey,
        rule: Option<&Rule>,
        (failures, successes): (u64, u64),
    ) -> Self {
        let own = rule.and_then(|rule| rule.policy().retry_breaker.as_ref());
        let guarded = table.guards_of(route).filter_map(|guard| guard.ceiling().max_retry_breaker_ratio);
        Self {
            // A guard turns on a breaker that is off.
            mode: rule.map(|_| own.map_or_else(BreakerMode::default, |own| own.mode)),
            max_ratio: own.and_then(|own| own.max_ratio).into_iter().chain(guarded).min(),
            failures,
            successes,
        }
    }

    fn reason(&self) -> &'static str {
        let (failures, successes) = (u128::from(self.failures), u128::from(self.successes));
        let is_above = |max: Ratio| failures * 10_000 > successes * u128::from(max.bp());
        match self.mode {
            None => "retry breaker",
            Some(_) if self.max_ratio.is_some_and(is_above) => "above the guard's ratio",
            Some(BreakerMode::Ratio) => "above the ratio",
            Some(BreakerMode::Credit) => "no credit",
        }
    }
}

/// Returns the blocked retries of these rates; `None` if there were none. In observe mode only those count
/// that would have been blocked.
pub(crate) fn blocked(
    rates: impl Iterator<Item = (Ending, f64)>,
    observes: bool,
    breaker: impl FnOnce() -> Breaker,
) -> Option<v1::BlockedRetries> {
    let mut failed = 0.0;
    let mut by_fate: Vec<(Fate, f64)> = Vec::new();
    for (ending, rate) in rates.filter(|(ending, _)| counters::is_error(counters::ending(*ending))) {
        failed += rate;
        if ending.would == observes && rate > 0.0 && reason(ending.fate).is_some() {
            by_fate.push((ending.fate, rate));
        }
    }
    let by_breaker = by_fate.iter().any(|(fate, _)| *fate == Fate::RetryBreaker).then(|| breaker().reason());
    let mut reasons: Vec<(&str, f64)> = Vec::new();
    for (fate, rate) in by_fate {
        let reason = by_breaker.filter(|_| fate == Fate::RetryBreaker).or(reason(fate)).unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sum)) => *sum += rate,
            None => reasons.push((reason, rate)),
        }
    }
    let held: f64 = reasons.iter().map(|(_, rate)| rate).sum();
    let (main, _) = reasons.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let reason = (*main).to_owned();
    Some(v1::BlockedRetries { share: held / failed, reason, mixed: reasons.len() > 1, would: observes })
}

/// Returns the reason behind a fate; `None` if no gate blocked a retry.
fn reason(fate: Fate) -> Option<&'static str> {
    match fate {
        Fate::RetryBreaker => Some("retry breaker"),
        Fate::Budget => Some("budget used up"),
        Fate::CircuitOpen => Some("circuit open"),
        Fate::Killed => Some("kill switch"),
        Fate::ChainRetryFlag | Fate::ChainNoMoreRetry => Some("already retried by another service"),
        Fate::Deadline => Some("deadline"),
        Fate::StopWhen => Some("stop condition"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fates: &[(Fate, f64)], observes: bool, breaker: Breaker) -> Option<(String, bool, i32)> {
        let rates = fates.iter().map(|(fate, rate)| (Ending { fate: *fate, would: observes }, *rate));
        let found = blocked(rates, observes, || breaker)?;
        assert_eq!(found.would, observes);
        Some((found.reason, found.mixed, (found.share * 1000.0).round() as i32))
    }

    fn by(mode: BreakerMode) -> Breaker {
        Breaker { mode: Some(mode), max_ratio: None, failures: 0, successes: 0 }
    }

    #[test]
    fn blocked_retries_are_a_share_of_failed_calls() {
        for (reason, fate, breaker) in [
            ("no credit", Fate::RetryBreaker, by(BreakerMode::Credit)),
            ("above the ratio", Fate::RetryBreaker, by(BreakerMode::Ratio)),
            ("retry breaker", Fate::RetryBreaker, Breaker { mode: None, ..by(BreakerMode::Credit) }),
            ("budget used up", Fate::Budget, by(BreakerMode::Credit)),
            ("circuit open", Fate::CircuitOpen, by(BreakerMode::Credit)),
            ("kill switch", Fate::Killed, by(BreakerMode::Credit)),
            ("already retried by another service", Fate::ChainRetryFlag, by(BreakerMode::Credit)),
            ("already retried by another service", Fate::ChainNoMoreRetry, by(BreakerMode::Credit)),
            ("deadline", Fate::Deadline, by(BreakerMode::Credit)),
            ("stop condition", Fate::StopWhen, by(BreakerMode::Credit)),
        ] {
            let fates = [(Fate::Ok, 100.0), (Fate::NotRetryable, 18.0), (fate, 2.0)];
            assert_eq!(of(&fates, false, breaker), Some((reason.to_owned(), false, 100)));
        }
    }

    #[test]
    fn fates_of_one_reason_count_together() {
        let fates = [
            (Fate::NotRetryable, 18.0),
            (Fate::RetryBreaker, 3.0),
            (Fate::ChainRetryFlag, 2.0),
            (Fate::ChainNoMoreRetry, 2.0),
            (Fate::OkAfterRetry, 50.0),
        ];
        let main = "already retried by another service".to_owned();
        assert_eq!(of(&fates, false, by(BreakerMode::Credit)), Some((main, true, 280)));
    }

    #[test]
    fn guards_ratio_is_the_reason_while_more_fails() {
        let at = |failures| {
            let max_ratio = Some(Ratio::from_bp(1_000));
            let breaker = Breaker { max_ratio, failures, successes: 100, ..by(BreakerMode::Credit) };
            of(&[(Fate::RetryBreaker, 1.0)], false, breaker).unwrap().0
        };
        assert_eq!((at(10), at(11)), ("no credit".to_owned(), "above the guard's ratio".to_owned()));
    }

    #[test]
    fn observe_mode_counts_what_would_be_blocked() {
        let observed = [(Fate::Retry, 3.0), (Fate::RetryBreaker, 1.0)];
        let found = of(&observed, true, by(BreakerMode::Credit));
        assert_eq!(found, Some(("no credit".to_owned(), false, 250)));
        let ended = [(Ending { fate: Fate::Budget, would: false }, 1.0)];
        assert_eq!(blocked(ended.into_iter(), true, || by(BreakerMode::Credit)), None);
        for fates in [&[(Fate::NotRetryable, 18.0)][..], &[(Fate::Ok, 5.0), (Fate::RetryBreaker, 0.0)]] {
            assert_eq!(of(fates, false, by(BreakerMode::Credit)), None);
        }
    }
}
