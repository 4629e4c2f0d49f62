//! What is simulated: services, who calls them, what goes wrong when, and the strategies to compare.
//!
//! A scenario is plain data, made in Rust or read from YAML by [`file`](crate::file). Names are checked,
//! ranges kept and cycles refused in one place, `scenario::check`, whichever way it came.
//!
//! Instances, hops and processes: a service has instances, each a process with a server layer and, where its
//! methods call on, with client layers whose [`RouteState`](damper_core::RouteState)s are its own. Loads are
//! made by processes that only call. A hop is all calls from one service to one method of another.

use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::{Code, Guard, Ratio, Rule};

pub use self::peer::{
    ATTEMPTS, MAX_TOKENS, MIN_PER_SEC, Peer, PeerBackoff, PeerBudget, PeerCap, PeerJitter, PeerQuota,
    PeerThrottling, RETRY_PERCENT, TOKEN_RATIO, TOKENS, TTL,
};
use crate::spread::Spread;

mod check;
mod peer;

/// `duration`
pub const DURATION: Bounds<Duration> =
    Bounds { min: Duration::from_millis(100), max: Duration::from_secs(24 * 3600) };
/// `services.*.instances`
pub const INSTANCES: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// `services.*.workers`
pub const WORKERS: Bounds<u32> = Bounds { min: 1, max: 100_000 };
/// `faults[].workers.count`: none may be left.
pub const WORKERS_LEFT: Bounds<u32> = Bounds { min: 0, max: 100_000 };
/// `services.*.queue`
pub const QUEUE: Bounds<u32> = Bounds { min: 0, max: 1_000_000 };
/// `load[].processes`
pub const PROCESSES: Bounds<u32> = Bounds { min: 1, max: 10_000 };
/// `load[].closed.users`
pub const USERS: Bounds<u32> = Bounds { min: 1, max: 100_000 };
/// `load[].timeout`, and a peer's timeout of an attempt.
pub const TIMEOUT: Bounds<Duration> =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// `services.*.full_cost`: at most as much as serving the request.
pub const FULL_COST: Bounds<Ratio> = Bounds { min: Ratio::from_bp(0), max: Ratio::ONE };
/// `load[].restart`
pub const RESTART: Bounds<Duration> =
    Bounds { min: Duration::from_secs(1), max: Duration::from_secs(24 * 3600) };
/// The share of a fault.
pub const SHARE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `faults[].slow.factor`
pub const FACTOR: Bounds<Ratio> = Bounds { min: Ratio::ONE, max: Ratio::from_bp(10_000_000) };
/// `faults[].period`, `faults[].on`
pub const PERIOD: Bounds<Duration> = Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// Methods of all services together.
pub const METHODS: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// How many strategies are compared.
pub const STRATEGIES: Bounds<u32> = Bounds { min: 1, max: 16 };
/// Calls per second of a load, in thousandths: 0.001 to 1,000,000.
pub(crate) const RATE_MILLI: (u64, u64) = (0, 1_000_000_000);

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What to call it.
    pub name: String,
    /// For how long requests are made. What is under way then is brought to its end.
    pub duration: Duration,
    /// Every random number comes from it.
    pub seed: u64,
    /// How long a message takes from one process to another, each way.
    pub network: Spread,
    /// Who is called.
    pub services: Vec<Service>,
    /// Who makes requests.
    pub load: Vec<Load>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Who retries how; each is simulated on its own.
    pub strategies: Vec<Strategy>,
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name, as rules have it.
    pub name: String,
    /// How many processes serve it.
    pub instances: u32,
    /// So many requests each instance works on at once. None: any number.
    pub workers: Option<u32>,
    /// So many more wait at each instance. None: any number; 0: none waits.
    pub queue: Option<u32>,
    /// What those are answered that find the queue full.
    pub full: Code,
    /// Refusing one that finds the queue full takes so much of a worker's time as this share of serving it.
    pub full_cost: Ratio,
    /// A worker is taken until the answer is made, also while calls to other services are under way, as by a
    /// thread per request. False: only for the method's own work.
    pub holds_worker: bool,
    /// Work for a caller that has given up is stopped. False: it goes on to its end, unneeded.
    pub cancellable: bool,
    /// How callers choose an instance.
    pub balance: Balance,
    /// What can be called.
    pub methods: Vec<Method>,
}

/// How callers choose an instance for an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Any, independently of the attempts before.
    #[default]
    Random,
    /// One after the other, per calling process.
    RoundRobin,
    /// As the SDK's balanced channel: by what is under way and what failed, see `damper_core::endpoints`.
    Balanced,
}

/// A method of a service.
#[derive(Clone, Debug)]
pub struct Method {
    /// `package.Service/Method`.
    pub name: String,
    /// How long its own work takes.
    pub time: Spread,
    /// The calls it makes after its own work: stages one after the other, the calls of a stage at once. The
    /// first that fails ends the method with the same code, and the calls beside it.
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

/// Who makes requests at the top.
#[derive(Clone, Debug)]
pub struct Load {
    /// Its service, as rules have it.
    pub caller: String,
    /// How many processes make the requests, each with its own counts.
    pub processes: u32,
    /// What is called.
    pub call: Target,
    /// The application's own deadline for each request, sent along as `grpc-timeout`. None: it waits for ever.
    pub timeout: Option<Duration>,
    /// The callers have no retry layer whatever the strategy, as browsers have none: they send once, and hang up
    /// at their timeout without having told it to anybody.
    pub bare: bool,
    /// Each process ends so long after it began, and another one without memory takes its place; they take turns, so
    /// that they are spread evenly over this time. Calls under way end in the old one. None: they live for ever.
    pub restart: Option<Duration>,
    /// When requests are made.
    pub arrivals: Arrivals,
}

/// When requests are made.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Whatever becomes of those before.
    Open {
        /// Evenly spaced; false: Poisson.
        even: bool,
        /// How many, and from when on. Before the first there are none.
        rates: Vec<RateFrom>,
    },
    /// By users who wait for their answer, think, and make the next one.
    Closed {
        /// How many.
        users: u32,
        /// How long they think, also before their first.
        think: Spread,
    },
}

/// How many requests there are from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateFrom {
    /// From when on.
    pub from: Duration,
    /// Thousandths of a request per second, of all processes together.
    pub milli_per_second: u64,
}

/// Something that goes wrong for a time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Where.
    pub service: String,
    /// Which method. None: all.
    pub method: Option<String>,
    /// So many of the service's instances, the first ones. None: all.
    pub instances: Option<u32>,
    /// From when on.
    pub from: Duration,
    /// Until when. None: to the end.
    pub until: Option<Duration>,
    /// It comes and goes. None: it stays.
    pub flapping: Option<Flapping>,
    /// What goes wrong.
    pub kind: FaultKind,
}

/// How a fault comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flapping {
    /// How often it comes.
    pub period: Duration,
    /// How long it stays each time.
    pub on: Duration,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Requests are answered with this code at once, without taking a worker.
    Error {
        /// The code.
        code: Code,
        /// So many of them.
        share: Ratio,
    },
    /// The method's own work takes `factor` times as long, and `add`.
    Slow {
        /// So much longer.
        add: Duration,
        /// So many times as long.
        factor: Ratio,
        /// So many requests.
        share: Ratio,
    },
    /// Requests arrive and are never worked on nor answered; callers wait until they give up.
    NoAnswer {
        /// So many of them.
        share: Ratio,
    },
    /// Requests are worked on, and their answers never arrive.
    LostAnswer {
        /// So many of them.
        share: Ratio,
    },
    /// Instances are gone: what is under way there fails, and what is sent there finds no connection. They come
    /// back without memory.
    Crash,
    /// Instances have so many workers; with 0 requests only wait.
    Workers {
        /// How many.
        count: u32,
    },
}

/// Who retries how.
#[derive(Clone, Debug)]
pub struct Strategy {
    /// What to call it.
    pub name: String,
    /// How.
    pub retries: Retries,
}

/// How calls are repeated.
#[derive(Clone, Debug)]
pub enum Retries {
    /// As Damper does under these rules and guards.
    Damper {
        /// The rules; routes that none matches are sent once.
        rules: Vec<Rule>,
        /// The guards, whose repeat limits hold in the services' server layers.
        guards: Vec<Guard>,
    },
    /// As others do, alike on every hop.
    Peer(Peer),
}

impl Service {
    /// A service of one instance that works on any number of requests at once.
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
    /// Routes of each process: one that ends keeps its own until its calls have ended, while the next one has the other.
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
    /// From when until when it may be there, within so long a simulation.
    pub(crate) fn span(&self, duration: Duration) -> (Duration, Duration) {
        (self.from, self.until.unwrap_or(duration).min(duration))
    }
}
