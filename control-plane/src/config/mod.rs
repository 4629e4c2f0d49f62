//! The settings of a server with their defaults.
//!
//! These are the server's own limits and times; the bounds of rules are in damper-core. Times are settings so
//! that tests need not wait half a minute for a slow consumer.

#[cfg(test)]
mod memory;
pub(crate) mod open_ports;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::auth::Auth;
use crate::auth::certificate::ClientIdentity;
use crate::auth::origin::PageOrigin;
use crate::jobs::url::QueuesUrl;
use crate::state::retention::HistoryRetention;
use damper_net::limits::Limits;
use damper_net::tls::TlsConfig;
pub(crate) use damper_store::StoreUrl;

/// The default limit of rules.
pub const MAX_RULES: usize = 10_000;

/// The default limit of guards.
pub const MAX_GUARDS: usize = 1_000;

/// Returns the limit in bytes of all keys and values of rules, guards or tokens: 400 for each, 1 MiB at
/// least. A usual rule has 350, a single one at most 64 KiB.
pub(crate) fn max_bytes(max_entries: usize) -> usize {
    max_entries.saturating_mul(400).max(1 << 20)
}

/// The default limit of tokens.
pub const MAX_TOKENS: usize = 2_000;

/// The number of replicas that can be expected. A replica has at most 64 peers.
pub const REPLICAS: RangeInclusive<u32> = 1..=65;

/// The most attempts at the last service of a chain per request at its first. A write that raises it further
/// is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxAmplification(u32);

/// The limit is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be between 1 and {}", MaxAmplification::MOST)]
pub struct AmplificationOutOfRange;

impl MaxAmplification {
    const MOST: u32 = 1000;

    /// The number of attempts.
    #[must_use]
    pub fn sends(self) -> u32 {
        self.0
    }
}

impl Default for MaxAmplification {
    /// 16: seven hops of three attempts that keep the flags, or two where they multiply.
    fn default() -> Self {
        Self(16)
    }
}

impl TryFrom<u32> for MaxAmplification {
    type Error = AmplificationOutOfRange;

    fn try_from(sends: u32) -> Result<Self, AmplificationOutOfRange> {
        if (1..=Self::MOST).contains(&sends) { Ok(Self(sends)) } else { Err(AmplificationOutOfRange) }
    }
}

/// The configuration of a server. [`ServerConfig::new`] sets everything but the store.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The store of rules: `sled:PATH` or `etcd://HOST:PORT[,...][/PREFIX]`.
    pub store: StoreUrl,
    /// The job store: `redb:PATH`, `postgres://USER@HOST/DATABASE` or `off`. Default: `jobs.redb` in the
    /// folder of an embedded policy store, off with a shared one.
    pub queues: QueuesUrl,
    /// The password of the database user named in `queues`; from a file or the environment, never from a
    /// flag.
    pub queues_password: Option<String>,
    /// There is one server, although others could share its policy store: allows jobs in a file. Default
    /// false.
    pub single_server: bool,
    /// The password of the etcd user named in `store`; from a file or the environment, never from a flag.
    pub etcd_password: Option<String>,
    /// The address of gRPC, gRPC-Web and the web UI. Default 127.0.0.1:7600; port 0 = any free one.
    pub listen: SocketAddr,
    /// A separate address for metrics and health. Default: only on `listen`.
    pub metrics_listen: Option<SocketAddr>,
    /// The authentication of callers. Default none.
    pub auth: Auth,
    /// TLS on `listen` and, unless `metrics_plaintext`, on `metrics_listen`. Default none.
    pub tls: Option<TlsConfig>,
    /// Serves `metrics_listen` without TLS, also to other machines. Default false.
    pub metrics_plaintext: bool,
    /// The file of the first admin token, which is created if the store has none. Default: no file.
    pub bootstrap_token_file: Option<PathBuf>,
    /// Origins of the web UI behind a proxy, if they differ from the host of requests. Default: none.
    pub page_origins: Vec<PageOrigin>,
    /// Patterns of client certificate names that contain the service. Default: the last segment of a SPIFFE
    /// id, or a whole DNS name.
    pub client_identities: Vec<ClientIdentity>,
    /// Allows listening beyond loopback without TLS or tokens. Default false.
    pub allow_insecure: bool,
    /// The limits of connections and requests.
    pub limits: Limits,
    /// The address of this replica for its peers: `http://HOST:PORT` or `https://...`. Default: `listen`,
    /// which must then be a single address.
    pub advertise: Option<String>,
    /// The authorities of the peers' certificates. Default: those of clients, else the system's.
    pub peer_ca: Option<PathBuf>,
    /// The name in the peers' certificates. Default: the host of each peer's address.
    pub peer_name: Option<String>,
    /// The expected number of replicas; the doctor warns if there are fewer. Default: unknown.
    pub replicas: Option<u32>,
    /// The most rules. Default [`MAX_RULES`].
    pub max_rules: usize,
    /// The most guards. Default [`MAX_GUARDS`].
    pub max_guards: usize,
    /// The most tokens. Default [`MAX_TOKENS`].
    pub max_tokens: usize,
    /// The most bytes of one apply. Default 4 MiB: about 12,000 usual rules.
    pub max_apply_bytes: usize,
    /// The most routes with statistics. Default 10,000.
    pub max_routes: usize,
    /// The most bytes of all statistics: totals of processes, windows of routes, failed calls. Default 40
    /// MiB.
    pub max_statistics_bytes: usize,
    /// Writes that raise the worst chain above this are rejected unless forced. Default 16.
    pub max_amplification: MaxAmplification,
    /// Changes older than this are dropped, but for the last 1,000. Default 30 days.
    pub history_retention: HistoryRetention,
    /// The time from the start to the first removal of old changes, which then runs once an hour. Default 1
    /// min.
    pub first_retention_after: Duration,
    /// The report interval of clients. Default 5 s.
    pub report_interval: Duration,
    /// The report interval while statistics are watched. Default 1 s.
    pub watched_report_interval: Duration,
    /// The interval of keep-alive messages on an idle stream. Default 15 s.
    pub bookmark_interval: Duration,
    /// The time that a stream may leave a response unread before it is closed. Default 30 s.
    pub slow_consumer_after: Duration,
    /// The time that a client may take to acknowledge a revision before it counts as behind. Default 10 s.
    pub lags_after: Duration,
    /// The age at which the server ends a stream, with up to a tenth more or less. Default 30 min.
    pub stream_age: Duration,
    /// The deadline of unary requests. Default 30 s.
    pub unary_deadline: Duration,
    /// The time for connections to end on shutdown. Default 3 s.
    pub drain: Duration,
}

impl ServerConfig {
    /// Returns the addresses that other machines could use without protection, each with its remedies. A
    /// server does not start with any, unless `allow_insecure` is set.
    #[must_use]
    pub fn open_doors(&self) -> Vec<String> {
        open_ports::problems(self)
    }

    /// Returns the defaults, with this store.
    #[must_use]
    pub fn new(store: StoreUrl) -> Self {
        Self {
            queues: QueuesUrl::default_for(&store),
            queues_password: None,
            single_server: false,
            store,
            etcd_password: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7600)),
            metrics_listen: None,
            auth: Auth::None,
            bootstrap_token_file: None,
            page_origins: Vec::new(),
            client_identities: Vec::new(),
            tls: None,
            metrics_plaintext: false,
            allow_insecure: false,
            advertise: None,
            peer_ca: None,
            peer_name: None,
            replicas: None,
            limits: Limits::default(),
            max_rules: MAX_RULES,
            max_guards: MAX_GUARDS,
            max_tokens: MAX_TOKENS,
            max_apply_bytes: 4 << 20,
            max_routes: 10_000,
            max_statistics_bytes: 40 << 20,
            max_amplification: MaxAmplification::default(),
            history_retention: HistoryRetention::default(),
            first_retention_after: Duration::from_secs(60),
            report_interval: Duration::from_secs(5),
            watched_report_interval: Duration::from_secs(1),
            bookmark_interval: Duration::from_secs(15),
            lags_after: Duration::from_secs(10),
            slow_consumer_after: Duration::from_secs(30),
            stream_age: Duration::from_secs(30 * 60),
            unary_deadline: Duration::from_secs(30),
            drain: Duration::from_secs(3),
        }
    }
}
