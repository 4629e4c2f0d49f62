//! Who asks, and what they may do.

use tonic::{Extensions, Request};

use crate::errors::Error;
use crate::table::Subject;

/// Who a request comes from, as far as it was proven.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Nobody is asked: everybody may do everything.
    Anybody,
}

#[expect(dead_code, reason = "not built yet")]
impl Caller {
    /// Who was found to be behind a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::found(request.extensions())
    }

    /// The same of a request's extensions.
    pub(crate) fn found(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or(Self::Anybody)
    }

    /// What is kept with a change: `token NAME (ID)`, `certificate NAME`; empty = nobody was asked.
    pub(crate) fn principal(&self) -> String {
        match self {
            Self::Anybody => String::new(),
        }
    }

    /// Whether they may write or remove this.
    pub(crate) fn permit_write(&self, _subject: &Subject) -> Result<(), Error> {
        match self {
            Self::Anybody => Ok(()),
        }
    }

    /// Whether they may receive the rules of this service and report for it.
    pub(crate) fn permit_client(&self, _service: &str) -> Result<(), Error> {
        match self {
            Self::Anybody => Ok(()),
        }
    }
}
