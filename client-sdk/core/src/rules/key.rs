//! Route keys: caller and method of one route, and the syntax of names.
//!
//! Names end up in store keys, metric labels and headers, so they are limited to what all of those can carry:
//! 1 to 255 bytes of visible ASCII without `*`. Only methods have a `/`: `package.Service/Method`, or
//! `GET:/path` for HTTP.

use std::fmt;

use crate::fault::Faults;

/// Maximum length of a name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Key of one route: a caller and a method of a callee.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    caller_service: String,
    caller_cluster: String,
    callee_service: String,
    callee_method: String,
}

impl RouteKey {
    /// Checks the four names.
    ///
    /// # Errors
    /// One fault per invalid name.
    pub fn new(
        caller_service: &str,
        caller_cluster: &str,
        callee_service: &str,
        callee_method: &str,
    ) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        check_name("caller_service", caller_service, &mut faults);
        check_name("caller_cluster", caller_cluster, &mut faults);
        check_name("callee_service", callee_service, &mut faults);
        check_method("callee_method", callee_method, &mut faults);
        faults.or(Self {
            caller_service: caller_service.to_owned(),
            caller_cluster: caller_cluster.to_owned(),
            callee_service: callee_service.to_owned(),
            callee_method: callee_method.to_owned(),
        })
    }

    /// Returns the calling service.
    #[must_use]
    pub fn caller_service(&self) -> &str {
        &self.caller_service
    }

    /// Returns the caller's deployment group.
    #[must_use]
    pub fn caller_cluster(&self) -> &str {
        &self.caller_cluster
    }

    /// Returns the called service.
    #[must_use]
    pub fn callee_service(&self) -> &str {
        &self.callee_service
    }

    /// Returns the method: `package.Service/Method`, `GET:/path` of an HTTP service, or `group/name`.
    #[must_use]
    pub fn callee_method(&self) -> &str {
        &self.callee_method
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller_service, caller_cluster, callee_service, callee_method } = self;
        write!(f, "{caller_service} {caller_cluster} {callee_service} {callee_method}")
    }
}

/// Adds a fault if the name of a service or cluster is invalid.
pub fn check_name(path: &str, name: &str, faults: &mut Faults) {
    if let Some(problem) = problem_of_name(name) {
        faults.add(path, problem.to_string());
    } else if name.contains('/') {
        faults.add(path, format!("{name:?} contains '/', which is allowed only in methods"));
    }
}

/// Adds a fault if the method name is invalid.
pub fn check_method(path: &str, method: &str, faults: &mut Faults) {
    if let Some(problem) = problem_of_method(method) {
        faults.add(path, problem.to_string());
    }
}

/// Returns true for a valid method name. Does not allocate: drivers check paths on every call.
#[must_use]
pub fn is_method(method: &str) -> bool {
    problem_of_method(method).is_none()
}

/// An invalid name; formatted only when it is displayed.
enum NameError<'a> {
    Empty,
    TooLong(&'a str),
    Contains(&'a str, char),
    NoMethod(&'a str),
}

impl fmt::Display for NameError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("must not be empty"),
            Self::TooLong(name) => {
                let shown: String = name.chars().take(32).collect();
                write!(f, "{shown:?}... has {} bytes, at most {MAX_NAME_BYTES} are allowed", name.len())
            }
            Self::Contains(name, bad) => {
                write!(f, "{name:?} contains {bad:?}; only visible ASCII without '*' is allowed")
            }
            Self::NoMethod(name) => {
                write!(
                    f,
                    "{name:?} must have the form package.Service/Method, GET:/path of HTTP, or group/name of \
                     another operation"
                )
            }
        }
    }
}

fn problem_of_method(method: &str) -> Option<NameError<'_>> {
    let problem = problem_of_name(method);
    if problem.is_some() {
        return problem;
    }
    let has_form = method
        .split_once('/')
        .is_some_and(|(service, name)| !service.is_empty() && !name.is_empty() && !name.contains('/'));
    (!has_form && !is_http_method(method)).then_some(NameError::NoMethod(method))
}

/// Returns true for `GET:/orders/{id}`: an HTTP method and a path, whose variable parts are templates.
fn is_http_method(method: &str) -> bool {
    method.split_once(':').is_some_and(|(verb, path)| {
        !verb.is_empty() && verb.bytes().all(|byte| byte.is_ascii_uppercase()) && path.starts_with('/')
    })
}

fn problem_of_name(name: &str) -> Option<NameError<'_>> {
    if name.is_empty() {
        return Some(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Some(NameError::TooLong(name));
    }
    let bad = name.chars().find(|c| !c.is_ascii_graphic() || *c == '*')?;
    Some(NameError::Contains(name, bad))
}
