//! Limits of connections and requests.
//!
//! Each limit has a default well above normal use, can be configured, and counts its hits
//! (`damper_limit_hits_total`), so an operator sees which one to raise or which client to stop. A request
//! over a limit fails with RESOURCE_EXHAUSTED; a connection over a limit is closed. [`Limiter`] keeps the
//! counts per identity. The server's auth layer applies the limits of requests and defines the kind of each
//! method.

mod counters;
mod exceeded;
mod limiter;
mod partial;
mod queues;
mod quota;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

pub use self::counters::LimitCounters;
pub use self::exceeded::{LimitExceeded, TRAILER, naming};
pub use self::limiter::{Limiter, MAX_EXPORTS, MAX_OPEN_REQUESTS, MAX_OPEN_URGENT, MAX_OPEN_VISITS, Opened};
pub use self::partial::MOST as MAX_PARTIAL_BYTES;
pub use self::queues::{Line, shortened};
pub use self::quota::QuotaPermit;

/// Effect of a method on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads only.
    Read,
    /// Changes the store.
    Write,
    /// Submits or cancels jobs: limited by their number, see [`Limiter::admit_jobs`].
    Jobs,
}

/// Configurable limits of connections and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time within which a new connection must send its first byte. Default 10 s.
    pub first_byte_within: Duration,
    /// Time limit of a TLS handshake. Default 10 s.
    pub handshake_within: Duration,
    /// How long the head of a connection's first request may take from then on, and over HTTP/1.1 the head of
    /// each later one from its first byte. Default 10 s.
    pub request_head_within: Duration,
    /// Time limit of a connection without an open request. Default 5 min.
    pub idle_connection_after: Duration,
    /// Connections of the port, and clients. Default 1,250, which fit 512 MiB. Each needs a file descriptor,
    /// so the system's limit must be slightly higher.
    pub max_connections: usize,
    /// The most connections of one identity: a token, a certificate's name, or an address without either.
    /// Default 1,100.
    pub max_connections_per_identity: usize,
    /// The most connections of one address that have not made a request yet. Default 1,000.
    pub max_new_connections_per_address: usize,
    /// Open requests of one identity, clients not counted. Default 64.
    pub max_open_requests_per_identity: usize,
    /// The most open requests of one HTTP/2 connection. Default 256.
    pub max_streams_per_connection: u32,
    /// The most bytes of one message. Default 1 MiB.
    pub max_message_bytes: usize,
    /// Rate of reads per identity. Default: 2,000 a second, bursts of 10,000.
    pub reads: Rate,
    /// Rate of writes per identity. Default: 200 a second, bursts of 500.
    pub writes: Rate,
    /// How many KiB of keys and values an identity may write, kills and removals not counted. Default 1 MiB a
    /// second, 64 MiB at once; a larger write takes what there is at once.
    pub written_kib: Rate,
    /// Jobs that an identity may submit. Default: 5,000 a second, 10,000 at once.
    pub submits: Rate,
    /// How many KiB of bodies an identity may submit. Default 32 MiB a second, 64 MiB at once.
    pub submitted_kib: Rate,
}

/// Connections of the metrics port, and those of one address there.
pub const METRICS_CONNECTIONS: (usize, usize) = (128, 112);

impl Limits {
    /// The limits of the metrics port: few connections, but of its own.
    pub fn of_metrics(&self) -> Self {
        let (max_connections, max_new_connections_per_address) = METRICS_CONNECTIONS;
        Self {
            max_connections,
            max_new_connections_per_address,
            max_streams_per_connection: 16,
            ..self.clone()
        }
    }
}

/// Rate limit: a bucket of `burst` that fills at `per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second on average.
    pub per_second: NonZeroU32,
    /// Requests of a burst.
    pub burst: NonZeroU32,
}

impl Rate {
    /// No limit in practice.
    pub const UNLIMITED: Self = Self { per_second: NonZeroU32::MAX, burst: NonZeroU32::MAX };
}

impl Default for Limits {
    fn default() -> Self {
        let rate = |per_second, burst| Rate {
            per_second: NonZeroU32::new(per_second).expect("it is not 0"),
            burst: NonZeroU32::new(burst).expect("it is not 0"),
        };
        Self {
            first_byte_within: Duration::from_secs(10),
            handshake_within: Duration::from_secs(10),
            request_head_within: Duration::from_secs(10),
            idle_connection_after: Duration::from_secs(300),
            max_connections: 1_250,
            max_connections_per_identity: 1_100,
            max_new_connections_per_address: 1_000,
            max_open_requests_per_identity: 64,
            max_streams_per_connection: 256,
            max_message_bytes: 1 << 20,
            reads: rate(2_000, 10_000),
            // Below half of the writer's queue, so no single identity fills it.
            writes: rate(200, 500),
            written_kib: rate(1 << 10, 64 << 10),
            submits: rate(5_000, 10_000),
            submitted_kib: rate(32 << 10, 64 << 10),
        }
    }
}

/// A limit that was hit, by its name in metrics and in the `damper-limit` trailer of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Time until the first byte of a connection.
    FirstByte,
    /// Time of a TLS handshake.
    Handshake,
    /// Time of the head of a request.
    RequestHead,
    /// Time of a connection without an open request.
    IdleConnection,
    /// Connections of a port.
    Connections,
    /// Connections of one identity.
    ConnectionsPerIdentity,
    /// Connections of one address that have made no request yet.
    NewConnectionsPerAddress,
    /// Time of a unary request.
    UnaryDeadline,
    /// Bytes of one stored entry.
    EntryBytes,
    /// Bytes of one message.
    MessageBytes,
    /// Bytes of one apply.
    ApplyBytes,
    /// Stored rules.
    Rules,
    /// Stored guards.
    Guards,
    /// Kill switches.
    Kills,
    /// Stored tokens.
    Tokens,
    /// Stored queues.
    Queues,
    /// Reads of one identity per second.
    Reads,
    /// Writes of one identity per second.
    Writes,
    /// Bytes that one identity writes per second.
    WrittenBytes,
    /// Connected clients.
    Streams,
    /// Connected clients of one identity.
    StreamsPerIdentity,
    /// Reports of one client.
    Reports,
    /// Client groups of one identity.
    Classes,
    /// Open requests.
    OpenRequests,
    /// Open requests of one identity.
    OpenRequestsPerIdentity,
    /// Bytes of incomplete messages.
    PartialMessages,
    /// Open exports and audit logs.
    Exports,
    /// Requests that wait for the exclusive worker.
    Queue,
    /// Jobs submitted per second.
    Submits,
    /// Bytes of bodies submitted per second.
    SubmittedBytes,
}

impl Limit {
    /// Every limit, in the order of declaration.
    pub const ALL: [Self; 30] = [
        Self::FirstByte,
        Self::Handshake,
        Self::RequestHead,
        Self::IdleConnection,
        Self::Connections,
        Self::ConnectionsPerIdentity,
        Self::NewConnectionsPerAddress,
        Self::UnaryDeadline,
        Self::EntryBytes,
        Self::MessageBytes,
        Self::ApplyBytes,
        Self::Rules,
        Self::Guards,
        Self::Kills,
        Self::Tokens,
        Self::Queues,
        Self::Reads,
        Self::Writes,
        Self::WrittenBytes,
        Self::Streams,
        Self::StreamsPerIdentity,
        Self::Reports,
        Self::Classes,
        Self::OpenRequests,
        Self::OpenRequestsPerIdentity,
        Self::PartialMessages,
        Self::Exports,
        Self::Queue,
        Self::Submits,
        Self::SubmittedBytes,
    ];

    /// Its name in metrics and trailers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstByte => "first_byte",
            Self::Handshake => "handshake",
            Self::RequestHead => "request_head",
            Self::IdleConnection => "idle_connection",
            Self::Connections => "connections",
            Self::ConnectionsPerIdentity => "connections_per_identity",
            Self::NewConnectionsPerAddress => "new_connections_per_address",
            Self::UnaryDeadline => "unary_deadline",
            Self::EntryBytes => "entry_bytes",
            Self::MessageBytes => "message_bytes",
            Self::ApplyBytes => "apply_bytes",
            Self::Rules => "rules",
            Self::Guards => "guards",
            Self::Kills => "kills",
            Self::Tokens => "tokens",
            Self::Queues => "queues",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::WrittenBytes => "written_bytes",
            Self::Streams => "streams",
            Self::StreamsPerIdentity => "streams_per_identity",
            Self::Reports => "reports",
            Self::Classes => "classes",
            Self::OpenRequests => "open_requests",
            Self::OpenRequestsPerIdentity => "open_requests_per_identity",
            Self::PartialMessages => "partial_messages",
            Self::Exports => "exports",
            Self::Queue => "queue",
            Self::Submits => "submits",
            Self::SubmittedBytes => "submitted_bytes",
        }
    }
}

/// Returns an IPv4 address as it is, and the /64 network of an IPv6 address.
#[must_use]
pub fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_subscriber_is_one_identity() {
        for (address, same) in
            [("10.1.2.3", "10.1.2.3"), ("2001:db8::1:2:3:4", "2001:db8::"), ("::ffff:10.0.0.1", "10.0.0.1")]
        {
            assert_eq!(subscriber(address.parse().unwrap()).to_string(), same);
        }
    }
}
