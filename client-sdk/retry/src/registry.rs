//! Handles by name, with shared settings.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use damper_core::{Faults, MAX_ROUTES};

use crate::handle::Retry;
use crate::handle::builder::Builder;
use crate::handlers::ByType;

/// Handles by name. A name has one handle, so all its calls share breaker and statistics.
#[derive(Default)]
pub struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    settings: HashMap<String, Arc<Change>>,
    handles: HashMap<String, Retry>,
}

/// Settings as a change of the defaults.
type Change = dyn Fn(Builder) -> Builder + Send + Sync;

impl Registry {
    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names settings that several handles share.
    pub fn define(&self, name: &str, settings: impl Fn(Builder) -> Builder + Send + Sync + 'static) {
        self.inner().settings.insert(name.to_owned(), Arc::new(settings));
    }

    /// Returns the handle of this name. The first call for a name makes it, with the settings of that name or
    /// with the defaults. Add predicates to the returned handle; it shares its state with others of the name.
    ///
    /// # Errors
    /// Unknown settings, one fault per setting out of range, or 1,000 names in use.
    pub fn retry(&self, name: &str, settings: Option<&str>) -> Result<Retry, Faults> {
        let mut inner = self.inner();
        if let Some(handle) = inner.handles.get(name) {
            return Ok(handle.clone());
        }
        let mut faults = Faults::none();
        if inner.handles.len() >= MAX_ROUTES {
            faults.add("name", format!("{name:?}: at most {MAX_ROUTES} names are allowed"));
        }
        let change = settings.and_then(|settings| inner.settings.get(settings).cloned());
        if let Some(settings) = settings.filter(|_| change.is_none()) {
            faults.add("settings", format!("{settings:?} is not defined"));
        }
        faults.or(())?;
        let builder = Retry::named(name);
        let handle: Retry<ByType> =
            change.map_or_else(|| builder.clone(), |change| change(builder.clone())).build()?;
        inner.handles.insert(name.to_owned(), handle.clone());
        Ok(handle)
    }

    /// Returns all handles, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Retry> {
        let mut all: Vec<_> = self.inner().handles.values().cloned().collect();
        all.sort_by(|one, other| one.name().cmp(other.name()));
        all
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("handles", &self.inner().handles.len()).finish_non_exhaustive()
    }
}
