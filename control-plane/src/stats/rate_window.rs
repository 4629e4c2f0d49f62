//! The window lengths of rates that a request may choose.

use std::time::Duration;

use damper_core::fault::Millis;
use damper_proto::convert;

use crate::state::error::ApiError;

/// A window of rates. Few lengths, so that rows are shared by all readers of the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum RateWindow {
    /// For one route only, whose processes report that often while it is watched.
    Second,
    FiveSeconds,
    #[default]
    TenSeconds,
    Minute,
}

impl RateWindow {
    pub(crate) const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::FiveSeconds => 5,
            Self::TenSeconds => 10,
            Self::Minute => 60,
        })
    }

    /// Reads the window of a request about any number of routes.
    pub(crate) fn read(field: &str, wire: Option<prost_types::Duration>) -> Result<Self, ApiError> {
        Self::choose(field, wire, &[Self::FiveSeconds, Self::TenSeconds, Self::Minute], "5s, 10s or 60s")
    }

    /// Reads the window of a request about one route.
    pub(crate) fn read_of_one(field: &str, wire: Option<prost_types::Duration>) -> Result<Self, ApiError> {
        let all = [Self::Second, Self::FiveSeconds, Self::TenSeconds, Self::Minute];
        Self::choose(field, wire, &all, "1s, 5s, 10s or 60s")
    }

    fn choose(
        field: &str,
        wire: Option<prost_types::Duration>,
        from: &[Self],
        names: &str,
    ) -> Result<Self, ApiError> {
        let Some(wire) = wire else { return Ok(Self::default()) };
        let length =
            convert::length(wire).ok_or_else(|| ApiError::fault(field, format!("is not {names}")))?;
        let found = from.iter().find(|over| over.length() == length).copied();
        found.ok_or_else(|| {
            let hint = match length == Self::Second.length() {
                true => "; 1s is for the watch of one route",
                false => "",
            };
            ApiError::fault(field, format!("{} is not {names}{hint}", Millis(length)))
        })
    }

    pub(crate) fn wire(self) -> Option<prost_types::Duration> {
        prost_types::Duration::try_from(self.length()).ok()
    }
}
