//! Measured totals of the routes of a pattern, for proposals, which need many calls more than recent ones.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use damper_core::{Code, Pattern, Ratio, latency};

use crate::stats::counters;
use crate::stats::counters::{COUNTERS, SparseCounters};
use crate::stats::instance::{Instance, InstanceId};
use crate::stats::rate_window::RateWindow;
use crate::stats::window::WindowSums;
use crate::stats::{Route, RouteRecord, Stats};

/// The last minute is used alone from this number of calls on.
const ENOUGH_CALLS: u64 = 1000;
/// The number of routes or processes visited per lock of the statistics.
const PART: usize = 16;

/// The sum of all routes of a pattern.
#[derive(Clone, Debug, Default)]
pub(crate) struct PatternTotals {
    pub(crate) routes: usize,
    /// Calls with a known latency.
    pub(crate) calls: u64,
    latency: Vec<(usize, u64)>,
    codes: BTreeMap<Code, u64>,
    /// True for the last minute; false for the time since the processes started.
    pub(crate) recent: bool,
}

impl PatternTotals {
    fn with_latency(self, of: &SparseCounters) -> Self {
        let latency = of.iter().map(|(bucket, n)| (usize::from(bucket), n)).collect();
        Self { calls: sum(of), latency, ..self }
    }

    /// Returns the latency quantile, in ten-thousandths, if at least ten calls are known to lie beyond it.
    pub(crate) fn quantile(&self, share_bp: u32) -> Option<Duration> {
        let beyond = u128::from(self.calls) * u128::from(10_000_u32.saturating_sub(share_bp)) / 10_000;
        if beyond >= 10 { latency::quantile(self.latency.iter().copied(), share_bp) } else { None }
    }

    /// Returns the codes of failed attempts with their shares. Cancelled attempts are not evidence about the
    /// callee.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (Code, Ratio)> {
        let is_failure = |code: &Code| !matches!(code, Code::Ok | Code::Cancelled);
        let share = |code| Ratio::from_bp((self.share(code) * f64::from(Ratio::ONE.bp())) as u32);
        self.codes.keys().copied().filter(is_failure).map(move |code| (code, share(code)))
    }

    /// Returns the share of the attempts that ended with this code.
    pub(crate) fn share(&self, code: Code) -> f64 {
        let all: f64 = self.codes.values().map(|count| *count as f64).sum();
        let these = self.codes.get(&code).copied().unwrap_or_default();
        if all > 0.0 { these as f64 / all } else { 0.0 }
    }
}

#[cfg(test)]
impl PatternTotals {
    /// Calls of one route with this latency.
    pub(crate) fn drawn(calls: &[(Duration, u64)]) -> Self {
        let latency = calls.iter().map(|(took, n)| (latency::bucket_of(*took), *n)).collect();
        let calls = calls.iter().map(|(_, n)| n).sum();
        Self { routes: 1, calls, latency, recent: true, ..Self::default() }
    }
}

impl Stats {
    /// Returns the totals of a pattern: of the last minute if that is enough, else since the processes
    /// started. The lock is released between parts.
    pub(crate) fn measured(&self, pattern: &Pattern) -> PatternTotals {
        self.measured_in_parts(pattern, std::thread::yield_now)
    }

    pub(crate) fn measured_in_parts(&self, pattern: &Pattern, mut between: impl FnMut()) -> PatternTotals {
        let matches = |book: &RouteRecord| book.key.as_ref().is_some_and(|key| pattern.matches(key));
        let books = self.books();
        let routes = books.routes.iter().filter(|(_, book)| matches(book));
        let routes: Vec<Route> = routes.map(|(route, _)| route.clone()).collect();
        drop(books);
        between();
        let (recent, minute) = self.measured_recently(&routes, &mut between);
        if sum(&minute) >= ENOUGH_CALLS {
            return recent.with_latency(&minute);
        }
        let (counts, all) = self.measured_since_start(&routes.into_iter().collect(), &mut between);
        let codes = Code::ALL.map(|code| (code, counts.count(counters::code(code)))).into();
        PatternTotals { recent: false, codes, ..recent }.with_latency(&all)
    }

    /// Returns the counts of the last minute, and its latency apart.
    fn measured_recently(
        &self,
        routes: &[Route],
        between: &mut impl FnMut(),
    ) -> (PatternTotals, SparseCounters) {
        let (now, mut minute) = (self.now(), SparseCounters::default());
        let mut recent = PatternTotals { recent: true, routes: routes.len(), ..PatternTotals::default() };
        for part in routes.chunks(PART) {
            let books = self.books();
            for book in part.iter().filter_map(|route| books.routes.get(route)) {
                let (sums, _): (WindowSums<COUNTERS>, f64) =
                    book.window.sums(now, RateWindow::Minute.length());
                for code in Code::ALL {
                    let part = sums.of(counters::code(code)).round() as u64;
                    let count = recent.codes.entry(code).or_default();
                    *count = count.saturating_add(part);
                }
                for (bucket, n) in book.window.latency(now, RateWindow::Minute.length()) {
                    minute.add(u8::try_from(bucket).unwrap_or(u8::MAX), n);
                }
            }
            drop(books);
            between();
        }
        (recent, minute)
    }

    /// Counts and latency since the processes started.
    fn measured_since_start(
        &self,
        routes: &HashSet<Route>,
        between: &mut impl FnMut(),
    ) -> (SparseCounters, SparseCounters) {
        let (mut counts, mut latency) = (SparseCounters::default(), SparseCounters::default());
        let processes: Vec<InstanceId> = self.books().instances.keys().cloned().collect();
        for part in processes.chunks(PART) {
            let books = self.books();
            let there = part.iter().filter_map(|id| books.instances.get(id));
            for (_, reported) in there.flat_map(Instance::routes).filter(|(route, _)| routes.contains(route))
            {
                latency.add_all(&reported.totals.latency);
                counts.add_all(&reported.totals.counts);
            }
            drop(books);
            between();
        }
        (counts, latency)
    }
}

fn sum(tally: &SparseCounters) -> u64 {
    tally.iter().map(|(_, n)| n).fold(0, u64::saturating_add)
}
