//! Settings without effect, or with another effect than they seem to have.

use std::time::Duration;

use super::waits::{End, waits};
use super::{Finding, Notes, codes, names};
use crate::fault::Ratio;
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{Backoff, Growth, Increment, Jitter, Policy, Retry, Waits};

/// Codes with which the same request fails again.
const HOPELESS: CodeSet = CodeSet::of(&[
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::FailedPrecondition,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Unauthenticated,
]);

pub(super) fn never_repeats(policy: &Policy, findings: &mut Vec<Finding>) {
    let field = if policy.retry.is_some() { "retry.max_attempts" } else { "hedge.max_hedges" };
    let message = "allows 1 attempt, the first".to_owned();
    let also = if policy.retry.is_some() && policy.hedge.is_some() { ", and hedges count too" } else { "" };
    Notes { findings }.add(codes::NEVER_REPEATS, field, message + also);
}

pub(super) fn check(policy: &Policy, findings: &mut Vec<Finding>) {
    let mut notes = Notes { findings };
    if let Some(retry) = &policy.retry {
        codes_of(retry, &mut notes);
        backoff(retry, &mut notes);
        hedges(policy, retry, &mut notes);
    }
    if policy.replay_limit == 0 {
        notes.add(
            codes::REPLAY_LIMIT_ZERO,
            "replay_limit_bytes",
            "0 keeps no request, not even an empty one",
        );
    }
    if policy.hold_unary && policy.hedge.is_some() {
        notes.add(
            codes::HOLD_WITH_HEDGE,
            "hold_unary",
            "delays when a response counts, and hedges wait for that",
        );
    }
}

/// Checks the codes of a rule or queue.
pub(super) fn codes_of(retry: &Retry, notes: &mut Notes<'_>) {
    hopeless(retry, notes);
    by_code(retry, notes);
}

fn hopeless(retry: &Retry, notes: &mut Notes<'_>) {
    let hopeless = retry.codes.intersection(HOPELESS);
    if !hopeless.is_empty() {
        let message = format!("the same request fails again with {}", names(hopeless));
        notes.add(codes::CODE_NEVER_HELPS, "retry.codes", message);
    }
}

fn by_code(retry: &Retry, notes: &mut Notes<'_>) {
    let Backoff::ByCode { codes: entries, .. } = &retry.backoff else { return };
    let mut before = CodeSet::EMPTY;
    for (i, (set, _)) in entries.iter().enumerate() {
        let field = format!("retry.backoff.by_code.codes[{i}].codes");
        let again = set.intersection(before);
        if !again.is_empty() {
            let message = format!("in an earlier entry too: {}", names(again));
            notes.add(codes::BY_CODE_REPEATED, &field, message);
        }
        let idle = set.without(retry.codes);
        if !idle.is_empty() {
            notes.add(codes::BY_CODE_NOT_RETRIED, &field, format!("not retried: {}", names(idle)));
        }
        before = before.union(*set);
    }
}

fn backoff(retry: &Retry, notes: &mut Notes<'_>) {
    let retries = retry.max_attempts.saturating_sub(1);
    let longest = waits(&retry.backoff, retry.codes, retries, End::Longest);
    if longest.iter().all(Duration::is_zero) {
        if longest.len() > 1 {
            let message = format!("{} retries follow each other without a wait", longest.len());
            notes.add(codes::BACKOFF_NONE, "retry.backoff", message);
        }
        return;
    }
    for (path, waits) in sequences(&retry.backoff) {
        if is_constant(waits, retries) {
            let message = "all waits are equal, apart from the jitter";
            notes.add(codes::BACKOFF_IS_CONSTANT, &format!("{path}.{}", waits.name()), message);
        }
        if waits.jitter() == Jitter::None && !is_random_by_itself(waits) {
            let name = waits.name();
            let message = "no jitter: callers that fail together retry together";
            notes.add(codes::BACKOFF_WITHOUT_JITTER, &format!("{path}.{name}"), message);
        }
    }
}

/// Returns true if the waits of a varying kind are all equal. A single retry has only one wait.
fn is_constant(waits: &Waits, retries: u32) -> bool {
    let grows = |from: Duration, growth: &Growth| retries < 2 || from < growth.max;
    match waits {
        Waits::None | Waits::Fixed { .. } | Waits::Custom { .. } => false,
        Waits::Random { min, max, .. } => min >= max,
        Waits::Incrementing { initial, step: Increment::Up(step), growth } => {
            !grows(*initial, growth) || retries > 1 && step.is_zero()
        }
        Waits::Incrementing { step: Increment::Down(step), .. } => retries > 1 && step.is_zero(),
        Waits::Exponential { base, multiplier, growth } => {
            !grows(*base, growth) || retries > 1 && *multiplier == Ratio::ONE
        }
        Waits::Fibonacci { unit, growth } => !grows(*unit, growth),
    }
}

fn is_random_by_itself(waits: &Waits) -> bool {
    match waits {
        Waits::None => true,
        Waits::Random { min, max, .. } => min < max,
        Waits::Fixed { delay, .. } => delay.is_zero(),
        Waits::Custom { delays, .. } => delays.iter().all(Duration::is_zero),
        Waits::Incrementing { .. } | Waits::Exponential { .. } | Waits::Fibonacci { .. } => false,
    }
}

/// Returns the sequences of a backoff with their paths. One random part is enough for a sum.
fn sequences(backoff: &Backoff) -> Vec<(String, &Waits)> {
    let path = "retry.backoff";
    match backoff {
        Backoff::Always(waits) => vec![(path.to_owned(), waits)],
        Backoff::Sum(parts) => {
            let plain = |part: &Waits| part.jitter() == Jitter::None && !is_random_by_itself(part);
            let varies = |part: &Waits| *part != Waits::None && !plain(part);
            let all = parts.iter().enumerate().map(|(i, part)| (format!("{path}.sum.parts[{i}]"), part));
            if parts.iter().any(varies) { Vec::new() } else { all.collect() }
        }
        Backoff::ByCode { default, codes } => {
            let of_codes = codes.iter().enumerate();
            let of_codes =
                of_codes.map(|(i, (_, waits))| (format!("{path}.by_code.codes[{i}].backoff"), waits));
            [(format!("{path}.by_code.default"), default)].into_iter().chain(of_codes).collect()
        }
    }
}

fn hedges(policy: &Policy, retry: &Retry, notes: &mut Notes<'_>) {
    let Some(hedge) = policy.hedge else { return };
    let room = retry.max_attempts.saturating_sub(1);
    if hedge.max_hedges > room {
        let message = format!(
            "{} is higher than the {room} that max_attempts ({}) allows",
            hedge.max_hedges, retry.max_attempts
        );
        notes.add(codes::HEDGES_EXCEED_ATTEMPTS, "hedge.max_hedges", message);
    }
}
