//! Reads a scenario from YAML (or JSON) strictly: unknown fields are faults, and all faults are reported at
//! once with their lines and paths.
//!
//! This file checks the shape only: names, units and fields that belong together. `read` runs the scenario's
//! own check for ranges and references. Rules and guards are manifests, as for `damper apply`; the caller
//! reads them, since this crate does not depend on the wire format.

use std::time::Duration;

use damper_core::fault::Faults;
use damper_core::{Code, Guard, Ratio, Rule};
use serde_json::Value;

use self::fields::Fields;
use self::peer::peer;
use crate::scenario::{
    Arrivals, Balance, DURATION, Fault, FaultKind, Flapping, Load, Method, Peer, RateFrom, Retries, Scenario,
    Service, Strategy, Target,
};
use crate::spread::Spread;

mod fields;
mod peer;

/// Default seed.
pub const DEFAULT_SEED: u64 = 1;
/// Default time of a message.
pub const DEFAULT_NETWORK: Duration = Duration::from_micros(500);

/// Content of `damper` in a strategy, or an item of its list.
#[derive(Clone, Copy, Debug)]
pub enum Manifests<'a> {
    /// Name of a file of manifests.
    File(&'a str),
    /// One manifest.
    Inline(&'a Value),
}

/// Reads manifests: `damper-proto`'s `manifest` in the command line and in tests.
pub type ReadManifests<'a> = dyn Fn(Manifests<'_>) -> Result<(Vec<Rule>, Vec<Guard>), Faults> + 'a;

/// Reads a scenario and checks it.
///
/// # Errors
/// All faults with their lines and paths.
pub fn read(text: &str, manifests: &ReadManifests<'_>) -> Result<Scenario, damper_document::Error> {
    damper_document::parse_one(text, |value, faults| {
        let scenario = Fields::read(&value, faults, |fields| scenario(fields, manifests))?;
        let mut found = Faults::none();
        scenario.check(&mut found);
        damper_document::add_others(&found, faults);
        Some(scenario)
    })
}

fn scenario(fields: &mut Fields<'_>, manifests: &ReadManifests<'_>) -> Scenario {
    Scenario {
        name: fields.text("name").unwrap_or_default(),
        duration: fields.duration("duration").unwrap_or_else(|| {
            fields.missing("duration");
            // Any time in it is valid.
            DURATION.max
        }),
        seed: fields.number("seed").unwrap_or(DEFAULT_SEED),
        network: fields.part("network", spread).unwrap_or(Spread::Fixed(DEFAULT_NETWORK)),
        services: fields.named("services", service),
        load: fields.list("load", |value, faults| Fields::read(value, faults, load)),
        faults: fields.list("faults", |value, faults| Fields::read(value, faults, fault)),
        strategies: fields.list("strategies", |value, faults| {
            Fields::read(value, faults, |fields| strategy(fields, manifests))
        }),
    }
}

fn service(name: &str, fields: &mut Fields<'_>) -> Service {
    let default = Service::new(name, Vec::new());
    Service {
        name: name.to_owned(),
        instances: fields.number("instances").unwrap_or(default.instances),
        workers: fields.number("workers"),
        queue: fields.number("queue"),
        full: fields.part("full", code).unwrap_or(default.full),
        full_cost: fields.part("full_cost", ratio).unwrap_or(default.full_cost),
        holds_worker: fields.flag("holds_worker").unwrap_or(default.holds_worker),
        cancellable: fields.flag("cancellable").unwrap_or(default.cancellable),
        balance: fields
            .one_of(
                "balance",
                &[
                    ("random", Balance::Random),
                    ("round_robin", Balance::RoundRobin),
                    ("balanced", Balance::Balanced),
                ],
            )
            .unwrap_or_default(),
        methods: fields.named("methods", |name, fields| Method {
            name: name.to_owned(),
            time: fields.part("time", spread).unwrap_or_else(|| {
                fields.missing("time");
                Spread::Fixed(Duration::ZERO)
            }),
            calls: fields.list("calls", stage),
        }),
    }
}

/// `stock shop.v1.Stock/Take`, or a list of concurrent calls.
fn stage(value: &Value, faults: &mut Faults) -> Option<Vec<Target>> {
    let Value::Array(together) = value else { return target(value, faults).map(|target| vec![target]) };
    Some(together.iter().filter_map(|value| target(value, faults)).collect())
}

fn target(value: &Value, faults: &mut Faults) -> Option<Target> {
    let words: Vec<_> = value.as_str().unwrap_or_default().split_whitespace().collect();
    if let [service, method] = words[..] {
        return Some(Target::new(service, method));
    }
    faults
        .add("", format!("must be a service and a method, such as `stock shop.v1.Stock/Take`, not {value}"));
    None
}

fn load(fields: &mut Fields<'_>) -> Load {
    let kinds = (fields.fields("open", open), fields.fields("closed", closed));
    let arrivals = match kinds {
        (Some(arrivals), None) | (None, Some(arrivals)) => arrivals,
        (Some(arrivals), Some(_)) => {
            fields.problem("closed", "conflicts with `open`");
            arrivals
        }
        (None, None) => {
            fields.problem("", "requires `open` or `closed`");
            let rates = vec![RateFrom { from: Duration::ZERO, milli_per_second: 1 }];
            Arrivals::Open { even: false, rates }
        }
    };
    Load {
        caller: fields.text("caller").unwrap_or_else(|| {
            fields.missing("caller");
            "unknown".to_owned()
        }),
        processes: fields.number("processes").unwrap_or(1),
        call: fields.part("call", target).unwrap_or_else(|| {
            fields.missing("call");
            Target::new("", "")
        }),
        timeout: fields.duration("timeout"),
        bare: fields.flag("bare").unwrap_or(false),
        restart: fields.duration("restart"),
        arrivals,
    }
}

fn open(fields: &mut Fields<'_>) -> Arrivals {
    let even = fields.flag("even").unwrap_or(false);
    let rate = fields.part("rate", per_second);
    let mut rates = fields.list("rates", |value, faults| {
        Fields::read(value, faults, |fields| RateFrom {
            from: fields.duration("from").unwrap_or_default(),
            milli_per_second: fields.part("rate", per_second).unwrap_or_else(|| {
                fields.missing("rate");
                0
            }),
        })
    });
    match (rate, rates.is_empty()) {
        (Some(milli_per_second), true) => rates.push(RateFrom { from: Duration::ZERO, milli_per_second }),
        (Some(_), false) => fields.problem("rate", "conflicts with `rates`"),
        (None, true) if !fields.has("rate") => fields.problem("", "requires `rate` or `rates`"),
        (None, true) => {}
        (None, false) => {}
    }
    Arrivals::Open { even, rates }
}

fn closed(fields: &mut Fields<'_>) -> Arrivals {
    let users = fields.number("users").unwrap_or_else(|| {
        fields.missing("users");
        1
    });
    Arrivals::Closed { users, think: fields.part("think", spread).unwrap_or(Spread::Fixed(Duration::ZERO)) }
}

fn fault(fields: &mut Fields<'_>) -> Fault {
    let share = |fields: &mut Fields<'_>| fields.part("share", ratio).unwrap_or(Ratio::ONE);
    let kinds = [
        fields.fields("error", |fields| FaultKind::Error {
            code: fields.part("code", code).unwrap_or(Code::Unavailable),
            share: share(fields),
        }),
        fields.fields("slow", |fields| FaultKind::Slow {
            add: fields.duration("add").unwrap_or_default(),
            factor: fields.part("factor", ratio).unwrap_or(Ratio::ONE),
            share: share(fields),
        }),
        fields.fields("no_answer", |fields| FaultKind::NoAnswer { share: share(fields) }),
        fields.fields("lost_answer", |fields| FaultKind::LostAnswer { share: share(fields) }),
        fields.fields("crash", |_| FaultKind::Crash),
        fields.fields("workers", |fields| FaultKind::Workers {
            count: fields.number("count").unwrap_or_else(|| {
                fields.missing("count");
                0
            }),
        }),
    ];
    let mut kinds = kinds.into_iter().flatten();
    let (kind, second) = (kinds.next(), kinds.next());
    if kind.is_none() || second.is_some() {
        fields.problem("", "requires one of error, slow, no_answer, lost_answer, crash, workers");
    }
    let flapping = match (fields.duration("period"), fields.duration("on")) {
        (Some(period), Some(on)) => Some(Flapping { period, on }),
        (None, None) => None,
        _ => {
            fields.problem("", "requires both `period` and `on`, or neither");
            None
        }
    };
    Fault {
        service: fields.text("service").unwrap_or_else(|| {
            fields.missing("service");
            String::new()
        }),
        method: fields.text("method"),
        instances: fields.number("instances"),
        from: fields.duration("from").unwrap_or_default(),
        until: fields.duration("until"),
        flapping,
        kind: kind.unwrap_or(FaultKind::Crash),
    }
}

fn strategy(fields: &mut Fields<'_>, manifests: &ReadManifests<'_>) -> Strategy {
    let given = ["none", "peer", "damper"].into_iter().filter(|kind| fields.has(kind)).count();
    if given != 1 {
        fields.problem("", "requires one of none, peer, damper");
    }
    let kinds = [
        fields.fields("none", |_| Retries::Peer(Peer::naive(1))),
        fields.fields("peer", |fields| Retries::Peer(peer(fields))),
        damper(fields, manifests),
    ];
    Strategy {
        name: fields.text("name").unwrap_or_else(|| {
            fields.missing("name");
            String::new()
        }),
        retries: kinds.into_iter().flatten().next().unwrap_or(Retries::Peer(Peer::naive(1))),
    }
}

/// Name of a file, or a list of file names and manifests.
fn damper(fields: &mut Fields<'_>, manifests: &ReadManifests<'_>) -> Option<Retries> {
    let read = |value: &Value, faults: &mut Faults| {
        let which = match value {
            Value::String(file) => Manifests::File(file),
            inline => Manifests::Inline(inline),
        };
        manifests(which).map_err(|found| faults.nest("", found)).ok()
    };
    let all = if fields.is_text("damper") {
        vec![fields.part("damper", read)?]
    } else {
        fields.list("damper", read)
    };
    if !fields.has("damper") {
        return None;
    }
    let (rules, guards): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    Some(Retries::Damper { rules: rules.concat(), guards: guards.concat() })
}

fn spread(value: &Value, faults: &mut Faults) -> Option<Spread> {
    if value.is_string() {
        return fields::duration(value, faults).map(Spread::Fixed);
    }
    let kinds = Fields::read(value, faults, |fields| {
        let length = |fields: &mut Fields<'_>, name| {
            fields.duration(name).unwrap_or_else(|| {
                fields.missing(name);
                Duration::from_millis(1)
            })
        };
        let kinds = [
            fields.fields("uniform", |fields| Spread::Uniform {
                min: fields.duration("min").unwrap_or_default(),
                max: length(fields, "max"),
            }),
            fields.fields("exponential", |fields| Spread::Exponential { mean: length(fields, "mean") }),
            fields.fields("lognormal", |fields| Spread::LogNormal {
                median: length(fields, "median"),
                p99: length(fields, "p99"),
            }),
            list(fields),
        ];
        let kinds: Vec<_> = kinds.into_iter().flatten().collect();
        if kinds.len() != 1 {
            fields.problem("", "must be a duration, or one of uniform, exponential, lognormal, list");
        }
        kinds.into_iter().next()
    });
    kinds.flatten()
}

fn list(fields: &mut Fields<'_>) -> Option<Spread> {
    let all = fields.list("list", fields::duration);
    fields.has("list").then_some(Spread::List(all))
}

fn code(value: &Value, faults: &mut Faults) -> Option<Code> {
    let known = Code::ALL.into_iter().find(|code| value.as_str() == Some(code.name()));
    if known.is_none() {
        faults.add("", format!("must be a gRPC code, such as UNAVAILABLE, not {value}"));
    }
    known
}

/// A number in steps of 0.0001.
fn ratio(value: &Value, faults: &mut Faults) -> Option<Ratio> {
    let parts = fields::decimal(value, 10_000, faults)?;
    match u32::try_from(parts) {
        Ok(bp) => Some(Ratio::from_bp(bp)),
        Err(_) => {
            faults.add("", format!("must be at most {}, not {value}", u32::MAX / 10_000));
            None
        }
    }
}

/// Calls per second, in thousandths.
fn per_second(value: &Value, faults: &mut Faults) -> Option<u64> {
    fields::decimal(value, 1_000, faults)
}
