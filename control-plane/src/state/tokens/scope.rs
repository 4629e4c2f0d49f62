//! Scope of a token: names of services, exact or `PREFIX*`.
//!
//! A rule or guard is within a scope if its caller and its callee are. A `*` in its key matches every
//! service, so only a `*` in the scope includes it; a prefix does not. Empty names: no limit.

use damper_core::{Faults, Pattern, key};
use damper_proto::v1;

const MAX_NAMES: usize = 100;

/// Names of callers and callees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    callers: Vec<Name>,
    callees: Vec<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Exactly(String),
    BeginsWith(String),
}

impl Scope {
    /// Parses a scope; adds its faults.
    pub(crate) fn read(path: &str, wire: Option<&v1::Scope>, faults: &mut Faults) -> Self {
        let none = v1::Scope::default();
        let v1::Scope { callers, callees } = wire.unwrap_or(&none);
        Self {
            callers: names(&format!("{path}.callers"), callers, faults),
            callees: names(&format!("{path}.callees"), callees, faults),
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        !self.callers.is_empty() || !self.callees.is_empty()
    }

    pub(crate) fn names_callees(&self) -> bool {
        !self.callees.is_empty()
    }

    /// Returns true if rules, guards and kills with this pattern are within the scope.
    pub(crate) fn holds(&self, pattern: &Pattern) -> bool {
        let key: v1::Pattern = pattern.into();
        within(&self.callers, &key.caller_service) && within(&self.callees, &key.callee_service)
    }

    /// Returns true if a client of this caller service is within the scope.
    pub(crate) fn holds_caller(&self, service: &str) -> bool {
        within(&self.callers, service)
    }
}

fn names(path: &str, wire: &[String], faults: &mut Faults) -> Vec<Name> {
    if wire.len() > MAX_NAMES {
        faults.add(path, format!("has {} names, at most {MAX_NAMES} are allowed", wire.len()));
        return Vec::new();
    }
    let read = |(n, name): (usize, &String)| name_of(&format!("{path}[{n}]"), name, faults);
    wire.iter().enumerate().map(read).collect()
}

fn name_of(path: &str, name: &str, faults: &mut Faults) -> Name {
    match name.strip_suffix('*') {
        Some("") => Name::BeginsWith(String::new()),
        Some(prefix) => {
            key::check_name(path, prefix, faults);
            Name::BeginsWith(prefix.to_owned())
        }
        None => {
            key::check_name(path, name, faults);
            Name::Exactly(name.to_owned())
        }
    }
}

fn within(names: &[Name], service: &str) -> bool {
    names.is_empty()
        || names.iter().any(|name| match name {
            Name::Exactly(name) => name == service,
            // `*` means every service, which a narrower prefix does not include.
            Name::BeginsWith(prefix) if service == "*" => prefix.is_empty(),
            Name::BeginsWith(prefix) => service.starts_with(prefix.as_str()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(callers: &[&str], callees: &[&str]) -> Result<Scope, Faults> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let wire = v1::Scope { callers: owned(callers), callees: owned(callees) };
        let mut faults = Faults::none();
        let scope = Scope::read("scope", Some(&wire), &mut faults);
        faults.or(scope)
    }

    #[test]
    fn a_pattern_is_held_by_its_caller_and_its_callee() {
        let holds = |callers: &[&str], callees: &[&str], caller: &str, callee: &str| {
            scope(callers, callees).unwrap().holds(&Pattern::parse(caller, "*", callee, "*").unwrap())
        };
        for (callers, callees, caller, callee, expected) in [
            (&[] as &[_], &[] as &[_], "*", "*", true),
            (&["shop"], &[], "shop", "stock", true),
            (&["shop"], &[], "shop", "*", true),
            (&["shop"], &[], "shop2", "stock", false),
            (&["shop"], &[], "*", "stock", false),
            (&["shop*"], &[], "shop2", "stock", true),
            (&["shop*"], &[], "*", "stock", false),
            (&["*"], &[], "*", "stock", true),
            (&["*"], &["stock"], "*", "stock", true),
            (&["*"], &["stock"], "*", "*", false),
            (&["shop"], &["stock", "pay*"], "shop", "payments", true),
            (&["shop"], &["stock", "pay*"], "cart", "payments", false),
            (&["shop"], &["stock", "pay*"], "shop", "mail", false),
        ] {
            assert_eq!(
                holds(callers, callees, caller, callee),
                expected,
                "{callers:?} {callees:?} {caller} {callee}"
            );
        }
    }

    #[test]
    fn scope_reports_all_faults_at_once() {
        let long = "x".repeat(256);
        let faults = scope(&["", "a*b", "ok"], &["a b", &long]).unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["scope.callers[0]", "scope.callers[1]", "scope.callees[0]", "scope.callees[1]"]);
        let many: Vec<String> = (0..101).map(|n| format!("s{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let faults = scope(&many, &[]).unwrap_err();
        assert_eq!(faults.to_string(), "scope.callers: has 101 names, at most 100 are allowed");
    }
}
