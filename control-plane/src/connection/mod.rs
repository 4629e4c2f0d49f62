//! Accepted connections: who is at the other end, and a way to cut one off.
//!
//! A connection goes from [`port`] (accepting, counting) through the handshake to [`serving`] (HTTP, deadlines). Each
//! is a task of its own from the start, so that none waits for another's handshake. A peer that stops reading leaves
//! its streams where no message can reach them: HTTP/2 asks for no more data, so not even an error can be sent.
//! Cutting the connection is the only way to be rid of it; each request carries a handle that does it. The same handle
//! ends what outlasts the drain time on shutdown.

mod activity;
mod port;
mod serving;
mod socket;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

pub(crate) use port::Port;

use crate::errors::Error;
use crate::limits::{Limiter, Registered};
use crate::tls::ClientNames;

/// What each request knows of the connection it came over.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The connection is encrypted by this server.
    pub(crate) tls: bool,
    /// The names in the client's certificate, which was verified; none where it showed none.
    pub(crate) certificate: Option<Arc<ClientNames>>,
    cut: CancellationToken,
    goodbye: CancellationToken,
    registered: Arc<OnceLock<Registered>>,
}

impl Peer {
    /// Ends the connection at once.
    pub(crate) fn cut_off(&self) {
        self.cut.cancel();
    }

    /// Counts the connection for an identity, that of its first request that is let in; over the limit the connection
    /// takes no more requests.
    pub(crate) fn belongs_to(&self, identity: &str, limiter: &Limiter) -> Result<(), Error> {
        if self.registered.get().is_some() {
            return Ok(());
        }
        let registered = limiter.register(identity).inspect_err(|_| self.goodbye.cancel())?;
        // Another request of the connection may have been first; then this one's is dropped.
        let _ = self.registered.set(registered);
        Ok(())
    }
}
