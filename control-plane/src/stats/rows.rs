//! The figures as they are shown: one row per route, made at most a few times a second for all who ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Fate, latency};
use damper_proto::v1;

use super::instance::Totals;
use super::window::MAX_LAG;
use super::{Books, Route, RouteBook, Stats};
use crate::table::TableView;

/// Rows are shared by all who ask within this time.
const FRESH_FOR: Duration = Duration::from_millis(200);

/// One route and its figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) stats: v1::RouteStats,
}

/// The rows made last.
pub(super) struct Memo {
    at: Duration,
    table: Arc<TableView>,
    rows: Arc<[Arc<Row>]>,
}

/// What the processes of one route come to.
#[derive(Default)]
struct Sources {
    connected: u32,
    /// Up to when all connected processes have reported.
    reported: Option<Duration>,
    totals: Totals,
    /// Those of processes that serve, too.
    serving_calls: u64,
    no_context_calls: u64,
}

impl Stats {
    /// All routes in the order of their names, with the rules of this table.
    pub(crate) fn rows(&self, table: &Arc<TableView>) -> Arc<[Arc<Row>]> {
        let now = self.now();
        let mut memo = self.memo.lock().expect("no holder of the lock panics");
        if let Some(memo) = &*memo
            && now.saturating_sub(memo.at) < FRESH_FOR
            && memo.table.same_rules(table)
        {
            return memo.rows.clone();
        }
        let rows = self.make(now, table);
        *memo = Some(Memo { at: now, table: table.clone(), rows: rows.clone() });
        rows
    }

    fn make(&self, now: Duration, table: &TableView) -> Arc<[Arc<Row>]> {
        let interval = *self.report_interval.borrow();
        let lag = (interval.mul_f64(1.25) + Duration::from_secs(1)).min(MAX_LAG);
        let mut books = self.books();
        books.tidy(now);
        let sources = books.sources();
        let none = Sources::default();
        let mut rows: Vec<Arc<Row>> = books
            .routes
            .iter()
            .map(|(route, book)| {
                let sources = sources.get(route).unwrap_or(&none);
                let stats = book.stats(route, sources, now.saturating_sub(lag), table);
                Arc::new(Row { route: route.clone(), stats })
            })
            .collect();
        rows.sort_by(|a, b| a.route.cmp(&b.route));
        rows.into()
    }
}

impl Books {
    fn sources(&self) -> HashMap<Route, Sources> {
        let mut all: HashMap<Route, Sources> = HashMap::with_capacity(self.routes.len());
        for instance in self.instances.values() {
            for (route, totals) in instance.routes() {
                let sources = match all.get_mut(route) {
                    Some(sources) => sources,
                    None => all.entry(route.clone()).or_default(),
                };
                sources.totals.add(totals);
                if instance.serves() {
                    sources.serving_calls = sources.serving_calls.saturating_add(totals.calls);
                    sources.no_context_calls =
                        sources.no_context_calls.saturating_add(totals.no_context_calls);
                }
                if instance.is_connected() {
                    sources.connected += 1;
                    // A process whose routes are known has reported.
                    let reported = instance.last_report().unwrap_or_default();
                    sources.reported = Some(sources.reported.map_or(reported, |others| others.min(reported)));
                }
            }
        }
        all
    }
}

impl RouteBook {
    /// The figures up to the time when all have reported, but at least to `settled`.
    fn stats(
        &self,
        route: &Route,
        sources: &Sources,
        settled: Duration,
        table: &TableView,
    ) -> v1::RouteStats {
        let end = sources.reported.unwrap_or(settled).max(settled);
        let (sums, seconds) = self.window.sums(end);
        let latencies = self.window.latency(end);
        let counts = latencies.iter().map(|(bucket, n)| (usize::from(*bucket), *n));
        let quantile = |share_bp| {
            let duration = latency::quantile(counts.clone(), share_bp)?;
            prost_types::Duration::try_from(duration).ok()
        };
        let rule = self.key.as_ref().and_then(|key| table.winner(key));
        let failed: f64 =
            sums.fates.iter().filter(|(ending, _)| is_error(ending.fate)).map(|(_, n)| *n).sum();
        let fates = sources.totals.fates.iter().map(|(ending, total)| v1::FateRate {
            fate: v1::Fate::from(ending.fate).into(),
            would: ending.would,
            per_s: sums.fates.get(ending).copied().unwrap_or(0.0) / seconds,
            total: *total,
        });
        v1::RouteStats {
            key: Some(route.wire()),
            rule: rule.map(|rule| rule.pattern().into()),
            mode: rule.map_or(v1::Mode::Unspecified, |rule| rule.policy().mode.into()).into(),
            clients: sources.connected,
            calls_per_s: sums.calls / seconds,
            attempts_per_s: sums.attempts / seconds,
            amplification: share(sums.attempts, sums.calls),
            error_share: share(failed, sums.calls).min(1.0),
            fates: fates.collect(),
            p50: quantile(5_000),
            p99: quantile(9_900),
            total_calls: sources.totals.calls,
            total_attempts: sources.totals.attempts,
            chain_coverage: coverage(sources),
            hedges_per_s: sums.hedges / seconds,
            total_hedges: sources.totals.hedges,
            total_outer_loop_calls: sources.totals.outer_loop_calls,
            ..Default::default()
        }
    }
}

/// True if the application got an error that it did not cause by giving up.
fn is_error(fate: Fate) -> bool {
    !fate.is_ok() && fate != Fate::Cancelled
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The share of the calls that belong to a request, where the caller serves requests; else there is no gap.
fn coverage(sources: &Sources) -> f64 {
    if sources.serving_calls == 0 {
        return 1.0;
    }
    (1.0 - sources.no_context_calls as f64 / sources.serving_calls as f64).max(0.0)
}
