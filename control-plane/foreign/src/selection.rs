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

/// Returns the callees with their rules, and the rules that have no callee. `of_one_caller` is true for the
/// configuration of the chosen caller alone: its patterns need no caller.
pub(crate) fn select<'r>(
    rules: &'r [Rule],
    options: &Options,
    of_one_caller: bool,
) -> (Vec<Callee<'r>>, Vec<&'r Rule>) {
    let mut names: Vec<String> = options.callees.clone();
    if names.is_empty() {
        names = rules.iter().filter_map(|rule| exact(&rule.pattern().callee_service)).collect();
    }
    names.sort();
    names.dedup();
    let callees = names.into_iter().map(|name| callee(name, rules, options, of_one_caller));
    let callees: Vec<_> = callees.filter(|callee| !callee.rules.is_empty()).collect();
    let homeless = |rule: &&Rule| callees.is_empty() && rule.pattern().callee_service == Part::Any;
    let homeless = rules.iter().filter(homeless).collect();
    (callees, homeless)
}

fn exact(part: &Part) -> Option<String> {
    if let Part::Exact(name) = part { Some(name.clone()) } else { None }
}

fn callee<'r>(name: String, rules: &'r [Rule], options: &Options, of_one_caller: bool) -> Callee<'r> {
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
        if of_one_caller && options.caller.is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::rules;

    const ON: &str = "{ mode: enforce, timeout: 2s, retry: {} }";
    const OFF: &str = "{ mode: off }";
    const OBSERVED: &str = "{ mode: observe, retry: {} }";

    /// Returns callee, method and form of all that is selected.
    fn selected(rules: &[Rule], options: &Options) -> Vec<(String, String, Form)> {
        let (callees, _) = select(rules, options, true);
        let parts = |callee: Callee<'_>| {
            let part = |selected: Selected<'_>| {
                (callee.name.clone(), selected.pattern.callee_method.to_string(), selected.form)
            };
            callee.rules.into_iter().map(part).collect::<Vec<_>>()
        };
        callees.into_iter().flat_map(parts).collect()
    }

    fn chosen(caller: Option<&str>, cluster: Option<&str>, callee: &[&str]) -> Options {
        Options {
            callees: callee.iter().map(ToString::to_string).collect(),
            caller: caller.map(str::to_owned),
            cluster: cluster.map(str::to_owned),
            ..Options::default()
        }
    }

    fn found(callee: &str, method: &str, form: Form) -> (String, String, Form) {
        (callee.to_owned(), method.to_owned(), form)
    }

    #[test]
    fn rules_of_other_callers_and_clusters_are_left_out() {
        let rules = rules(&[
            ("till * b p.S/A", ON),
            ("checkout * b p.S/B", ON),
            ("checkout eu b p.S/C", ON),
            ("* default b p.S/D", ON),
            ("* * b p.S/E", ON),
        ]);
        let methods = |options: &Options| -> Vec<String> {
            selected(&rules, options).into_iter().map(|(_, method, _)| method).collect()
        };
        assert_eq!(methods(&chosen(None, None, &[])).len(), 5);
        let default = methods(&chosen(Some("checkout"), None, &[]));
        assert_eq!(default, ["p.S/B", "p.S/D", "p.S/E"]);
        let eu = methods(&chosen(Some("checkout"), Some("eu"), &[]));
        assert_eq!(eu, ["p.S/C", "p.S/B", "p.S/E"]);
    }

    #[test]
    fn rule_for_all_callees_is_written_for_each() {
        let rules = rules(&[("* * b p.S/M", ON), ("* * c p.S/M", ON), ("* * * *", ON)]);
        let all = selected(&rules, &Options::default());
        let expected = [("b", "p.S/M"), ("b", "*"), ("c", "p.S/M"), ("c", "*")];
        assert_eq!(all, expected.map(|(callee, method)| found(callee, method, Form::Whole)));
        let one = selected(&rules, &chosen(None, None, &["d"]));
        assert_eq!(one, [found("d", "*", Form::Whole)]);
    }

    #[test]
    fn rule_for_all_callees_has_none_without_names() {
        let rules = rules(&[("* * * *", ON)]);
        let (callees, homeless) = select(&rules, &Options::default(), true);
        assert_eq!((callees.len(), homeless.len()), (0, 1));
    }

    #[test]
    fn rule_that_never_applies_is_covered() {
        let rules = rules(&[("checkout * b p.S/M", ON), ("* * b p.S/M", ON), ("* * b p.S/N", OFF)]);
        let of_one = selected(&rules, &chosen(Some("checkout"), None, &[]));
        let expected = [("p.S/M", Form::Whole), ("p.S/M", Form::Covered), ("p.S/N", Form::OneAttempt)];
        assert_eq!(of_one, expected.map(|(method, form)| found("b", method, form)));
        let of_all = selected(&rules, &Options::default());
        assert!(of_all.iter().all(|(.., form)| *form != Form::Covered), "{of_all:?}");
    }

    #[test]
    fn observed_rule_hides_a_wider_rule_alone() {
        let alone = rules(&[("* * b p.S/M", OBSERVED)]);
        assert_eq!(selected(&alone, &Options::default()), [found("b", "p.S/M", Form::Unwritten)]);
        let both = rules(&[("* * b p.S/M", OBSERVED), ("* * b *", ON)]);
        let forms: Vec<Form> =
            selected(&both, &Options::default()).into_iter().map(|(.., form)| form).collect();
        assert_eq!(forms, [Form::OneAttempt, Form::Whole]);
    }
}
