//! Shortest and longest waits of a backoff, from the engine's own sequence.
//!
//! The sequence runs without its random part; then the effect of the random part is added.

use std::time::Duration;

use crate::call::backoff::Sequence;
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{Backoff, Growth, Jitter, Waits};

/// End of the interval of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Shortest,
    Longest,
}

/// Returns the waits before the retries 1, 2, ... `count`, each as short or as long as possible; fewer if the
/// sequence ends earlier.
pub(super) fn waits(backoff: &Backoff, retried: CodeSet, count: u32, end: End) -> Vec<Duration> {
    (1..=count).map_while(|n| of_backoff(backoff, retried, n, end)).collect()
}

fn of_backoff(backoff: &Backoff, retried: CodeSet, n: u32, end: End) -> Option<Duration> {
    match backoff {
        Backoff::Always(waits) => nth(waits, n, end),
        Backoff::Sum(parts) => parts
            .iter()
            .try_fold(Duration::ZERO, |sum, part| Some(sum.saturating_add(nth(part, n, end)?)))
            .map(|sum| sum.min(crate::policy::WAIT.max)),
        Backoff::ByCode { default, codes } => {
            let waits_of =
                |code| codes.iter().find(|(set, _)| set.contains(code)).map_or(default, |(_, waits)| waits);
            let each = retried.iter().filter_map(|code| nth(waits_of(code), n, end));
            match end {
                End::Shortest => each.min(),
                End::Longest => each.max(),
            }
        }
    }
}

fn nth(waits: &Waits, n: u32, end: End) -> Option<Duration> {
    let plain = Backoff::Always(without_jitter(waits, end));
    // Without a random part no wait depends on the one before.
    let wait = Sequence::from_parts(n.saturating_sub(1), 0).next(&plain, Code::Unavailable, 0);
    Some(jittered(wait?, waits, end))
}

fn without_jitter(waits: &Waits, end: End) -> Waits {
    let mut plain = waits.clone();
    match &mut plain {
        Waits::None => {}
        Waits::Fixed { jitter, .. } | Waits::Custom { jitter, .. } => *jitter = Jitter::None,
        Waits::Random { min, max, jitter } => {
            *jitter = Jitter::None;
            let drawn = if end == End::Shortest { *min } else { *max };
            (*min, *max) = (drawn, drawn);
        }
        Waits::Incrementing { growth, .. }
        | Waits::Exponential { growth, .. }
        | Waits::Fibonacci { growth, .. } => growth.jitter = Jitter::None,
    }
    plain
}

fn jittered(wait: Duration, waits: &Waits, end: End) -> Duration {
    let ceiling = ceiling(waits);
    let part = |bp: u32| {
        let us = wait.as_micros().saturating_mul(u128::from(bp)) / 10_000;
        Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
    };
    match (waits.jitter(), end) {
        (Jitter::None, _) | (Jitter::Full | Jitter::Equal, End::Longest) => wait,
        (Jitter::Full, End::Shortest) => Duration::ZERO,
        (Jitter::Equal, End::Shortest) => part(5_000),
        (Jitter::PlusMinus(share), End::Shortest) => wait.saturating_sub(part(share.bp())),
        (Jitter::PlusMinus(share), End::Longest) => wait.saturating_add(part(share.bp())).min(ceiling),
        (Jitter::Decorrelated, End::Shortest) => first(waits).min(ceiling),
        (Jitter::Decorrelated, End::Longest) => ceiling,
    }
}

/// Returns the lower limit of a decorrelated wait.
fn first(waits: &Waits) -> Duration {
    match waits {
        Waits::None => Duration::ZERO,
        Waits::Fixed { delay, .. } => *delay,
        Waits::Random { min, .. } => *min,
        Waits::Incrementing { initial, .. } => *initial,
        Waits::Exponential { base, .. } => *base,
        Waits::Fibonacci { unit, .. } => *unit,
        Waits::Custom { delays, .. } => delays.iter().copied().min().unwrap_or_default(),
    }
}

fn ceiling(waits: &Waits) -> Duration {
    match waits {
        Waits::Random { min, max, .. } => (*max).max(*min),
        Waits::Incrementing { growth: Growth { max, .. }, .. }
        | Waits::Exponential { growth: Growth { max, .. }, .. }
        | Waits::Fibonacci { growth: Growth { max, .. }, .. } => *max,
        Waits::None | Waits::Fixed { .. } | Waits::Custom { .. } => crate::policy::WAIT.max,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::Ratio;
    use crate::policy::{Increment, OverMax};

    fn any_jitter() -> BoxedStrategy<Jitter> {
        prop_oneof![
            Just(Jitter::None),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            (1_u32..=10_000).prop_map(|bp| Jitter::PlusMinus(Ratio::from_bp(bp))),
            Just(Jitter::Decorrelated),
        ]
        .boxed()
    }

    fn any_waits() -> impl Strategy<Value = Waits> {
        let ms = || (0_u64..5_000).prop_map(Duration::from_millis);
        let growth = || {
            (0_u64..20_000, any_jitter(), any::<bool>()).prop_map(|(max, jitter, stop)| Growth {
                max: Duration::from_millis(max),
                over_max: if stop { OverMax::Stop } else { OverMax::Cap },
                jitter,
            })
        };
        prop_oneof![
            Just(Waits::None),
            (ms(), any_jitter()).prop_map(|(delay, jitter)| Waits::Fixed { delay, jitter }),
            (ms(), ms(), any_jitter()).prop_map(|(min, more, jitter)| Waits::Random {
                min,
                max: min + more,
                jitter
            }),
            (ms(), ms(), growth()).prop_map(|(initial, step, growth)| Waits::Incrementing {
                initial,
                step: Increment::Up(step),
                growth
            }),
            (ms(), 10_000_u32..100_000, growth()).prop_map(|(base, bp, growth)| Waits::Exponential {
                base,
                multiplier: Ratio::from_bp(bp),
                growth
            }),
            (ms(), growth()).prop_map(|(unit, growth)| Waits::Fibonacci { unit, growth }),
            (prop::collection::vec(ms(), 1..6), any_jitter())
                .prop_map(|(delays, jitter)| Waits::Custom { delays, jitter }),
        ]
    }

    proptest! {
        #[test]
        fn drawn_waits_are_between_shortest_and_longest(
            waits_of in any_waits(), draws in prop::collection::vec(any::<u64>(), 9),
        ) {
            let backoff = Backoff::Always(waits_of);
            let retried = CodeSet::of(&[Code::Unavailable]);
            let shortest = waits(&backoff, retried, 9, End::Shortest);
            let longest = waits(&backoff, retried, 9, End::Longest);
            let mut sequence = Sequence::default();
            let drawn: Vec<_> =
                draws.into_iter().map_while(|random| sequence.next(&backoff, Code::Unavailable, random)).collect();
            for (n, drawn) in drawn.iter().enumerate() {
                prop_assert!(shortest[n] <= *drawn, "{n}: {:?} > {drawn:?}", shortest[n]);
                prop_assert!(longest[n] >= *drawn, "{n}: {:?} < {drawn:?}", longest[n]);
            }
        }
    }

    #[test]
    fn only_sequences_of_retried_codes_count() {
        let fixed = |ms| Waits::Fixed { delay: Duration::from_millis(ms), jitter: Jitter::None };
        let backoff = Backoff::ByCode {
            default: fixed(50),
            codes: vec![
                (CodeSet::of(&[Code::ResourceExhausted]), fixed(900)),
                (CodeSet::of(&[Code::Internal]), fixed(5)),
            ],
        };
        let ms = |codes: &[Code], end| waits(&backoff, CodeSet::of(codes), 1, end)[0].as_millis();
        assert_eq!(ms(&[Code::Unavailable, Code::ResourceExhausted], End::Shortest), 50);
        assert_eq!(ms(&[Code::Unavailable, Code::ResourceExhausted], End::Longest), 900);
        assert_eq!(ms(&[Code::Internal], End::Longest), 5);
        let sum = Backoff::Sum(vec![fixed(1), fixed(2)]);
        assert_eq!(waits(&sum, CodeSet::EMPTY, 3, End::Shortest), [Duration::from_millis(3); 3]);
    }
}
