//! Routes and patterns: four names each.

use damper_core::{Faults, Pattern, RouteKey};

use crate::v1;

/// Reads a pattern.
///
/// # Errors
/// A fault per invalid part, by its name.
pub fn pattern(wire: &v1::Pattern) -> Result<Pattern, Faults> {
    let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = wire;
    Pattern::parse(caller_service, caller_cluster, callee_service, callee_method)
}

/// Reads the key of a route.
///
/// # Errors
/// A fault per invalid name, by its field.
pub fn route_key(wire: &v1::RouteKey) -> Result<RouteKey, Faults> {
    let v1::RouteKey { caller_service, caller_cluster, callee_service, callee_method } = wire;
    RouteKey::new(caller_service, caller_cluster, callee_service, callee_method)
}

impl From<&Pattern> for v1::Pattern {
    fn from(pattern: &Pattern) -> Self {
        let Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern;
        Self {
            caller_service: caller_service.to_string(),
            caller_cluster: caller_cluster.to_string(),
            callee_service: callee_service.to_string(),
            callee_method: callee_method.to_string(),
        }
    }
}

impl From<&RouteKey> for v1::RouteKey {
    fn from(route: &RouteKey) -> Self {
        Self {
            caller_service: route.caller_service().to_owned(),
            caller_cluster: route.caller_cluster().to_owned(),
            callee_service: route.callee_service().to_owned(),
            callee_method: route.callee_method().to_owned(),
        }
    }
}
