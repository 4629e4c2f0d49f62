//! Errors of a server that does not start or that stops itself, one variant per remedy.

use std::io;
use std::net::SocketAddr;

use crate::server::first_token::BootstrapError;
use damper_store::OpenError;

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the store open.
    #[error(transparent)]
    StoreLocked(OpenError),
    /// The store is damaged; restore a backup.
    #[error("the control plane's store is damaged: {0}; restore it from a backup")]
    StoreDamaged(String),
    /// The store's URL or settings are wrong: a path, a file or an option.
    #[error(transparent)]
    StoreUnusable(OpenError),
    /// The store does not answer.
    #[error("the control plane's store {store} cannot be reached: {reason}")]
    StoreUnreachable {
        /// The URL of the store.
        store: String,
        /// The error of the last try.
        reason: String,
    },
    /// The job store cannot be opened.
    #[error("--queues {store}: {source}")]
    JobStore {
        /// The URL of the job store.
        store: String,
        /// The problem.
        #[source]
        source: damper_queue::store::Error,
    },
    /// The settings of the job store do not fit the policy store.
    #[error("{0}")]
    JobStorePlace(String),
    /// The address is taken.
    #[error("the address {address} is in use by another process; stop it, or set another address")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// This replica has no address for its peers.
    #[error(
        "{listen} covers all addresses of this machine, and other replicas over the same etcd need one: set it \
         with --advertise URL"
    )]
    NoAddress {
        /// The listen address.
        listen: SocketAddr,
    },
    /// Binding the address failed.
    #[error("cannot listen on the address {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// An address is open to other machines without protection; each problem with its remedies.
    #[error("{}", .0.join("; "))]
    Insecure(Vec<String>),
    /// Tokens are required, and the first one could not be created.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// All problems of the certificate, the key and the client authorities.
    #[error("{}", .0.join("; "))]
    Tls(Vec<String>),
}

/// The reason why a server stopped itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A required task has ended; its failure was logged.
    #[error("the server stopped, because its internal task {0} ended; the log contains the reason")]
    TaskEnded(&'static str),
}
