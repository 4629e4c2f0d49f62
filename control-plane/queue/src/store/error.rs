//! Errors of a job store.

/// Why the store did not do what was requested. Cloned for every operation of a failed commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not enough room or resources; nothing was stored. Settlements are repeated until they succeed.
    #[error("the job store is full: {0}")]
    Full(String),
    /// Content that the store cannot keep.
    #[error("invalid job: {0}")]
    Invalid(String),
    /// The outcome of the commit is unknown, or the store does not respond.
    #[error("the job store is unavailable: {0}")]
    Unavailable(String),
    /// The store has damaged or unknown content.
    #[error("the job store is damaged: {0}; restore it from a backup")]
    Damaged(String),
    /// Another server has the store open, it belongs to a newer version, or its settings are not safe.
    #[error("the job store cannot be opened: {0}")]
    Open(String),
}
