//! The value of `x-forwarded-client-cert`, in the format of Envoy: hash, subject, URIs and DNS names of a
//! certificate.
//!
//! Subject by RFC 2253, with quotes and backslashes as hexadecimal numbers, so that no reader takes one for
//! the end of the value. A name that cannot be written so, or not be read, is left out: the hash identifies
//! the certificate. So is what exceeds [`MAX_BYTES`].

use std::fmt::Write as _;

use http::HeaderValue;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// Servers in Java and C++ refuse heads over 8 KiB.
const MAX_BYTES: usize = 2 << 10;

/// Returns the value for a certificate.
pub(super) fn of(certificate: &CertificateDer<'_>) -> HeaderValue {
    let mut text = String::from("Hash=");
    hex(&mut text, digest(&SHA256, certificate).as_ref());
    if let Ok((_, read)) = X509Certificate::from_der(certificate) {
        add(&mut text, &format!(";Subject=\"{}\"", subject(read.subject())));
        let names = read.subject_alternative_name().ok().flatten();
        let names = names.map(|names| &names.value.general_names[..]).unwrap_or_default();
        for name in names {
            match name {
                GeneralName::URI(uri) => element(&mut text, "URI", uri),
                GeneralName::DNSName(dns) => element(&mut text, "DNS", dns),
                _ => {}
            }
        }
    }
    HeaderValue::try_from(text).expect("it is visible ASCII")
}

/// Adds an element. A URI or a name of DNS that is not visible ASCII without quotes is none.
fn element(text: &mut String, key: &str, value: &str) {
    if !value.bytes().all(|byte| byte.is_ascii_graphic() && !br#""\"#.contains(&byte)) {
        return;
    }
    let quote = if value.contains([',', ';', '=']) { "\"" } else { "" };
    add(text, &format!(";{key}={quote}{value}{quote}"));
}

fn add(text: &mut String, part: &str) {
    if text.len() + part.len() <= MAX_BYTES {
        text.push_str(part);
    }
}

/// Returns a name with its last part first.
fn subject(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter_rdn().collect();
    let part =
        |part: &&RelativeDistinguishedName<'_>| part.iter().map(attribute).collect::<Vec<_>>().join("+");
    parts.iter().rev().map(part).collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let id = attribute.attr_type();
    let mut text = oid2abbrev(id, oid_registry()).map_or_else(|_| id.to_id_string(), str::to_owned);
    text.push('=');
    match attribute.as_str() {
        Ok(value) => escape(&mut text, value),
        Err(_) => {
            text.push('#');
            hex(&mut text, attribute.as_slice());
        }
    }
    text
}

/// Adds a value with the escapes of RFC 2253.
fn escape(text: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (place, byte) in value.bytes().enumerate() {
        let is_special = b",+<>;".contains(&byte)
            || (byte == b' ' && (place == 0 || place == last))
            || (byte == b'#' && place == 0);
        match byte {
            b'"' | b'\\' => _ = write!(text, "\\{byte:02X}"),
            b' '..=b'~' if is_special => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => _ = write!(text, "\\{byte:02X}"),
        }
    }
}

fn hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn of_parts(subject: &[(DnType, &str)], uris: &[&str]) -> String {
        let mut params = CertificateParams::new(vec!["web.shop".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let value = of(certificate.der());
        let (hash, rest) = value.to_str().unwrap().split_once(';').unwrap();
        let mut expected = String::new();
        hex(&mut expected, digest(&SHA256, certificate.der()).as_ref());
        assert_eq!(hash, format!("Hash={expected}"));
        rest.to_owned()
    }

    #[test]
    fn header_has_the_format_of_envoy() {
        let subject =
            [(DnType::CountryName, "US"), (DnType::OrganizationName, "Shop"), (DnType::CommonName, "web")];
        assert_eq!(
            of_parts(&subject, &["spiffe://shop/web"]),
            "Subject=\"CN=web,O=Shop,C=US\";DNS=web.shop;URI=spiffe://shop/web"
        );
        assert_eq!(of_parts(&[], &[]), "Subject=\"\";DNS=web.shop");
    }

    #[test]
    fn parts_beyond_the_limit_are_left_out() {
        let long = format!("spiffe://shop/{}", "a".repeat(MAX_BYTES));
        assert_eq!(
            of_parts(&[], &[&long, "spiffe://shop/web"]),
            "Subject=\"\";DNS=web.shop;URI=spiffe://shop/web"
        );
    }

    #[test]
    fn name_cannot_add_an_element() {
        let subject = [(DnType::CommonName, "a\";URI=spiffe://shop/admin, ü")];
        assert_eq!(
            of_parts(&subject, &["spiffe://a;URI=spiffe://shop/admin", "spiffe://\";URI=a", "spiffe://a\\"]),
            "Subject=\"CN=a\\22\\;URI=spiffe://shop/admin\\, \\C3\\BC\";DNS=web.shop;\
             URI=\"spiffe://a;URI=spiffe://shop/admin\""
        );
    }
}
