//! The four words that name a rule or a route: CALLER CLUSTER CALLEE METHOD.
//!
//! They are checked by the engine before a request is sent, so all errors are equal. Quote the star in a
//! shell.

use clap::Args;
use damper_core::{Faults, Pattern, RouteKey};
use damper_proto::v1;

use crate::error::CliError;

/// Key of a rule or a guard.
#[derive(Args, Debug)]
pub(crate) struct Key {
    /// Calling service, or '*'
    pub(crate) caller: String,
    /// Cluster of the caller, or '*'
    pub(crate) cluster: String,
    /// Called service, or '*'
    pub(crate) callee: String,
    /// package.Service/Method or GET:/path; 'package.Service/*', 'GET:/*' or '*'
    pub(crate) method: String,
}

impl Key {
    /// Returns the pattern of a rule.
    pub(crate) fn pattern(&self) -> Result<v1::Pattern, CliError> {
        Pattern::parse(&self.caller, &self.cluster, &self.callee, &self.method)
            .map(|pattern| (&pattern).into())
            .map_err(|faults| refused(&faults))
    }
}

/// One exact route.
#[derive(Args, Debug)]
pub(crate) struct Route {
    /// Calling service
    caller: String,
    /// Cluster of the caller; `default` unless the caller sets another
    cluster: String,
    /// Called service
    callee: String,
    /// package.Service/Method, or GET:/path
    method: String,
}

impl Route {
    /// Returns the wire form.
    pub(crate) fn key(&self) -> Result<v1::RouteKey, CliError> {
        RouteKey::new(&self.caller, &self.cluster, &self.callee, &self.method)
            .map(|route| (&route).into())
            .map_err(|faults| refused(&faults))
    }
}

/// Parses an optional key of four words.
pub(crate) fn pattern_of(words: &[String]) -> Result<Option<v1::Pattern>, CliError> {
    match words {
        [] => Ok(None),
        [caller, cluster, callee, method] => {
            let [caller, cluster, callee, method] = [caller, cluster, callee, method].map(String::clone);
            Key { caller, cluster, callee, method }.pattern().map(Some)
        }
        _ => Err(CliError::Usage("a key is four words, CALLER CLUSTER CALLEE METHOD".to_owned())),
    }
}

/// Parses a route in one argument of four words.
pub(crate) fn route_of(words: &str) -> Result<v1::RouteKey, CliError> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let [caller, cluster, callee, method] = words.as_slice() else {
        let problem = "a route is four words in quotes, 'CALLER CLUSTER CALLEE METHOD'";
        return Err(CliError::Usage(format!("--route: {problem}")));
    };
    let [caller, cluster, callee, method] = [caller, cluster, callee, method].map(|word| (*word).to_owned());
    Route { caller, cluster, callee, method }.key()
}

fn refused(faults: &Faults) -> CliError {
    CliError::Data(faults.iter().map(ToString::to_string).collect())
}

/// Returns the four words of a pattern, in the order of the arguments.
pub(crate) fn columns(pattern: Option<&v1::Pattern>) -> [String; 4] {
    let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
        pattern.cloned().unwrap_or_default();
    [caller_service, caller_cluster, callee_service, callee_method]
}

/// Returns the four words in one line.
pub(crate) fn words(pattern: Option<&v1::Pattern>) -> String {
    columns(pattern).join(" ")
}

/// Returns the kind unless it is a rule, and the four words of a change's key, or the name of its queue.
pub(crate) fn change_words(is_guard: bool, key: Option<&v1::Pattern>, queue: &str) -> String {
    match (queue, is_guard) {
        ("", false) => words(key),
        ("", true) => format!("guard {}", words(key)),
        (name, _) => format!("queue {name}"),
    }
}

/// Returns the four words of a route.
pub(crate) fn route_columns(route: Option<&v1::RouteKey>) -> [String; 4] {
    let v1::RouteKey { caller_service, caller_cluster, callee_service, callee_method } =
        route.cloned().unwrap_or_default();
    [caller_service, caller_cluster, callee_service, callee_method]
}
