//! Choice of an endpoint per attempt, and ejection of failing endpoints.
//!
//! Of two random endpoints the one with fewer requests in flight is taken, and never one that the same call
//! has tried while another is usable. An endpoint is ejected if it fails and the others do not:
//!
//! - its last failures in a row, at least [`ROW`], would occur by chance less than once in [`CHANCE`] times
//!   if it failed as often as the others, or
//! - at least half of its last [`MIN_OUTCOMES`] or more outcomes are failures, and three times the others'
//!   share.
//!
//! So hardly any is ejected if all fail alike, and never more than half of the endpoints. After
//! [`EJECTED_FOR`] one request probes it, and another each second until the first has ended. A failed probe
//! ejects it again for twice as long, up to [`LONGEST`].
//!
//! Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing"; outlier ejection as in
//! Envoy and gRFC A50. Their success-rate test compares standard deviations, which no endpoint of fewer than
//! five can fail; comparing with the failures of the others works from two on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::gates::circuit::Outcome;
use crate::outcome::classify::{Failure, Verdict};
use crate::outcome::code::{Code, CodeSet};
use crate::random::Draws;
use crate::time::Time;

use self::ejection::{Ejection, Phase};
use self::outcomes::Outcomes;

mod ejection;
mod outcomes;

pub use self::ejection::{EJECTED_FOR, LONGEST};
pub use self::outcomes::{Counts, MIN_OUTCOMES, REMEMBERED};

/// Maximum number of endpoints per callee.
pub const MAX_ENDPOINTS: usize = 1_000;
/// Maximum number of channels per callee whose endpoints a process reports.
pub const MAX_REPORTED_CHANNELS: usize = 4;
/// Maximum number of endpoints per callee that a process reports.
pub const MAX_REPORTED: usize = 8;
/// Maximum length of a reported zone name, in bytes.
pub const MAX_ZONE_BYTES: usize = 63;
/// Minimum failures in a row that eject an endpoint.
pub const ROW: u32 = 5;
/// See the module documentation.
pub const CHANCE: u64 = 1_000_000;

/// Failures of the endpoint. Any other code is a response.
const FAULTS: CodeSet =
    CodeSet::of(&[Code::Unknown, Code::DeadlineExceeded, Code::Internal, Code::Unavailable, Code::DataLoss]);

/// State that all attempts at one endpoint share.
#[derive(Debug, Default)]
pub struct EndpointState {
    in_flight: AtomicU32,
    outcomes: Outcomes,
    ejection: Ejection,
}

/// An endpoint of the driver.
pub trait Endpoint {
    /// Returns the shared state.
    fn state(&self) -> &EndpointState;
    /// Returns a number that is unique among the callee's endpoints, as small as possible.
    fn slot(&self) -> u32;
    /// Returns true if a request can be sent now.
    fn is_connected(&self) -> bool;
}

impl<E: Endpoint> Endpoint for Arc<E> {
    fn state(&self) -> &EndpointState {
        E::state(self)
    }

    fn slot(&self) -> u32 {
        E::slot(self)
    }

    fn is_connected(&self) -> bool {
        E::is_connected(self)
    }
}

/// Endpoints that a call has tried: slot numbers modulo 64. Beyond 64 endpoints some share a number and are
/// avoided together; enough others are left then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(u64);

impl Tried {
    /// No endpoint.
    pub const NONE: Self = Self(0);

    /// Adds the endpoint with this slot.
    pub fn insert(&mut self, slot: u32) {
        self.0 |= 1 << (slot % u64::BITS);
    }

    /// Returns the endpoints in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn contains(self, slot: u32) -> bool {
        self.0 & (1 << (slot % u64::BITS)) != 0
    }
}

/// Change of an endpoint by the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ejected for this time.
    Ejected(Duration),
    /// In use again.
    Returned,
}

/// Returns the index of the endpoint for an attempt; `None` if no endpoint is connected. The first `local`
/// endpoints are near the caller and preferred: an attempt goes further away if two random ones of them are
/// not usable.
pub fn choose<E: Endpoint>(
    endpoints: &[E],
    local: usize,
    tried: Tried,
    now: Time,
    random: u64,
) -> Option<usize> {
    let mut draws = Draws::new(random);
    let is_new = |endpoint: &E| !tried.contains(endpoint.slot());
    let is_usable = |endpoint: &E| endpoint.is_connected() && endpoint.state().ejection.is_usable(now);
    let near = endpoints.get(..local).filter(|near| near.len() < endpoints.len());
    let chosen = near
        .and_then(|near| draw(near, &mut draws, |endpoint| is_usable(endpoint) && is_new(endpoint)))
        .or_else(|| draw_or_find(endpoints, &mut draws, |endpoint| is_usable(endpoint) && is_new(endpoint)))
        .or_else(|| draw_or_find(endpoints, &mut draws, is_usable))
        .or_else(|| {
            draw_or_find(endpoints, &mut draws, |endpoint| endpoint.is_connected() && is_new(endpoint))
        })
        .or_else(|| draw_or_find(endpoints, &mut draws, E::is_connected))?;
    endpoints.get(chosen)?.state().ejection.probe_sent(now);
    Some(chosen)
}

/// Draws two endpoints and returns the one with fewer requests in flight; `None` if neither is allowed.
fn draw<E: Endpoint>(endpoints: &[E], draws: &mut Draws, may: impl Fn(&E) -> bool) -> Option<usize> {
    let mut one =
        || Some(draws.index(endpoints.len())).filter(|place| endpoints.get(*place).is_some_and(&may));
    match (one(), one()) {
        (Some(first), Some(second)) => Some(fewer_in_flight(endpoints, first, second)),
        (first, second) => first.or(second),
    }
}

/// Same as `draw`; if few are allowed, returns the first from a random start.
fn draw_or_find<E: Endpoint>(endpoints: &[E], draws: &mut Draws, may: impl Fn(&E) -> bool) -> Option<usize> {
    const DRAWS: usize = 4;
    for _ in 0..DRAWS {
        if let Some(place) = draw(endpoints, draws, &may) {
            return Some(place);
        }
    }
    let start = draws.index(endpoints.len());
    let found = |(_, endpoint): &(usize, &E)| may(endpoint);
    let mut turned = endpoints.iter().enumerate().cycle().skip(start).take(endpoints.len());
    turned.find(found).map(|(place, _)| place)
}

fn fewer_in_flight<E: Endpoint>(endpoints: &[E], first: usize, second: usize) -> usize {
    let in_flight =
        |place: usize| endpoints.get(place).map_or(u32::MAX, |endpoint| endpoint.state().in_flight());
    if in_flight(second) < in_flight(first) { second } else { first }
}

/// Records the outcome of an attempt at an endpoint.
pub fn ended<E: Endpoint>(endpoints: &[E], place: usize, outcome: Outcome, now: Time) -> Option<Change> {
    let state = endpoints.get(place)?.state();
    match outcome {
        Outcome::Unknown => None,
        Outcome::Good => {
            state.outcomes.push(false);
            state.ejection.returned(now).then(|| {
                state.outcomes.clear();
                Change::Returned
            })
        }
        Outcome::Failed => {
            state.outcomes.push(true);
            let others = || others(endpoints, place);
            let ejects = match state.ejection.phase() {
                Phase::Used => allows_ejected(endpoints, 1, now) && state.outcomes.are_worse_than(others()),
                // The others fail as well.
                Phase::Probed if others().mostly_fail() => {
                    return state.ejection.returned(now).then_some(Change::Returned);
                }
                Phase::Probed => true,
                // An attempt from before the ejection.
                Phase::Ejected => false,
            };
            let ejected_for = ejects.then(|| state.ejection.eject(now, || allows_ejected(endpoints, 0, now)));
            ejected_for.flatten().map(|time| {
                state.outcomes.keep_row();
                Change::Ejected(time)
            })
        }
    }
}

/// Returns the recent outcomes of all other endpoints that are connected and in use.
fn others<E: Endpoint>(endpoints: &[E], place: usize) -> Counts {
    let others = endpoints.iter().enumerate().filter(|(other, _)| *other != place);
    let used = others.filter(|(_, endpoint)| endpoint.is_connected() && !endpoint.state().is_ejected());
    used.map(|(_, endpoint)| endpoint.state().outcomes.counts()).sum()
}

/// Returns true if at most half of the endpoints are ejected, with `more`. Expired ejections do not count:
/// there may be no request to probe them.
fn allows_ejected<E: Endpoint>(endpoints: &[E], more: usize, now: Time) -> bool {
    let ejected = endpoints.iter().filter(|endpoint| !endpoint.state().ejection.is_usable(now)).count();
    (ejected + more) * 2 <= endpoints.len()
}

/// Returns the outcome of a verdict for the endpoint.
#[must_use]
pub fn outcome_of(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Success => Outcome::Good,
        // A hop below failed.
        Verdict::Failure(Failure { no_more_retry: true, .. }) => Outcome::Unknown,
        Verdict::Failure(failure) if !FAULTS.contains(failure.code) => Outcome::Good,
        Verdict::Failure(_) | Verdict::TimedOut => Outcome::Failed,
        // If it is unreachable, it is not connected.
        Verdict::Unprocessed | Verdict::Unsent | Verdict::Local => Outcome::Unknown,
    }
}

impl EndpointState {
    /// Counts a request sent to it.
    pub fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a completed or abandoned request.
    pub fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns true from its ejection until a probe succeeds.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        self.ejection.phase() != Phase::Used
    }

    /// Returns its recent outcomes; after an ejection for a streak of failures, or a return, only those since
    /// then.
    #[must_use]
    pub fn recent(&self) -> Counts {
        self.outcomes.counts()
    }
}

#[cfg(test)]
mod tests;
