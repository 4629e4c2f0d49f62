//! A route that this process calls: the engine's, and what is told of its calls beyond numbers.

use std::ops::Deref;
use std::sync::Arc;

use damper_core::{Route, Rule};

use crate::failures::{Failures, Room};

/// A route with its latest calls that did not end well.
///
/// Aligned so that what every call reads here is apart from the count of the calls that hold it, which every call
/// changes: two lines of a processor's cache, for they are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Known {
    route: Route,
    failures: Arc<Failures>,
}

impl Known {
    pub(super) fn new(rule: Option<Arc<Rule>>, room: &Arc<Room>) -> Self {
        Self { route: Route::new(rule), failures: Arc::new(Failures::new(Arc::clone(room))) }
    }

    /// The same under another rule.
    pub(super) fn under(&self, rule: Option<Arc<Rule>>) -> Self {
        Self { route: self.route.under(rule), failures: Arc::clone(&self.failures) }
    }

    /// The same under a switch of its own.
    pub(super) fn apart(&self) -> Self {
        Self { route: self.route.apart(), failures: Arc::clone(&self.failures) }
    }

    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }
}

impl Deref for Known {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}
