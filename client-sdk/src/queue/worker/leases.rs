//! The leases of a worker and its credits. Without I/O and clock.
//!
//! A delivery takes a credit and becomes a lease. The worker keeps each lease until the server confirms how
//! it ended, and names all of them when a stream begins. Credits never exceed the slots without a handler.
//!
//! ```text
//! delivered -> running -> settling -> confirmed
//!    |            |          ^
//!    |            +- cancelled by the server, or lost: dropped
//!    +- released: no slot, or the worker stops
//! ```

use std::collections::BTreeMap;

use damper_proto::v1;
use damper_proto::v1::settle::How;

/// Limit of leases and credits of a stream.
pub(super) const MAX_LEASES: u32 = 1_000;

/// Id of a lease.
pub(super) type LeaseId = Vec<u8>;

#[derive(Debug)]
pub(super) struct Leases {
    slots: u32,
    /// Handlers that run, those of cancelled deliveries included.
    busy: u32,
    /// Deliveries that the server may send.
    credits: u32,
    held: BTreeMap<LeaseId, Held>,
    is_stopping: bool,
}

#[derive(Debug)]
enum Held {
    Running,
    Settling(How),
}

/// What to do with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Begin,
    /// Release it, for this reason.
    Release(&'static str),
    /// Its body cannot be read.
    Unreadable,
    /// It was delivered before.
    Known,
}

impl Leases {
    pub(super) fn new(slots: u32) -> Self {
        Self { slots, busy: 0, credits: 0, held: BTreeMap::new(), is_stopping: false }
    }

    /// Takes no further deliveries.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Begins a stream. Returns the credits and leases for its hello.
    pub(super) fn begin_stream(&mut self) -> (u32, Vec<LeaseId>) {
        self.credits = 0;
        (self.grant(), self.held.keys().cloned().collect())
    }

    /// Returns what a new stream repeats: the leases whose handlers run, and the ends that were not
    /// confirmed.
    pub(super) fn unconfirmed(&self) -> (Vec<LeaseId>, Vec<v1::Settle>) {
        let (mut running, mut ends) = (Vec::new(), Vec::new());
        for (lease, held) in &self.held {
            match held {
                Held::Running => running.push(lease.clone()),
                Held::Settling(how) => ends.push(settle(lease, how)),
            }
        }
        (running, ends)
    }

    /// Returns the credits to grant now, which count as granted.
    pub(super) fn grant(&mut self) -> u32 {
        if self.is_stopping {
            return 0;
        }
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let free = self.slots.saturating_sub(self.busy).min(MAX_LEASES.saturating_sub(held));
        let more = free.saturating_sub(self.credits);
        self.credits += more;
        more
    }

    /// Records a delivery. One that begins takes a slot.
    pub(super) fn arrived(&mut self, lease: &LeaseId, is_readable: bool) -> Arrival {
        self.credits = self.credits.saturating_sub(1);
        if self.held.contains_key(lease) {
            return Arrival::Known;
        }
        if self.is_stopping {
            return Arrival::Release("shutdown");
        }
        if self.busy >= self.slots {
            return Arrival::Release("no_slot");
        }
        if !is_readable {
            return Arrival::Unreadable;
        }
        self.busy += 1;
        self.held.insert(lease.clone(), Held::Running);
        Arrival::Begin
    }

    /// Frees the slot of a handler that has ended.
    pub(super) fn free_slot(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// Records how a handler ended. Returns the message; `None` if the worker has lost the lease.
    pub(super) fn ended(&mut self, lease: &LeaseId, how: How) -> Option<v1::Settle> {
        let held = self.held.get_mut(lease).filter(|held| matches!(held, Held::Running))?;
        *held = Held::Settling(how.clone());
        Some(v1::Settle { lease: lease.clone(), how: Some(how) })
    }

    /// Records how a delivery ends that does not begin. Returns the message.
    pub(super) fn ended_at_once(&mut self, lease: &LeaseId, how: How) -> v1::Settle {
        let message = settle(lease, &how);
        self.held.insert(lease.clone(), Held::Settling(how));
        message
    }

    /// Records the confirmation of an end.
    pub(super) fn confirmed(&mut self, lease: &LeaseId) {
        if matches!(self.held.get(lease), Some(Held::Settling(_))) {
            self.held.remove(lease);
        }
    }

    /// Drops a lease that the worker no longer has. Returns true if its handler runs and must stop. An end
    /// that was sent is confirmed later, whatever became of the lease.
    pub(super) fn lost(&mut self, lease: &LeaseId) -> bool {
        let runs = matches!(self.held.get(lease), Some(Held::Running));
        if runs {
            self.held.remove(lease);
        }
        runs
    }

    /// Returns the number of handlers that run.
    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// Returns the number of leases.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of leases whose handlers run.
    pub(super) fn running(&self) -> usize {
        self.held.values().filter(|held| matches!(held, Held::Running)).count()
    }
}

fn settle(lease: &LeaseId, how: &How) -> v1::Settle {
    v1::Settle { lease: lease.clone(), how: Some(how.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: u8) -> LeaseId {
        vec![name]
    }

    fn done() -> How {
        How::Done(v1::Done {})
    }

    /// A worker with this number of slots whose stream has begun.
    fn begun(slots: u32) -> Leases {
        let mut leases = Leases::new(slots);
        assert_eq!(leases.begin_stream(), (slots, vec![]));
        leases
    }

    #[test]
    fn credits_never_exceed_free_slots() {
        let mut random = fastrand::Rng::with_seed(7);
        for slots in [1, 2, 7, 1_000, 4_000] {
            let mut leases = begun(slots.min(MAX_LEASES));
            let slots = slots.min(MAX_LEASES);
            let (mut next, mut running, mut settling) = (0_u32, Vec::new(), Vec::new());
            for _ in 0..20_000 {
                match random.u32(..6) {
                    0 | 1 if leases.credits > 0 => {
                        let lease = next.to_be_bytes().to_vec();
                        next += 1;
                        assert_eq!(leases.arrived(&lease, true), Arrival::Begin, "a credit is a free slot");
                        running.push(lease);
                    }
                    2 if !running.is_empty() => {
                        let lease = running.swap_remove(random.usize(..running.len()));
                        leases.free_slot();
                        settling.extend(leases.ended(&lease, done()).map(|settle| settle.lease));
                    }
                    3 if !settling.is_empty() => {
                        leases.confirmed(&settling.swap_remove(random.usize(..settling.len())));
                    }
                    4 if !running.is_empty() => _ = leases.lost(&running[0]),
                    5 if random.u32(..20) == 0 => _ = leases.begin_stream(),
                    _ => {
                        leases.grant();
                    }
                }
                assert!(leases.credits + leases.busy <= slots);
                assert!(leases.credits as usize + leases.held() <= MAX_LEASES as usize);
                assert_eq!(leases.busy as usize, running.len());
            }
        }
    }

    #[test]
    fn slot_of_a_lost_lease_is_free_when_its_handler_has_ended() {
        let mut leases = begun(1);
        assert_eq!(leases.arrived(&lease(1), true), Arrival::Begin);
        assert!(leases.lost(&lease(1)));
        assert_eq!((leases.grant(), leases.running(), leases.busy()), (0, 0, 1));
        leases.free_slot();
        assert_eq!(leases.grant(), 1);
        assert_eq!(leases.ended(&lease(1), done()), None);
    }

    #[test]
    fn delivery_beyond_the_slots_is_released() {
        let mut leases = begun(1);
        assert_eq!(leases.arrived(&lease(1), true), Arrival::Begin);
        assert_eq!(leases.arrived(&lease(1), true), Arrival::Known);
        assert_eq!(leases.arrived(&lease(2), true), Arrival::Release("no_slot"));
        leases.stop();
        assert_eq!(leases.arrived(&lease(3), true), Arrival::Release("shutdown"));
        leases.free_slot();
        assert_eq!(leases.grant(), 0, "it stops");
    }

    #[test]
    fn unconfirmed_ends_are_repeated_until_they_are_confirmed() {
        let mut leases = begun(2);
        leases.arrived(&lease(1), true);
        leases.arrived(&lease(2), true);
        leases.free_slot();
        let message = leases.ended(&lease(2), done()).unwrap();
        assert_eq!(leases.ended(&lease(2), done()), None, "it ends once");
        assert_eq!(leases.begin_stream(), (1, vec![lease(1), lease(2)]));
        assert_eq!(leases.unconfirmed(), (vec![lease(1)], vec![message.clone()]));
        assert!(!leases.lost(&lease(2)), "its end was sent");
        leases.confirmed(&lease(1));
        assert_eq!(leases.unconfirmed(), (vec![lease(1)], vec![message]));
        leases.confirmed(&lease(2));
        assert_eq!((leases.held(), leases.running()), (1, 1));
    }
}
