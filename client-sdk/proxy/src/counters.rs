//! What the proxy counts itself. The counters of calls and served requests are the SDK's.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::lock;

/// Where the context of a call was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The key in `tracestate`.
    TraceState,
    /// The key in `baggage`.
    Baggage,
    /// A flag that the service has copied.
    Header,
    /// The id of a trace that one request has.
    Id,
    /// The id of a trace that several requests have.
    Ambiguous,
    /// Nowhere.
    None,
}

const WAYS: [(By, &str); 6] = [
    (By::TraceState, "tracestate"),
    (By::Baggage, "baggage"),
    (By::Header, "header"),
    (By::Id, "id"),
    (By::Ambiguous, "ambiguous"),
    (By::None, "none"),
];

/// Why a request has no key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    /// Too many requests are in flight.
    TableFull,
    /// The head of the request, or its carriers, would be too large.
    HeadFull,
}

/// What becomes of a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// HTTP/2 to a callee.
    Governed,
    /// To a callee, and not HTTP/2 in plaintext: passed on as bytes.
    NotHttp2,
    /// To a host that is not governed: passed on as bytes.
    Unlisted,
    /// Not opened.
    Refused,
}

const TUNNELS: [(Tunnel, &str); 4] = [
    (Tunnel::Governed, "governed"),
    (Tunnel::NotHttp2, "not_http2"),
    (Tunnel::Unlisted, "unlisted"),
    (Tunnel::Refused, "refused"),
];

#[derive(Debug, Default)]
pub(crate) struct Counters {
    tunnels: [AtomicU64; TUNNELS.len()],
    configurations: AtomicU64,
    rejected: AtomicU64,
    /// Why the newest configuration is not in force.
    rejection: Mutex<Option<String>>,
    /// Why changed certificates for callers are not in force.
    tls_fault: Mutex<Option<String>>,
    failed_handshakes: AtomicU64,
    context: [AtomicU64; WAYS.len()],
    table_full: AtomicU64,
    head_full: AtomicU64,
    own_client_repeats: AtomicU64,
}

/// What a proxy has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Calls with a context by the key in `tracestate`.
    pub by_tracestate: u64,
    /// Calls with a context by the key in `baggage`.
    pub by_baggage: u64,
    /// Calls with a flag that the service has copied.
    pub by_header: u64,
    /// Calls with a flag by the id of their trace.
    pub by_id: u64,
    /// Calls with the id of a trace that several requests have.
    pub ambiguous: u64,
    /// Calls without a context.
    pub without: u64,
    /// Requests without a key because the table was full.
    pub table_full: u64,
    /// Requests without a key because their head was too large.
    pub head_full: u64,
    /// Calls that the service's own gRPC client has repeated.
    pub own_client_repeats: u64,
    /// Connections by CONNECT that are governed.
    pub governed_tunnels: u64,
    /// Connections by CONNECT that pass as bytes.
    pub byte_tunnels: u64,
    /// Changed configurations that were applied.
    pub configurations: u64,
    /// Changed configurations that were rejected.
    pub rejected_configurations: u64,
    /// Connections of callers that failed at TLS.
    pub failed_handshakes: u64,
}

impl Counters {
    pub(crate) fn context(&self, by: By) {
        for ((way, _), count) in WAYS.iter().zip(&self.context) {
            if *way == by {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn left_out(&self, why: LeftOut) {
        let count = match why {
            LeftOut::TableFull => &self.table_full,
            LeftOut::HeadFull => &self.head_full,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn own_client_repeat(&self) {
        self.own_client_repeats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn tunnel(&self, what: Tunnel) {
        for ((known, _), count) in TUNNELS.iter().zip(&self.tunnels) {
            if *known == what {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts a changed configuration that is in force.
    pub(crate) fn applied(&self) {
        self.configurations.fetch_add(1, Ordering::Relaxed);
        lock(&self.rejection).take();
    }

    /// Counts a changed configuration that is not in force, unless it was tried again.
    pub(crate) fn rejected(&self, problem: String, is_again: bool) {
        self.rejected.fetch_add(u64::from(!is_again), Ordering::Relaxed);
        *lock(&self.rejection) = Some(problem);
    }

    /// Notes why changed certificates for callers are not in force.
    pub(crate) fn tls_fault(&self, problem: Option<String>) {
        *lock(&self.tls_fault) = problem;
    }

    pub(crate) fn handshake_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns why the newest configuration, or a file of it, is not in force.
    pub(crate) fn rejection(&self) -> Option<String> {
        let faults = [&self.rejection, &self.tls_fault].map(|fault| lock(fault).clone());
        let problems: Vec<_> = faults.into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("\n"))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [by_tracestate, by_baggage, by_header, by_id, ambiguous, without] =
            self.context.each_ref().map(read);
        let [governed_tunnels, not_http2, unlisted, _] = self.tunnels.each_ref().map(read);
        Snapshot {
            by_tracestate,
            by_baggage,
            by_header,
            by_id,
            ambiguous,
            without,
            table_full: read(&self.table_full),
            head_full: read(&self.head_full),
            own_client_repeats: read(&self.own_client_repeats),
            governed_tunnels,
            byte_tunnels: not_http2 + unlisted,
            configurations: read(&self.configurations),
            rejected_configurations: read(&self.rejected),
            failed_handshakes: read(&self.failed_handshakes),
        }
    }

    /// Returns the counters in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, help: &str, label: &str, values: &[(&str, &AtomicU64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for (value, count) in values {
                let label = if label.is_empty() { String::new() } else { format!("{{{label}=\"{value}\"}}") };
                let _ = writeln!(text, "{name}{label} {}", count.load(Ordering::Relaxed));
            }
        };
        let ways: Vec<_> = WAYS.iter().zip(&self.context).map(|((_, name), count)| (*name, count)).collect();
        family("damper_proxy_context_total", "Calls by where their request was found.", "by", &ways);
        let left_out = [("table", &self.table_full), ("head", &self.head_full)];
        family("damper_proxy_keys_left_out_total", "Requests without a key.", "full", &left_out);
        let repeats = [("", &self.own_client_repeats)];
        let help = "Calls that the service's own gRPC client repeated.";
        family("damper_proxy_own_client_repeats_total", help, "", &repeats);
        let tunnels: Vec<_> =
            TUNNELS.iter().zip(&self.tunnels).map(|((_, name), count)| (*name, count)).collect();
        family("damper_proxy_tunnels_total", "Connections by CONNECT.", "kind", &tunnels);
        let changes = [("applied", &self.configurations), ("rejected", &self.rejected)];
        family("damper_proxy_config_changes_total", "Changed configurations.", "result", &changes);
        let failed = [("", &self.failed_handshakes)];
        let help = "Connections of callers that failed at TLS.";
        family("damper_proxy_handshakes_failed_total", help, "", &failed);
        let (name, is_rejected) = ("damper_proxy_config_rejected", self.rejection().is_some());
        let _ =
            writeln!(text, "# HELP {name} 1 if the newest configuration was rejected.\n# TYPE {name} gauge");
        let _ = writeln!(text, "{name} {}", u8::from(is_rejected));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_each_counter_once() {
        let counters = Counters::default();
        counters.context(By::Id);
        counters.own_client_repeat();
        let text = counters.text();
        for line in [
            "damper_proxy_context_total{by=\"id\"} 1",
            "damper_proxy_context_total{by=\"none\"} 0",
            "damper_proxy_own_client_repeats_total 1",
        ] {
            assert_eq!(text.lines().filter(|known| *known == line).count(), 1, "{line}\n{text}");
        }
    }
}
