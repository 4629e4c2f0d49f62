//! What the routes of a pattern measured: for proposals, which need many calls more than they need the last seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_core::{Code, Pattern, Ratio, latency};

use super::tally::{self, COUNTERS, Tally};
use super::window::Sums;
use super::{Over, Stats};

/// From so many calls on the last minute says enough by itself.
const ENOUGH_CALLS: u64 = 1000;

/// All routes of a pattern together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) routes: usize,
    /// Calls whose latency is known.
    pub(crate) calls: u64,
    latency: Vec<(usize, u64)>,
    codes: BTreeMap<Code, u64>,
    /// Of the last minute; else since the processes started.
    pub(crate) lately: bool,
}

impl Measured {
    /// What this share of the calls did not exceed, in ten-thousandths, where so many are known that at least
    /// ten lie beyond.
    pub(crate) fn quantile(&self, share_bp: u32) -> Option<Duration> {
        let beyond = u128::from(self.calls) * u128::from(10_000_u32.saturating_sub(share_bp)) / 10_000;
        if beyond >= 10 { latency::quantile(self.latency.iter().copied(), share_bp) } else { None }
    }

    /// The codes that attempts failed with, each with its share of all of them. One that was cut off says nothing about
    /// the callee.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (Code, Ratio)> {
        let says = |code: &Code| !matches!(code, Code::Ok | Code::Cancelled);
        let share = |code| Ratio::from_bp((self.share(code) * f64::from(Ratio::ONE.bp())) as u32);
        self.codes.keys().copied().filter(says).map(move |code| (code, share(code)))
    }

    /// The share of the attempts that ended with this code.
    pub(crate) fn share(&self, code: Code) -> f64 {
        let all: f64 = self.codes.values().map(|count| *count as f64).sum();
        let these = self.codes.get(&code).copied().unwrap_or_default();
        if all > 0.0 { these as f64 / all } else { 0.0 }
    }
}

#[cfg(test)]
impl Measured {
    /// Calls of one route that took so long.
    pub(crate) fn drawn(calls: &[(Duration, u64)]) -> Self {
        let latency = calls.iter().map(|(took, n)| (latency::bucket_of(*took), *n)).collect();
        let calls = calls.iter().map(|(_, n)| n).sum();
        Self { routes: 1, calls, latency, lately: true, ..Self::default() }
    }
}

impl Stats {
    /// What the routes of a pattern measured: in the last minute where that is enough, else since their processes
    /// started.
    pub(crate) fn measured(&self, pattern: &Pattern) -> Measured {
        let now = self.now();
        let books = self.books();
        let mut lately = Measured { lately: true, ..Measured::default() };
        let (mut minute, mut counts, mut all) = (Tally::default(), Tally::default(), Tally::default());
        for (route, book) in &books.routes {
            if !book.key.as_ref().is_some_and(|key| pattern.matches(key)) {
                continue;
            }
            lately.routes += 1;
            let (sums, _): (Sums<COUNTERS>, f64) = book.window.sums(now, Over::Minute.length());
            for code in Code::ALL {
                let part = sums.of(tally::code(code)).round() as u64;
                let count = lately.codes.entry(code).or_default();
                *count = count.saturating_add(part);
            }
            for (bucket, n) in book.window.latency(now, Over::Minute.length()) {
                minute.add(u8::try_from(bucket).unwrap_or(u8::MAX), n);
            }
            for reported in books.instances.values().filter_map(|instance| instance.route(route)) {
                all.add_all(&reported.totals.latency);
                counts.add_all(&reported.totals.counts);
            }
        }
        let (lately, of) = match sum(&minute) >= ENOUGH_CALLS {
            true => (lately, minute),
            false => {
                let codes = Code::ALL.map(|code| (code, counts.count(tally::code(code))));
                (Measured { lately: false, codes: codes.into(), ..lately }, all)
            }
        };
        let latency = of.iter().map(|(bucket, n)| (usize::from(bucket), n)).collect();
        Measured { calls: sum(&of), latency, ..lately }
    }
}

fn sum(tally: &Tally) -> u64 {
    tally.iter().map(|(_, n)| n).fold(0, u64::saturating_add)
}
