//! A route that this process calls: the engine's, and what is told of its calls beyond numbers.

use std::ops::Deref;
use std::sync::Arc;

use damper_core::{Route, Rule};

use crate::failures::{FailureQuota, Failures};
use crate::kills::Bell;

/// A route with its latest calls that did not end well.
///
/// Aligned so that what every call reads here is apart from the count of the calls that hold it, which every call
/// changes: two lines of a processor's cache, for they are fetched in pairs.
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

    /// Another route to the same callee that nothing is known of yet.
    pub(super) fn beside(&self, rule: Option<Arc<Rule>>) -> Self {
        let failures = Arc::new(self.failures.of_another_route());
        Self { route: self.route.sibling(rule), failures, bell: self.bell.clone() }
    }

    /// The same under another rule.
    pub(super) fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        self.with(self.route.under(rule))
    }

    /// The same under a switch of its own.
    pub(super) fn apart(&self) -> Self {
        self.with(self.route.apart())
    }

    fn with(&self, route: Route) -> Self {
        Self { route, failures: Arc::clone(&self.failures), bell: self.bell.clone() }
    }

    /// Wakes the calls that wait between attempts.
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
