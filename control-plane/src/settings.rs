//! What a server can be told, with its defaults.
//!
//! The bounds of rules are the engine's and not found here; these are the server's own limits and times. They
//! can be set so that tests need not wait half a minute for a slow consumer.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use crate::store::Location as StoreUrl;

/// How a server runs. [`Settings::new`] fills in everything but the store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where rules are kept: `sled:PATH` or `etcd://HOST:PORT[,...][/PREFIX]`.
    pub store: StoreUrl,
    /// The password of the etcd user named in `store`; from a file or the environment, never from a flag.
    pub etcd_password: Option<String>,
    /// Where gRPC, gRPC-Web and the page are served. Default 127.0.0.1:7600; port 0 = any free one.
    pub listen: SocketAddr,
    /// Where metrics and health are served besides. Default: only on `listen`.
    pub metrics_listen: Option<SocketAddr>,
    /// Listen beyond loopback although neither TLS nor tokens guard the port. Default false.
    pub allow_insecure: bool,
    /// The most rules there may be. Default 100,000.
    pub max_rules: usize,
    /// The most bytes of one apply. Default 256 MiB.
    pub max_apply_bytes: usize,
    /// The most routes whose figures are kept. Default 10,000.
    pub max_routes: usize,
    /// How often services report. Default 5 s.
    pub report_interval: Duration,
    /// How often they report while somebody watches. Default 1 s.
    pub watched_report_interval: Duration,
    /// How often a stream without news says that it is alive. Default 15 s.
    pub bookmark_interval: Duration,
    /// How long a stream may leave a response unread before it is closed. Default 30 s.
    pub slow_consumer_after: Duration,
    /// How long a stream lives before the server ends it, with up to a tenth more or less. Default 30 min.
    pub stream_age: Duration,
    /// How long a unary call may take. Default 30 s.
    pub unary_deadline: Duration,
    /// How long connections may take to end on shutdown. Default 3 s.
    pub drain: Duration,
}

impl Settings {
    /// The defaults, with this store.
    #[must_use]
    pub fn new(store: StoreUrl) -> Self {
        Self {
            store,
            etcd_password: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7600)),
            metrics_listen: None,
            allow_insecure: false,
            max_rules: 100_000,
            max_apply_bytes: 256 << 20,
            max_routes: 10_000,
            report_interval: Duration::from_secs(5),
            watched_report_interval: Duration::from_secs(1),
            bookmark_interval: Duration::from_secs(15),
            slow_consumer_after: Duration::from_secs(30),
            stream_age: Duration::from_secs(30 * 60),
            unary_deadline: Duration::from_secs(30),
            drain: Duration::from_secs(3),
        }
    }
}
