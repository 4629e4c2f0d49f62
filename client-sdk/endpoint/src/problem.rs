//! Explains why a connection failed.
//!
//! rustls describes certificate problems precisely, but deep in an error chain and in its own terms. With TLS
//! 1.3 a server checks the client's certificate after the client's handshake. Its alert then breaks the
//! HTTP/2 connection, where only its text is left, and a reset may arrive first. Texts are therefore searched
//! too, and [`of_lost`] explains a connection that closes at once.

use std::error::Error;

/// Explains a TLS or HTTP/2 problem; `None` for other errors.
#[must_use]
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    let found = chain(error).find_map(in_http2);
    #[cfg(feature = "tls")]
    let found =
        found.or_else(|| chain(error).find_map(tls::describe)).or_else(|| tls::in_text(&with_sources(error)));
    found
}

/// Detects a peer that does not speak HTTP/2.
fn in_http2(error: &(dyn Error + 'static)) -> Option<String> {
    let error = error.downcast_ref::<h2::Error>()?;
    let is_unread = matches!(error.reason(), Some(h2::Reason::FRAME_SIZE_ERROR | h2::Reason::PROTOCOL_ERROR));
    (is_unread && error.is_library() && error.is_go_away()).then(|| {
        "the server does not speak HTTP/2; if it speaks TLS, use an https:// address, otherwise check the port"
            .to_owned()
    })
}

/// Explains a connection that was lost before its first response; `None` for other errors.
#[must_use]
pub fn of_lost(error: &(dyn Error + 'static), is_tls: bool, has_certificate: bool) -> Option<&'static str> {
    const LOST: [&str; 5] = [
        "connection reset",
        "broken pipe",
        "stream closed because of a broken pipe",
        "closed before",
        "close_notify",
    ];
    let text = with_sources(error).to_ascii_lowercase();
    let hint = match (is_tls, has_certificate) {
        (false, _) => "the server may speak TLS: then use an https:// address",
        (true, false) => "the server may require a client certificate (DAMPER_CERT_FILE and DAMPER_KEY_FILE)",
        (true, true) => return None,
    };
    LOST.iter().any(|words| text.contains(words)).then_some(hint)
}

/// Returns the text of an error and all its sources.
#[must_use]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        // Some errors contain the text of their source.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

/// Returns the error and its sources. `source` skips the inner error of an I/O error.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

#[cfg(feature = "tls")]
mod tls {
    use std::error::Error;

    use rustls::{AlertDescription, CertificateError, Error as Tls, InconsistentKeys, PeerIncompatible};

    const AUTHORITY: &str = "the server's certificate is of an unknown authority: it was not issued by one trusted here; \
                             name the file of its authority (DAMPER_CA_FILE)";
    const SAME_NAME: &str = "the server's certificate is of an unknown authority: one of the same name is trusted here, but \
                             has another key; name the file of its authority (DAMPER_CA_FILE)";
    const REQUIRED: &str = "the server requires a client certificate (DAMPER_CERT_FILE and DAMPER_KEY_FILE)";

    pub(super) fn describe(error: &(dyn Error + 'static)) -> Option<String> {
        let error = error.downcast_ref::<Tls>()?;
        Some(match error {
            Tls::InvalidCertificate(problem) => certificate(problem),
            Tls::AlertReceived(alert) => return Some(of_alert(*alert)),
            Tls::InvalidMessage(_) => {
                "the server does not speak TLS; check whether to use an http:// address".to_owned()
            }
            Tls::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            ) => "the server speaks neither TLS 1.2 nor 1.3".to_owned(),
            Tls::NoApplicationProtocol => "the server does not support HTTP/2".to_owned(),
            Tls::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                "the key does not belong to the certificate".to_owned()
            }
            other => format!("TLS failed: {other}"),
        })
    }

    /// Finds an alert of which HTTP/2 left only the text.
    pub(super) fn in_text(text: &str) -> Option<String> {
        const ALERT: &str = "received fatal alert: ";
        const KNOWN: [AlertDescription; 12] = [
            AlertDescription::CertificateRequired,
            AlertDescription::BadCertificate,
            AlertDescription::UnsupportedCertificate,
            AlertDescription::CertificateRevoked,
            AlertDescription::CertificateExpired,
            AlertDescription::CertificateUnknown,
            AlertDescription::UnknownCA,
            AlertDescription::AccessDenied,
            AlertDescription::DecryptError,
            AlertDescription::HandshakeFailure,
            AlertDescription::ProtocolVersion,
            AlertDescription::NoApplicationProtocol,
        ];
        if text.contains("HTTP/2 was not negotiated") {
            return Some("the server does not support HTTP/2".to_owned());
        }
        if text.contains("handshake eof") {
            return Some("the server closed the connection during the TLS handshake".to_owned());
        }
        let (_, name) = text.split_once(ALERT)?;
        let known = KNOWN.into_iter().find(|alert| name.starts_with(&format!("{alert:?}")));
        Some(known.map_or_else(|| format!("the server ended TLS: {name}"), of_alert))
    }

    fn certificate(problem: &CertificateError) -> String {
        match problem {
            CertificateError::UnknownIssuer => AUTHORITY.to_owned(),
            // Issuers are matched by name first: this is the error for an authority that was created again.
            CertificateError::BadSignature => SAME_NAME.to_owned(),
            CertificateError::NotValidForName => "the server's certificate is for another name".to_owned(),
            CertificateError::NotValidForNameContext { expected, presented } => {
                let expected = expected.to_str();
                let names: Vec<_> = presented.iter().map(|name| bare(name)).collect();
                let mut presented = names.join(", ");
                if presented.is_empty() {
                    presented.push_str("no name");
                }
                format!(
                    "the server's certificate is for another name: it is for {presented}, not for {expected}; use an \
                     address with a name that it is for, or say which it must be for (DAMPER_SERVER_NAME)"
                )
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired; renew it at the server".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet; check the clocks on both sides".to_owned()
            }
            CertificateError::Revoked => "the server's certificate was revoked".to_owned(),
            CertificateError::BadEncoding => "the server's certificate cannot be read".to_owned(),
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => SAME_NAME.to_owned(),
            CertificateError::UnsupportedSignatureAlgorithmContext { .. } => {
                "the server's certificate is signed by an algorithm that is not supported here; issue it with an \
                 ECDSA or RSA key"
                    .to_owned()
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the server's certificate is not for servers; issue it with the extended key usage serverAuth"
                    .to_owned()
            }
            other => format!("the server's certificate cannot be used: {}", name_of(other)),
        }
    }

    /// Returns the name of an error without its content.
    fn name_of(error: &CertificateError) -> String {
        let text = format!("{error:?}");
        text.chars().take_while(char::is_ascii_alphanumeric).collect()
    }

    /// Returns `damper` of `DnsName("damper")`, the format of rustls.
    fn bare(name: &str) -> &str {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.map_or(name, |inner| inner.trim_matches('"'))
    }

    fn of_alert(alert: AlertDescription) -> String {
        let refused = |why: &str| format!("the server rejects the client certificate: {why}");
        match alert {
            AlertDescription::CertificateRequired => REQUIRED.to_owned(),
            AlertDescription::UnknownCA => refused("unknown authority"),
            // The signature is checked before the authority.
            AlertDescription::DecryptError => {
                refused("unknown authority: one of the same name is known, but has another key")
            }
            AlertDescription::CertificateExpired => refused("expired"),
            AlertDescription::CertificateRevoked => refused("revoked"),
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => refused(&format!("{alert:?}")),
            AlertDescription::ProtocolVersion => "the server speaks neither TLS 1.2 nor 1.3".to_owned(),
            AlertDescription::NoApplicationProtocol => "the server does not support HTTP/2".to_owned(),
            other => format!("the server ended TLS: {other:?}"),
        }
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io;

    use rustls::{AlertDescription, CertificateError, Error as Tls};

    use super::*;

    fn described(error: Tls) -> String {
        of(&io::Error::new(io::ErrorKind::InvalidData, error)).expect("it is about TLS")
    }

    #[test]
    fn certificate_problems_are_explained() {
        let table = [
            (CertificateError::UnknownIssuer, "unknown authority"),
            (CertificateError::NotValidForName, "another name"),
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidYet, "not valid yet"),
            (CertificateError::BadSignature, "of the same name"),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (CertificateError::UnhandledCriticalExtension, "cannot be used: UnhandledCriticalExtension"),
            (
                CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id: vec![6, 8, 42],
                    public_key_algorithm_id: vec![6, 7],
                },
                "of the same name",
            ),
        ];
        for (error, words) in table {
            let described = described(Tls::InvalidCertificate(error));
            assert!(described.contains(words) && !described.contains('['), "{described}");
        }
    }

    #[test]
    fn an_alert_is_understood_although_only_its_text_is_left() {
        for alert in [AlertDescription::CertificateRequired, AlertDescription::UnknownCA] {
            let error = Tls::AlertReceived(alert);
            let text = io::Error::other(error.to_string());
            assert_eq!(of(&text), Some(described(error)));
        }
        assert!(of(&io::Error::other("received fatal alert: Strange(77)")).unwrap().contains("Strange(77)"));
    }

    #[test]
    fn what_is_not_about_tls_is_left_to_others() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused");
        assert_eq!((of(&refused), of_lost(&refused, true, false)), (None, None));
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert!(of_lost(&reset, true, false).unwrap().contains("client certificate"));
        assert!(of_lost(&reset, false, false).unwrap().contains("https://"));
        assert_eq!(of_lost(&reset, true, true), None);
        assert_eq!(of(&h2::Error::from(h2::Reason::REFUSED_STREAM)), None);
    }
}
