//! A route that this process calls: the engine's route with its failed calls.

use std::ops::Deref;
use std::sync::Arc;

use damper_core::{Route, Rule};

use super::failed_calls::{FailureQuota, Failures};
use super::kills::Bell;

/// A route with its failed calls.
///
/// The alignment separates the fields that every call reads from the reference count that every call writes.
/// Processors fetch cache lines in pairs, hence 128 bytes.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RouteHandle {
    route: Route,
    failures: Arc<Failures>,
    bell: Bell,
}

impl RouteHandle {
    pub(super) fn new(rule: Option<Arc<Rule>>, room: &Arc<FailureQuota>, bell: &Bell) -> Self {
        let failures = Arc::new(Failures::new(Arc::clone(room)));
        Self { route: Route::new(rule), failures, bell: bell.clone() }
    }

    /// Returns another route to the same callee, without history.
    pub(super) fn sibling(&self, rule: Option<Arc<Rule>>) -> Self {
        let failures = Arc::new(self.failures.of_another_route());
        Self { route: self.route.sibling(rule), failures, bell: self.bell.clone() }
    }

    /// Returns the same route under another rule.
    pub(super) fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        self.with(self.route.under(rule))
    }

    /// Returns the same route with its own kill state.
    pub(super) fn apart(&self) -> Self {
        self.with(self.route.apart())
    }

    fn with(&self, route: Route) -> Self {
        Self { route, failures: Arc::clone(&self.failures), bell: self.bell.clone() }
    }

    /// Returns the bell that wakes calls between attempts.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }
}

impl Deref for RouteHandle {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}
