//! Which replica next, and when. Without I/O and clock.
//!
//! A replica is one address of an endpoint: a name may have several. A round asks each of them once, in an order
//! drawn anew, so that clients spread; an endpoint's name is looked up when its turn comes. The one that was left
//! last comes last, so that a client which is sent away goes to another one. Within a round there is no wait; after
//! it the wait is uniform in [0, d], d = 0.5 s doubling to 30 s ("full jitter", M. Brooker, Exponential Backoff And
//! Jitter, AWS Architecture Blog).
//!
//! A stream that brought rules and ended, politely or not, is no failure: replicas are restarted and balanced. The
//! next one is asked within 0.5 s, and d is 0.5 s again, however often that happened before. But a server that
//! lets streams begin and ends them soon must not be hammered. So a stream that lasted less than 5 s costs what is
//! missing, out of a minute that is saved up by those that lasted longer: restarts 5 s apart cost nothing, twelve at
//! any pace are paid in advance. Who can not pay waits as after a round without success, until a stream lasts. Short
//! streams and waiting earn nothing, so against a server that always says goodbye at once the waits grow to the
//! longest and stay there.
//!
//! Who is not let in waits the longest from the first time on: only a person can change that.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use damper_endpoint::address;
use tonic::transport::Uri;

const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// A stream that lasted this long costs nothing.
const FREE_AFTER: Duration = Duration::from_secs(5);
/// What can be saved up: twelve streams that end at once.
const MOST_SAVED: Duration = Duration::from_secs(60);
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
    waits: Waits,
    /// What longer streams lasted beyond what is free, and shorter ones have not cost yet.
    saved: Duration,
}

/// One address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) endpoint: Uri,
    pub(super) address: SocketAddr,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Say with [`Replicas::found`] which addresses this endpoint has, or that there are none.
    LookUp(Uri),
    Ask(Replica),
}

/// Growing waits.
#[derive(Debug)]
pub(super) struct Waits {
    ceiling: Duration,
}

impl Replicas {
    pub(super) fn new(endpoints: Vec<Uri>) -> Self {
        let mut replicas = Self {
            endpoints,
            to_look_up: Vec::new(),
            to_ask: Vec::new(),
            left: None,
            waits: Waits::new(),
            saved: MOST_SAVED,
        };
        replicas.begin_round();
        replicas
    }

    /// What to do now. A round is over only once that was told by one of the waits.
    pub(super) fn turn(&mut self) -> Option<Turn> {
        if self.is_round_over() {
            self.begin_round();
        }
        if let Some(replica) = self.to_ask.pop() {
            self.left = Some(replica.clone());
            return Some(Turn::Ask(replica));
        }
        self.to_look_up.pop().map(Turn::LookUp)
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
        if self.is_round_over() { self.waits.next() } else { Duration::ZERO }
    }

    /// The wait after a stream that lasted this long and brought rules.
    pub(super) fn after_stream(&mut self, lasted: Duration) -> Duration {
        self.begin_round();
        let costs = FREE_AFTER.saturating_sub(lasted);
        let Some(rest) = self.saved.checked_sub(costs) else { return self.waits.next() };
        self.saved = (rest + lasted.saturating_sub(FREE_AFTER)).min(MOST_SAVED);
        self.waits = Waits::new();
        jittered(SHORTEST)
    }

    /// The wait after one that did not let us in.
    pub(super) fn after_denial(&mut self) -> Duration {
        self.begin_round();
        self.waits.ceiling = LONGEST;
        self.waits.next()
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
    }
}

impl Waits {
    pub(super) fn new() -> Self {
        Self { ceiling: SHORTEST }
    }

    pub(super) fn next(&mut self) -> Duration {
        let wait = jittered(self.ceiling);
        self.ceiling = (self.ceiling * 2).min(LONGEST);
        wait
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

fn jittered(ceiling: Duration) -> Duration {
    ceiling.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests;
