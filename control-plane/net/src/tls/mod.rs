//! TLS of the ports: which certificate they show, and whose certificates they take.
//!
//! [`Tls`] is what a server is told. [`material`] reads it and makes it into rustls's terms, with all faults at once;
//! [`keychain`] holds what is in use and changes it when the files change; [`names`] says who a client's certificate
//! is for, [`validity`] until when one is good, [`authorities`] whether one is still trusted. Sessions are never resumed: a
//! certificate that is over is found out at the next connection. Key material has no `Debug` that shows it, and rustls's own log is not compiled in.

mod authorities;
pub mod certificate;
mod counters;
mod files;
mod handshake;
mod names;
mod reload;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use self::authorities::Trust;
pub use self::counters::TlsCounters;
pub use self::handshake::HandshakeFailure;
pub use self::names::ClientNames;
pub use self::reload::TlsReloader;

/// A PEM text: where it is, or itself.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In this file, which is read again when it changes.
    File(PathBuf),
    /// The text; never shown by `Debug`.
    Text(String),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They may; one that is shown must be valid.
    #[default]
    Optional,
    /// They must: a connection without one ends at the handshake.
    Required,
}

/// TLS 1.2 and 1.3 with this certificate.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// The certificate with those between it and its authority.
    pub certificate: Pem,
    /// Its private key: PKCS #8, PKCS #1 or SEC1, not encrypted.
    pub key: Pem,
    /// The authorities whose client certificates are taken. Default: none are asked for.
    pub client_ca: Option<Pem>,
    /// Whether clients must show one; only with `client_ca`. Default they may.
    pub client_certificates: ClientCertificates,
    /// How often the files are looked at. Default 10 s.
    pub look_again_after: Duration,
}

impl TlsConfig {
    /// The certificate and its key; no client certificates.
    #[must_use]
    pub fn new(certificate: Pem, key: Pem) -> Self {
        Self {
            certificate,
            key,
            client_ca: None,
            client_certificates: ClientCertificates::Optional,
            look_again_after: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let tls = TlsConfig::new(Pem::File("cert.pem".into()), Pem::Text("hidden".to_owned()));
        let shown = format!("{tls:?}");
        assert!(shown.contains("cert.pem") && !shown.contains("hidden"), "{shown}");
    }
}
