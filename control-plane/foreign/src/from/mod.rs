//! From the configuration of a source to rules in observe mode.
//!
//! A document is data: read by damper-document, which bounds its depth and reports every fault with its path
//! and line. Unknown fields are left alone: only what concerns retries is read. A default that the source
//! leaves unsaid is in the rule, with a finding.

mod envoy;
mod grpc;
mod istio;
mod kitex;
mod retry_policy;

use std::time::Duration;

use damper_core::{Code, Faults};
use damper_document::Value;
use damper_proto::manifest::Error;
use damper_proto::{convert, v1};
use serde::de::DeserializeOwned;

/// A source of the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Service config of gRPC clients.
    Grpc,
    /// `VirtualService` and `DestinationRule` of Istio.
    Istio,
    /// Routes of Envoy: route configurations, virtual hosts, listeners with them.
    Envoy,
    /// Retry policies of Kitex.
    Kitex,
}

/// Names that a source does not have.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Caller, for gRPC and Kitex; `*` if not given.
    pub caller: Option<String>,
    /// Callee, for gRPC and Kitex, where it is required.
    pub callee: Option<String>,
    /// Label of pods that has the caller's name, for Istio.
    pub caller_label: Option<String>,
    /// Label of pods that has the caller's cluster, for Istio.
    pub cluster_label: Option<String>,
    /// Service of gRPC that has the methods, for Kitex.
    pub service: Option<String>,
}

/// A rule and what there is to know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Rule in observe mode.
    pub rule: v1::Rule,
    /// Differences between the rule and its source, and defaults that the source leaves unsaid.
    pub findings: Vec<Finding>,
}

/// What a rule does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path in the document.
    pub path: String,
    /// Text.
    pub message: String,
}

/// A document with its number, its first line, and the rules in it.
pub type Document = damper_document::Document<Vec<Found>>;

/// The documents of a text, and the limits in it that hold for rules of all texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Documents with their rules.
    pub documents: Vec<Document>,
    limits: Vec<Limit>,
}

/// The limit of all retries to a callee.
#[derive(Clone, Debug, PartialEq)]
struct Limit {
    callee: String,
    budget: Option<v1::Budget>,
}

/// Reads the rules of a text.
///
/// # Errors
/// All faults of all documents, with path and line.
pub fn read(source: Source, text: &str, options: &Options) -> Result<Reading, Error> {
    let mut limits = Vec::new();
    let documents = damper_document::parse(text, |value, faults| {
        let mut found = Vec::new();
        let mut reader = Reader { options, found: &mut found, limits: &mut limits, faults };
        each_object(value, "", &mut |object, path| match source {
            Source::Grpc => grpc::read(object, path, &mut reader),
            Source::Istio => istio::read(object, path, &mut reader),
            Source::Envoy => envoy::read(object, path, &mut reader),
            Source::Kitex => kitex::read(object, path, &mut reader),
        });
        Some(found)
    })?;
    Ok(Reading { documents, limits })
}

/// Gives each rule the limit of its callee, which may be in another text.
pub fn share_limits(source: Source, readings: &mut [Reading]) {
    let limits: Vec<Limit> = readings.iter().flat_map(|reading| reading.limits.clone()).collect();
    for document in readings.iter_mut().flat_map(|reading| &mut reading.documents) {
        for found in &mut document.content {
            limit(source, &limits, found);
        }
    }
}

fn limit(source: Source, limits: &[Limit], found: &mut Found) {
    let callee = found.rule.key.as_ref().map(|key| key.callee_service.as_str());
    let Some(policy) = found.rule.policy.as_mut().filter(|policy| policy.retry.is_some()) else { return };
    match limits.iter().find(|limit| Some(limit.callee.as_str()) == callee) {
        Some(Limit { budget: Some(budget), .. }) => {
            policy.budget = Some(*budget);
            let message = "its budget counts requests in flight; the rule's counts calls in a window";
            found.findings.push(finding("", message));
        }
        Some(_) => {}
        None if source == Source::Envoy => {
            let message = "unsaid: the cluster allows 3 retries at a time; no circuit breaker of it was read";
            found.findings.push(finding("", message));
        }
        None => {}
    }
}

/// Returns a budget; what is not set is Envoy's.
fn wire_budget(percent: Option<f64>, at_a_time: Option<u32>) -> v1::Budget {
    v1::Budget {
        ratio: Some((percent.unwrap_or(20.0) * 100.0).round() / 10_000.0),
        min_per_second: Some(at_a_time.unwrap_or(3)),
    }
}

/// Calls `read` with the document, or with each item of a Kubernetes list.
fn each_object(mut value: Value, path: &str, read: &mut dyn FnMut(Value, &str)) {
    let is_list = value.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == "List");
    match value.get_mut("items").filter(|_| is_list).and_then(Value::as_array_mut) {
        Some(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                read(item.take(), &format!("{path}items[{i}]"));
            }
        }
        None => read(value, path),
    }
}

/// Collects rules and faults of a document.
struct Reader<'r> {
    options: &'r Options,
    found: &'r mut Vec<Found>,
    limits: &'r mut Vec<Limit>,
    faults: &'r mut Faults,
}

impl Reader<'_> {
    fn fault(&mut self, path: &str, problem: impl Into<String>) {
        self.faults.add(path, problem);
    }

    /// Reads the fields of an object that concern retries.
    fn shape<T: DeserializeOwned>(&mut self, value: Value, path: &str) -> Option<T> {
        let mut faults = Faults::none();
        let shape = damper_document::read(value, Ok::<T, Faults>, &mut faults);
        let sound = faults.is_empty();
        for fault in faults.iter() {
            self.faults.add(join(path, &fault.path), fault.problem.clone());
        }
        shape.filter(|_| sound)
    }

    /// Reads a duration.
    fn duration(&mut self, path: &str, text: Option<&String>) -> Option<Duration> {
        match crate::duration::parse(text?) {
            Ok(duration) => Some(duration),
            Err(problem) => {
                self.fault(path, problem);
                None
            }
        }
    }

    /// Adds the limit of a callee; a budget that no rule can have is a fault.
    fn limit(&mut self, path: &str, callee: &str, budget: Option<v1::Budget>) {
        let policy = v1::Policy { mode: v1::Mode::Observe.into(), budget, ..Default::default() };
        if let Err(faults) = convert::policy(&policy) {
            for fault in faults.iter() {
                self.fault(path, format!("as a rule, policy.{fault}"));
            }
        }
        self.limits.push(Limit { callee: callee.to_owned(), budget });
    }

    /// Adds a rule in observe mode, with the faults of a policy that no rule can have.
    fn add(&mut self, path: &str, key: v1::Pattern, mut policy: v1::Policy, findings: Vec<Finding>) {
        policy.set_mode(v1::Mode::Observe);
        let rule = v1::Rule { key: Some(key), policy: Some(policy), ..Default::default() };
        match convert::rule(&rule) {
            Ok(_) => self.found.push(Found { rule, findings }),
            Err(faults) => {
                for fault in faults.iter() {
                    self.fault(path, format!("as a rule, {fault}"));
                }
            }
        }
    }
}

/// Returns a finding.
fn finding(path: &str, message: impl Into<String>) -> Finding {
    Finding { path: path.to_owned(), message: message.into() }
}

/// Returns the path of a field.
fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("", field) => field.to_owned(),
        (path, "") => path.to_owned(),
        (path, field) if field.starts_with('[') => format!("{path}{field}"),
        (path, field) => format!("{path}.{field}"),
    }
}

/// Returns a key; parts that are not known are `*`.
fn key(caller: Option<&str>, cluster: Option<&str>, callee: &str, method: &str) -> v1::Pattern {
    v1::Pattern {
        caller_service: caller.unwrap_or("*").to_owned(),
        caller_cluster: cluster.unwrap_or("*").to_owned(),
        callee_service: callee.to_owned(),
        callee_method: method.to_owned(),
    }
}

/// Returns the code with the name.
fn code(name: &str) -> Option<Code> {
    Code::ALL.into_iter().find(|code| code.name() == name)
}

#[cfg(test)]
mod tests;
