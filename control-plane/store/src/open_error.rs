//! Errors of opening a store.

use std::path::PathBuf;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the embedded store open.
    #[error("the store in {path} is in use by another process; only one process can open it", path = path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The folder cannot be made, read or written.
    #[error("the control plane's store in {path} cannot be opened", path = path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The folder does not hold a sound store.
    #[error("the control plane's store in {path} is damaged: {reason}", path = path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A certificate or key file cannot be read.
    #[error("cannot read {path}, a certificate or key file for the connection to etcd", path = path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The settings contradict each other.
    #[error("etcd settings: {reason}")]
    Settings {
        /// The conflict.
        reason: String,
    },
}
