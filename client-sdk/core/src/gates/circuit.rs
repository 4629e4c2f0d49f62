//! Circuit breaker: rejects whole calls at once while the callee is known to fail.
//!
//! ```text
//!            N failed calls in a row, or too great a share of the window's
//! closed ------------------------------------------------------------------> open
//!   ^                                                                        |  ^
//!   | all probes succeed                               open_for has passed   |  | a probe fails
//!   +---------------------------- half-open <--------------------------------+  |
//!                                     +-------------------------------------------+
//! ```
//!
//! The whole state is one atomic word. Time alone ends every state: an open circuit admits probes after
//! `open_for`; if probes never end or are cancelled, new ones are admitted after another `open_for`. Closing
//! clears the failures that opened it.
//!
//! Sources: Nygard, "Release It!"; the counting variants are those of Resilience4j.

use std::sync::atomic::{AtomicU64, Ordering};

use super::failure_streak::FailureStreak;
use crate::policy::CircuitBreaker;
use crate::time::window::{Counts, Window};
use crate::time::{Time, micros};

const PROBE_BITS: u32 = 8;
const PROBE_MASK: u64 = (1 << PROBE_BITS) - 1;
const PHASE_BITS: u32 = 2;

/// State of a route's circuit.
#[derive(Debug, Default)]
pub struct Circuit {
    word: AtomicU64,
    /// Failed calls in a row.
    run: FailureStreak,
}

/// Decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitDecision {
    /// No circuit breaker, or closed.
    Closed {
        /// Start of the closed state; 0 from the beginning.
        since_ms: u64,
    },
    /// Admitted as a probe of the half-open circuit.
    Probe {
        /// Start of the half-open state.
        since_ms: u64,
    },
    /// Rejected.
    Refused,
}

/// Phase of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls are admitted.
    Closed,
    /// Calls are rejected.
    Open,
    /// Some calls are admitted as probes.
    HalfOpen,
}

/// Outcome of a call for the circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The callee responded well.
    Good,
    /// The callee failed or was slow.
    Failed,
    /// Unknown: the caller gave up, or nothing was sent.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { since_ms: u64 },
    Open { since_ms: u64 },
    HalfOpen { since_ms: u64, started: u64, good: u64 },
}

impl Circuit {
    /// Admits or rejects a call at `now`.
    pub fn admit(&self, settings: &CircuitBreaker, now: Time) -> CircuitDecision {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (admission, next) = State::unpack(word).admit(settings, millis(now));
            let Some(next) = next else { return admission };
            match self.word.compare_exchange_weak(word, next.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return admission,
                Err(changed) => word = changed,
            }
        }
    }

    /// Returns the phase at `now`.
    #[must_use]
    pub fn phase(&self, settings: &CircuitBreaker, now: Time) -> Phase {
        match State::unpack(self.word.load(Ordering::Acquire)) {
            State::Closed { .. } => Phase::Closed,
            State::Open { since_ms } if !is_over(settings, since_ms, millis(now)) => Phase::Open,
            State::Open { .. } | State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// Records the outcome of a call with its admission; `calls` is the window of calls.
    pub fn ended(
        &self,
        settings: &CircuitBreaker,
        admission: CircuitDecision,
        outcome: Outcome,
        calls: &Window,
        now: Time,
    ) {
        match admission {
            CircuitDecision::Refused => {}
            CircuitDecision::Probe { since_ms } => self.probe_ended(settings, since_ms, outcome, now),
            CircuitDecision::Closed { since_ms } => self.call_ended(settings, since_ms, outcome, calls, now),
        }
    }

    /// Records a call admitted while the circuit was closed. Calls of an earlier closed state are ignored.
    fn call_ended(
        &self,
        settings: &CircuitBreaker,
        admitted_since_ms: u64,
        outcome: Outcome,
        calls: &Window,
        now: Time,
    ) {
        let word = self.word.load(Ordering::Acquire);
        let since_ms = match State::unpack(word) {
            State::Closed { since_ms } if since_ms == admitted_since_ms => since_ms,
            _ => return,
        };
        let in_a_row = match outcome {
            Outcome::Unknown => return,
            Outcome::Good => {
                calls.count_success(now);
                self.run.end();
                0
            }
            Outcome::Failed => {
                calls.count_failure(now);
                self.run.extend(now, calls.shape().length())
            }
        };
        // The bucket in which it closed also holds the failures that opened it.
        let from = match since_ms {
            0 => Time::ZERO,
            _ => Time::from_micros(since_ms.saturating_mul(1_000)) + calls.shape().bucket_length,
        };
        let counts = calls.counts_from(from, now);
        if in_a_row >= u64::from(settings.consecutive_failures) || too_many(settings, counts) {
            let open = State::Open { since_ms: millis(now) }.pack();
            // If another thread was faster, it opened the circuit.
            _ = self.word.compare_exchange(word, open, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    fn probe_ended(&self, settings: &CircuitBreaker, since_ms: u64, outcome: Outcome, now: Time) {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let State::HalfOpen { since_ms: present, started, good } = State::unpack(word) else { return };
            if present != since_ms {
                return;
            }
            let next = match outcome {
                Outcome::Failed => State::Open { since_ms: millis(now) },
                Outcome::Unknown => State::HalfOpen { since_ms, started: started.saturating_sub(1), good },
                Outcome::Good if good + 1 >= u64::from(settings.probes) => {
                    self.run.end();
                    State::Closed { since_ms: millis(now) }
                }
                Outcome::Good => State::HalfOpen { since_ms, started, good: good + 1 },
            };
            match self.word.compare_exchange_weak(word, next.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
        }
    }
}

impl State {
    /// Returns the decision, and the next state if it changes.
    fn admit(self, settings: &CircuitBreaker, now_ms: u64) -> (CircuitDecision, Option<Self>) {
        let over = |since_ms| is_over(settings, since_ms, now_ms);
        let first = Self::HalfOpen { since_ms: now_ms, started: 1, good: 0 };
        match self {
            Self::Closed { since_ms } => (CircuitDecision::Closed { since_ms }, None),
            Self::HalfOpen { since_ms, started, good } if started < u64::from(settings.probes) => (
                CircuitDecision::Probe { since_ms },
                Some(Self::HalfOpen { since_ms, started: started + 1, good }),
            ),
            Self::Open { since_ms } | Self::HalfOpen { since_ms, .. } if over(since_ms) => {
                (CircuitDecision::Probe { since_ms: now_ms }, Some(first))
            }
            Self::Open { .. } | Self::HalfOpen { .. } => (CircuitDecision::Refused, None),
        }
    }

    const fn unpack(word: u64) -> Self {
        let since_ms = word >> (2 * PROBE_BITS + PHASE_BITS);
        let good = (word >> PHASE_BITS) & PROBE_MASK;
        let started = (word >> (PROBE_BITS + PHASE_BITS)) & PROBE_MASK;
        match word & ((1 << PHASE_BITS) - 1) {
            0 => Self::Closed { since_ms },
            1 => Self::Open { since_ms },
            _ => Self::HalfOpen { since_ms, started, good },
        }
    }

    const fn pack(self) -> u64 {
        let (phase, since_ms, started, good) = match self {
            Self::Closed { since_ms } => (0, since_ms, 0, 0),
            Self::Open { since_ms } => (1, since_ms, 0, 0),
            Self::HalfOpen { since_ms, started, good } => (2, since_ms, started, good),
        };
        (((since_ms << PROBE_BITS | started) << PROBE_BITS | good) << PHASE_BITS) | phase
    }
}

fn is_over(settings: &CircuitBreaker, since_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(since_ms) >= micros(settings.open_for) / 1_000
}

fn too_many(settings: &CircuitBreaker, Counts { failures, successes }: Counts) -> bool {
    let total = failures.saturating_add(successes);
    total >= u64::from(settings.min_calls)
        && u128::from(failures) * 10_000 >= u128::from(total) * u128::from(settings.failure_ratio.bp())
}

/// 46 bits of milliseconds last for two thousand years.
fn millis(time: Time) -> u64 {
    time.as_micros() / 1_000
}

#[cfg(test)]
mod tests;
