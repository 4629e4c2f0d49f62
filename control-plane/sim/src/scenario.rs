//! A scenario: services, load, faults, and the strategies to compare.
//!
//! Plain data, built in Rust or read from YAML by [`file`](crate::file). `scenario::check` checks names,
//! ranges and cycles of both.
//!
//! A service has instances; each is a process with a server layer and, if its methods make calls, with client
//! layers that have their own [`RouteState`](damper_core::RouteState)s. Loads are made by processes that only
//! call. A hop is all calls from one service to one method of another.

use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::job::Queue;
use damper_core::{Code, Guard, Ratio, Rule};
use damper_document::Value;

pub use self::peer::{
    ATTEMPTS, MAX_TOKENS, MIN_PER_SEC, Peer, PeerBackoff, PeerBudget, PeerCap, PeerJitter, PeerQuota,
    PeerThrottling, RETRY_PERCENT, TOKEN_RATIO, TOKENS, TTL,
};
pub use self::queued::{BACKLOG, CONCURRENCY, DEFAULT_CONCURRENCY, Queued};
use crate::spread::Spread;
use crate::values::{Plain, one_of};

mod check;
mod peer;
mod queued;

/// `duration`
pub const DURATION: Bounds<Duration> =
    Bounds { min: Duration::from_millis(100), max: Duration::from_secs(24 * 3600) };
/// `services.*.instances`
pub const INSTANCES: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// `services.*.workers`
pub const WORKERS: Bounds<u32> = Bounds { min: 1, max: 100_000 };
/// `faults[].workers.count`: 0 is allowed.
pub const WORKERS_LEFT: Bounds<u32> = Bounds { min: 0, max: 100_000 };
/// `services.*.queue`
pub const QUEUE: Bounds<u32> = Bounds { min: 0, max: 1_000_000 };
/// `load[].processes`
pub const PROCESSES: Bounds<u32> = Bounds { min: 1, max: 10_000 };
/// `load[].closed.users`
pub const USERS: Bounds<u32> = Bounds { min: 1, max: 100_000 };
/// `load[].timeout`, and the attempt timeout of a peer.
pub const TIMEOUT: Bounds<Duration> =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// `services.*.full_cost`: at most the cost of serving the request.
pub const FULL_COST: Bounds<Ratio> = Bounds { min: Ratio::from_bp(0), max: Ratio::ONE };
/// `load[].restart`
pub const RESTART: Bounds<Duration> =
    Bounds { min: Duration::from_secs(1), max: Duration::from_secs(24 * 3600) };
/// Share of a fault.
pub const SHARE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `faults[].slow.factor`
pub const FACTOR: Bounds<Ratio> = Bounds { min: Ratio::ONE, max: Ratio::from_bp(10_000_000) };
/// `faults[].period`, `faults[].on`
pub const PERIOD: Bounds<Duration> = Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// Methods of all services.
pub const METHODS: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// Number of strategies.
pub const STRATEGIES: Bounds<u32> = Bounds { min: 1, max: 16 };
/// Cluster of every simulated process.
pub(crate) const CLUSTER: &str = "default";
/// Calls per second of a load, in thousandths: 0.001 to 1,000,000.
pub(crate) const RATE_MILLI: (u64, u64) = (0, 1_000_000_000);

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// Duration of the load. Requests in flight at its end are completed.
    pub duration: Duration,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Latency of a message between two processes, each way.
    pub network: Spread,
    /// Services.
    pub services: Vec<Service>,
    /// Loads.
    pub load: Vec<Load>,
    /// Faults.
    pub faults: Vec<Fault>,
    /// Strategies; each is simulated separately.
    pub strategies: Vec<Strategy>,
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name, as in rules.
    pub name: String,
    /// Number of processes.
    pub instances: u32,
    /// Requests that each instance serves at once. `None`: no limit.
    pub workers: Option<u32>,
    /// Requests that wait at each instance. `None`: no limit; 0: none waits.
    pub queue: Option<u32>,
    /// Code for requests that find the queue full.
    pub full: Code,
    /// Time of a worker to reject a request that finds the queue full, as a share of serving it.
    pub full_cost: Ratio,
    /// A worker is busy until the response, including calls to other services, as with a thread per request.
    /// False: only during the method's own work.
    pub holds_worker: bool,
    /// Work is stopped when its caller gives up. False: it continues, unused.
    pub cancellable: bool,
    /// Choice of an instance by callers.
    pub balance: Balance,
    /// Methods.
    pub methods: Vec<Method>,
}

/// Choice of an instance for an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Random, independent of earlier attempts.
    #[default]
    Random,
    /// In turn, per calling process.
    RoundRobin,
    /// As the SDK's balanced channel: by load and failures, see `damper_core::endpoints`.
    Balanced,
}

/// A method of a service.
#[derive(Clone, Debug)]
pub struct Method {
    /// `package.Service/Method`.
    pub name: String,
    /// Duration of its own work.
    pub time: Spread,
    /// Calls after its own work: stages in sequence, the calls of a stage at once. The first failure ends the
    /// method with the same code, and cancels concurrent calls.
    pub calls: Vec<Vec<Target>>,
}

/// A method of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service.
    pub service: String,
    /// `package.Service/Method`.
    pub method: String,
}

/// A load: requests at the top.
#[derive(Clone, Debug)]
pub struct Load {
    /// Service of the callers, as in rules.
    pub caller: String,
    /// Number of processes, each with its own state.
    pub processes: u32,
    /// Called method.
    pub call: Target,
    /// Deadline of each request, sent as `grpc-timeout`. `None`: no deadline.
    pub timeout: Option<Duration>,
    /// Callers without a retry layer in all strategies, as browsers: they send once, and disconnect at their
    /// timeout without sending it.
    pub bare: bool,
    /// Lifetime of each process, after which another one without memory takes its place; starts are spread
    /// evenly over this time. Calls in flight end in the old process. `None`: unlimited.
    pub restart: Option<Duration>,
    /// Arrivals of requests.
    pub arrivals: Arrivals,
}

/// Arrivals of requests.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Open loop: independent of earlier requests.
    Open {
        /// Evenly spaced; false: Poisson.
        even: bool,
        /// Rates and their start. Before the first there are no requests.
        rates: Vec<RateFrom>,
    },
    /// Closed loop: users wait for a response, think, and send the next request.
    Closed {
        /// Number of users.
        users: u32,
        /// Think time, also before the first request.
        think: Spread,
    },
    /// Jobs of a queue.
    Queued(Queued),
}

impl Arrivals {
    /// Returns whether arrivals are evenly spaced, and their rates; none of a closed load.
    pub(crate) fn rates(&self) -> (bool, &[RateFrom]) {
        match self {
            Self::Open { even, rates } | Self::Queued(Queued { even, rates, .. }) => (*even, rates),
            Self::Closed { .. } => (false, &[]),
        }
    }
}

/// A rate from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateFrom {
    /// Start.
    pub from: Duration,
    /// Thousandths of a request per second, of all processes together.
    pub milli_per_second: u64,
}

/// A fault for a time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Affected service.
    pub service: String,
    /// Affected method. `None`: all.
    pub method: Option<String>,
    /// Number of affected instances, the first ones. `None`: all.
    pub instances: Option<u32>,
    /// Start.
    pub from: Duration,
    /// End. `None`: the end of the scenario.
    pub until: Option<Duration>,
    /// Flapping. `None`: constant.
    pub flapping: Option<Flapping>,
    /// Kind.
    pub kind: FaultKind,
}

/// Periodic fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flapping {
    /// Period.
    pub period: Duration,
    /// Duration of each fault.
    pub on: Duration,
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Requests fail with this code at once, without a worker.
    Error {
        /// Code.
        code: Code,
        /// Share of requests.
        share: Ratio,
    },
    /// The method's own work takes `factor` times as long, plus `add`.
    Slow {
        /// Added time.
        add: Duration,
        /// Factor.
        factor: Ratio,
        /// Share of requests.
        share: Ratio,
    },
    /// Requests arrive without being served or answered; callers wait until their timeout.
    NoAnswer {
        /// Share of requests.
        share: Ratio,
    },
    /// Requests are served, but their responses are lost.
    LostAnswer {
        /// Share of requests.
        share: Ratio,
    },
    /// Instances are down: requests there fail, and new ones cannot connect. Instances return without memory.
    Crash,
    /// Instances have this number of workers; with 0 requests only wait.
    Workers {
        /// Number of workers.
        count: u32,
    },
}

/// A strategy.
#[derive(Clone, Debug)]
pub struct Strategy {
    /// Name.
    pub name: String,
    /// Retries.
    pub retries: Retries,
    /// Queues of its queued loads. Only under Damper callees hold and pace their jobs.
    pub queues: Vec<Queue>,
}

/// Kind of retries.
#[derive(Clone, Debug)]
pub enum Retries {
    /// Damper with these rules and guards.
    Damper {
        /// Rules; routes without a rule have no retries.
        rules: Vec<Rule>,
        /// Guards; their retry limits apply in the server layers.
        guards: Vec<Guard>,
    },
    /// A peer, the same on every hop.
    Peer(Peer),
}

impl Service {
    /// Returns a service of one instance without a limit of concurrent requests.
    #[must_use]
    pub fn new(name: &str, methods: Vec<Method>) -> Self {
        Self {
            name: name.to_owned(),
            instances: 1,
            workers: None,
            queue: None,
            full: Code::Unavailable,
            full_cost: Ratio::from_bp(0),
            holds_worker: false,
            cancellable: false,
            balance: Balance::default(),
            methods,
        }
    }
}

impl Load {
    /// Routes of each process: one that ends keeps its own until its calls end, while the next one uses the
    /// other.
    pub(crate) fn seats(&self) -> u32 {
        if self.restart.is_some() { 2 } else { 1 }
    }
}

impl Target {
    /// A method of a service.
    #[must_use]
    pub fn new(service: &str, method: &str) -> Self {
        Self { service: service.to_owned(), method: method.to_owned() }
    }
}

impl Fault {
    /// Bounds of the fault within a simulation of this length.
    pub(crate) fn span(&self, duration: Duration) -> (Duration, Duration) {
        (self.from, self.until.unwrap_or(duration).min(duration))
    }
}

impl Plain for Target {
    fn read(value: &Value) -> Result<Self, String> {
        let words: Vec<_> = value.as_str().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [service, method] => Ok(Self::new(service, method)),
            _ => Err(format!(
                "must be a service and a method, such as `stock shop.v1.Stock/Take`, not {value}"
            )),
        }
    }
}

impl Plain for Vec<Target> {
    /// A call, or a list of concurrent calls.
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::Array(together) => together.iter().map(Target::read).collect(),
            one => Target::read(one).map(|target| vec![target]),
        }
    }
}

impl Plain for Balance {
    fn read(value: &Value) -> Result<Self, String> {
        let choices =
            [("random", Self::Random), ("round_robin", Self::RoundRobin), ("balanced", Self::Balanced)];
        one_of(value, &choices)
    }
}
