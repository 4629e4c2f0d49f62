//! Future events by time; events of one instant in order of their scheduling.
//!
//! A binary heap of small values. Events are never removed early: the timer of an ended call finds that its
//! key is unknown.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use damper_core::Time;

/// Future events.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Time,
    noted: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> Agenda<E> {
    /// Returns an empty agenda.
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: Time::ZERO, noted: 0 }
    }

    /// Time of the last event.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Number of scheduled events.
    pub(crate) fn noted(&self) -> u64 {
        self.noted
    }

    /// Schedules an event.
    pub(crate) fn at(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event in the past: {at:?} at {:?}", self.now);
        self.heap.push(Reverse(Entry { at, order: self.noted, event }));
        self.noted += 1;
    }

    /// Schedules an event in this number of microseconds.
    pub(crate) fn after(&mut self, us: u64, event: E) {
        self.at(self.now + std::time::Duration::from_micros(us), event);
    }

    /// Returns the next event up to a time and advances the clock to it.
    pub(crate) fn next(&mut self, until: Time) -> Option<E> {
        if self.heap.peek()?.0.at > until {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_by_time_and_within_an_instant_in_their_order(waits in prop::collection::vec(0_u64..50, 0..200)) {
            let mut agenda = Agenda::new();
            let mut waits = waits.into_iter().enumerate();
            for (order, us) in waits.by_ref().take(10) {
                agenda.after(us, (order, us));
            }
            let mut last = (Time::ZERO, 0);
            while let Some((order, _)) = agenda.next(Time::from_micros(u64::MAX)) {
                prop_assert!((agenda.now(), order) >= last || agenda.now() > last.0);
                last = (agenda.now(), order);
                if let Some((order, us)) = waits.next() {
                    agenda.after(us, (order, us));
                }
            }
            prop_assert_eq!(agenda.next(Time::from_micros(u64::MAX)), None);
        }
    }

    #[test]
    fn nothing_happens_after_the_end() {
        let mut agenda = Agenda::new();
        agenda.after(10, "a");
        agenda.after(11, "b");
        assert_eq!(agenda.next(Time::from_micros(10)), Some("a"));
        assert_eq!(agenda.next(Time::from_micros(10)), None);
    }

    #[test]
    #[should_panic(expected = "an event in the past")]
    fn past_events_are_rejected() {
        let mut agenda = Agenda::new();
        agenda.after(10, ());
        agenda.next(Time::from_micros(10));
        agenda.at(Time::from_micros(9), ());
    }
}
