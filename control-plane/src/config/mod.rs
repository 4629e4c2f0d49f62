//! What a server can be told, with its defaults.
//!
//! The bounds of rules are the engine's and not found here; these are the server's own limits and times. They
//! can be set so that tests need not wait half a minute for a slow consumer.

pub(crate) mod open_ports;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::auth::Auth;
use crate::auth::certificate::ClientIdentity;
use crate::auth::origin::PageOrigin;
use crate::state::retention::HistoryRetention;
use damper_net::limits::Limits;
use damper_net::tls::TlsConfig;
pub(crate) use damper_store::StoreUrl;

/// The most rules there may be, unless a server is told otherwise.
pub const MAX_RULES: usize = 100_000;

/// The most guards there may be, unless a server is told otherwise.
pub const MAX_GUARDS: usize = 10_000;

/// The most tokens there may be, unless a server is told otherwise.
pub const MAX_TOKENS: usize = 10_000;

/// How many replicas can be expected. One follows at most 64 others.
pub const REPLICAS: RangeInclusive<u32> = 1..=65;

/// How often the last service of a chain may be sent what its first was asked for once, before a write that raises it
/// is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxAmplification(u32);

/// The limit is not one of those that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not in 1 to {}", MaxAmplification::MOST)]
pub struct AmplificationOutOfRange;

impl MaxAmplification {
    const MOST: u32 = 1000;

    /// How often.
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

/// How a server runs. [`Settings::new`] fills in everything but the store.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where rules are kept: `sled:PATH` or `etcd://HOST:PORT[,...][/PREFIX]`.
    pub store: StoreUrl,
    /// The password of the etcd user named in `store`; from a file or the environment, never from a flag.
    pub etcd_password: Option<String>,
    /// Where gRPC, gRPC-Web and the page are served. Default 127.0.0.1:7600; port 0 = any free one.
    pub listen: SocketAddr,
    /// Where metrics and health are served besides. Default: only on `listen`.
    pub metrics_listen: Option<SocketAddr>,
    /// Whom it answers. Default everybody.
    pub auth: Auth,
    /// TLS on `listen` and, unless `metrics_plaintext`, on `metrics_listen`. Default none.
    pub tls: Option<TlsConfig>,
    /// No TLS on `metrics_listen` although there is a certificate, and no objection to anybody's reading there. Default
    /// false.
    pub metrics_plaintext: bool,
    /// Where the first admin token is, or is written where the store has none. Default: nowhere.
    pub bootstrap_token_file: Option<PathBuf>,
    /// Where the page is, where that is not what requests call this server: behind a proxy. Default: nowhere else.
    pub page_origins: Vec<PageOrigin>,
    /// Where a service's name is in the names of its client certificate. Default: a SPIFFE id's last segment, or a whole
    /// DNS name.
    pub client_identities: Vec<ClientIdentity>,
    /// Listen beyond loopback although neither TLS nor tokens guard the port. Default false.
    pub allow_insecure: bool,
    /// What connections and requests may take.
    pub limits: Limits,
    /// Where other replicas over the same store reach this one: `http://HOST:PORT` or `https://...`. Default: `listen`,
    /// which can not be every address of the machine then.
    pub advertise: Option<String>,
    /// The authorities that sign the other replicas' certificates. Default: those of clients, else the system's.
    pub peer_ca: Option<PathBuf>,
    /// The name in the other replicas' certificates. Default: the host of the address where each is reached.
    pub peer_name: Option<String>,
    /// How many replicas there should be; a diagnosis warns where there are fewer. Default: not known.
    pub replicas: Option<u32>,
    /// The most rules there may be. Default [`MAX_RULES`].
    pub max_rules: usize,
    /// The most guards there may be. Default [`MAX_GUARDS`].
    pub max_guards: usize,
    /// The most tokens there may be. Default [`MAX_TOKENS`].
    pub max_tokens: usize,
    /// The most bytes of one apply. Default 16 MiB: some 50,000 usual rules.
    pub max_apply_bytes: usize,
    /// The most routes whose figures are kept. Default 10,000.
    pub max_routes: usize,
    /// The most bytes of all figures: totals of processes, windows of routes, failed calls. Default 96 MiB.
    pub max_figures_bytes: usize,
    /// Writes that raise the worst chain above this are refused unless forced. Default 16.
    pub max_amplification: MaxAmplification,
    /// Changes older than this are dropped, but for the last 1,000. Default 30 days.
    pub history_retention: HistoryRetention,
    /// How long after the start old changes are dropped first; then once an hour. Default 1 min.
    pub first_retention_after: Duration,
    /// How often services report. Default 5 s.
    pub report_interval: Duration,
    /// How often they report while somebody watches. Default 1 s.
    pub watched_report_interval: Duration,
    /// How often a stream without news says that it is alive. Default 15 s.
    pub bookmark_interval: Duration,
    /// How long a stream may leave a response unread before it is closed. Default 30 s.
    pub slow_consumer_after: Duration,
    /// How long a client may take to confirm what it was sent before it is said to lag. Default 10 s.
    pub lags_after: Duration,
    /// How long a stream lives before the server ends it, with up to a tenth more or less. Default 30 min.
    pub stream_age: Duration,
    /// How long a unary call may take. Default 30 s.
    pub unary_deadline: Duration,
    /// How long connections may take to end on shutdown. Default 3 s.
    pub drain: Duration,
}

impl ServerConfig {
    /// The addresses that would be open to other machines without a guard, each with the ways to guard it. A server
    /// does not start with any, unless `allow_insecure`.
    #[must_use]
    pub fn open_doors(&self) -> Vec<String> {
        open_ports::problems(self)
    }

    /// The defaults, with this store.
    #[must_use]
    pub fn new(store: StoreUrl) -> Self {
        Self {
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
            max_apply_bytes: 16 << 20,
            max_routes: 10_000,
            max_figures_bytes: 96 << 20,
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
