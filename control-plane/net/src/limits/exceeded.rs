//! The error of an exceeded limit, and its gRPC status.

use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::Limit;

/// The trailer that names the exceeded limit.
pub const TRAILER: &str = "damper-limit";

/// A request exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LimitExceeded {
    /// Which one.
    pub limit: Limit,
    /// The message for the client.
    pub text: String,
    /// When a retry can succeed; `None` if it cannot.
    pub retry_after: Option<Duration>,
}

impl LimitExceeded {
    /// A limit that a retry does not help against.
    pub fn new(limit: Limit, text: impl Into<String>) -> Self {
        Self { limit, text: text.into(), retry_after: None }
    }
}

/// RESOURCE_EXHAUSTED, with the time of a retry if one can succeed.
impl From<LimitExceeded> for Status {
    fn from(LimitExceeded { limit, text, retry_after }: LimitExceeded) -> Self {
        let status = match retry_after {
            None => Self::resource_exhausted(text),
            Some(_) => {
                let details = ErrorDetails::with_retry_info(retry_after);
                Self::with_error_details(Code::ResourceExhausted, text, details)
            }
        };
        naming(limit, status)
    }
}

/// Names the limit in the trailers of a status.
#[must_use]
pub fn naming(limit: Limit, mut status: Status) -> Status {
    status.metadata_mut().insert(TRAILER, MetadataValue::from_static(limit.name()));
    status
}
