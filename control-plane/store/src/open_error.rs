//! Errors of opening a store.

use std::path::PathBuf;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the embedded store open.
    #[error("the store {} is in use by another process; only one can have it open", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The folder can not be made, read or written.
    #[error("the store {} can not be opened", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What is in the folder is not a sound store.
    #[error("the store {} is damaged: {reason}", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A certificate or key file can not be read.
    #[error("the file {} for the connection to etcd can not be read", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The settings contradict each other.
    #[error("etcd settings: {reason}")]
    Settings {
        /// What is wrong.
        reason: String,
    },
}
