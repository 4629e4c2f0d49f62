//! The targets for chains, judged by the figures: see the bounds in the engine's invariants.
//!
//! With r attempts and m layers one request may reach the last hop r times when failures are answered, and
//! (m-1)r-(m-2) times when the answers of every layer are lost; never r^(m-1) times. Once the breaker has seen a whole
//! window of the fault, 1.1 times on average. After a stall the chain serves again within one window.

use std::time::Duration;

use super::results::{Results, Row};
use super::scenario::Trouble;
use super::strategy::ATTEMPTS;

/// Attempts on the last hop per request that the steady part may have.
const STEADY: f64 = 1.1;
/// The default window, within which a chain is to recover from the stall.
const WINDOW: Duration = Duration::from_secs(10);

/// One target and what was found.
#[derive(Debug)]
pub struct Verdict {
    /// What was aimed at.
    pub target: &'static str,
    /// In how many scenarios it was met.
    pub met: usize,
    /// Of how many.
    pub of: usize,
    /// Those that missed it, with what they had.
    pub missed: Vec<String>,
}

/// All of them.
#[must_use]
pub fn judge(results: &Results) -> Vec<Verdict> {
    let guarded = |row: &&Row| row.strategy.guards_the_chain();
    let chains = || results.rows.iter().filter(guarded).filter(|row| row.trouble != Trouble::Stall);
    let lost = |row: &&Row| matches!(row.trouble, Trouble::Lost | Trouble::Silent);
    vec![
        verdict(
            "errors: no request on the last hop more than r times",
            chains().filter(|row| !lost(row)),
            |row| (row.worst() <= ATTEMPTS, format!("{}", row.worst())),
        ),
        verdict(
            "no or lost answers: no request on the last hop more than (m-1)r-(m-2) times",
            chains().filter(lost),
            |row| (row.worst() <= lost_answers(row.layers), format!("{}", row.worst())),
        ),
        verdict("steady: at most 1.1 attempts per request on the last hop", chains(), |row| {
            let found = row.steady(|part| part.faulty).median;
            (found <= STEADY, format!("{found:.2}"))
        }),
        verdict(
            "after the stall: 95 % of requests succeed again within one window",
            results.rows.iter().filter(guarded).filter(|row| row.trouble == Trouble::Stall),
            |row| {
                let slowest =
                    row.runs.iter().map(|run| run.recovery_ms).max_by_key(|ms| ms.unwrap_or(u64::MAX));
                let slowest = slowest.flatten().map(Duration::from_millis);
                (slowest.is_some_and(|slowest| slowest <= WINDOW), format!("{slowest:?}"))
            },
        ),
    ]
}

/// What naive retries come to on the last hop.
#[must_use]
pub fn naive(layers: usize) -> u32 {
    (1..layers).map(|_| ATTEMPTS).product()
}

fn lost_answers(layers: usize) -> u32 {
    let hops = u32::try_from(layers - 1).unwrap_or(u32::MAX);
    hops * ATTEMPTS - (hops - 1)
}

fn verdict<'a>(
    target: &'static str,
    rows: impl Iterator<Item = &'a Row>,
    holds: impl Fn(&Row) -> (bool, String),
) -> Verdict {
    let mut verdict = Verdict { target, met: 0, of: 0, missed: Vec::new() };
    for row in rows {
        let (met, found) = holds(row);
        verdict.of += 1;
        if met {
            verdict.met += 1;
        } else {
            verdict.missed.push(format!("{} ({found})", name(row)));
        }
    }
    verdict
}

fn name(row: &Row) -> String {
    let Row { layers, trouble, strategy, .. } = row;
    format!("m{layers}/{trouble}/{strategy}")
}
