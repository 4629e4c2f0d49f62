//! Errors of the database as errors of the store.

use ::redb::{CommitError, CompactionError, DatabaseError, StorageError, TableError, TransactionError};

use crate::store::error::Error;

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Corrupted(problem) => Self::Damaged(problem),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<TableError> for Error {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl From<TransactionError> for Error {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => error.into(),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => error.into(),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<CompactionError> for Error {
    fn from(error: CompactionError) -> Self {
        match error {
            CompactionError::Storage(error) => error.into(),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

/// Returns the error of opening a file.
pub(super) fn opening(place: &str, error: DatabaseError) -> Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen => {
            Error::Open(format!("{place} is in use by another process; only one process can open it"))
        }
        DatabaseError::Storage(StorageError::Corrupted(problem)) => {
            Error::Damaged(format!("{place}: {problem}"))
        }
        error => Error::Open(format!("{place}: {error}")),
    }
}
