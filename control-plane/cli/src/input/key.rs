//! The four words that name a rule or a route: CALLER CLUSTER CALLEE METHOD.
//!
//! They are checked by the engine's own rules before anything is sent, so a bad name gets the same message
//! here as anywhere. In a shell the star has to be quoted.

use clap::Args;
use damper_core::{Faults, Pattern, RouteKey};
use damper_proto::v1;

use crate::error::CliError;

/// Names a rule or a guard by its pattern.
#[derive(Args, Debug)]
pub(crate) struct Key {
    /// Who calls: a service, or '*'
    pub(crate) caller: String,
    /// The caller's deployment group, or '*'
    pub(crate) cluster: String,
    /// Who is called: a service, or '*'
    pub(crate) callee: String,
    /// package.Service/Method, 'package.Service/*' or '*'
    pub(crate) method: String,
}

impl Key {
    /// As the pattern of a rule.
    pub(crate) fn pattern(&self) -> Result<v1::Pattern, CliError> {
        Pattern::parse(&self.caller, &self.cluster, &self.callee, &self.method)
            .map(|pattern| (&pattern).into())
            .map_err(|faults| refused(&faults))
    }
}

/// Names one exact route.
#[derive(Args, Debug)]
pub(crate) struct Route {
    /// Who calls: one service
    caller: String,
    /// The caller's deployment group; `default` unless the caller says another
    cluster: String,
    /// Who is called: one service
    callee: String,
    /// package.Service/Method
    method: String,
}

impl Route {
    /// The route as it is asked for.
    pub(crate) fn key(&self) -> Result<v1::RouteKey, CliError> {
        RouteKey::new(&self.caller, &self.cluster, &self.callee, &self.method)
            .map(|route| (&route).into())
            .map_err(|faults| refused(&faults))
    }
}

/// The four words where they can be left out, as one pattern.
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

/// One exact route as one argument of four words.
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

/// The four words of a pattern, in the order in which they are typed.
pub(crate) fn columns(pattern: Option<&v1::Pattern>) -> [String; 4] {
    let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
        pattern.cloned().unwrap_or_default();
    [caller_service, caller_cluster, callee_service, callee_method]
}

/// The same in one line.
pub(crate) fn words(pattern: Option<&v1::Pattern>) -> String {
    columns(pattern).join(" ")
}

/// The four words of a route.
pub(crate) fn route_columns(route: Option<&v1::RouteKey>) -> [String; 4] {
    let v1::RouteKey { caller_service, caller_cluster, callee_service, callee_method } =
        route.cloned().unwrap_or_default();
    [caller_service, caller_cluster, callee_service, callee_method]
}
