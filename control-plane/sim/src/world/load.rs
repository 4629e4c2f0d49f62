//! Loads: open ones by the clock, closed ones by users who wait for their responses. Jobs of queued loads are
//! in `jobs`.

use damper_core::Time;

use super::client::Parent;
use super::{Event, World};
use crate::random::Random;
use crate::scenario::{Arrivals, RateFrom};
use crate::spread::{exponential, us, whole};

/// State of a load between requests.
pub(super) struct LoadState {
    /// Its own stream, so that all strategies get the same arrivals.
    random: Random,
    /// Next process, for even arrivals.
    turn: u64,
    /// Number of the rate in force, and requests made under it.
    rate: usize,
    made: u64,
    /// Number of ended processes, which end in turn.
    restarts: u64,
}

impl LoadState {
    pub(super) fn new(random: Random) -> Self {
        Self { random, turn: 0, rate: 0, made: 0, restarts: 0 }
    }
}

impl World<'_> {
    pub(super) fn begin_loads(&mut self) {
        for index in 0..self.loads.len() {
            self.next_restart(index);
            match &self.plan.scenario.load[index].arrivals {
                Arrivals::Open { .. } => self.next_arrival(index),
                Arrivals::Closed { users, .. } => (0..*users).for_each(|_| self.think(index)),
                Arrivals::Queued(queued) => {
                    self.agenda.at(Time::after_origin(queued.from), Event::Backlog(index));
                    self.next_arrival(index);
                }
            }
        }
    }

    /// Makes a request of an open load, or submits a job.
    pub(super) fn arrival(&mut self, index: usize) {
        self.next_arrival(index);
        match self.plan.scenario.load[index].arrivals {
            Arrivals::Queued(_) => self.submit(index),
            Arrivals::Open { .. } | Arrivals::Closed { .. } => self.request(index),
        }
    }

    /// Makes a request of a user.
    pub(super) fn user(&mut self, index: usize) {
        self.request(index);
    }

    /// Handles a response; the user thinks about it.
    pub(super) fn load_answered(&mut self, index: usize) {
        if matches!(self.plan.scenario.load[index].arrivals, Arrivals::Closed { .. }) {
            self.think(index);
        }
    }

    fn think(&mut self, index: usize) {
        let Arrivals::Closed { think, .. } = &self.plan.scenario.load[index].arrivals else { return };
        let us = think.draw(&mut self.loads[index].random);
        if self.now() + std::time::Duration::from_micros(us) < self.plan.end {
            self.agenda.after(us, Event::User(index));
        }
    }

    fn request(&mut self, index: usize) {
        let (load, now) = (&self.plan.scenario.load[index], self.now());
        let state = &mut self.loads[index];
        let processes = u64::from(load.processes);
        let process = match load.arrivals {
            Arrivals::Open { even: true, .. } => state.turn % processes,
            _ => state.random.below(processes),
        };
        state.turn += 1;
        let parent = Parent::Load { load: index, request: self.ledger.request(now) };
        let route = self.route_of(index, process);
        self.begin_call(route, parent, load.timeout.map(|timeout| now + timeout));
    }

    /// Ends the next process and starts another one without memory.
    pub(super) fn restart_caller(&mut self, index: usize) {
        let process = self.loads[index].restarts % u64::from(self.plan.scenario.load[index].processes);
        self.loads[index].restarts += 1;
        self.forget(self.route_of(index, process));
        self.next_restart(index);
    }

    fn next_restart(&mut self, index: usize) {
        let load = &self.plan.scenario.load[index];
        let Some(restart) = load.restart else { return };
        let turns = u128::from(self.loads[index].restarts + 1);
        let at = u128::from(us(restart)) * turns / u128::from(load.processes);
        let at = Time::from_micros(u64::try_from(at).unwrap_or(u64::MAX));
        if at < self.plan.end {
            self.agenda.at(at, Event::Restart(index));
        }
    }

    /// Returns the current route of a process: it alternates with each start.
    pub(super) fn route_of(&self, index: usize, process: u64) -> usize {
        let load = &self.plan.scenario.load[index];
        let begun = (self.loads[index].restarts + u64::from(load.processes) - 1 - process)
            / u64::from(load.processes);
        let seats = u64::from(load.seats());
        self.plan.loads[index] + (process * seats + begun % seats) as usize
    }

    /// Schedules the next arrival before the end. If the rate changes first, it is drawn again from there: a
    /// Poisson stream has no memory, and an even one begins with a whole interval.
    fn next_arrival(&mut self, index: usize) {
        let (even, rates) = self.plan.scenario.load[index].arrivals.rates();
        let (now, end) = (self.now(), self.plan.end);
        let state = &mut self.loads[index];
        let mut from = now.as_micros();
        while let Some(rate) = rates.get(state.rate) {
            let begins = us(rate.from);
            let changes = rates.get(state.rate + 1).map_or(u64::MAX, |next| us(next.from));
            from = from.max(begins);
            let at = match rate.milli_per_second {
                0 => u64::MAX,
                _ if even => begins.saturating_add(spaces(rate, state.made + 1)),
                milli => from.saturating_add(whole(exponential(&mut state.random) * 1e9 / milli as f64)),
            };
            if at < changes {
                state.made += 1;
                if at < end.as_micros() {
                    self.agenda.at(Time::from_micros(at), Event::Arrival(index));
                }
                return;
            }
            (state.rate, state.made, from) = (state.rate + 1, 0, changes);
        }
    }
}

/// Returns this number of intervals between even arrivals, in whole microseconds without accumulated
/// rounding.
fn spaces(rate: &RateFrom, count: u64) -> u64 {
    (u128::from(count) * 1_000_000_000 / u128::from(rate.milli_per_second)) as u64
}
