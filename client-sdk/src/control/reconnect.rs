//! Which replica next, and when. Without I/O and clock.
//!
//! A replica is one address of an endpoint: a name may have several. A round asks each of them once, in an order
//! drawn anew, the one that was left last; an endpoint's name is looked up when its turn comes. After a round the
//! wait is uniform in [0, d], d = 0.5 s doubling to 2.5 s ("full jitter", M. Brooker, Exponential Backoff And Jitter,
//! AWS Architecture Blog): a client is back within 3 s of the control plane, and one that is away is asked by each every
//! 1.25 s on average. Where all deny us the wait is uniform in [0, 20 s] at once: only a person can change that, and a
//! handshake costs the server more than a refused connection.
//!
//! A stream that brought rules and ended is no failure: replicas are restarted and balanced. While any of them serves,
//! a client is back within 10 s: the wait after a stream grows to 4 s, and an address that swallows connections costs
//! 5 s. A server that ends every stream is not hammered: while streams last less than 4 s the wait grows, so that a
//! stream and the wait after it take 2 s on average. Each stream with rules begins the waits after rounds anew.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use damper_endpoint::address;
use tonic::transport::Uri;

use crate::waits::{ReconnectBackoff, jittered};

/// After a round without success. With the time that connecting takes it stays below 3 s.
const LONGEST: Duration = Duration::from_millis(2_500);
/// After a round in which all denied us. It is cut short when the token is another, see `stream`.
const LONGEST_AFTER_DENIAL: Duration = Duration::from_secs(20);
const LONGEST_AFTER_STREAM: Duration = Duration::from_secs(4);
/// A stream that lasted this long is no sign of a server that ends all of them.
const LASTING: Duration = Duration::from_secs(4);
/// Of a name with more addresses only so many are asked in a round.
const MAX_ADDRESSES: usize = 32;

/// The replicas, and where in a round we are.
#[derive(Debug)]
pub(super) struct Replicas {
    endpoints: Vec<Uri>,
    /// Endpoints whose turn is still to come in this round; the next one is the last.
    to_look_up: Vec<Uri>,
    /// Addresses whose turn is still to come; the next one is the last.
    to_ask: Vec<Replica>,
    /// Whom to ask last in the next round.
    left: Option<Replica>,
    /// Nobody in this round did anything else than deny us.
    all_denied: bool,
    after_rounds: ReconnectBackoff,
    after_streams: ReconnectBackoff,
}

/// One address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) endpoint: Uri,
    pub(super) address: SocketAddr,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReconnectStep {
    /// Say with [`Replicas::found`] which addresses this endpoint has, or that there are none.
    LookUp(Uri),
    Ask(Replica),
}

impl Replicas {
    pub(super) fn new(endpoints: Vec<Uri>) -> Self {
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

    /// What to do now. A round is over only once that was told by one of the waits.
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

    /// The addresses of the endpoint that was to be looked up.
    pub(super) fn found(&mut self, endpoint: &Uri, mut addresses: Vec<SocketAddr>) {
        addresses.sort_unstable();
        addresses.dedup();
        fastrand::shuffle(&mut addresses);
        addresses.truncate(MAX_ADDRESSES);
        let left = self.left.as_ref().map(|left| left.address);
        // The first is asked last.
        addresses.sort_by_key(|address| Some(*address) != left);
        let replica = |address| Replica { endpoint: endpoint.clone(), address };
        self.to_ask = addresses.into_iter().map(replica).collect();
    }

    /// The wait after one that could not be reached, or that brought nothing: none while the round is not over.
    pub(super) fn after_miss(&mut self) -> Duration {
        self.all_denied = false;
        self.after_turn()
    }

    /// The wait after one that did not let us in: none while the round is not over, another one may.
    pub(super) fn after_denial(&mut self) -> Duration {
        self.after_turn()
    }

    /// The wait after a stream that lasted this long and brought rules.
    pub(super) fn after_stream(&mut self, lasted: Duration) -> Duration {
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
    /// The address besides where the endpoint does not say it.
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
