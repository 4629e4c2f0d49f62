//! Metrics of the server, and their Prometheus text.
//!
//! The recorder belongs to one server and is never installed for the process, so several servers can run in
//! one. Labels come from fixed lists; statistics per route are written from the route table, whose size is
//! limited.

use std::sync::Arc;

use ::metrics::{Counter, Gauge, Key, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tonic::{Code, Status};

use damper_net::Counters;
use damper_net::limits::{Limit, LimitCounters};
use damper_net::tls::{HandshakeFailure, TlsCounters};

/// Handles to the metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    pub(crate) streams: Gauge,
    pub(crate) refusals: Counter,
    pub(crate) slow_consumers: Counter,
    pub(crate) reports: Counter,
    /// Parts of reports that could not be read or were over a limit.
    pub(crate) report_faults: Counter,
    /// Parts of peers' messages that could not be read or were over a limit.
    pub(crate) follow_faults: Counter,
    /// Metrics of connections, TLS and limits.
    pub(crate) net: Counters,
    pub(crate) revision: Gauge,
    pub(crate) rules: Gauge,
    pub(crate) guards: Gauge,
    pub(crate) queues: Gauge,
    pub(crate) stale: Gauge,
    pub(crate) unaccepted: Gauge,
}

const DENIALS: &str = "damper_denied_total";
const LIMIT_HITS: &str = "damper_limit_hits_total";
const HANDSHAKE_FAILURES: &str = "damper_tls_handshake_failures_total";
const ORIGIN: Metadata<'static> = Metadata::new("damper", Level::INFO, None);

impl Metrics {
    pub(crate) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let counter = |name: &'static str, help: &'static str| {
            recorder.describe_counter(name.into(), None, help.into());
            recorder.register_counter(&Key::from_name(name), &ORIGIN)
        };
        let gauge = |name: &'static str, help: &'static str| {
            recorder.describe_gauge(name.into(), None, help.into());
            recorder.register_gauge(&Key::from_name(name), &ORIGIN)
        };
        recorder.describe_counter(
            "damper_writes_total".into(),
            None,
            "Writes by operation and gRPC code.".into(),
        );
        for (name, help) in [
            (DENIALS, "Denied requests, by reason: unauthenticated or without permission."),
            (LIMIT_HITS, "Hits of each limit; docs/deployment.md explains them."),
            (HANDSHAKE_FAILURES, "Failed TLS handshakes, by reason."),
        ] {
            recorder.describe_counter(name.into(), None, help.into());
        }
        // All labels exist from the start, so an uncounted one is 0.
        let labelled = |key: Key| recorder.register_counter(&key, &ORIGIN);
        let limit_hits =
            Limit::ALL.map(|limit| labelled(Key::from_parts(LIMIT_HITS, &[("limit", limit.name())])));
        let handshake_failures = HandshakeFailure::ALL
            .map(|cause| labelled(Key::from_parts(HANDSHAKE_FAILURES, &[("reason", cause.name())])));
        recorder.describe_counter(
            "damper_responses_total".into(),
            None,
            "Messages sent to streams, by kind.".into(),
        );
        Self {
            streams: gauge("damper_streams", "Distribution streams connected to this replica."),
            refusals: counter("damper_nacks_total", "Responses that a client rejected, in part or whole."),
            slow_consumers: counter("damper_slow_consumers_closed_total", "Streams closed for not reading."),
            reports: counter("damper_reports_total", "Reports received from clients of this replica."),
            report_faults: counter("damper_report_faults_total", "Parts of reports that were dropped."),
            follow_faults: counter(
                "damper_follow_faults_total",
                "Parts of messages from peers that were dropped.",
            ),
            net: Counters {
                connections: gauge("damper_connections", "Open connections."),
                tls: TlsCounters {
                    certificate_expires_at: gauge(
                        "damper_tls_certificate_expires_at_seconds",
                        "Expiry of the server certificate, in seconds since 1970; 0 without TLS.",
                    ),
                    reload_failing: gauge(
                        "damper_tls_reload_failing",
                        "1 while the certificate files are invalid and the previous ones stay in use.",
                    ),
                    handshake_failures,
                },
                limits: LimitCounters(limit_hits),
            },
            revision: gauge("damper_table_revision", "Revision of this replica's snapshot."),
            rules: gauge("damper_rules", "Rules in the snapshot."),
            guards: gauge("damper_guards", "Guards in the snapshot."),
            queues: gauge("damper_queues", "Queues in the snapshot."),
            stale: gauge("damper_store_stale", "1 while the store does not answer."),
            unaccepted: gauge(
                "damper_store_unaccepted",
                "1 while the store was emptied, replaced or rolled back and no operator has accepted its content.",
            ),
            recorder: Arc::new(recorder),
            handle,
        }
    }

    /// Counts a write by its result.
    pub(crate) fn written<T>(&self, operation: &'static str, answer: Result<T, Status>) -> Result<T, Status> {
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let labels: &[(&'static str, String)] =
            &[("operation", operation.to_owned()), ("code", format!("{code:?}"))];
        self.recorder.register_counter(&Key::from_parts("damper_writes_total", labels), &ORIGIN).increment(1);
        answer
    }

    /// Counts a denied request; `reason` is from a fixed list.
    pub(crate) fn denied(&self, reason: &'static str) {
        let key = Key::from_parts(DENIALS, &[("reason", reason)]);
        self.recorder.register_counter(&key, &ORIGIN).increment(1);
    }

    /// Counts a sent message.
    pub(crate) fn sent(&self, kind: &'static str) {
        let key = Key::from_parts("damper_responses_total", &[("kind", kind)]);
        self.recorder.register_counter(&key, &ORIGIN).increment(1);
    }

    /// Returns all metrics but those of routes.
    pub(crate) fn render(&self) -> String {
        self.handle.render()
    }
}
