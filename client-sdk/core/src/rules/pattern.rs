//! Route patterns, most specific first.
//!
//! The parts are compared in this order; the first difference decides:
//!
//! | part           | more specific ... less specific            |
//! |----------------|--------------------------------------------|
//! | callee service | exact, `*`                                 |
//! | callee method  | `pkg.Service/Method`, `pkg.Service/*`, `*` |
//! | caller service | exact, `*`                                 |
//! | caller cluster | exact, `*`                                 |
//!
//! Patterns are unique in a table, so one of the patterns that match a route is the most specific.

use std::fmt;

use crate::fault::Faults;
use crate::rules::key::{self, RouteKey};

/// A service or cluster in a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// `*`
    Any,
    /// This name.
    Exact(String),
}

/// A method in a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MethodPart {
    /// `*`
    Any,
    /// All methods of this `package.Service`.
    Service(String),
    /// This `package.Service/Method`.
    Exact(String),
}

/// A set of routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// Calling service.
    pub caller_service: Part,
    /// The caller's deployment group.
    pub caller_cluster: Part,
    /// Called service.
    pub callee_service: Part,
    /// Called method.
    pub callee_method: MethodPart,
}

impl Pattern {
    /// Returns the pattern of every route.
    #[must_use]
    pub(crate) const fn any() -> Self {
        Self {
            caller_service: Part::Any,
            caller_cluster: Part::Any,
            callee_service: Part::Any,
            callee_method: MethodPart::Any,
        }
    }

    /// Parses the four parts.
    ///
    /// # Errors
    /// One fault per invalid part.
    pub fn parse(
        caller_service: &str,
        caller_cluster: &str,
        callee_service: &str,
        callee_method: &str,
    ) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        let pattern = Self {
            caller_service: Part::parse("caller_service", caller_service, &mut faults),
            caller_cluster: Part::parse("caller_cluster", caller_cluster, &mut faults),
            callee_service: Part::parse("callee_service", callee_service, &mut faults),
            callee_method: MethodPart::parse("callee_method", callee_method, &mut faults),
        };
        faults.or(pattern)
    }

    /// Returns true if the pattern matches the route.
    #[must_use]
    pub fn matches(&self, route: &RouteKey) -> bool {
        self.matches_caller(route.caller_service(), route.caller_cluster())
            && self.matches_callee(route.callee_service(), route.callee_method())
    }

    /// Returns true if the pattern matches all routes of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.caller_service.covers(&other.caller_service)
            && self.caller_cluster.covers(&other.caller_cluster)
            && self.callee_service.covers(&other.callee_service)
            && self.callee_method.covers(&other.callee_method)
    }

    /// Returns true if a route matches both patterns.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let parts = |a: &Part, b: &Part| a.covers(b) || b.covers(a);
        parts(&self.caller_service, &other.caller_service)
            && parts(&self.caller_cluster, &other.caller_cluster)
            && parts(&self.callee_service, &other.callee_service)
            && (self.callee_method.covers(&other.callee_method)
                || other.callee_method.covers(&self.callee_method))
    }

    /// Returns true if the caller part matches: then the rule concerns this process.
    #[must_use]
    pub fn matches_caller(&self, service: &str, cluster: &str) -> bool {
        self.caller_service.matches(service) && self.caller_cluster.matches(cluster)
    }

    /// Returns true if the callee part matches.
    #[must_use]
    pub fn matches_callee(&self, service: &str, method: &str) -> bool {
        self.callee_service.matches(service) && self.callee_method.matches(method)
    }

    /// Returns the exactness: of two patterns that match a route, the one with the greater number wins.
    #[must_use]
    pub fn exactness(&self) -> u8 {
        let bit = |part: &Part| u8::from(*part != Part::Any);
        (bit(&self.callee_service) << 4)
            | (self.callee_method.exactness() << 2)
            | (bit(&self.caller_service) << 1)
            | bit(&self.caller_cluster)
    }

    /// Returns the patterns that match a route, most specific first.
    pub fn candidates(route: &RouteKey) -> impl Iterator<Item = Self> {
        let exact = |name: &str| Part::Exact(name.to_owned());
        let route = Self {
            caller_service: exact(route.caller_service()),
            caller_cluster: exact(route.caller_cluster()),
            callee_service: exact(route.callee_service()),
            callee_method: MethodPart::Exact(route.callee_method().to_owned()),
        };
        route.covering()
    }

    /// Returns this pattern and those that cover it, most specific first.
    pub fn covering(&self) -> impl Iterator<Item = Self> + use<> {
        let methods = self.callee_method.covering();
        let (callers, clusters) = (self.caller_service.covering(), self.caller_cluster.covering());
        let mut all = Vec::with_capacity(24);
        for callee_service in self.callee_service.covering() {
            for callee_method in &methods {
                for caller_service in &callers {
                    for caller_cluster in &clusters {
                        all.push(Self {
                            caller_service: caller_service.clone(),
                            caller_cluster: caller_cluster.clone(),
                            callee_service: callee_service.clone(),
                            callee_method: callee_method.clone(),
                        });
                    }
                }
            }
        }
        all.into_iter()
    }
}

impl fmt::Display for Pattern {
    /// Writes the four words of the command line: `checkout * inventory inventory.v1.Inventory/Reserve`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller_service, caller_cluster, callee_service, callee_method } = self;
        write!(f, "{caller_service} {caller_cluster} {callee_service} {callee_method}")
    }
}

impl Part {
    pub(crate) fn parse(path: &str, text: &str, faults: &mut Faults) -> Self {
        if text == "*" {
            return Self::Any;
        }
        key::check_name(path, text, faults);
        Self::Exact(text.to_owned())
    }

    fn covers(&self, other: &Self) -> bool {
        *self == Self::Any || self == other
    }

    fn covering(&self) -> Vec<Self> {
        if *self == Self::Any { vec![Self::Any] } else { vec![self.clone(), Self::Any] }
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => exact == name,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => f.write_str(name),
        }
    }
}

impl MethodPart {
    pub(crate) fn parse(path: &str, text: &str, faults: &mut Faults) -> Self {
        if text == "*" {
            return Self::Any;
        }
        let Some(service) = text.strip_suffix("/*") else {
            key::check_method(path, text, faults);
            return Self::Exact(text.to_owned());
        };
        if service.is_empty() {
            faults.add(path, format!("{text:?} has no service before \"/*\""));
        } else {
            key::check_name(path, service, faults);
        }
        Self::Service(service.to_owned())
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Service(service), Self::Exact(method)) => service_of(method) == Some(service),
            _ => self == other,
        }
    }

    pub(crate) fn matches(&self, method: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Service(service) => service_of(method) == Some(service),
            Self::Exact(exact) => exact == method,
        }
    }

    fn exactness(&self) -> u8 {
        match self {
            Self::Any => 0,
            Self::Service(_) => 1,
            Self::Exact(_) => 2,
        }
    }

    fn covering(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        if let Self::Exact(method) = self {
            all.extend(service_of(method).map(|service| Self::Service(service.to_owned())));
        }
        if *self != Self::Any {
            all.push(Self::Any);
        }
        all
    }
}

impl fmt::Display for MethodPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Service(service) => write!(f, "{service}/*"),
            Self::Exact(method) => f.write_str(method),
        }
    }
}

/// Returns the `package.Service` of a method.
fn service_of(method: &str) -> Option<&str> {
    method.split_once('/').map(|(service, _)| service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(words: &str) -> Pattern {
        let parts: Vec<&str> = words.split(' ').collect();
        Pattern::parse(parts[0], parts[1], parts[2], parts[3]).unwrap()
    }

    #[test]
    fn pattern_reads_back_as_it_was_written() {
        for words in ["* * * *", "shop online orders a.b.Orders/Place", "shop * orders a.b.Orders/*"] {
            assert_eq!(pattern(words).to_string(), words);
        }
    }

    #[test]
    fn all_invalid_parts_are_reported_together() {
        let check = |caller: &str, method: &str, expected: &[&str]| {
            let faults = Pattern::parse(caller, "*", "*", method).unwrap_err();
            let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
            assert_eq!(paths, expected, "{faults}");
        };
        check("", "/Reserve", &["caller_service", "callee_method"]);
        check("a b", "Reserve", &["caller_service", "callee_method"]);
        check("a/b", "*/Reserve", &["caller_service", "callee_method"]);
        check("a*", "a.B/", &["caller_service", "callee_method"]);
        check("caf\u{e9}", "/*", &["caller_service", "callee_method"]);
        check(&"x".repeat(256), "a/b/c", &["caller_service", "callee_method"]);
        check("a\u{0}", "a/b/*", &["caller_service", "callee_method"]);
    }

    #[test]
    fn huge_name_is_rejected_with_a_short_message() {
        let faults = Pattern::parse(&"x".repeat(1 << 20), "*", "*", "*").unwrap_err();
        let text = faults.to_string();
        assert!(text.contains("1048576 bytes, at most 255") && text.len() < 200, "{text}");
    }

    #[test]
    fn service_pattern_covers_that_service_and_no_other() {
        let route = |method| RouteKey::new("c", "d", "s", method).unwrap();
        let pattern = pattern("* * * a.B/*");
        assert!(pattern.matches(&route("a.B/M")));
        assert!(!pattern.matches(&route("a.BC/M")));
        assert!(!pattern.matches(&route("a/M")));
    }

    fn part(name: &'static str) -> impl Strategy<Value = String> {
        prop_oneof![Just("*".to_owned()), Just(name.to_owned()), Just("other".to_owned())]
    }

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        let method = prop_oneof![Just("*"), Just("a.B/*"), Just("a.B/M"), Just("a.C/*"), Just("a.C/M")];
        let parts = (part("c"), part("d"), part("s"), method);
        parts.prop_map(|(caller, cluster, callee, method)| {
            Pattern::parse(&caller, &cluster, &callee, method).unwrap()
        })
    }

    proptest! {
        #[test]
        fn candidates_are_the_matching_patterns_most_exact_first(
            pattern in any_pattern(),
        ) {
            let route = RouteKey::new("c", "d", "s", "a.B/M").unwrap();
            let candidates: Vec<_> = Pattern::candidates(&route).collect();
            prop_assert_eq!(candidates.contains(&pattern), pattern.matches(&route));
            prop_assert!(candidates.windows(2).all(|pair| pair[0].exactness() > pair[1].exactness()));
        }

        #[test]
        fn pattern_is_the_first_of_those_that_cover_it(
            one in any_pattern(), other in any_pattern(),
        ) {
            let covering: Vec<_> = one.covering().collect();
            prop_assert_eq!(&covering[0], &one);
            prop_assert_eq!(covering.contains(&other), other.covers(&one));
            prop_assert!(covering.windows(2).all(|pair| pair[0].exactness() > pair[1].exactness()));
        }
    }
}
