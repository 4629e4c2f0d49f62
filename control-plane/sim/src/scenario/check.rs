//! Checks a scenario: ranges, unknown names, and cycles of calls.
//!
//! Paths are those of the YAML form.

use std::collections::BTreeSet;

use damper_core::fault::{Bounds, Faults, Millis};
use damper_core::{Code, Guard, Pattern, Rule, key};

use super::{
    ATTEMPTS, Arrivals, DURATION, FACTOR, FULL_COST, Fault, FaultKind, INSTANCES, Load, MAX_TOKENS, METHODS,
    MIN_PER_SEC, Method, PERIOD, PROCESSES, Peer, PeerCap, QUEUE, RATE_MILLI, RESTART, RETRY_PERCENT,
    RateFrom, Retries, SHARE, STRATEGIES, Scenario, Service, TIMEOUT, TOKEN_RATIO, TOKENS, TTL, Target,
    USERS, WORKERS, WORKERS_LEFT,
};
use crate::spread::LENGTH;

impl Scenario {
    /// Records all faults by path.
    pub fn check(&self, faults: &mut Faults) {
        DURATION.check("duration", self.duration, faults);
        self.network.check("network", faults);
        let methods = self.services.iter().map(|service| service.methods.len()).sum();
        METHODS.check("services.*.methods", number(methods), faults);
        some("load", self.load.len(), faults);
        let mut names = BTreeSet::new();
        for service in &self.services {
            let path = format!("services.{}", service.name);
            twice(&path, &service.name, &mut names, faults);
            service.check(self, &path, faults);
        }
        for (i, load) in self.load.iter().enumerate() {
            load.check(self, &format!("load[{i}]"), faults);
        }
        for (i, fault) in self.faults.iter().enumerate() {
            fault.check(self, &format!("faults[{i}]"), faults);
        }
        STRATEGIES.check("strategies", number(self.strategies.len()), faults);
        let mut names = BTreeSet::new();
        for (i, strategy) in self.strategies.iter().enumerate() {
            let path = format!("strategies[{i}]");
            twice(&format!("{path}.name"), &strategy.name, &mut names, faults);
            match &strategy.retries {
                Retries::Peer(peer) => peer.check(self, &format!("{path}.peer"), faults),
                Retries::Damper { rules, guards } => {
                    unique(&path, rules.iter().map(Rule::pattern), "rule", faults);
                    unique(&path, guards.iter().map(Guard::pattern), "guard", faults);
                }
            }
        }
        if let Some(cycle) = self.cycle() {
            faults.add("services", format!("{}: endless cycle of calls", cycle.join(" -> ")));
        }
    }

    pub(crate) fn method(&self, target: &Target) -> Option<(usize, usize)> {
        let service = self.services.iter().position(|service| service.name == target.service)?;
        let methods = &self.services[service].methods;
        Some((service, methods.iter().position(|method| method.name == target.method)?))
    }

    fn check_target(&self, path: &str, target: &Target, faults: &mut Faults) {
        let Target { service, method } = target;
        match self.services.iter().find(|known| known.name == *service) {
            None => faults.add(path, format!("unknown service {service:?}")),
            Some(known) if known.methods.iter().all(|known| known.name != *method) => {
                faults.add(path, format!("unknown method {method:?} of {service:?}"));
            }
            Some(_) => {}
        }
    }

    /// Returns a cycle of methods.
    fn cycle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        for service in &self.services {
            for method in &service.methods {
                let target = Target::new(&service.name, &method.name);
                if let Some(cycle) = self.cycle_from(&target, &mut Vec::new(), &mut done) {
                    return Some(cycle);
                }
            }
        }
        None
    }

    fn cycle_from(
        &self,
        target: &Target,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        let name = format!("{} {}", target.service, target.method);
        if let Some(begin) = way.iter().position(|known| *known == name) {
            let mut cycle = way.split_off(begin);
            cycle.push(name);
            return Some(cycle);
        }
        if done.contains(&name) {
            return None;
        }
        let (service, method) = self.method(target)?;
        way.push(name.clone());
        for next in self.services[service].methods[method].calls.iter().flatten() {
            let cycle = self.cycle_from(next, way, done);
            if cycle.is_some() {
                return cycle;
            }
        }
        way.pop();
        done.insert(name);
        None
    }
}

impl Service {
    fn check(&self, scenario: &Scenario, path: &str, faults: &mut Faults) {
        key::check_name(path, &self.name, faults);
        INSTANCES.check(&format!("{path}.instances"), self.instances, faults);
        if let Some(workers) = self.workers {
            WORKERS.check(&format!("{path}.workers"), workers, faults);
        }
        if let Some(queue) = self.queue {
            QUEUE.check(&format!("{path}.queue"), queue, faults);
        }
        if self.full == Code::Ok {
            faults.add(format!("{path}.full"), "OK is not a failure");
        }
        FULL_COST.check(&format!("{path}.full_cost"), self.full_cost, faults);
        some(&format!("{path}.methods"), self.methods.len(), faults);
        let mut names = BTreeSet::new();
        for method in &self.methods {
            let path = format!("{path}.methods.{}", method.name);
            twice(&path, &method.name, &mut names, faults);
            method.check(scenario, &path, faults);
        }
    }
}

impl Method {
    fn check(&self, scenario: &Scenario, path: &str, faults: &mut Faults) {
        key::check_method(path, &self.name, faults);
        self.time.check(&format!("{path}.time"), faults);
        for (i, stage) in self.calls.iter().enumerate() {
            some(&format!("{path}.calls[{i}]"), stage.len(), faults);
            for target in stage {
                scenario.check_target(&format!("{path}.calls[{i}]"), target, faults);
            }
        }
    }
}

impl Load {
    fn check(&self, scenario: &Scenario, path: &str, faults: &mut Faults) {
        key::check_name(&format!("{path}.caller"), &self.caller, faults);
        PROCESSES.check(&format!("{path}.processes"), self.processes, faults);
        scenario.check_target(&format!("{path}.call"), &self.call, faults);
        if let Some(timeout) = self.timeout {
            TIMEOUT.check(&format!("{path}.timeout"), timeout, faults);
        }
        if let Some(restart) = self.restart {
            let path = format!("{path}.restart");
            RESTART.check(&path, restart, faults);
            // So a process that ends has no calls left when the one after the next begins.
            if self.timeout.is_none_or(|timeout| timeout >= restart) {
                faults.add(path, "requires a shorter `timeout`");
            }
        }
        match &self.arrivals {
            Arrivals::Open { rates, .. } => {
                some(&format!("{path}.open"), rates.len(), faults);
                check_rates(&format!("{path}.open"), rates, faults);
            }
            Arrivals::Queued(queued) => queued.check(scenario, self, path, faults),
            Arrivals::Closed { users, think } => {
                USERS.check(&format!("{path}.closed.users"), *users, faults);
                think.check(&format!("{path}.closed.think"), faults);
            }
        }
    }
}

impl Fault {
    fn check(&self, scenario: &Scenario, path: &str, faults: &mut Faults) {
        let service = scenario.services.iter().find(|service| service.name == self.service);
        match (service, &self.method) {
            (None, _) => faults.add(format!("{path}.service"), format!("unknown service {:?}", self.service)),
            (Some(service), Some(method)) if service.methods.iter().all(|known| known.name != *method) => {
                faults.add(format!("{path}.method"), format!("{:?} has no method {method:?}", self.service));
            }
            _ => {}
        }
        if let (Some(service), Some(instances)) = (service, self.instances) {
            let bounds = Bounds { min: 1, max: service.instances };
            bounds.check(&format!("{path}.instances"), instances, faults);
        }
        if let Some(until) = self.until.filter(|until| *until <= self.from) {
            let (until, from) = (Millis(until), Millis(self.from));
            faults.add(format!("{path}.until"), format!("must be later than `from`, {from}, not {until}"));
        }
        if self.from >= scenario.duration {
            let (from, duration) = (Millis(self.from), Millis(scenario.duration));
            faults.add(format!("{path}.from"), format!("must be before the end, {duration}, not {from}"));
        }
        if let Some(flapping) = self.flapping {
            PERIOD.check(&format!("{path}.period"), flapping.period, faults);
            PERIOD.check(&format!("{path}.on"), flapping.on, faults);
            if flapping.on >= flapping.period {
                let (on, period) = (Millis(flapping.on), Millis(flapping.period));
                faults.add(format!("{path}.on"), format!("must be less than `period`, {period}, not {on}"));
            }
        }
        self.check_kind(path, faults);
    }

    fn check_kind(&self, path: &str, faults: &mut Faults) {
        let whole_process = matches!(self.kind, FaultKind::Crash | FaultKind::Workers { .. });
        if whole_process && self.method.is_some() {
            faults.add(
                format!("{path}.method"),
                "not allowed with `crash` or `workers`: they affect all methods",
            );
        }
        let share = match self.kind {
            FaultKind::Error { code, share } => {
                if code == Code::Ok {
                    faults.add(format!("{path}.error.code"), "OK is not a failure");
                }
                Some(("error", share))
            }
            FaultKind::Slow { add, factor, share } => {
                LENGTH.check(&format!("{path}.slow.add"), add, faults);
                FACTOR.check(&format!("{path}.slow.factor"), factor, faults);
                Some(("slow", share))
            }
            FaultKind::NoAnswer { share } => Some(("no_answer", share)),
            FaultKind::LostAnswer { share } => Some(("lost_answer", share)),
            FaultKind::Crash => None,
            FaultKind::Workers { count } => {
                WORKERS_LEFT.check(&format!("{path}.workers.count"), count, faults);
                None
            }
        };
        if let Some((kind, share)) = share {
            SHARE.check(&format!("{path}.{kind}.share"), share, faults);
        }
    }
}

impl Peer {
    fn check(&self, scenario: &Scenario, path: &str, faults: &mut Faults) {
        ATTEMPTS.check(&format!("{path}.attempts"), self.attempts, faults);
        if let Some(timeout) = self.per_attempt_timeout {
            TIMEOUT.check(&format!("{path}.per_attempt_timeout"), timeout, faults);
        }
        for (callee, timeout) in &self.callee_timeouts {
            let path = format!("{path}.callee_timeouts.{callee}");
            TIMEOUT.check(&path, *timeout, faults);
            if scenario.services.iter().all(|service| service.name != *callee) {
                faults.add(path, format!("unknown service {callee:?}"));
            }
        }
        if self.codes.contains(Code::Ok) {
            faults.add(format!("{path}.codes"), "OK is not a failure");
        }
        if let Some(backoff) = self.backoff {
            LENGTH.check(&format!("{path}.backoff.base"), backoff.base, faults);
            LENGTH.check(&format!("{path}.backoff.max"), backoff.max, faults);
        }
        if let Some(cap) = self.cap {
            cap.check(path, faults);
        }
    }
}

impl PeerCap {
    fn check(self, path: &str, faults: &mut Faults) {
        match self {
            Self::Budget(budget) => {
                TTL.check(&format!("{path}.budget.ttl"), budget.ttl, faults);
                MIN_PER_SEC.check(&format!("{path}.budget.min_per_sec"), budget.min_per_sec, faults);
                RETRY_PERCENT.check(&format!("{path}.budget.retry_percent"), budget.retry_percent, faults);
            }
            Self::Throttling(throttling) => {
                MAX_TOKENS.check(&format!("{path}.throttling.max_tokens"), throttling.max_tokens, faults);
                TOKEN_RATIO.check(&format!("{path}.throttling.token_ratio"), throttling.token_ratio, faults);
            }
            Self::Quota(quota) => {
                TOKENS.check(&format!("{path}.quota.tokens"), quota.tokens, faults);
                TOKENS.check(&format!("{path}.quota.cost"), quota.cost, faults);
                TOKENS.check(&format!("{path}.quota.timeout_cost"), quota.timeout_cost, faults);
            }
        }
    }
}

/// Checks the rates of a load.
pub(super) fn check_rates(path: &str, rates: &[RateFrom], faults: &mut Faults) {
    let (min, max) = RATE_MILLI;
    for (i, rate) in rates.iter().enumerate() {
        if !(min..=max).contains(&rate.milli_per_second) {
            let shown = rate.milli_per_second as f64 / 1000.0;
            let problem = format!("must be between 0 and 1000000 calls per second, not {shown}");
            faults.add(format!("{path}.rates[{i}]"), problem);
        }
        if i > 0 && rates[i - 1].from >= rate.from {
            let (from, before) = (Millis(rate.from), Millis(rates[i - 1].from));
            let problem = format!("must be later than the one before, {before}, not {from}");
            faults.add(format!("{path}.rates[{i}].from"), problem);
        }
    }
}

fn unique<'a>(path: &str, keys: impl Iterator<Item = &'a Pattern>, kind: &str, faults: &mut Faults) {
    let mut known = BTreeSet::new();
    for key in keys.map(Pattern::to_string) {
        if known.contains(&key) {
            faults.add(format!("{path}.damper"), format!("duplicate {kind} {key}"));
        }
        known.insert(key);
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn some(path: &str, count: usize, faults: &mut Faults) {
    if count == 0 {
        faults.add(path, "must not be empty");
    }
}

fn twice<'a>(path: &str, name: &'a str, names: &mut BTreeSet<&'a str>, faults: &mut Faults) {
    if !names.insert(name) {
        faults.add(path, format!("duplicate name {name:?}"));
    }
}
