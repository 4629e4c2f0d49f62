//! Why a server does not start, or stops by itself: one variant for each thing that whoever started it can do about it.

use std::io;
use std::net::SocketAddr;

use crate::server::first_token::BootstrapError;
use damper_store::OpenError;

/// Why a server can not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the store open.
    #[error(transparent)]
    StoreLocked(OpenError),
    /// The store is damaged; restore a backup.
    #[error("the store is damaged: {0}")]
    StoreDamaged(String),
    /// The store can not be used as it was named: a path, a file or a setting is wrong.
    #[error(transparent)]
    StoreUnusable(OpenError),
    /// The store does not answer.
    #[error("the store {store} can not be reached: {reason}")]
    StoreUnreachable {
        /// Which.
        store: String,
        /// What came of trying.
        reason: String,
    },
    /// The address is taken.
    #[error("{address} is in use by another process")]
    AddressInUse {
        /// Which.
        address: SocketAddr,
    },
    /// Other replicas can not be told where this one is.
    #[error(
        "{listen} is every address of this machine, and other replicas over the same etcd must be told one: name it \
         with --advertise URL"
    )]
    NoAddress {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// The address can not be listened on.
    #[error("can not listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// An address is open to others and not guarded enough; each problem with the ways out of it.
    #[error("{}", .0.join("; "))]
    Insecure(Vec<String>),
    /// Tokens are asked for, and the first one could not be made.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The certificate, the key or the authorities of clients can not be used; all that is wrong.
    #[error("{}", .0.join("; "))]
    Tls(Vec<String>),
}

/// Why a server stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A task that must not end has ended; its failure was logged.
    #[error("the {0} has stopped")]
    TaskEnded(&'static str),
}
