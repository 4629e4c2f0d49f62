//! Causes of failed handshakes, as labels of a metric.

use std::io;

use tokio_rustls::rustls::{CertificateError, Error, PeerIncompatible};

/// Cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client did not start TLS.
    NotTls,
    /// No common version, cipher or group.
    Incompatible,
    /// A client certificate is required.
    NoCertificate,
    /// The client's certificate has expired or is not valid yet.
    Expired,
    /// The client's certificate is of an untrusted authority.
    UnknownAuthority,
    /// The client's certificate is otherwise unusable.
    BadCertificate,
    /// The client rejected the server's certificate.
    RefusedByPeer,
    /// Any other cause.
    Other,
}

impl HandshakeFailure {
    /// Every cause, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::NotTls,
        Self::Incompatible,
        Self::NoCertificate,
        Self::Expired,
        Self::UnknownAuthority,
        Self::BadCertificate,
        Self::RefusedByPeer,
        Self::Other,
    ];

    /// Returns its label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::NoCertificate => "no_certificate",
            Self::Expired => "expired",
            Self::UnknownAuthority => "unknown_authority",
            Self::BadCertificate => "bad_certificate",
            Self::RefusedByPeer => "refused_by_peer",
            Self::Other => "other",
        }
    }

    /// Classifies the error of a handshake.
    pub fn of(error: &io::Error) -> Self {
        let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        match error {
            Some(Error::PeerIncompatible(PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon)) => {
                Self::BadCertificate
            }
            Some(Error::PeerIncompatible(_)) => Self::Incompatible,
            Some(Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            )) => Self::Expired,
            Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => Self::UnknownAuthority,
            Some(Error::InvalidCertificate(_)) => Self::BadCertificate,
            Some(Error::AlertReceived(_)) => Self::RefusedByPeer,
            Some(Error::InvalidMessage(_)) => Self::NotTls,
            _ => Self::Other,
        }
    }
}
