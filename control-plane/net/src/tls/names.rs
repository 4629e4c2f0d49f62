//! Names of a client certificate: its subject alternative names.
//!
//! The chain was verified in the handshake. The common name is free text and ignored.

use std::time::SystemTime;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::tls::certificate::CertificateValidity;

/// The names in a verified client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames {
    /// URIs, of which `spiffe://...` are identities.
    pub uris: Vec<String>,
    /// DNS names; may begin with `*.`.
    pub dns: Vec<String>,
    /// End of the certificate; `None` if it has no representable one.
    pub expires_at: Option<SystemTime>,
}

impl ClientNames {
    /// Reads a certificate; an unreadable one has no names.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Self::default() };
        let mut names = Self { expires_at: CertificateValidity::of(&read).ends_at, ..Self::default() };
        let Ok(Some(alternatives)) = read.subject_alternative_name() else { return names };
        for name in &alternatives.value.general_names {
            match name {
                GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                GeneralName::DNSName(dns) => names.dns.push((*dns).to_owned()),
                _ => {}
            }
        }
        names
    }
}
