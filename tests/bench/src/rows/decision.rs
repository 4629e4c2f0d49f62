//! What it costs the engine to decide after an attempt failed: count it, sum the window, ask breaker and budget, draw
//! the backoff. Without the SDK: nothing but `damper_core::Call`, on a route whose rule is one of many.
//!
//! Calls are begun and their attempts sent beforehand, the time is that of telling a batch of them that the attempt
//! failed and asking for the next step, which is to wait. Between batches a bucket of the window goes by, and so many
//! calls succeed that breaker and budget admit the whole batch.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use damper_core::policy::{Budget, EARN, RetryBreaker};
use damper_core::{Call, CallStart, Code, Failure, Mode, Policy, Ratio, Retry, Route, Step, Time, Verdict};
use damper_tests::spread::Spread;

use super::{Size, layer, lookup};
use crate::figure::{Figure, Row, Target};
use crate::rounds::{interleaved, ratio};

const RULES: [usize; 3] = [1, 100, 10_000];
const BATCH: usize = 250;
/// More than ten times as many succeed in each bucket.
const SUCCESSES: usize = 3_000;
const BUCKET: Duration = Duration::from_secs(1);

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(2, 31, 101);
    let batches = size.pick(2, 40, 40);
    let mut decisions = RULES.map(Decisions::new).into_iter().collect::<Result<Vec<_>>>()?;
    let timed = interleaved(rounds, &[0, 1, 2], |index: usize| {
        let decisions = decisions.get_mut(index).context("there are as many as numbers of rules")?;
        (0..batches).map(|_| decisions.batch()).sum::<Result<f64>>().map(|sum| sum / batches as f64)
    })?;
    let counted = layer::count(&["decisions"]).await?;
    let mut row = Row::new("decision", "Decision after a failure")
        .note("Window sum, credit, budget and backoff with full jitter, without the SDK around them.");
    let first = timed.first().map_or(&[][..], Vec::as_slice);
    for (rules, timed) in RULES.iter().zip(&timed) {
        let figure = Figure::new(format!("time, {rules} rules"), "ns", Spread::of(timed.iter().copied()));
        row = row.with(figure.aim(Target::AtMost(200.0)));
        let allocations = counted.get(rules.to_string()).and_then(serde_json::Value::as_f64);
        let allocations = Spread::exactly(allocations.with_context(|| format!("{rules} rules"))?);
        row = row.with(
            Figure::new(format!("allocations, {rules} rules"), "", allocations).aim(Target::AtMost(0.0)),
        );
    }
    let last = timed.last().map_or(&[][..], Vec::as_slice);
    let flat = Figure {
        ratio: Some(ratio(last, first)),
        ..Figure::beside("10,000 rules", "ns", last, "1 rule", first)
    };
    Ok((rounds, row.with(flat.aim(Target::RatioAtMost(1.2)))))
}

/// Calls that fail, on a route with a rule.
#[derive(Debug)]
pub struct Decisions {
    route: Route,
    now: Time,
    random: u64,
}

impl Decisions {
    /// Under one of so many rules.
    ///
    /// # Errors
    /// They make no table.
    pub fn new(rules: usize) -> Result<Self> {
        let table = lookup::table_of(rules, &policy())?;
        let key = lookup::route_of(rules / 2)?;
        let rule = table.in_force(&key).context("every route has a rule")?;
        let mut made = Self { route: Route::new(Some(rule)), now: Time::from_micros(1_000_000), random: 1 };
        // A bucket's calls, so that the credit has a cap when the first batch is asked.
        for mut call in made.failing() {
            call.dropped(&made.route, made.now);
        }
        Ok(made)
    }

    /// Nanoseconds per decision.
    ///
    /// # Errors
    /// A decision was another one than to wait for a retry.
    pub fn batch(&mut self) -> Result<f64> {
        let mut calls = self.failing();
        let begun = Instant::now();
        let waiting = self.decide(&mut calls);
        let took = begun.elapsed();
        ensure!(waiting == BATCH, "{waiting} of {BATCH} are to be retried");
        for call in &mut calls {
            call.dropped(&self.route, self.now);
        }
        Ok(took.as_nanos() as f64 / BATCH as f64)
    }

    /// A batch of calls whose attempt is under way.
    pub fn failing(&mut self) -> Vec<Call> {
        self.now = self.now + BUCKET;
        for _ in 0..SUCCESSES {
            let mut call = self.sent();
            call.attempt_ended(&self.route, 1, Verdict::Success, self.now, 0);
        }
        (0..BATCH).map(|_| self.sent()).collect()
    }

    /// Tells calls that their attempt failed; answers how many are to be retried.
    pub fn decide(&mut self, calls: &mut [Call]) -> usize {
        let mut waiting = 0;
        for call in calls {
            // An odd constant: all of u64 comes by.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let verdict = Verdict::Failure(Failure::new(Code::Unavailable));
            call.attempt_ended(&self.route, 1, black_box(verdict), self.now, self.random);
            let step = black_box(call.next_step(&self.route, self.now));
            waiting += usize::from(matches!(step, Step::Wait { until: Some(_) } | Step::Send(_)));
        }
        waiting
    }

    fn sent(&self) -> Call {
        let start =
            CallStart { now: self.now, deadline: None, flag: None, replayable: true, sends_before: 0 };
        let mut call = Call::begin(&self.route, start);
        call.next_step(&self.route, self.now);
        call
    }
}

fn policy() -> Policy {
    Policy {
        retry: Some(Retry::default()),
        retry_breaker: Some(RetryBreaker { earn: EARN.max, ..RetryBreaker::default() }),
        budget: Some(Budget { ratio: Ratio::from_bp(2_000), min_per_second: 1 }),
        ..Policy::new(Mode::Enforce)
    }
}
