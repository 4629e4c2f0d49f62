//! Why a connection could not be made, in words.
//!
//! rustls says precisely what is wrong with a certificate, but deep in a chain of errors, and in its own terms. In
//! TLS 1.3 a server judges the client's certificate after the client has finished the handshake: its alert then
//! breaks the HTTP/2 connection, where only the alert's text is left, and a reset may even overtake it. So texts are
//! looked at too, and [`of_lost`] says what a connection that ends at once may mean.

use std::error::Error;

/// What a certificate, or the way TLS or HTTP/2 was spoken, is refused for; `None` if it is about something else.
#[must_use]
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    let found = chain(error).find_map(in_http2);
    #[cfg(feature = "tls")]
    let found =
        found.or_else(|| chain(error).find_map(tls::in_words)).or_else(|| tls::in_text(&with_sources(error)));
    found
}

/// What cannot be read as HTTP/2 was not written by a server of it.
fn in_http2(error: &(dyn Error + 'static)) -> Option<String> {
    let error = error.downcast_ref::<h2::Error>()?;
    let is_unread = matches!(error.reason(), Some(h2::Reason::FRAME_SIZE_ERROR | h2::Reason::PROTOCOL_ERROR));
    (is_unread && error.is_library() && error.is_go_away()).then(|| {
        "what answers there does not speak HTTP/2; if it speaks TLS, use an https:// address, else look at the port"
            .to_owned()
    })
}

/// What a connection that was lost before its first answer may mean; `None` if it is about something else.
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

/// An error with all that caused it.
#[must_use]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        // Some repeat their cause in their own text.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

/// The error and what caused it; an I/O error hides what it is made of from `source`.
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

    pub(super) fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
        let error = error.downcast_ref::<Tls>()?;
        Some(match error {
            Tls::InvalidCertificate(problem) => certificate(problem),
            Tls::AlertReceived(alert) => return Some(told(*alert)),
            Tls::InvalidMessage(_) => {
                "what answers there does not speak TLS; is it an http:// address?".to_owned()
            }
            Tls::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            ) => "the server speaks neither TLS 1.2 nor 1.3".to_owned(),
            Tls::NoApplicationProtocol => "the server speaks no HTTP/2".to_owned(),
            Tls::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                "the key does not belong to the certificate".to_owned()
            }
            other => format!("TLS failed: {other}"),
        })
    }

    /// What is left of an alert after HTTP/2 has passed it on.
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
            return Some("the server speaks no HTTP/2".to_owned());
        }
        if text.contains("handshake eof") {
            return Some("the server closed the connection during the TLS handshake".to_owned());
        }
        let (_, name) = text.split_once(ALERT)?;
        let known = KNOWN.into_iter().find(|alert| name.starts_with(&format!("{alert:?}")));
        Some(known.map_or_else(|| format!("the server ended TLS: {name}"), told))
    }

    fn certificate(problem: &CertificateError) -> String {
        match problem {
            CertificateError::UnknownIssuer => AUTHORITY.to_owned(),
            // A name is matched first: so it is where an authority was made anew.
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
                "the server's certificate is not valid yet; do the clocks there and here agree?".to_owned()
            }
            CertificateError::Revoked => "the server's certificate was revoked".to_owned(),
            CertificateError::BadEncoding => "the server's certificate can not be read".to_owned(),
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
            other => format!("the server's certificate is of no use: {}", name_of(other)),
        }
    }

    /// The name of an error alone: its content is for programs.
    fn name_of(error: &CertificateError) -> String {
        let text = format!("{error:?}");
        text.chars().take_while(char::is_ascii_alphanumeric).collect()
    }

    /// `damper` of `DnsName("damper")`, as rustls writes names.
    fn bare(name: &str) -> &str {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.map_or(name, |inner| inner.trim_matches('"'))
    }

    fn told(alert: AlertDescription) -> String {
        let refused = |why: &str| format!("the server refuses our certificate: {why}");
        match alert {
            AlertDescription::CertificateRequired => REQUIRED.to_owned(),
            AlertDescription::UnknownCA => refused("it is of an authority unknown there"),
            // Of its signature, which is found to be wrong before the authority is found to be unknown.
            AlertDescription::DecryptError => refused(
                "it is of an authority unknown there: one of the same name is known, but has another key",
            ),
            AlertDescription::CertificateExpired => refused("it has expired"),
            AlertDescription::CertificateRevoked => refused("it was revoked"),
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => refused(&format!("{alert:?}")),
            AlertDescription::ProtocolVersion => "the server speaks neither TLS 1.2 nor 1.3".to_owned(),
            AlertDescription::NoApplicationProtocol => "the server speaks no HTTP/2".to_owned(),
            other => format!("the server ended TLS: {other:?}"),
        }
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io;

    use rustls::{AlertDescription, CertificateError, Error as Tls};

    use super::*;

    fn said(error: Tls) -> String {
        of(&io::Error::new(io::ErrorKind::InvalidData, error)).expect("it is about TLS")
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_said_in_words() {
        let table = [
            (CertificateError::UnknownIssuer, "unknown authority"),
            (CertificateError::NotValidForName, "another name"),
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidYet, "not valid yet"),
            (CertificateError::BadSignature, "of the same name"),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (CertificateError::UnhandledCriticalExtension, "of no use: UnhandledCriticalExtension"),
            (
                CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id: vec![6, 8, 42],
                    public_key_algorithm_id: vec![6, 7],
                },
                "of the same name",
            ),
        ];
        for (error, words) in table {
            let said = said(Tls::InvalidCertificate(error));
            assert!(said.contains(words) && !said.contains('['), "{said}");
        }
    }

    #[test]
    fn an_alert_is_understood_although_only_its_text_is_left() {
        for alert in [AlertDescription::CertificateRequired, AlertDescription::UnknownCA] {
            let error = Tls::AlertReceived(alert);
            let text = io::Error::other(error.to_string());
            assert_eq!(of(&text), Some(said(error)));
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
