//! Chooses the next replica and the wait before it. Pure of I/O and clock.
//!
//! A replica is one address of an endpoint; a name may have several. A round tries each address once, in
//! random order, with the last used one at the end. An endpoint's name is looked up at its turn. After a
//! round the wait is uniform in [0, d], with d = 0.5 s doubling to 2.5 s ("full jitter", M. Brooker,
//! Exponential Backoff And Jitter, AWS Architecture Blog). A client reconnects within 3 s of the control
//! plane's return, and meanwhile tries every 1.25 s on average. If all replicas deny access the wait is
//! uniform in [0, 20 s]: an operator must act, and a handshake costs the server more than a refused
//! connection.
//!
//! A stream that delivered rules and ended is no failure: replicas are restarted and balanced. While any
//! replica serves, a client reconnects within 10 s: the wait after a stream grows to 4 s, and an unresponsive
//! address costs 5 s. While streams last less than 4 s the wait grows, so that a stream and the wait after it
//! take 2 s on average. Each stream with rules resets the wait after rounds.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use damper_endpoint::address;
use tonic::transport::Uri;

use crate::background::reconnect_backoff::{ReconnectBackoff, jittered};

/// Longest wait after a failed round. With the time to connect it stays below 3 s.
const LONGEST: Duration = Duration::from_millis(2_500);
/// Longest wait after a round in which all replicas denied access. A changed token ends it, see `stream`.
const LONGEST_AFTER_DENIAL: Duration = Duration::from_secs(20);
const LONGEST_AFTER_STREAM: Duration = Duration::from_secs(4);
/// A shorter stream lets the wait grow.
const LASTING: Duration = Duration::from_secs(4);
/// Limit of the addresses tried per name and round.
const MAX_ADDRESSES: usize = 32;

/// The replicas and the state of the present round.
#[derive(Debug)]
pub(crate) struct Replicas {
    endpoints: Vec<Uri>,
    /// Endpoints to look up in this round; the next one is last.
    to_look_up: Vec<Uri>,
    /// Addresses to try; the next one is last.
    to_ask: Vec<Replica>,
    /// The replica to try last in the next round.
    left: Option<Replica>,
    /// True if every replica tried in this round denied access.
    all_denied: bool,
    after_rounds: ReconnectBackoff,
    after_streams: ReconnectBackoff,
}

/// One address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(super) endpoint: Uri,
    pub(super) address: SocketAddr,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReconnectStep {
    /// Look up this endpoint and pass its addresses to [`Replicas::found`].
    LookUp(Uri),
    Ask(Replica),
}

impl Replicas {
    pub(crate) fn new(endpoints: Vec<Uri>) -> Self {
        let mut replicas = Self {
            endpoints,
            to_look_up: Vec::new(),
            to_ask: Vec::new(),
            left: None,
            all_denied: true,
            after_rounds: ReconnectBackoff::up_to(LONGEST),
            after_streams: ReconnectBackoff::up_to(LONGEST_AFTER_STREAM),
        };
        replicas.begin_round();
        replicas
    }

    /// Returns the next step. Begins a round if the previous one has ended.
    pub(super) fn turn(&mut self) -> Option<ReconnectStep> {
        if self.is_round_over() {
            self.begin_round();
        }
        if let Some(replica) = self.to_ask.pop() {
            self.left = Some(replica.clone());
            return Some(ReconnectStep::Ask(replica));
        }
        self.to_look_up.pop().map(ReconnectStep::LookUp)
    }

    /// Sets the addresses of the endpoint looked up.
    pub(super) fn found(&mut self, endpoint: &Uri, mut addresses: Vec<SocketAddr>) {
        addresses.sort_unstable();
        addresses.dedup();
        fastrand::shuffle(&mut addresses);
        addresses.truncate(MAX_ADDRESSES);
        let left = self.left.as_ref().map(|left| left.address);
        // The list is popped from its end: the first is tried last.
        addresses.sort_by_key(|address| Some(*address) != left);
        let replica = |address| Replica { endpoint: endpoint.clone(), address };
        self.to_ask = addresses.into_iter().map(replica).collect();
    }

    /// Returns the wait after a failed replica: zero within a round.
    pub(crate) fn after_miss(&mut self) -> Duration {
        self.all_denied = false;
        self.after_turn()
    }

    /// Returns the wait after a replica that denied access: zero within a round, as another one may accept.
    pub(crate) fn after_denial(&mut self) -> Duration {
        self.after_turn()
    }

    /// Returns the wait after a stream that delivered rules and lasted this long.
    pub(crate) fn after_stream(&mut self, lasted: Duration) -> Duration {
        self.begin_round();
        self.after_rounds = ReconnectBackoff::up_to(LONGEST);
        if lasted >= LASTING {
            self.after_streams = ReconnectBackoff::up_to(LONGEST_AFTER_STREAM);
        }
        self.after_streams.next()
    }

    fn after_turn(&mut self) -> Duration {
        match (self.is_round_over(), self.all_denied) {
            (false, _) => Duration::ZERO,
            (true, false) => self.after_rounds.next(),
            (true, true) => jittered(LONGEST_AFTER_DENIAL),
        }
    }

    fn is_round_over(&self) -> bool {
        self.to_look_up.is_empty() && self.to_ask.is_empty()
    }

    fn begin_round(&mut self) {
        let left = self.left.as_ref().map(|left| &left.endpoint);
        let mut endpoints = self.endpoints.clone();
        fastrand::shuffle(&mut endpoints);
        endpoints.sort_by_key(|endpoint| Some(endpoint) != left);
        self.to_look_up = endpoints;
        self.to_ask.clear();
        self.all_denied = true;
    }
}

impl fmt::Display for Replica {
    /// Adds the address if the endpoint is a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, address } = self;
        let text = endpoint.to_string();
        f.write_str(text.trim_end_matches('/'))?;
        match address::host(endpoint) == address.ip().to_string() {
            true => Ok(()),
            false => write!(f, " ({address})"),
        }
    }
}

#[cfg(test)]
mod tests;
