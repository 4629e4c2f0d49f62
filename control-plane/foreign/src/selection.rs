//! Which rules are written for a callee, and in which order.
//!
//! The order is that of the engine's table: most specific first. A rule that never applies, since one before
//! it covers all its routes, is not written. A rule that is off, or in observe mode before a wider rule, is
//! written as one attempt without limits, so that the wider rule does not apply to its calls.

use damper_core::{MethodPart, Mode, Part, Pattern, Policy, Rule};

use crate::options::Options;

/// The rules of one callee, most specific first.
pub(crate) struct Callee<'r> {
    pub(crate) name: String,
    pub(crate) rules: Vec<Selected<'r>>,
}

/// A rule at a callee.
pub(crate) struct Selected<'r> {
    pub(crate) rule: &'r Rule,
    /// Its pattern, with the callee, and without the caller if that is chosen.
    pub(crate) pattern: Pattern,
    /// How it is written.
    pub(crate) form: Form,
}

/// How a rule is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is.
    Whole,
    /// As one attempt: off, or observe before a wider rule.
    OneAttempt,
    /// Not at all: observe.
    Unwritten,
    /// Not at all: rules before it cover it.
    Covered,
}

/// Returns the callees with their rules, and the rules that have no callee.
pub(crate) fn select<'r>(rules: &'r [Rule], options: &Options) -> (Vec<Callee<'r>>, Vec<&'r Rule>) {
    let mut names: Vec<String> = options.callees.clone();
    if names.is_empty() {
        names = rules.iter().filter_map(|rule| exact(&rule.pattern().callee_service)).collect();
    }
    names.sort();
    names.dedup();
    let callees =
        names.into_iter().map(|name| callee(name, rules, options)).filter(|callee| !callee.rules.is_empty());
    let callees: Vec<_> = callees.collect();
    let homeless = |rule: &&Rule| callees.is_empty() && rule.pattern().callee_service == Part::Any;
    let homeless = rules.iter().filter(homeless).collect();
    (callees, homeless)
}

fn exact(part: &Part) -> Option<String> {
    if let Part::Exact(name) = part { Some(name.clone()) } else { None }
}

fn callee<'r>(name: String, rules: &'r [Rule], options: &Options) -> Callee<'r> {
    let here = |rule: &&Rule| match &rule.pattern().callee_service {
        Part::Any => true,
        Part::Exact(callee) => *callee == name,
    };
    let called = |rule: &&Rule| {
        let matches = |part: &Part, name: &str| *part == Part::Any || exact(part).as_deref() == Some(name);
        options.caller.as_deref().is_none_or(|caller| {
            matches(&rule.pattern().caller_service, caller)
                && matches(&rule.pattern().caller_cluster, options.cluster())
        })
    };
    let mut rules: Vec<&Rule> = rules.iter().filter(here).filter(called).collect();
    rules.sort_by_key(|rule| (std::cmp::Reverse(rule.pattern().exactness()), rule.pattern().to_string()));
    let mut selected: Vec<Selected<'_>> = Vec::with_capacity(rules.len());
    for rule in &rules {
        let mut pattern = Pattern { callee_service: Part::Exact(name.clone()), ..rule.pattern().clone() };
        if options.caller.is_some() {
            (pattern.caller_service, pattern.caller_cluster) = (Part::Any, Part::Any);
        }
        selected.push(Selected { rule, pattern, form: Form::Whole });
    }
    for i in 0..selected.len() {
        let (before, rest) = selected.split_at(i);
        let Some((this, after)) = rest.split_first() else { continue };
        let written = |other: &&Selected<'_>| other.rule.policy().mode == Mode::Enforce;
        let covered = before.iter().filter(|other| other.form != Form::Unwritten);
        let form = if covered.clone().any(|other| other.pattern.covers(&this.pattern)) {
            Form::Covered
        } else {
            match this.rule.policy().mode {
                Mode::Enforce => Form::Whole,
                Mode::Off => Form::OneAttempt,
                Mode::Observe
                    if after.iter().filter(written).any(|other| other.pattern.overlaps(&this.pattern)) =>
                {
                    Form::OneAttempt
                }
                Mode::Observe => Form::Unwritten,
            }
        };
        if let Some(this) = selected.get_mut(i) {
            this.form = form;
        }
    }
    Callee { name, rules: selected }
}

impl Selected<'_> {
    /// Returns the policy in force: of one attempt, what its calls see.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = self.rule.policy().clone();
        if self.form != Form::Whole {
            return Policy { timeout: None, retry: None, hedge: None, budget: None, ..policy };
        }
        policy.retry = policy.retry.filter(|retry| retry.max_attempts > 1 && !retry.codes.is_empty());
        policy
    }

    /// Returns the method of gRPC: service and method; `None` for all of the callee.
    ///
    /// # Errors
    /// A method of another kind.
    pub(crate) fn grpc_method(&self) -> Result<Option<(&str, Option<&str>)>, String> {
        match &self.pattern.callee_method {
            MethodPart::Any => Ok(None),
            MethodPart::Service(service) if is_grpc(service) => Ok(Some((service, None))),
            MethodPart::Exact(method) => match method.split_once('/') {
                Some((service, method)) if is_grpc(service) && !method.contains('/') => {
                    Ok(Some((service, Some(method))))
                }
                _ => Err(format!("key.callee_method: {method} is not a method of gRPC")),
            },
            MethodPart::Service(service) => {
                Err(format!("key.callee_method: {service}/* is not a service of gRPC"))
            }
        }
    }
}

/// True for a service of gRPC; HTTP methods and other operations have a colon.
fn is_grpc(service: &str) -> bool {
    !service.is_empty() && service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
}
