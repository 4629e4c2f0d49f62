//! Checks the origin of browser requests.
//!
//! A browser lets any page send requests to any server, with cookies, and to servers on the same machine. So
//! a request of another origin is rejected first, whatever it asks for and with or without authentication.
//! Only a link to the web UI is allowed: it changes nothing, and `SameSite=Strict` cookies are not sent with
//! it.
//!
//! A DNS name that points here (DNS rebinding) makes another site's page look like our own. TLS has no
//! certificate for it, so only plaintext is affected, and of that only HTTP/1: no browser speaks HTTP/2
//! without TLS. There `Host` must be a name that no site can have: localhost or an address. `--page-origin`
//! adds others, for a web UI behind a proxy that ends TLS.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version, header};

use crate::auth::AuthContext;
use crate::auth::Authenticator;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::{Line, shortened};

/// Origin of the web UI, as a browser sends it: `https://damper.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin(String);

/// Invalid origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not an origin such as https://damper.example.com: http or https, a host, perhaps a port, and nothing else"
)]
pub struct PageOriginError;

impl FromStr for PageOrigin {
    type Err = PageOriginError;

    fn from_str(text: &str) -> Result<Self, PageOriginError> {
        let text = text.trim_end_matches('/').to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://").ok_or(PageOriginError)?;
        let default_port = match scheme {
            "https" => ":443",
            "http" => ":80",
            _ => return Err(PageOriginError),
        };
        let uri: Uri = text.parse().map_err(|_| PageOriginError)?;
        let is_whole =
            uri.authority().is_some_and(|read| read.as_str() == authority && !authority.contains('@'));
        if !is_whole {
            return Err(PageOriginError);
        }
        // In the form of browsers.
        Ok(Self(text.strip_suffix(default_port).unwrap_or(&text).to_owned()))
    }
}

impl PageOrigin {
    fn authority(&self) -> &str {
        self.0.split_once("://").map_or("", |(_, authority)| authority)
    }

    fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }
}

/// Origin of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestOrigin {
    /// True if a browser sent it from this server's web UI. Only then is a cookie read.
    pub(crate) is_own: bool,
    /// True if the connection to the browser is TLS.
    pub(crate) is_secure: bool,
}

/// Reason of a rejected browser request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrossOrigin {
    Origin,
    Host,
}

impl CrossOrigin {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Origin => "ORIGIN",
            Self::Host => "HOST",
        }
    }

    fn answer(self) -> Response<Body> {
        let text = match self {
            Self::Origin => {
                "requests from other sites are rejected; set --page-origin to the address of the web UI\n"
            }
            Self::Host => {
                "without TLS the host must be localhost or an address; set --page-origin to the address of the \
                 web UI\n"
            }
        };
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = StatusCode::FORBIDDEN;
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }
}

/// Layer around all services of the port: rejects requests of other sites.
pub(crate) async fn own_site_only(
    State(auth): State<Arc<AuthContext>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match of(&parts, &auth.access) {
        Ok(site) => {
            request = Request::from_parts(parts, body);
            request.extensions_mut().insert(site);
            next.run(request).await
        }
        Err(foreign) => {
            auth.metrics.denied(foreign.reason());
            if let Some(left_out) = auth.limiter.line(Line::ForeignSite) {
                let (reason, path) = (foreign.reason(), shortened(parts.uri.path()));
                tracing::warn!(reason, path, left_out, "cross-origin request rejected");
            }
            foreign.answer()
        }
    }
}

/// Returns the origin of a request. Errors if it is cross-origin.
fn of(parts: &Parts, access: &Authenticator) -> Result<RequestOrigin, CrossOrigin> {
    let is_tls = parts.extensions.get::<ConnectionInfo>().is_some_and(|peer| peer.tls);
    let host = host(parts)?;
    let Parts { headers, uri, version, .. } = parts;
    let page = access.page_origins.iter().find(|page| page.authority() == host);
    let is_probe = matches!(uri.path(), "/livez" | "/readyz");
    if !is_tls && *version < Version::HTTP_2 && page.is_none() && !is_probe && !is_of_no_site(&host) {
        return Err(CrossOrigin::Host);
    }
    let here = || format!("{}://{host}", if is_tls { "https" } else { "http" });
    let own = page.map_or_else(here, |page| page.0.clone());
    let is_secure = |page: Option<&PageOrigin>| is_tls || page.is_some_and(PageOrigin::is_secure);
    if let Some(origin) = single(headers, header::ORIGIN)? {
        let origin = origin.to_ascii_lowercase();
        let page = access.page_origins.iter().find(|page| page.0 == origin);
        return match page.is_some() || origin == own {
            true => Ok(RequestOrigin { is_own: true, is_secure: is_secure(page) }),
            false => Err(CrossOrigin::Origin),
        };
    }
    match single(headers, "sec-fetch-site".try_into().expect("it is a header's name"))? {
        Some("same-origin") => Ok(RequestOrigin { is_own: true, is_secure: is_secure(page) }),
        None | Some("none") => Ok(RequestOrigin { is_own: false, is_secure: is_secure(page) }),
        Some(_) if is_link(parts) => Ok(RequestOrigin { is_own: false, is_secure: is_secure(page) }),
        Some(_) => Err(CrossOrigin::Origin),
    }
}

/// Returns the requested host in lower case; empty if there is none. Errors if two differ.
fn host(parts: &Parts) -> Result<String, CrossOrigin> {
    let in_header =
        single(&parts.headers, header::HOST).map_err(|_| CrossOrigin::Host)?.map(str::to_ascii_lowercase);
    let in_uri = parts.uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
    match (in_header, in_uri) {
        (Some(one), Some(other)) if one != other => Err(CrossOrigin::Host),
        (in_header, in_uri) => Ok(in_header.or(in_uri).unwrap_or_default()),
    }
}

/// Returns the value of a header. Errors if there are several.
fn single(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, CrossOrigin> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => one.to_str().map(Some).map_err(|_| CrossOrigin::Origin),
        (Some(_), Some(_)) => Err(CrossOrigin::Origin),
    }
}

/// True for localhost and for addresses: DNS cannot point them at another server.
fn is_of_no_site(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split_once(']').filter(|(_, port)| is_port(port));
        return address.is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let (name, port) = host.find(':').map_or((host, ""), |colon| host.split_at(colon));
    let is_known = name == "localhost" || name.ends_with(".localhost") || name.parse::<Ipv4Addr>().is_ok();
    is_known && is_port(port)
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

/// True if a browser follows a link to the web UI.
fn is_link(Parts { method, headers, uri, .. }: &Parts) -> bool {
    let has = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    let path = uri.path();
    let is_page = !path.starts_with("/damper.v1.") && !path.starts_with("/grpc.") && path != "/metrics";
    matches!(*method, Method::GET | Method::HEAD)
        && has("sec-fetch-mode", "navigate")
        && has("sec-fetch-dest", "document")
        && is_page
        && path != crate::auth::session::PATH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(
        version: Version,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<RequestOrigin, CrossOrigin> {
        let mut request = http::Request::builder().version(version).method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let access = Authenticator::for_pages(&["https://damper.example.com", "http://proxy:8080/"]);
        of(&request.body(()).unwrap().into_parts().0, &access)
    }

    fn posted(headers: &[(&str, &str)]) -> Result<RequestOrigin, CrossOrigin> {
        site(Version::HTTP_11, "POST", "/damper.v1.Rules/PutRule", headers)
    }

    const OWN: RequestOrigin = RequestOrigin { is_own: true, is_secure: false };
    const OTHER: RequestOrigin = RequestOrigin { is_own: false, is_secure: false };
    const SECURE: RequestOrigin = RequestOrigin { is_own: true, is_secure: true };

    #[test]
    fn only_our_own_origin_counts() {
        for (host, origin, expected) in [
            ("localhost:7600", "http://localhost:7600", Ok(OWN)),
            ("LOCALHOST:7600", "http://localhost:7600", Ok(OWN)),
            ("[::1]:7600", "http://[::1]:7600", Ok(OWN)),
            ("localhost:7600", "http://localhost:7601", Err(CrossOrigin::Origin)),
            ("localhost:7600", "http://127.0.0.1:7600", Err(CrossOrigin::Origin)),
            ("localhost:7600", "https://localhost:7600", Err(CrossOrigin::Origin)),
            ("localhost:7600", "http://localhost:7600.evil.example", Err(CrossOrigin::Origin)),
            ("localhost:7600", "null", Err(CrossOrigin::Origin)),
            ("localhost:7600", "", Err(CrossOrigin::Origin)),
            ("localhost:7600", "https://evil.example", Err(CrossOrigin::Origin)),
            ("damper.example.com", "https://damper.example.com", Ok(SECURE)),
            ("proxy:8080", "http://proxy:8080", Ok(OWN)),
        ] {
            assert_eq!(posted(&[("host", host), ("origin", origin)]), expected, "{host} {origin}");
        }
        let twice =
            [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")];
        assert_eq!(posted(&twice), Err(CrossOrigin::Origin));
    }

    #[test]
    fn fetch_metadata_counts_without_an_origin() {
        for (value, expected) in [
            ("same-origin", Ok(OWN)),
            ("none", Ok(OTHER)),
            ("same-site", Err(CrossOrigin::Origin)),
            ("cross-site", Err(CrossOrigin::Origin)),
            ("?", Err(CrossOrigin::Origin)),
        ] {
            assert_eq!(posted(&[("host", "localhost"), ("sec-fetch-site", value)]), expected, "{value}");
        }
        assert_eq!(posted(&[("host", "localhost")]), Ok(OTHER));
    }

    #[test]
    fn a_link_to_the_page_may_be_followed_and_nothing_else() {
        let link = |method: &str, path: &str, dest: &str| {
            let headers = [
                ("host", "localhost"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", dest),
            ];
            site(Version::HTTP_11, method, path, &headers)
        };
        assert_eq!(link("GET", "/rules/shop", "document"), Ok(OTHER));
        for (method, path, dest) in [
            ("POST", "/", "document"),
            ("GET", "/", "iframe"),
            ("GET", "/metrics", "document"),
            ("GET", "/session", "document"),
            ("GET", "/damper.v1.Rules/PutRule", "document"),
        ] {
            assert_eq!(link(method, path, dest), Err(CrossOrigin::Origin), "{method} {path} {dest}");
        }
    }

    #[test]
    fn rebound_dns_name_is_rejected_over_plaintext() {
        for (host, expected) in [
            ("localhost", Ok(OTHER)),
            ("x.localhost:1", Ok(OTHER)),
            ("10.1.2.3:7600", Ok(OTHER)),
            ("[fe80::1]", Ok(OTHER)),
            ("evil.example:7600", Err(CrossOrigin::Host)),
            ("localhost.evil.example", Err(CrossOrigin::Host)),
            ("127.0.0.1.evil.example", Err(CrossOrigin::Host)),
            ("127.0.0.1:x", Err(CrossOrigin::Host)),
            ("[::1].evil.example", Err(CrossOrigin::Host)),
            ("", Err(CrossOrigin::Host)),
        ] {
            assert_eq!(posted(&[("host", host)]), expected, "{host:?}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(posted(&twice), Err(CrossOrigin::Host));
        let services = site(Version::HTTP_2, "POST", "http://damper:7600/damper.v1.Rules/PutRule", &[]);
        assert_eq!(services, Ok(OTHER), "no browser speaks HTTP/2 without TLS");
        assert_eq!(site(Version::HTTP_11, "GET", "/livez", &[("host", "damper")]), Ok(OTHER));
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        let read = |text: &str| text.parse::<PageOrigin>().map(|origin| origin.0);
        assert_eq!(read("https://Damper.example.com:443/"), Ok("https://damper.example.com".to_owned()));
        assert_eq!(read("http://[::1]:7600"), Ok("http://[::1]:7600".to_owned()));
        for bad in
            ["", "damper.example.com", "ftp://x", "https://", "https://x/page", "https://a@x", "https://x?y"]
        {
            assert_eq!(read(bad), Err(PageOriginError), "{bad}");
        }
    }
}
