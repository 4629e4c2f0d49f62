//! Tower's `TpsBudget` as implemented: a success deposits 1, a retry withdraws `1 / retry_percent` (rounded
//! down) if the slots and a reserve of `min_per_sec x ttl` retries have it.
//!
//! The implementation differs from its documentation: of its ten slots of `ttl / 10` tower skips one whenever
//! it advances later than exactly at the end of a slot, which is always. So it remembers five slots and the
//! current one, a little more than half of `ttl`, and its reserve returns as much earlier. Measured in the
//! chain lab: budgets of 2 s forget after 1.2 s; tower 0.5.

use damper_core::Time;

use crate::scenario::PeerBudget;
use crate::spread::us;

const SLOTS: usize = 10;

/// Budget of one process on one route.
#[derive(Debug)]
pub(super) struct TpsBudget {
    slot_us: u64,
    price: i64,
    reserve: i64,
    slots: [i64; SLOTS],
    /// Value of the current slot, stored at its end.
    present: i64,
    place: usize,
    since: Time,
}

impl TpsBudget {
    pub(super) fn new(budget: PeerBudget) -> Self {
        let price = i64::from(10_000 / budget.retry_percent.bp().max(1));
        let seconds = (us(budget.ttl) / 1_000_000) as i64;
        Self {
            slot_us: us(budget.ttl) / SLOTS as u64,
            price,
            reserve: i64::from(budget.min_per_sec) * seconds * price,
            slots: [0; SLOTS],
            present: 0,
            place: 0,
            since: Time::ZERO,
        }
    }

    pub(super) fn deposit(&mut self, now: Time) {
        self.move_on(now);
        self.present += 1;
    }

    pub(super) fn withdraw(&mut self, now: Time) -> bool {
        self.move_on(now);
        let balance = self.present + self.slots.iter().sum::<i64>() + self.reserve;
        let enough = balance >= self.price;
        if enough {
            self.present -= self.price;
        }
        enough
    }

    /// Ends the current slot if its time has passed. The next place is one after the number of passed slots.
    fn move_on(&mut self, now: Time) {
        let passed = (now.as_micros() - self.since.as_micros()) / self.slot_us;
        if passed == 0 {
            return;
        }
        self.slots[self.place] = std::mem::take(&mut self.present);
        for _ in 0..passed.min(SLOTS as u64) {
            self.place = (self.place + 1) % SLOTS;
            self.slots[self.place] = 0;
        }
        self.place = (self.place + 1) % SLOTS;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use damper_core::Ratio;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    fn budget(min_per_sec: u32, percent_bp: u32) -> TpsBudget {
        let ttl = Duration::from_secs(10);
        TpsBudget::new(PeerBudget { ttl, min_per_sec, retry_percent: Ratio::from_bp(percent_bp) })
    }

    fn paid(budget: &mut TpsBudget, ms: u64) -> usize {
        (0..1_000).filter(|_| budget.withdraw(at(ms))).count()
    }

    #[test]
    fn a_retry_is_paid_for_every_five_successes() {
        let mut budget = budget(0, 2_000);
        (0..14).for_each(|_| budget.deposit(at(100)));
        assert_eq!(paid(&mut budget, 200), 2);
        budget.deposit(at(300));
        assert_eq!(paid(&mut budget, 400), 1);
    }

    #[test]
    fn of_a_time_with_traffic_little_more_than_half_is_remembered() {
        let mut budget = budget(0, 2_000);
        // 100 a second for 10 s are worth 200 retries to whom it is meant for, and 100 to 120 as it is.
        (0..1_000).for_each(|tick| budget.deposit(at(tick * 10)));
        let all = paid(&mut budget, 10_000);
        assert!((100..=120).contains(&all), "{all}");
    }

    #[test]
    fn the_reserve_is_there_again_when_its_use_is_forgotten() {
        let mut budget = budget(10, 2_000);
        assert_eq!([0, 500, 5_000].map(|ms| paid(&mut budget, ms)), [100, 0, 0]);
        let mut all = 100;
        for tick in 501..6_000 {
            all += paid(&mut budget, tick * 10);
        }
        assert!(all > 900, "asked for a minute it gives more than 10 a second: {all}");
    }
}
