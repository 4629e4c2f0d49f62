//! One scenario: a chain, a strategy and a trouble, from healthy through the fault to healthy again.
//!
//! ```text
//! | warm-up | healthy | first | steady | end | after |
//!           ^ counted from here  ^ one window later  ^ the fault ends
//!                     ^ the fault begins       ^ requests due from here on may outlive the fault
//! ```
//! `first` is one window of the breaker: what happens before it has seen what is wrong. Requests due at the `end` are
//! sent but belong to no figure but the goodput, for some of them are answered by a chain that is well again.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::chain::Chain;
use super::fault::Fault;
use super::fleet::{Callers, Fleet, Programs};
use super::layer::Capacity;
use super::load::{Ended, Load};
use super::strategy::{Strategy, Times};

/// What is wrong with the chain while the fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// The bottom refuses this percentage of requests at once, each by its own draw.
    Errors(u32),
    /// The layer above the bottom refuses every request at once.
    Middle,
    /// The bottom never answers.
    Silent,
    /// The bottom never answers, and the failures of every layer but the top are lost.
    Lost,
    /// The bottom answers a twentieth of its requests late, but in time and well.
    Slow,
    /// The bottom can do only seven tenths of what customers send; its queue is so short that who gets in is answered
    /// in time.
    Overload,
    /// One of three instances of the bottom refuses everything.
    Partial,
    /// The bottom refuses everything for half a second, serves for half a second, and so on.
    Flapping,
    /// The bottom, which can do little more than it is sent, stands still; its queue is long.
    Stall,
    /// The same, while all callers of a fleet end and begin anew in turn.
    StallRestarts,
    /// The same, where attempts wait for so many seconds, and the queue is as much longer.
    StallPatient(u32),
    /// The overload, where refusing a request costs a part of what serving it does.
    OverloadCostly,
}

/// Everything that a run needs.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Layers of the chain, the top included: m.
    pub layers: usize,
    /// What goes wrong.
    pub trouble: Trouble,
    /// How every layer repeats.
    pub strategy: Strategy,
    /// What rules say of times.
    pub times: Times,
    /// The load.
    pub load: Load,
    /// Who makes it: many callers of the bottom, in place of customers of the top; they are the layer above it.
    pub fleet: Option<Fleet>,
    /// How long each part lasts.
    pub parts: Parts,
    /// How much the bottom can do.
    pub capacity: Option<Capacity>,
    /// Feeds every draw of the faults.
    pub seed: u64,
}

/// How long each part of a run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Not counted.
    pub warm_up: Duration,
    /// Before the fault.
    pub healthy: Duration,
    /// From the fault on: before the breaker has seen a whole window of it.
    pub first: Duration,
    /// From then on.
    pub steady: Duration,
    /// The rest of the fault.
    pub end: Duration,
    /// After the fault.
    pub after: Duration,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Record {
    /// How each request ended, in the order in which they were due.
    pub ended: Vec<Ended>,
    /// How often each request arrived at each layer, from the top.
    pub arrivals: Vec<Vec<u32>>,
}

impl Parts {
    /// When the fault begins.
    #[must_use]
    pub fn broken(&self) -> Duration {
        self.warm_up + self.healthy
    }

    /// When it ends.
    #[must_use]
    pub fn healed(&self) -> Duration {
        self.steady().end + self.end
    }

    /// When the load ends.
    #[must_use]
    pub fn all(&self) -> Duration {
        self.healed() + self.after
    }

    /// When requests of the first part are due.
    #[must_use]
    pub fn first(&self) -> Range<Duration> {
        self.broken()..self.broken() + self.first
    }

    /// When requests of the steady part are due.
    #[must_use]
    pub fn steady(&self) -> Range<Duration> {
        self.first().end..self.first().end + self.steady
    }
}

impl Trouble {
    /// Whether the bottom stands still for a time.
    #[must_use]
    pub fn is_stall(self) -> bool {
        matches!(self, Self::Stall | Self::StallRestarts | Self::StallPatient(_))
    }
}

impl Scenario {
    /// Runs it, by these programs.
    ///
    /// # Errors
    /// A process does not start, or ends before it should.
    pub async fn run(&self, programs: &Programs) -> anyhow::Result<Record> {
        let mut chain = Chain::start(&programs.lab, self).await?;
        if let Some(fleet) = self.fleet {
            return self.run_fleet(fleet, chain, programs).await;
        }
        let begin = Instant::now();
        let load = tokio::spawn(self.load.run(chain.top(), begin, self.parts.all()));
        self.disturb(&mut chain, begin).await?;
        let ended = load.await??;
        let arrivals = chain.arrivals(ended.len()).await?;
        chain.stop().await?;
        Ok(Record { ended, arrivals })
    }

    async fn run_fleet(
        &self,
        fleet: Fleet,
        mut callee: Chain,
        programs: &Programs,
    ) -> anyhow::Result<Record> {
        let mut callers = Callers::start(programs, self, fleet, &callee).await?;
        let begin = Instant::now();
        let (ended, ()) = tokio::try_join!(callers.play(self), self.disturb(&mut callee, begin))?;
        let mut arrivals = callee.arrivals(ended.len()).await?;
        // The callers themselves, whom each call reaches once.
        arrivals.insert(0, vec![1; ended.len()]);
        callers.stop().await?;
        callee.stop().await?;
        Ok(Record { ended, arrivals })
    }

    /// Lets the fault come and go.
    async fn disturb(&self, chain: &mut Chain, begin: Instant) -> anyhow::Result<()> {
        sleep_until(begin + self.parts.broken()).await;
        for (layer, instance, fault, _) in self.faults() {
            chain.set(layer, instance, fault).await?;
        }
        sleep_until(begin + self.parts.healed()).await;
        for (layer, instance, _, healed) in self.faults() {
            chain.set(layer, instance, healed).await?;
        }
        Ok(())
    }

    /// The layer where the fault is, from the top, which is 1.
    #[must_use]
    pub fn faulty(&self) -> usize {
        if self.trouble == Trouble::Middle { self.layers - 1 } else { self.layers }
    }

    /// Instances of the bottom.
    #[must_use]
    pub fn bottoms(&self) -> usize {
        if self.trouble == Trouble::Partial { 3 } else { 1 }
    }

    /// Requests per second that an overloaded bottom can do.
    pub(super) fn overloaded(&self) -> u32 {
        // A chain multiplies the load of its bottom more than a fleet can.
        self.load.rate * if self.fleet.is_some() { 9 } else { 7 } / 10
    }

    /// Layer, instance, what is wrong with it, and how it is when it is well again.
    fn faults(&self) -> Vec<(usize, usize, Fault, Fault)> {
        let bottom = |fault| vec![(self.layers, 0, fault, Fault::None)];
        let speed = self.capacity.map_or(0, |capacity| capacity.per_second);
        match self.trouble {
            Trouble::Errors(percent) => bottom(Fault::Errors(percent)),
            Trouble::Middle => vec![(self.faulty(), 0, Fault::Errors(100), Fault::None)],
            Trouble::Silent => bottom(Fault::Silent),
            Trouble::Lost => {
                let mute = (2..self.layers).map(|layer| (layer, 0, Fault::Mute, Fault::None));
                mute.chain(bottom(Fault::Silent)).collect()
            }
            Trouble::Slow => bottom(Fault::Slow(SLOW_PERCENT, SLOW_MS)),
            Trouble::Overload | Trouble::OverloadCostly => {
                vec![(self.layers, 0, Fault::Speed(self.overloaded()), Fault::Speed(speed))]
            }
            Trouble::Partial => bottom(Fault::Errors(100)),
            Trouble::Flapping => bottom(Fault::Flapping(FLAP_MS)),
            Trouble::Stall | Trouble::StallRestarts | Trouble::StallPatient(_) => {
                vec![(self.layers, 0, Fault::Speed(0), Fault::Speed(speed))]
            }
        }
    }
}

/// How late the slow answers are: still within every attempt's time.
pub(super) const SLOW_MS: u64 = 50;
/// Few enough that hedges stay below the ratio.
pub(super) const SLOW_PERCENT: u32 = 5;
pub(super) const FLAP_MS: u64 = 500;

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errors(percent) => write!(f, "errors-{percent}"),
            Self::Middle => f.write_str("middle"),
            Self::Silent => f.write_str("silent"),
            Self::Lost => f.write_str("lost"),
            Self::Slow => f.write_str("slow"),
            Self::Overload => f.write_str("overload"),
            Self::Partial => f.write_str("partial"),
            Self::Flapping => f.write_str("flapping"),
            Self::Stall => f.write_str("stall"),
            Self::StallRestarts => f.write_str("stall-restarts"),
            Self::StallPatient(seconds) => write!(f, "stall-{seconds}s"),
            Self::OverloadCostly => f.write_str("overload-costly"),
        }
    }
}
