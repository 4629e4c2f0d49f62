//! Derives the values of a proposed policy from measurements.
//!
//! The proposal is safe in `observe`, and each value has a reason. A setting without enough data is omitted,
//! so the engine's default applies, and the reason states this. Times are rounded up to round numbers.
//!
//! Other codes than UNAVAILABLE are retried only for a method with the name of a read and a per-attempt
//! timeout, because an attempt that times out may have been executed. A key without a method gets no
//! timeouts, since there may be streams among its methods.

use std::time::Duration;

use damper_core::fault::{Millis, Ratio};
use damper_core::policy::{Growth, Retry, TIMEOUT, Waits};
use damper_core::{Backoff, Code, MethodPart, Pattern, lint};
use damper_proto::{convert, v1};

use crate::state::text::{many, percent};
use crate::stats::pattern_totals::PatternTotals;

/// Shortest per-attempt timeout: longer than a pause of the callee's process or one lost packet.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);
/// The per-attempt timeout as a multiple of the slowest calls.
const HEADROOM: u32 = 2;
/// Range of the base backoff: shorter waits meet the same failure, longer ones are noticeable.
const BASES: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);
/// Ratio of p99 to median from which hedging is mentioned.
const LONG_TAIL: u32 = 5;

/// The settings and their reasons.
pub(crate) struct Values {
    pub(crate) policy: v1::Policy,
    pub(crate) reasons: Vec<String>,
}

impl Values {
    pub(crate) fn of(pattern: &Pattern, measured: &PatternTotals) -> Self {
        let mut values = Self {
            policy: v1::Policy { mode: v1::Mode::Observe.into(), ..Default::default() },
            reasons: vec![basis(measured)],
        };
        values.add_reason("mode", "observe: decisions are counted, no call is retried or cut off".to_owned());
        let mut retry = values.retry();
        let names_method = matches!(pattern.callee_method, MethodPart::Exact(_));
        let method = pattern.callee_method.to_string();
        values.backoff(&mut retry, measured);
        values.times(&mut retry, names_method.then_some(&*method), measured);
        values.codes(&mut retry, names_method.then_some(&*method), measured);
        values.policy.retry = Some(retry);
        values.breaker(measured);
        values.hedge(names_method.then_some(&*method), measured);
        values
    }

    fn add_reason(&mut self, field: &str, reason: String) {
        self.reasons.push(format!("policy.{field}: {reason}"));
    }

    fn retry(&mut self) -> v1::Retry {
        let max_attempts = Retry::default().max_attempts;
        self.add_reason("retry.max_attempts", format!("{max_attempts}, the default"));
        v1::Retry { max_attempts: Some(max_attempts), ..Default::default() }
    }

    /// Sets the retryable codes; `method` is `None` if the key does not name one.
    fn codes(&mut self, retry: &mut v1::Retry, method: Option<&str>, measured: &PatternTotals) {
        let mut codes = vec![Code::Unavailable];
        let unavailable = percent(measured.share(Code::Unavailable));
        let timed_out = percent(measured.share(Code::DeadlineExceeded));
        let why = match method {
            None => {
                format!(
                    "only UNAVAILABLE ({unavailable} of the attempts): the methods are not named and may change something"
                )
            }
            Some(method) if !lint::only_reads(method) => format!(
                "only UNAVAILABLE ({unavailable} of the attempts): the method does not have the name of a read, and \
                 other failures can follow a success"
            ),
            Some(_) if retry.per_attempt_timeout.is_none() => format!(
                "only UNAVAILABLE ({unavailable} of the attempts): attempts have no timeout, so DEADLINE_EXCEEDED \
                 leaves no time for a retry"
            ),
            Some(method) => {
                codes.push(Code::DeadlineExceeded);
                let name = method.rsplit('/').next().unwrap_or(method);
                format!(
                    "UNAVAILABLE ({unavailable} of the attempts) and DEADLINE_EXCEEDED ({timed_out}), the code of an attempt \
                     that times out; this assumes that {name} only reads, as its name suggests"
                )
            }
        };
        let codes = codes.into_iter().map(|code| v1::Code::from(code).into()).collect();
        retry.codes = Some(v1::Codes { kind: Some(v1::codes::Kind::Allow(v1::CodeList { codes })) });
        self.add_reason("retry.codes", why);
    }

    fn backoff(&mut self, retry: &mut v1::Retry, measured: &PatternTotals) {
        let Some(median) = measured.quantile(5_000) else {
            let default = "the default: too few calls to estimate the latency";
            self.add_reason("retry.backoff", default.to_owned());
            return;
        };
        let base = rounded(median).clamp(*BASES.start(), *BASES.end());
        let max = base * 10;
        self.add_reason(
            "retry.backoff",
            format!(
                "from {} up to {}: {}, the median call takes {}",
                Millis(base),
                Millis(max),
                match rounded(median) {
                    exact if exact < base => "the shortest proposed wait",
                    exact if exact > base => "the longest proposed wait",
                    _ => "about as long as a call takes",
                },
                Millis(shown(median)),
            ),
        );
        let exponential = v1::ExponentialBackoff { base: wire(base), max: wire(max), ..Default::default() };
        retry.backoff = Some(v1::Backoff { kind: Some(v1::backoff::Kind::Exponential(exponential)) });
    }

    /// Sets the per-attempt timeout and the timeout.
    fn times(&mut self, retry: &mut v1::Retry, method: Option<&str>, measured: &PatternTotals) {
        let Some(method) = method else {
            let why = "none: the key does not name its method, and a timeout would end long streams";
            return self.add_reason("timeout", why.to_owned());
        };
        let Some(slowest) = measured.quantile(9_990) else {
            let why = format!(
                "none: {} are too few to estimate the slowest calls",
                many(measured.calls as usize, "call")
            );
            return self.add_reason("timeout", why);
        };
        let attempt = rounded(slowest.saturating_mul(HEADROOM)).max(MIN_ATTEMPT_TIMEOUT).min(TIMEOUT.max);
        let attempts = retry.max_attempts.unwrap_or_default();
        let waits = longest_waits(retry, attempts);
        let call = rounded(attempt * attempts + waits).min(TIMEOUT.max);
        let slowest = Millis(shown(slowest));
        if !lint::only_reads(method) {
            self.add_reason(
                "retry.per_attempt_timeout",
                "none: an attempt that times out may have been executed".to_owned(),
            );
        } else if attempt * attempts + waits > TIMEOUT.max {
            self.add_reason(
                "retry.per_attempt_timeout",
                format!(
                    "none: {attempts} attempts of {} do not fit into {}, the longest timeout",
                    Millis(attempt),
                    Millis(TIMEOUT.max)
                ),
            );
        } else {
            retry.per_attempt_timeout = wire(attempt);
            self.add_reason(
                "retry.per_attempt_timeout",
                format!(
                    "{}: {HEADROOM} x the p99.9 of {slowest}, at least {}",
                    Millis(attempt),
                    Millis(MIN_ATTEMPT_TIMEOUT)
                ),
            );
        }
        self.policy.timeout = wire(call);
        self.add_reason(
            "timeout",
            format!(
                "{}: {attempts} attempts of {} ({HEADROOM} x the p99.9 of {slowest}) and the waits between them",
                Millis(call),
                Millis(attempt)
            ),
        );
    }

    fn breaker(&mut self, measured: &PatternTotals) {
        let earn = damper_core::policy::RetryBreaker::default().earn;
        let failing: u32 = measured.failures().map(|(_, share)| share.bp()).sum();
        self.add_reason(
            "retry_breaker",
            format!(
                "on, the default: retries use credit, and each successful first attempt earns {earn} of a retry; \
                 failing attempts measured: {}",
                percent(f64::from(failing) / f64::from(Ratio::ONE.bp()))
            ),
        );
    }

    /// Adds only a reason: the latency does not show whether a callee can take hedges.
    fn hedge(&mut self, method: Option<&str>, measured: &PatternTotals) {
        let (Some(median), Some(slow)) = (measured.quantile(5_000), measured.quantile(9_900)) else { return };
        let may_hedge = method.is_some_and(lint::only_reads);
        if may_hedge && slow >= median * LONG_TAIL {
            self.add_reason(
                "hedge",
                format!(
                    "none, but the p99 of {} is far from the median of {}: hedge: {{ delay: {{ percentile: {{ at: 95 }} }} }} \
                     with a budget would shorten slow calls, if the callee can take 5 % more attempts",
                    Millis(shown(slow)),
                    Millis(shown(median))
                ),
            );
        }
    }
}

/// Returns the basis of the proposal.
fn basis(measured: &PatternTotals) -> String {
    let PatternTotals { routes, calls, recent, .. } = measured;
    match (routes, calls) {
        (0, _) => "no process reports a route that the key matches: the values are the defaults".to_owned(),
        (1, 0) => "the route has no calls yet: the values are the defaults".to_owned(),
        (_, 0) => format!("the {routes} routes have no calls yet: the values are the defaults"),
        _ => {
            let (calls, routes) = (many(*calls as usize, "call"), many(*routes, "route"));
            if *recent {
                format!("based on {calls} of the last minute on {routes}")
            } else {
                format!("based on {calls} on {routes} since their processes started")
            }
        }
    }
}

/// Returns the sum of the longest waits between this number of attempts.
fn longest_waits(retry: &v1::Retry, attempts: u32) -> Duration {
    let (base, max) = match retry.backoff.as_ref().and_then(|backoff| backoff.kind.as_ref()) {
        Some(v1::backoff::Kind::Exponential(v1::ExponentialBackoff { base, max, .. })) => {
            (read(base.as_ref()), read(max.as_ref()))
        }
        _ => match Backoff::default() {
            Backoff::Always(Waits::Exponential { base, growth: Growth { max, .. }, .. }) => (base, max),
            _ => (Duration::ZERO, Duration::ZERO),
        },
    };
    (0..attempts.saturating_sub(1)).map(|n| (base * 2_u32.saturating_pow(n)).min(max)).sum()
}

fn read(wire: Option<&prost_types::Duration>) -> Duration {
    wire.copied().and_then(convert::length).unwrap_or_default()
}

fn wire(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// Rounds up to steps of 1, 5, 10, 50, 100 ... ms.
fn rounded(duration: Duration) -> Duration {
    let ms = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
    let mut step = 1;
    while ms > step * 20 {
        step *= if step.to_string().starts_with('1') { 5 } else { 2 };
    }
    Duration::from_millis(ms.div_ceil(step) * step)
}

/// Returns a measured time for display, in whole milliseconds from 10 ms on.
fn shown(duration: Duration) -> Duration {
    if duration < Duration::from_millis(10) {
        duration
    } else {
        Duration::from_millis(duration.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use damper_core::lint::{LintContext, Severity};
    use damper_proto::convert;

    use super::*;

    const METHODS: [&str; 8] =
        ["Get", "Withdraw", "BatchCreateOrders", "ListOrders", "Process", "Take", "*", ""];

    /// Returns a proposal for calls with these latencies, and asserts that its only findings are hints.
    fn proposed(callers: [&str; 3], method: &str, usual_ms: u64, slow_ms: u64, calls: u64) -> v1::Policy {
        let pattern = Pattern::parse(callers[0], callers[1], callers[2], method).unwrap();
        let measured = PatternTotals::drawn(&[
            (Duration::from_millis(usual_ms), calls - calls / 50),
            (Duration::from_millis(slow_ms), calls / 50),
        ]);
        let Values { policy, .. } = Values::of(&pattern, &measured);
        let rule = v1::Rule { key: Some((&pattern).into()), policy: Some(policy), ..Default::default() };
        let found = lint::findings(&convert::rule(&rule).unwrap(), &LintContext::default());
        let grave: Vec<_> = found.iter().filter(|found| found.severity > Severity::Hint).collect();
        assert!(grave.is_empty(), "{pattern}, {usual_ms} ms, {slow_ms} ms, {calls} calls: {grave:?}");
        rule.policy.unwrap()
    }

    #[test]
    fn no_proposal_has_a_finding_worth_a_warning() {
        let latencies = [1, 7, 20, 400, 5_000, 60_000, 590_000, 600_000, 2_000_000, 4_000_000, 40_000_000];
        for callers in [["shop", "*", "stock"], ["*", "*", "*"], ["*", "online", "stock"], ["shop", "*", "*"]]
        {
            for method in METHODS {
                let method = match method {
                    "*" => "*".to_owned(),
                    "" => "s.v1.S/*".to_owned(),
                    name => format!("s.v1.S/{name}"),
                };
                for usual in latencies {
                    for slow in latencies.into_iter().filter(|slow| *slow >= usual) {
                        for calls in [0, 12, 5_000, 1_000_000] {
                            proposed(callers, &method, usual, slow, calls);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_what_reads_is_repeated_after_more_than_unavailable() {
        for method in METHODS.into_iter().filter(|name| name.len() > 1) {
            let policy = proposed(["shop", "*", "stock"], &format!("s.v1.S/{method}"), 20, 400, 100_000);
            let retry = policy.retry.unwrap();
            let Some(v1::codes::Kind::Allow(codes)) = retry.codes.unwrap().kind else { panic!() };
            let reads = method.starts_with("Get") || method.starts_with("List");
            assert_eq!(
                (codes.codes.len() > 1, retry.per_attempt_timeout.is_some()),
                (reads, reads),
                "{method}"
            );
        }
    }

    #[test]
    fn an_attempt_that_is_not_given_up_is_not_repeated_for_its_time() {
        // Too few calls for the slowest ones, so there is no per-attempt timeout.
        let policy = proposed(["shop", "*", "stock"], "s.v1.S/Get", 20, 400, 12);
        let retry = policy.retry.unwrap();
        let Some(v1::codes::Kind::Allow(codes)) = retry.codes.unwrap().kind else { panic!() };
        assert_eq!((retry.per_attempt_timeout, codes.codes), (None, vec![v1::Code::Unavailable.into()]));
    }

    #[test]
    fn breaker_reason_has_its_limit_and_the_measured_failures() {
        let pattern = Pattern::parse("shop", "*", "stock", "s.v1.S/Get").unwrap();
        let Values { reasons, .. } = Values::of(&pattern, &PatternTotals::default());
        let reason = reasons.iter().find(|reason| reason.starts_with("policy.retry_breaker: ")).unwrap();
        assert!(reason.ends_with("earns 0.02 of a retry; failing attempts measured: 0.0%"), "{reason}");
    }

    #[test]
    fn backoff_far_from_the_median_is_named_as_clamped() {
        let pattern = Pattern::parse("shop", "*", "stock", "s.v1.S/Get").unwrap();
        let why = |median| {
            let Values { reasons, .. } = Values::of(&pattern, &PatternTotals::drawn(&[(median, 5_000)]));
            reasons.into_iter().find(|reason| reason.starts_with("policy.retry.backoff: ")).unwrap()
        };
        let quick = why(Duration::from_micros(464));
        assert!(quick.contains("from 10ms up to 100ms: the shortest proposed wait"), "{quick}");
        assert!(why(Duration::from_secs(9)).contains("the longest proposed wait"));
        assert!(why(Duration::from_millis(40)).contains("about as long as a call takes"));
    }

    #[test]
    fn times_are_rounded_up_to_round_numbers() {
        for (us, ms) in [
            (1, 1),
            (7_000, 7),
            (20_001, 25),
            (95_000, 95),
            (101_000, 110),
            (186_123, 190),
            (201_000, 250),
            (1_234_000, 1_300),
            (12_345_000, 13_000),
        ] {
            assert_eq!(rounded(Duration::from_micros(us)), Duration::from_millis(ms), "{us} us");
        }
    }
}
