//! Scenarios from files and from Rust, and how figures are taken from what comes of them.

use std::time::Duration;

use damper_core::fault::Faults;
use damper_core::{Backoff, Mode, Pattern, Policy, Retry, Rule, Waits};
use damper_proto::manifest::{self, Error};
use damper_sim::file::{self, Manifests, Policies};
use damper_sim::scenario::{
    Arrivals, Load, Method, Peer, RateFrom, Retries, Scenario, Service, Strategy, Target,
};
use damper_sim::{Figures, Outcome, Spread};

pub(crate) const METHOD: &str = "test.Hop/Call";

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn read(text: &str) -> Result<Scenario, Error> {
    file::read(text, &|which| {
        let text = match which {
            Manifests::File(name) => panic!("{name}: tests have their rules at hand"),
            Manifests::Inline(value) => value.to_string(),
        };
        manifests(&text)
    })
}

fn manifests(text: &str) -> Result<Policies, Faults> {
    let checked = manifest::parse(text).and_then(|documents| manifest::check(&documents));
    let policies = |manifest::Checked { rules, guards, queues, .. }| Policies { rules, guards, queues };
    checked.map(policies).map_err(|error| {
        let mut faults = Faults::none();
        error.problems.into_iter().for_each(|problem| faults.add(problem.path, problem.problem));
        faults
    })
}

pub(crate) fn simulated(scenario: &Scenario) -> Outcome {
    damper_sim::run(scenario).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The figures of the strategy of this name.
pub(crate) fn of<'a>(outcome: &'a Outcome, strategy: &str) -> &'a Figures {
    let found = outcome.strategies.iter().find(|figures| figures.strategy == strategy);
    found.unwrap_or_else(|| panic!("there is no strategy {strategy}"))
}

/// The one strategy's figures.
pub(crate) fn only(scenario: &Scenario) -> Figures {
    let mut outcome = simulated(scenario);
    assert_eq!(outcome.strategies.len(), 1);
    outcome.strategies.remove(0)
}

pub(crate) fn method(time: Spread, calls: &[&str]) -> Method {
    let calls = calls.iter().map(|service| vec![Target::new(service, METHOD)]).collect();
    Method { name: METHOD.to_owned(), time, calls }
}

pub(crate) fn service(name: &str, time: Spread, calls: &[&str]) -> Service {
    Service::new(name, vec![method(time, calls)])
}

/// Evenly spaced requests.
pub(crate) fn load(service: &str, per_second: u64) -> Load {
    let rates = vec![RateFrom { from: Duration::ZERO, milli_per_second: per_second * 1_000 }];
    Load {
        caller: "top".to_owned(),
        processes: 1,
        call: Target::new(service, METHOD),
        timeout: None,
        bare: false,
        restart: None,
        arrivals: Arrivals::Open { even: true, rates },
    }
}

pub(crate) fn peer(peer: Peer) -> Strategy {
    Strategy { name: "peer".to_owned(), retries: Retries::Peer(peer), queues: Vec::new() }
}

pub(crate) fn damper(policy: Policy) -> Strategy {
    let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    let rules = vec![Rule::new(pattern, policy, 1).unwrap()];
    let retries = Retries::Damper { rules, guards: Vec::new() };
    Strategy { name: "damper".to_owned(), retries, queues: Vec::new() }
}

/// Three attempts at once, without a breaker.
pub(crate) fn three_attempts() -> Policy {
    let backoff = Backoff::Always(Waits::None);
    let retry = Retry { max_attempts: 3, backoff, ..Retry::default() };
    Policy { retry: Some(retry), retry_breaker: None, ..Policy::new(Mode::Enforce) }
}

/// One service `a`, whose method takes a millisecond, for ten seconds without a network.
pub(crate) fn small(strategy: Strategy) -> Scenario {
    Scenario {
        name: "small".to_owned(),
        duration: Duration::from_secs(10),
        seed: 1,
        network: Spread::Fixed(Duration::ZERO),
        services: vec![service("a", Spread::Fixed(ms(1)), &[])],
        load: vec![load("a", 10)],
        faults: Vec::new(),
        strategies: vec![strategy],
    }
}

/// A chain `a`, `b`, ... of so many services.
pub(crate) fn chain(services: usize, strategy: Strategy) -> Scenario {
    let names: Vec<String> = (0..services).map(|i| char::from(b'a' + i as u8).to_string()).collect();
    let of = |i: usize| {
        let calls: Vec<&str> = names.get(i + 1).map(String::as_str).into_iter().collect();
        service(&names[i], Spread::Fixed(ms(1)), &calls)
    };
    Scenario { services: (0..services).map(of).collect(), ..small(strategy) }
}
