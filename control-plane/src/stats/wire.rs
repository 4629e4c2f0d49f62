//! The totals of a process as reports, for a peer that has none yet.
//!
//! Reports contain only changes since the last one, so a new peer first gets the known totals, in reports of
//! a bounded size.

use std::sync::Arc;
use std::time::Duration;

use damper_core::Code;
use damper_proto::v1;
use prost::Message as _;

use crate::clients::session::ClientSession;
use crate::stats::counters;
use crate::stats::counters::SparseCounters;
use crate::stats::instance::{InstanceId, LastReport};
use crate::stats::served::ServedCounters;
use crate::stats::{Route, Stats, StatsState};

/// The most bytes of one report.
const REPORT_BYTES: usize = 256 << 10;

impl Stats {
    /// Returns the totals of a session's process as reports, with their age; empty before its first report.
    pub(crate) fn totals(&self, session: &ClientSession) -> (Vec<v1::Report>, Duration) {
        let now = self.now();
        let (routes, served, endpoints, since, age) = {
            let books = self.books();
            let instance = books.instances.get(&InstanceId::of(session));
            let Some((instance, last)) = instance.and_then(|it| Some((it, it.last_report()?))) else {
                return (Vec::new(), Duration::ZERO);
            };
            let (mut routes, served) = instance.to_report();
            for ((route, _), part) in instance.routes().zip(&mut routes) {
                part.failed_calls = books.failures_of(route, session);
            }
            (
                routes,
                served,
                instance.endpoints().to_report(),
                instance.start().map(|start| last.saturating_sub(start)),
                now.saturating_sub(last),
            )
        };
        let (source, override_mode) = {
            let progress = session.progress();
            (progress.source(), progress.override_mode())
        };
        let since = since.and_then(|since| prost_types::Duration::try_from(since).ok());
        let empty = v1::Report { since, source, override_mode, ..v1::Report::default() };
        let mut reports = vec![empty.clone()];
        let mut room = REPORT_BYTES;
        let mut place = |size: usize, put: &mut dyn FnMut(&mut v1::Report)| {
            if size > room {
                reports.push(empty.clone());
                room = REPORT_BYTES;
            }
            room = room.saturating_sub(size);
            put(reports.last_mut().expect("there is always a report"));
        };
        for part in routes {
            place(part.encoded_len(), &mut |report| report.routes.push(part.clone()));
        }
        for part in served {
            place(part.encoded_len(), &mut |report| report.served.push(part.clone()));
        }
        for part in endpoints {
            place(part.encoded_len(), &mut |report| report.endpoints.push(part.clone()));
        }
        (reports, age)
    }
}

impl StatsState {
    /// The failed calls of a process on a route.
    fn failures_of(&self, route: &Route, session: &ClientSession) -> Vec<v1::FailedCall> {
        self.routes.get(route).map(|book| book.failures.reported_by(&session.instance)).unwrap_or_default()
    }
}

impl LastReport {
    pub(crate) fn to_report(&self, route: &Route) -> v1::RouteReport {
        let counts = &self.totals.counts;
        let fates = counters::endings(counts).map(|(ending, count)| v1::FateCount {
            fate: v1::Fate::from(ending.fate).into(),
            would: ending.would,
            count,
        });
        let codes = Code::ALL.into_iter().map(|code| (code, counts.count(counters::code(code))));
        let codes = codes.filter(|(_, count)| *count > 0);
        v1::RouteReport {
            callee_service: route.callee_service.to_string(),
            callee_method: route.callee_method.to_string(),
            calls: counts.count(counters::CALLS),
            attempts: counts.count(counters::ATTEMPTS),
            retries: counts.count(counters::RETRIES),
            transparent_resends: 0,
            fates: fates.collect(),
            codes: codes
                .map(|(code, count)| v1::CodeCount { code: v1::Code::from(code).into(), count })
                .collect(),
            latency: buckets(&self.totals.latency),
            no_context_calls: counts.count(counters::NO_CONTEXT_CALLS),
            hedges: counts.count(counters::HEDGES),
            would_hedges: counts.count(counters::WOULD_HEDGES),
            outer_loop_calls: counts.count(counters::OUTER_LOOP_CALLS),
            state: self.state,
            failed_calls: Vec::new(),
        }
    }
}

fn buckets(latency: &SparseCounters) -> Vec<v1::BucketCount> {
    latency.iter().map(|(bucket, count)| v1::BucketCount { bucket: bucket.into(), count }).collect()
}

impl ServedCounters {
    pub(crate) fn report(&self, method: &Arc<str>) -> v1::ServedReport {
        let Self {
            first_sends,
            damper_repeats,
            grpc_repeats,
            envoy_repeats,
            shed_repeats,
            would_shed_repeats,
        } = *self;
        v1::ServedReport {
            method: method.to_string(),
            first_sends,
            damper_repeats,
            grpc_repeats,
            envoy_repeats,
            shed_repeats,
            would_shed_repeats,
        }
    }
}
