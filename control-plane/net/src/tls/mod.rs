//! TLS of the listeners: the server's certificate and the verification of client certificates.
//!
//! [`TlsConfig`] is the configuration. `files` reads it and reports all faults at once. `reload` holds
//! the certificate in use and replaces it when the files change. `names` reads the names of a client's
//! certificate, [`certificate`] its validity, `authorities` whether it is still trusted. Sessions are never
//! resumed, so an expired certificate is detected at the next connection. Key material has no revealing
//! `Debug`, and rustls's own log is not compiled in.

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

/// PEM text, or the file that holds it.
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

/// Whether client certificates are required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Optional; a certificate that is shown must be valid.
    #[default]
    Optional,
    /// Required: a connection without one ends at the handshake.
    Required,
}

/// TLS 1.2 and 1.3 with this certificate.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Certificate chain without its root.
    pub certificate: Pem,
    /// Its private key: PKCS #8, PKCS #1 or SEC1, not encrypted.
    pub key: Pem,
    /// Authorities of client certificates. Default: no certificate is requested.
    pub client_ca: Option<Pem>,
    /// Whether a client certificate is required; only with `client_ca`. Default: optional.
    pub client_certificates: ClientCertificates,
    /// Interval at which the files are read. Default 10 s.
    pub reload_interval: Duration,
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
            reload_interval: Duration::from_secs(10),
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
