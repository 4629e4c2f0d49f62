//! Service of a client certificate, by the names in it.
//!
//! A name is a SPIFFE id (`spiffe://...`) or a DNS name. A template marks the service's name with
//! `{service}`; `*` matches anything. Both stay within one segment: between slashes of a SPIFFE id, between
//! dots of a DNS name. Without templates the service is a SPIFFE id's last segment, or the whole DNS name.

use std::str::FromStr;
use std::time::SystemTime;

use damper_net::tls::ClientNames;

/// Template of a certificate's name that marks the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    segments: Vec<Segment>,
    separator: char,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Exactly(String),
    /// Text before and after the wildcard or the service.
    Anything(String, String),
    Service(String, String),
}

/// Invalid template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientIdentityError {
    /// `{service}` is missing, or occurs more than once.
    #[error("the template must have {{service}} exactly once")]
    NoService,
    /// A segment has more than one wildcard or `{service}`.
    #[error(
        "a part of the template (between '/' in a SPIFFE id, between '.' in a DNS name) may have one '*' or one {{service}}, not both"
    )]
    Ambiguous,
}

const SERVICE: &str = "{service}";
const SPIFFE: &str = "spiffe://";

impl FromStr for ClientIdentity {
    type Err = ClientIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.matches(SERVICE).count() != 1 {
            return Err(ClientIdentityError::NoService);
        }
        let separator = separator(text);
        let segments: Result<Vec<Segment>, _> = text.split(separator).map(segment).collect();
        Ok(Self { segments: segments?, separator })
    }
}

fn segment(text: &str) -> Result<Segment, ClientIdentityError> {
    let wildcards = text.matches('*').count() + text.matches(SERVICE).count();
    let owned = |(before, after): (&str, &str)| (before.to_owned(), after.to_owned());
    match wildcards {
        0 => Ok(Segment::Exactly(text.to_owned())),
        1 => Ok(match text.split_once(SERVICE).map(owned) {
            Some((before, after)) => Segment::Service(before, after),
            None => {
                let (before, after) = text.split_once('*').map(owned).unwrap_or_default();
                Segment::Anything(before, after)
            }
        }),
        _ => Err(ClientIdentityError::Ambiguous),
    }
}

impl ClientIdentity {
    /// Returns the service in a name.
    fn service<'n>(&self, name: &'n str) -> Option<&'n str> {
        // A name of the other kind may have the same parts.
        if separator(name) != self.separator {
            return None;
        }
        let parts: Vec<&str> = name.split(self.separator).collect();
        if parts.len() != self.segments.len() {
            return None;
        }
        let mut service = None;
        for (segment, part) in self.segments.iter().zip(parts) {
            match segment {
                Segment::Exactly(text) if text == part => {}
                Segment::Exactly(_) => return None,
                Segment::Anything(before, after) => {
                    between(part, before, after)?;
                }
                Segment::Service(before, after) => service = Some(between(part, before, after)?),
            }
        }
        service
    }
}

fn between<'p>(part: &'p str, before: &str, after: &str) -> Option<&'p str> {
    part.strip_prefix(before)?.strip_suffix(after).filter(|middle| !middle.is_empty())
}

fn separator(name: &str) -> char {
    if name.starts_with(SPIFFE) { '/' } else { '.' }
}

/// Verified client certificate.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    name: String,
    services: Vec<String>,
    expires_at: Option<SystemTime>,
}

impl ClientCertificate {
    /// Reads the names of a certificate; `None` if no name can be a service's.
    pub(crate) fn read(certificate: &ClientNames, templates: &[ClientIdentity]) -> Option<Self> {
        let ids = certificate.uris.iter().filter(|uri| uri.starts_with(SPIFFE));
        let names: Vec<&String> = ids.chain(&certificate.dns).filter(|name| !name.contains('*')).collect();
        let service_of = |name: &String| match templates {
            [] if name.starts_with(SPIFFE) => {
                name.rsplit('/').next().filter(|last| !last.is_empty()).map(str::to_owned)
            }
            [] => Some(name.clone()),
            templates => templates.iter().find_map(|template| template.service(name)).map(str::to_owned),
        };
        let services: Vec<String> = names.iter().copied().filter_map(service_of).collect();
        // The first name of a service describes it best.
        let named = names.iter().find(|name| service_of(name).is_some()).or(names.first())?;
        Some(Self { name: (*named).clone(), services, expires_at: certificate.expires_at })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn services(&self) -> &[String] {
        &self.services
    }

    pub(crate) fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }

    pub(crate) fn is_over(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    pub(crate) fn is_of(&self, service: &str) -> bool {
        self.services.iter().any(|own| own == service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(templates: &[&str], names: &[&str]) -> Vec<String> {
        let templates: Vec<ClientIdentity> =
            templates.iter().map(|template| template.parse().unwrap()).collect();
        let (uris, dns) = names.iter().map(|name| (*name).to_owned()).partition(|name| name.contains("://"));
        let names = ClientNames { uris, dns, expires_at: None };
        ClientCertificate::read(&names, &templates).map_or_else(Vec::new, |certificate| certificate.services)
    }

    #[test]
    fn template_finds_the_service_within_one_segment() {
        let mesh = ["spiffe://example.org/ns/*/sa/{service}", "{service}.svc.example.org"];
        for (name, service) in [
            ("spiffe://example.org/ns/shop/sa/cart", Some("cart")),
            ("spiffe://example.org/ns/shop/x/sa/cart", None),
            ("spiffe://other.org/ns/shop/sa/cart", None),
            ("spiffe://example.org/ns/shop/sa/", None),
            ("cart.svc.example.org", Some("cart")),
            ("a.cart.svc.example.org", None),
            (".svc.example.org", None),
            ("spiffe://cart.svc.example.org", None),
        ] {
            let expected: Vec<String> = service.map(str::to_owned).into_iter().collect();
            assert_eq!(services(&mesh, &[name]), expected, "{name}");
        }
        assert!(services(&["{service}.example.org"], &["spiffe://cart.example.org"]).is_empty());
        assert_eq!(services(&["prod-{service}-sa.example.org"], &["prod-cart-sa.example.org"]), ["cart"]);
    }

    #[test]
    fn default_service_is_last_segment_or_whole_dns_name() {
        assert_eq!(
            services(&[], &["spiffe://example.org/ns/shop/sa/cart", "cart.example.org"]),
            ["cart", "cart.example.org"]
        );
        for names in [&[][..], &["*.example.org"], &["https://example.org/cart"]] {
            assert!(services(&[], names).is_empty(), "{names:?}");
        }
    }

    #[test]
    fn template_has_exactly_one_service() {
        for (template, error) in [
            ("spiffe://x/sa/name", ClientIdentityError::NoService),
            ("{service}.{service}", ClientIdentityError::NoService),
            ("spiffe://x/*-{service}", ClientIdentityError::Ambiguous),
        ] {
            assert_eq!(template.parse::<ClientIdentity>(), Err(error), "{template}");
        }
    }
}
