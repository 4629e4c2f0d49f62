//! Authorities of client certificates, for connections that were accepted under earlier ones.
//!
//! A handshake uses the authorities of its time. A connection can outlive them, and its certificate counts
//! for each of its requests.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

/// The authorities in use; `None` if client certificates are not asked for.
#[derive(Clone, Debug)]
pub struct Authorities(pub Option<Arc<dyn ClientCertVerifier>>);

/// Receiver of later authorities.
#[derive(Debug)]
pub struct Trust(pub watch::Receiver<Authorities>);

impl Authorities {
    /// Returns true if the current authorities accept a certificate; `chain` begins with it.
    fn trust(&self, chain: &[CertificateDer<'_>]) -> bool {
        match (&self.0, chain) {
            (Some(verifier), [own, others @ ..]) => {
                verifier.verify_client_cert(own, others, UnixTime::now()).is_ok()
            }
            _ => false,
        }
    }
}

impl Trust {
    /// Resolves when changed authorities no longer accept the certificate; never for an empty chain.
    pub async fn lost(mut self, chain: Vec<CertificateDer<'static>>) {
        if chain.is_empty() {
            return pending().await;
        }
        while self.0.changed().await.is_ok() {
            let authorities = self.0.borrow_and_update().clone();
            if !authorities.trust(&chain) {
                return;
            }
        }
        pending().await
    }
}
