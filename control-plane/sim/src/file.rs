//! Reads a scenario from YAML (or JSON) strictly: unknown fields are faults, and all faults are reported at
//! once with their lines and paths.
//!
//! serde reads the types of this file. Their conversion to the scenario finds missing fields and those that
//! conflict; the scenario's own check finds ranges and references. Rules, guards and queues are manifests, as
//! for `damper apply`; the caller reads them, since this crate does not depend on the wire format.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_core::fault::Faults;
use damper_core::job::Queue;
use damper_core::{Code, Guard, Ratio, Rule};
use damper_document::Value;
use serde::Deserialize;

use crate::scenario::{Balance, DURATION, Fault, FaultKind, Flapping, Method, Scenario, Service, Target};
use crate::spread::Spread;
use crate::values::{list, optional, plain, present};

use self::load::LoadFile;
use self::strategy::StrategyFile;

mod load;
mod strategy;

/// Default seed.
pub const DEFAULT_SEED: u64 = 1;
/// Default time of a message.
pub const DEFAULT_NETWORK: Duration = Duration::from_micros(500);

/// Content of `damper` or `queues` in a strategy, or an item of its list.
#[derive(Clone, Copy, Debug)]
pub enum Manifests<'a> {
    /// Name of a file of manifests.
    File(&'a str),
    /// One manifest.
    Inline(&'a Value),
}

/// Rules, guards and queues of manifests.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Rules.
    pub rules: Vec<Rule>,
    /// Guards.
    pub guards: Vec<Guard>,
    /// Queues.
    pub queues: Vec<Queue>,
}

/// Reads manifests: `damper-proto`'s `manifest` in the command line and in tests.
pub type ReadManifests<'a> = dyn Fn(Manifests<'_>) -> Result<Policies, Faults> + 'a;

/// Reads a scenario and checks it.
///
/// # Errors
/// All faults with their lines and paths.
pub fn read(text: &str, manifests: &ReadManifests<'_>) -> Result<Scenario, damper_document::Error> {
    damper_document::parse_one(text, |value, faults| {
        damper_document::read(value, |file: ScenarioFile| file.scenario(manifests), faults)
    })
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScenarioFile {
    name: String,
    #[serde(deserialize_with = "optional")]
    duration: Option<Duration>,
    seed: Option<u64>,
    network: Option<Spread>,
    services: BTreeMap<String, ServiceFile>,
    load: Vec<LoadFile>,
    faults: Vec<FaultFile>,
    strategies: Vec<StrategyFile>,
}

impl ScenarioFile {
    fn scenario(self, manifests: &ReadManifests<'_>) -> Result<Scenario, Faults> {
        let mut faults = Faults::none();
        let scenario = Scenario {
            name: self.name,
            // Any time in it is valid.
            duration: required(self.duration, "duration", DURATION.max, &mut faults),
            seed: self.seed.unwrap_or(DEFAULT_SEED),
            network: self.network.unwrap_or(Spread::Fixed(DEFAULT_NETWORK)),
            services: self
                .services
                .into_iter()
                .map(|(name, file)| file.service(&name, &mut faults))
                .collect(),
            load: items("load", self.load, |path, file| file.load(path, &mut faults)),
            faults: items("faults", self.faults, |path, file| file.fault(path, &mut faults)),
            strategies: items("strategies", self.strategies, |path, file| {
                file.strategy(path, manifests, &mut faults)
            }),
        };
        let mut found = Faults::none();
        scenario.check(&mut found);
        damper_document::add_others(&found, &mut faults);
        faults.or(scenario)
    }
}

/// Converts the items of a list with their paths.
fn items<F, T>(list: &str, files: Vec<F>, mut convert: impl FnMut(&str, F) -> T) -> Vec<T> {
    files.into_iter().enumerate().map(|(i, file)| convert(&format!("{list}[{i}]"), file)).collect()
}

/// Returns the value, or the stand-in with a fault.
fn required<T>(value: Option<T>, path: impl Into<String>, stand_in: T, faults: &mut Faults) -> T {
    value.unwrap_or_else(|| {
        faults.add(path, "required");
        stand_in
    })
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServiceFile {
    instances: Option<u32>,
    workers: Option<u32>,
    queue: Option<u32>,
    #[serde(deserialize_with = "optional")]
    full: Option<Code>,
    #[serde(deserialize_with = "optional")]
    full_cost: Option<Ratio>,
    holds_worker: bool,
    cancellable: bool,
    #[serde(deserialize_with = "plain")]
    balance: Balance,
    methods: BTreeMap<String, MethodFile>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MethodFile {
    time: Option<Spread>,
    #[serde(deserialize_with = "list")]
    calls: Vec<Vec<Target>>,
}

impl ServiceFile {
    fn service(self, name: &str, faults: &mut Faults) -> Service {
        let default = Service::new(name, Vec::new());
        let method = |(method, file): (String, MethodFile)| Method {
            time: required(
                file.time,
                format!("services.{name}.methods.{method}.time"),
                Spread::Fixed(Duration::ZERO),
                faults,
            ),
            name: method,
            calls: file.calls,
        };
        Service {
            methods: self.methods.into_iter().map(method).collect(),
            instances: self.instances.unwrap_or(default.instances),
            workers: self.workers,
            queue: self.queue,
            full: self.full.unwrap_or(default.full),
            full_cost: self.full_cost.unwrap_or(default.full_cost),
            holds_worker: self.holds_worker,
            cancellable: self.cancellable,
            balance: self.balance,
            ..default
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FaultFile {
    service: Option<String>,
    method: Option<String>,
    instances: Option<u32>,
    #[serde(deserialize_with = "plain")]
    from: Duration,
    #[serde(deserialize_with = "optional")]
    until: Option<Duration>,
    #[serde(deserialize_with = "optional")]
    period: Option<Duration>,
    #[serde(deserialize_with = "optional")]
    on: Option<Duration>,
    #[serde(deserialize_with = "present")]
    error: Option<ErrorFile>,
    #[serde(deserialize_with = "present")]
    slow: Option<SlowFile>,
    #[serde(deserialize_with = "present")]
    no_answer: Option<ShareFile>,
    #[serde(deserialize_with = "present")]
    lost_answer: Option<ShareFile>,
    #[serde(deserialize_with = "present")]
    crash: Option<Empty>,
    workers: Option<WorkersFile>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ErrorFile {
    #[serde(deserialize_with = "plain")]
    code: Code,
    #[serde(deserialize_with = "plain")]
    share: Ratio,
}

impl Default for ErrorFile {
    fn default() -> Self {
        Self { code: Code::Unavailable, share: Ratio::ONE }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SlowFile {
    #[serde(deserialize_with = "plain")]
    add: Duration,
    #[serde(deserialize_with = "plain")]
    factor: Ratio,
    #[serde(deserialize_with = "plain")]
    share: Ratio,
}

impl Default for SlowFile {
    fn default() -> Self {
        Self { add: Duration::ZERO, factor: Ratio::ONE, share: Ratio::ONE }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ShareFile {
    #[serde(deserialize_with = "plain")]
    share: Ratio,
}

impl Default for ShareFile {
    fn default() -> Self {
        Self { share: Ratio::ONE }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkersFile {
    count: u32,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

impl FaultFile {
    fn fault(self, path: &str, faults: &mut Faults) -> Fault {
        let kinds = [
            self.error.map(|ErrorFile { code, share }| FaultKind::Error { code, share }),
            self.slow.map(|SlowFile { add, factor, share }| FaultKind::Slow { add, factor, share }),
            self.no_answer.map(|ShareFile { share }| FaultKind::NoAnswer { share }),
            self.lost_answer.map(|ShareFile { share }| FaultKind::LostAnswer { share }),
            self.crash.map(|Empty {}| FaultKind::Crash),
            self.workers.map(|WorkersFile { count }| FaultKind::Workers { count }),
        ];
        let mut kinds = kinds.into_iter().flatten();
        let (kind, second) = (kinds.next(), kinds.next());
        if kind.is_none() || second.is_some() {
            faults.add(path, "requires one of error, slow, no_answer, lost_answer, crash, workers");
        }
        if self.period.is_some() != self.on.is_some() {
            faults.add(path, "requires both `period` and `on`, or neither");
        }
        Fault {
            service: required(self.service, format!("{path}.service"), String::new(), faults),
            method: self.method,
            instances: self.instances,
            from: self.from,
            until: self.until,
            flapping: self.period.zip(self.on).map(|(period, on)| Flapping { period, on }),
            kind: kind.unwrap_or(FaultKind::Crash),
        }
    }
}
