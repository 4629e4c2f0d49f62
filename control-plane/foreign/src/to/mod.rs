//! From rules to a target: its documents, and the report of each rule.
//!
//! A target states for one rule what it writes and what that means as a policy (`Expressed`), or why it
//! would refuse it; then it puts the parts of a callee's rules together.

mod chain_flag;
mod envoy;
mod gateway;
mod grpc;
mod istio;
mod kitex;
mod linkerd;
mod retry_policy;
mod routes;

pub(crate) use self::grpc::breaker;

use damper_core::{Part, Policy, Rule};
use damper_proto::v1;
use serde_json::{Value, json};

pub use crate::options::{Language, Options};
use crate::report::{All, Expressed, Loss, Outcome, RuleReport};
use crate::selection::{Callee, Form, Selected, select};

/// A target of the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Service config of gRPC clients, one for each caller and callee.
    Grpc,
    /// `VirtualService` and `DestinationRule` of Istio.
    Istio,
    /// Routes and clusters of Envoy.
    Envoy,
    /// `GRPCRoute` with Linkerd's annotations.
    Linkerd,
    /// Retry policies of Kitex.
    Kitex,
    /// `HTTPRoute` of the Gateway API.
    Gateway,
}

/// Documents and what became of each rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translation {
    /// Documents of the target.
    pub documents: Vec<Value>,
    /// Each rule at each callee.
    pub reports: Vec<RuleReport>,
    /// What holds for the whole.
    pub notes: Vec<String>,
}

impl Translation {
    /// Returns the worst outcome.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.reports.iter().map(RuleReport::outcome).max().unwrap_or(Outcome::Kept)
    }
}

/// Returns the rules as documents of the target.
///
/// # Errors
/// Each reason why nothing can be written, such as a missing option.
pub fn translate(target: Target, rules: &[Rule], options: &Options) -> Result<Translation, Vec<String>> {
    let of_one_caller = matches!(target, Target::Grpc | Target::Envoy | Target::Kitex);
    let (callees, homeless) = select(rules, options, of_one_caller);
    let mut translation = Translation::default();
    for rule in homeless {
        let refused =
            "key.callee_service is *, but a translation needs the names of the callees: add --callee"
                .to_owned();
        translation.reports.push(not_written(rule, "", REFUSED, vec![refused]));
    }
    let mut problems = Vec::new();
    for callee in &callees {
        let done = match target {
            Target::Grpc => {
                one_caller(callee, options).map(|()| grpc::write(callee, options, &mut translation))
            }
            Target::Istio => istio::write(callee, options, &mut translation),
            Target::Envoy => {
                one_caller(callee, options).map(|()| envoy::write(callee, options, &mut translation))
            }
            Target::Linkerd => {
                all_callers(callee).and_then(|()| linkerd::write(callee, options, &mut translation))
            }
            Target::Kitex => one_caller(callee, options).map(|()| kitex::write(callee, &mut translation)),
            Target::Gateway => {
                all_callers(callee).and_then(|()| gateway::write(callee, options, &mut translation))
            }
        };
        problems.extend(done.err());
    }
    if options.chain_flag {
        match target {
            Target::Istio | Target::Envoy if translation.documents.is_empty() => {}
            Target::Istio => translation.documents.push(chain_flag::envoy_filter()),
            Target::Envoy => translation.documents.extend(chain_flag::http_filters()),
            _ => problems.push("--chain-flag: only Envoy and Istio have filters".to_owned()),
        }
    }
    if problems.is_empty() { Ok(translation) } else { Err(problems) }
}

/// Errors if the rules of the callee differ by caller and no caller is chosen.
fn one_caller(callee: &Callee<'_>, options: &Options) -> Result<(), String> {
    match (all_callers(callee), &options.caller) {
        (Ok(()), _) | (_, Some(_)) => Ok(()),
        (Err(error), None) => Err(format!("{error}; add --caller")),
    }
}

/// Errors if the rules of the callee differ by caller.
fn all_callers(callee: &Callee<'_>) -> Result<(), String> {
    let named = |selected: &&Selected<'_>| {
        let pattern = &selected.pattern;
        pattern.caller_service != Part::Any || pattern.caller_cluster != Part::Any
    };
    let Some(first) = callee.rules.iter().find(named) else { return Ok(()) };
    Err(format!("rules of {} differ by caller ({})", callee.name, first.rule.pattern()))
}

/// A part that a target wrote for a rule, and what it means.
type Written<T> = Result<(T, Expressed), Vec<String>>;

/// Translates each rule of a callee and reports it; returns the parts of those that were written, in order.
fn each<'c, T>(
    callee: &'c Callee<'c>,
    target: &str,
    translation: &mut Translation,
    mut write: impl FnMut(&'c Selected<'c>, &Policy) -> Written<T>,
) -> Vec<(&'c Selected<'c>, T)> {
    let mut parts = Vec::new();
    for selected in &callee.rules {
        let unwritten = match selected.form {
            Form::Unwritten => Some(All::Lost("no target can observe: nothing is written")),
            Form::Covered => Some(All::Idle("more specific rules apply to all of its calls here")),
            Form::Whole | Form::OneAttempt => None,
        };
        if let Some(all) = unwritten {
            translation.reports.push(not_written(selected.rule, &callee.name, all, Vec::new()));
            continue;
        }
        match write(selected, &selected.policy()) {
            Ok((part, mut expressed)) => {
                expressed.policy.set_mode(match selected.rule.policy().mode {
                    damper_core::Mode::Enforce => v1::Mode::Enforce,
                    damper_core::Mode::Off | damper_core::Mode::Observe => v1::Mode::Off,
                });
                expressed.why(
                    "mode",
                    "nothing can observe: its calls are sent once, so that no wider rule applies",
                );
                let mut report = report(selected.rule, &callee.name);
                report.written = true;
                report.settings.extend(expressed.report(selected.rule, target));
                translation.reports.push(report);
                parts.push((selected, part));
            }
            Err(problems) => {
                translation.reports.push(not_written(selected.rule, &callee.name, REFUSED, problems));
            }
        }
    }
    parts
}

/// Settings of a rule that the target would refuse.
const REFUSED: All = All::Lost("the rule is not written");

/// Returns the report of a rule for which nothing is written.
fn not_written(rule: &Rule, callee: &str, all: All, refused: Vec<String>) -> RuleReport {
    let mut report = report(rule, callee);
    report.settings.extend(Expressed { all: Some(all), ..Expressed::default() }.report(rule, "the target"));
    report.refused = refused;
    report
}

/// Returns a report with the parts of the key.
fn report(rule: &Rule, callee: &str) -> RuleReport {
    let pattern = rule.pattern();
    let key = [
        ("key.caller_service", pattern.caller_service.to_string()),
        ("key.caller_cluster", pattern.caller_cluster.to_string()),
        ("key.callee_service", pattern.callee_service.to_string()),
        ("key.callee_method", pattern.callee_method.to_string()),
    ];
    let settings = key.into_iter().map(|(setting, value)| {
        let narrowed = setting == "key.callee_service" && value == "*" && !callee.is_empty();
        Loss {
            setting: setting.to_owned(),
            value: value.into(),
            outcome: if narrowed { Outcome::Changed } else { Outcome::Kept },
            becomes: narrowed.then(|| callee.into()),
            why: if narrowed { "written for each callee".to_owned() } else { String::new() },
            idle: false,
        }
    });
    RuleReport {
        rule: pattern.to_string(),
        revision: rule.revision(),
        callee: callee.to_owned(),
        written: false,
        refused: Vec::new(),
        settings: settings.collect(),
    }
}

/// Returns the metadata of a Kubernetes object for these rules.
fn metadata<T>(name: &str, parts: &[(&Selected<'_>, T)]) -> Value {
    json!({ "name": name, "annotations": { format!("{}/rules", crate::ANNOTATION): provenance(parts) } })
}

/// Returns key and revision of each rule, one a line.
fn provenance<T>(parts: &[(&Selected<'_>, T)]) -> String {
    let line = |(selected, _): &(&Selected<'_>, T)| words(selected);
    parts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns key and revision of a rule.
fn words(selected: &Selected<'_>) -> String {
    format!("{} @{}", selected.rule.pattern(), selected.rule.revision())
}

/// Returns a name as a host and as part of an object's name.
///
/// # Errors
/// The name, if it is no host name.
fn host(name: &str) -> Result<&str, String> {
    let fits = |label: &str| {
        let bytes = label.as_bytes();
        let inside =
            bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-');
        !bytes.is_empty() && bytes.len() <= 63 && inside && !bytes.starts_with(b"-") && !bytes.ends_with(b"-")
    };
    let valid = name.len() <= 240 && name.split('.').all(fits);
    if valid { Ok(name) } else { Err(format!("callee {name}: is not a host name")) }
}

/// Adds a field if it has a value.
fn set(object: &mut Value, field: &str, value: Option<impl Into<Value>>) {
    if let Some((map, value)) = object.as_object_mut().zip(value) {
        map.insert(field.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests;
