//! Names in the settings of a queue: services, and routes that may be submitted.
//!
//! A service is `NAME` or `PREFIX*`, as in the scope of a token. A route is `CALLEE METHOD`, each part as in a
//! pattern: exact or `*`, a method also `package.Service/*`.

use std::fmt;

use crate::fault::Faults;
use crate::rules::key::{self, RouteKey};
use crate::rules::pattern::{MethodPart, Part};

/// A service, or all whose names begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceName {
    /// This service.
    Exact(String),
    /// `PREFIX*`; an empty prefix is every service.
    Prefix(String),
}

/// Routes that may be submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submittable {
    /// Called service.
    pub callee: Part,
    /// Called method.
    pub method: MethodPart,
}

impl ServiceName {
    /// Reads `NAME` or `PREFIX*`; adds a fault if the name is invalid.
    #[must_use]
    pub fn parse(path: &str, text: &str, faults: &mut Faults) -> Self {
        match text.strip_suffix('*') {
            Some("") => Self::Prefix(String::new()),
            Some(prefix) => {
                key::check_name(path, prefix, faults);
                Self::Prefix(prefix.to_owned())
            }
            None => {
                key::check_name(path, text, faults);
                Self::Exact(text.to_owned())
            }
        }
    }

    /// Returns true if the service has this name or prefix.
    #[must_use]
    pub fn matches(&self, service: &str) -> bool {
        match self {
            Self::Exact(name) => name == service,
            Self::Prefix(prefix) => service.starts_with(prefix.as_str()),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl Submittable {
    /// Reads `CALLEE METHOD`; adds a fault for each invalid part. `None` if the text has no two parts.
    #[must_use]
    pub fn parse(path: &str, text: &str, faults: &mut Faults) -> Option<Self> {
        let Some((callee, method)) = text.split_once(' ') else {
            let shown: String = text.chars().take(32).collect();
            faults.add(path, format!("must be CALLEE METHOD, such as \"inventory *\", not {shown:?}"));
            return None;
        };
        let callee = Part::parse(path, callee, faults);
        Some(Self { callee, method: MethodPart::parse(path, method, faults) })
    }

    /// Returns true if jobs of the route may be submitted.
    #[must_use]
    pub fn matches(&self, route: &RouteKey) -> bool {
        self.callee.matches(route.callee_service()) && self.method.matches(route.callee_method())
    }
}

impl fmt::Display for Submittable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { callee, method } = self;
        write!(f, "{callee} {method}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_name_reads_back_as_it_was_written() {
        for (text, service, expected) in [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("ord*", "orders", true),
            ("ord*", "or", false),
            ("*", "anything", true),
        ] {
            let mut faults = Faults::none();
            let name = ServiceName::parse("workers[0]", text, &mut faults);
            assert_eq!((name.to_string().as_str(), faults.len()), (text, 0));
            assert_eq!(name.matches(service), expected, "{text} {service}");
        }
        for bad in ["", "a*b", "a b", "a/b", "**", "a/*"] {
            let mut faults = Faults::none();
            let _ = ServiceName::parse("workers[0]", bad, &mut faults);
            assert_eq!(faults.len(), 1, "{bad}: {faults}");
        }
    }

    #[test]
    fn submittable_reads_back_as_it_was_written() {
        let route = RouteKey::new("shop", "eu", "stock", "stock.v1.Stock/Take").unwrap();
        for (text, expected) in [
            ("* *", true),
            ("stock *", true),
            ("stock stock.v1.Stock/*", true),
            ("* stock.v1.Stock/Take", true),
            ("stock stock.v1.Stock/Put", false),
            ("mail *", false),
        ] {
            let mut faults = Faults::none();
            let allowed = Submittable::parse("methods[0]", text, &mut faults).unwrap();
            assert_eq!((allowed.to_string().as_str(), faults.len()), (text, 0));
            assert_eq!(allowed.matches(&route), expected, "{text}");
        }
        for (bad, count) in [("stock", 1), ("", 1), ("stock  *", 1), (" x", 2), ("a b c", 1), ("a* b", 2)] {
            let mut faults = Faults::none();
            let _ = Submittable::parse("methods[0]", bad, &mut faults);
            assert_eq!(faults.len(), count, "{bad:?}: {faults}");
        }
    }
}
