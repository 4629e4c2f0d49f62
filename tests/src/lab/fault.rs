//! What is wrong with a layer, and the gate that every request to it passes.
//!
//! A [`Fault`] is what one process does; which processes of a chain do it is the scenario's affair. Random shares are
//! drawn from the process's own seed, independently for each request that arrives: a repeat is a new draw.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::station::{Capacity, Station};

/// What a layer does to requests that reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    None,
    /// Refuses this share, in percent, with UNAVAILABLE at once.
    Errors(u32),
    /// Never answers.
    Silent,
    /// Keeps failures to itself: what went wrong below is never answered.
    Mute,
    /// Answers this share, in percent, late by so many milliseconds, and then well.
    Slow(u32, u64),
    /// Refuses everything with UNAVAILABLE for so many milliseconds, then nothing for as long, and so on.
    Flapping(u64),
    /// Serves so many requests per second from now on; 0 stops it. For a layer that has a [`Capacity`].
    Speed(u32),
}

/// The gate of one process.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    station: Option<Station>,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    since: Instant,
    draws: fastrand::Rng,
}

impl Gate {
    pub(super) fn new(seed: u64, capacity: Option<Capacity>) -> Self {
        let draws = fastrand::Rng::with_seed(seed);
        let state = State { fault: Fault::None, since: Instant::now(), draws };
        Self { state: Mutex::new(state), station: capacity.map(Station::open) }
    }

    pub(super) fn set(&self, fault: Fault) {
        if let (Some(station), Fault::Speed(per_second)) = (&self.station, fault) {
            station.set_speed(per_second);
        }
        let mut state = self.lock();
        (state.fault, state.since) = (fault, Instant::now());
    }

    /// Lets a request in when its time has come.
    ///
    /// # Errors
    /// It is refused.
    pub(super) async fn pass(&self) -> Result<(), Status> {
        let late = self.lock().judge()?;
        match late {
            Late::Never => std::future::pending().await,
            Late::By(delay) => tokio::time::sleep(delay).await,
            Late::No => {}
        }
        match &self.station {
            Some(station) => station.serve().await,
            None => Ok(()),
        }
    }

    /// Whether what went wrong below is kept from the caller.
    pub(super) fn is_mute(&self) -> bool {
        self.lock().fault == Fault::Mute
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Late {
    No,
    By(Duration),
    Never,
}

impl State {
    fn judge(&mut self) -> Result<Late, Status> {
        let refused = || Status::unavailable("out of order (the lab's fault)");
        let fault = self.fault;
        match fault {
            Fault::None | Fault::Mute | Fault::Speed(_) => Ok(Late::No),
            Fault::Errors(percent) if self.draw(percent) => Err(refused()),
            Fault::Errors(_) => Ok(Late::No),
            Fault::Silent => Ok(Late::Never),
            Fault::Slow(percent, by_ms) if self.draw(percent) => Ok(Late::By(Duration::from_millis(by_ms))),
            Fault::Slow(..) => Ok(Late::No),
            Fault::Flapping(period_ms) => {
                let periods = self.since.elapsed().as_millis() / u128::from(period_ms.max(1));
                if periods.is_multiple_of(2) { Err(refused()) } else { Ok(Late::No) }
            }
        }
    }

    fn draw(&mut self, percent: u32) -> bool {
        self.draws.u32(0..100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(gate: &Gate, requests: u32) -> u32 {
        let mut refused = 0;
        for _ in 0..requests {
            refused += u32::from(gate.pass().await.is_err());
        }
        refused
    }

    #[tokio::test]
    async fn the_gate_refuses_the_share_it_is_set_to() {
        let gate = Gate::new(7, None);
        assert_eq!(refused(&gate, 1000).await, 0);
        gate.set(Fault::Errors(100));
        assert_eq!(refused(&gate, 1000).await, 1000);
        gate.set(Fault::Errors(10));
        let some = refused(&gate, 1000).await;
        assert!((60..=140).contains(&some), "{some}");
    }

    #[tokio::test]
    async fn a_flapping_layer_begins_with_its_bad_time() {
        let gate = Gate::new(7, None);
        gate.set(Fault::Flapping(60_000));
        assert_eq!(refused(&gate, 10).await, 10);
    }
}
