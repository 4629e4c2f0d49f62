//! The last 15 minutes in spans of ten seconds, for operators who look after an incident began.
//!
//! The window has the latest two minutes, counter by counter. Older data are kept here as the few values of
//! the chart: 32 bytes per span with calls, so a busy route takes 2.5 KiB and an idle one nothing. A span is
//! returned once every process has had the time to report it, and omitted if no process was connected that
//! could have.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use damper_core::latency;
use damper_proto::v1;

use crate::stats::counters;
use crate::stats::coverage::CoveredSpans;
use crate::stats::summary::lag;
use crate::stats::window::{CounterDeltas, JOINED, MAX_LAG};
use crate::stats::{Route, RouteRecord, Stats};

/// The length of a span: as in a window's joined slots.
pub(crate) const SPAN: Duration = Duration::from_secs(JOINED as u64);
/// The reach of the timeline.
pub(crate) const KEPT: Duration = Duration::from_secs(15 * 60);
/// The most spans between the latest one returned and now.
const LATEST: u32 = 1 + (MAX_LAG.as_secs() / SPAN.as_secs()) as u32;
const SPANS: u32 = (KEPT.as_secs() / SPAN.as_secs()) as u32;

/// The spans of one route that have left its window, with calls, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Timeline(Vec<(Number, SpanTotals)>);

/// The number of a span since the start of the statistics' clock.
type Number = u32;

type Spans = BTreeMap<Number, SpanTotals>;

/// Counts of a span, and latencies in microseconds; 0 = no calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpanTotals {
    calls: f32,
    attempts: f32,
    retries: f32,
    hedges: f32,
    failed: f32,
    p50_us: u32,
    p99_us: u32,
}

impl Timeline {
    /// Keeps the span that begins at a second.
    pub(crate) fn keep(&mut self, start: i64, counts: &CounterDeltas, latency: &CounterDeltas) {
        self.0.reserve_exact(1);
        self.0.push((number(start), SpanTotals::of(counts).with_latency(latency)));
    }

    /// Drops old spans.
    pub(crate) fn forget(&mut self, now: Duration) {
        let oldest = at(now).saturating_sub(SPANS + LATEST);
        let old = self.0.partition_point(|(number, _)| *number < oldest);
        if old > 0 {
            self.0.drain(..old);
            self.0.shrink_to_fit();
        }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(Number, SpanTotals)>()
    }
}

/// Returns the span of a time.
fn at(time: Duration) -> Number {
    Number::try_from(time.as_secs() / SPAN.as_secs()).unwrap_or(Number::MAX)
}

/// Returns the span that begins at a second.
fn number(second: i64) -> Number {
    Number::try_from(second.div_euclid(JOINED)).unwrap_or(0)
}

impl SpanTotals {
    fn of(counts: &CounterDeltas) -> Self {
        let mut figures = Self::default();
        for (counter, n) in counts.iter() {
            match counter {
                counters::CALLS => figures.calls += n,
                counters::ATTEMPTS => figures.attempts += n,
                counters::RETRIES => figures.retries += n,
                counters::HEDGES => figures.hedges += n,
                _ if counters::is_error(counter) => figures.failed += n,
                _ => {}
            }
        }
        figures
    }

    fn with_latency(self, counts: &CounterDeltas) -> Self {
        // Casts of floats saturate.
        let counts = counts.iter().map(|(bucket, n)| (usize::from(bucket), n as u64));
        let quantile = |share_bp| {
            let at = latency::quantile(counts.clone(), share_bp);
            at.map_or(0, |at| u32::try_from(at.as_micros()).unwrap_or(u32::MAX).max(1))
        };
        Self { p50_us: quantile(5_000), p99_us: quantile(9_900), ..self }
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.attempts += other.attempts;
        self.retries += other.retries;
        self.hedges += other.hedges;
        self.failed += other.failed;
    }

    fn wire(&self, until: SystemTime) -> v1::Past {
        let per_s = |n: f32| f64::from(n) / SPAN.as_secs_f64();
        let time = |us: u32| {
            let time = Duration::from_micros(us.into());
            (us > 0).then_some(time).and_then(|time| prost_types::Duration::try_from(time).ok())
        };
        v1::Past {
            until: Some(until.into()),
            span: prost_types::Duration::try_from(SPAN).ok(),
            calls_per_s: per_s(self.calls),
            attempts_per_s: per_s(self.attempts),
            retries_per_s: per_s(self.retries),
            hedges_per_s: per_s(self.hedges),
            failed_per_s: per_s(self.failed),
            p50: time(self.p50_us),
            p99: time(self.p99_us),
        }
    }
}

impl RouteRecord {
    /// Moves data that left the window into the timeline, and drops old data.
    pub(crate) fn forget(&mut self, now: Duration) {
        let past = &mut self.past;
        self.window.forget(now, |start, counts, latency| past.keep(start, counts, latency));
        past.forget(now);
    }

    /// Adds every span of the route to those of others.
    fn add_to(&self, spans: &mut Spans) {
        self.past.0.iter().for_each(|(number, figures)| spans.entry(*number).or_default().add(figures));
        for (start, counts, _) in self.window.slots() {
            spans.entry(number(start)).or_default().add(&SpanTotals::of(counts));
        }
    }

    /// Returns the spans of one route, with latencies.
    fn spans(&self) -> Spans {
        let mut spans = Spans::new();
        self.add_to(&mut spans);
        let mut latencies: BTreeMap<Number, CounterDeltas> = BTreeMap::new();
        for (start, _, latency) in self.window.slots() {
            latencies.entry(number(start)).or_default().add_all(latency);
        }
        for (number, figures) in &mut spans {
            if let Some(latency) = latencies.get(number) {
                *figures = figures.with_latency(latency);
            }
        }
        for (number, SpanTotals { p50_us, p99_us, .. }) in &self.past.0 {
            let figures = spans.entry(*number).or_default();
            (figures.p50_us, figures.p99_us) = (*p50_us, *p99_us);
        }
        spans
    }
}

impl Stats {
    /// Returns the timeline of one route; empty if it is unknown.
    pub(crate) fn past_of(&self, route: &Route) -> Vec<v1::Past> {
        let books = self.books();
        let caller = (route.caller_service.clone(), route.caller_cluster.clone());
        let (Some(book), Some(covered)) = (books.routes.get(route), books.coverage.of(&caller)) else {
            return Vec::new();
        };
        self.past(covered, &book.spans())
    }

    /// Returns the timeline of all routes together, without latencies.
    pub(crate) fn past_of_all(&self) -> Vec<v1::Past> {
        let books = self.books();
        let mut spans = Spans::new();
        books.routes.values().for_each(|book| book.add_to(&mut spans));
        self.past(books.coverage.of_all(), &spans)
    }

    /// Returns the ended spans in which a process was connected.
    fn past(&self, covered: &CoveredSpans, spans: &Spans) -> Vec<v1::Past> {
        let (now, wall) = (self.now(), SystemTime::now());
        let settled = now.saturating_sub(lag(self.pace.borrow().kept()));
        let end = at(settled);
        let ended = (end.saturating_sub(SPANS)..end).filter_map(|number| {
            let from = SPAN * number;
            let until = from + SPAN;
            let figures = spans.get(&number).copied().unwrap_or_default();
            covered.covers(from, until).then(|| figures.wire(wall - now.saturating_sub(until)))
        });
        ended.collect()
    }
}
