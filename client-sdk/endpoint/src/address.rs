//! The address of a control plane: `http://host:port` or `https://host:port`.
//!
//! A user name or password in it is an error, and not printed: addresses are logged.

use std::net::IpAddr;

use tonic::transport::Uri;

/// Parses an address.
///
/// # Errors
/// The problem with the text.
pub fn parse(url: &str) -> Result<Uri, String> {
    if url.split_once("://").map_or(url, |(_, rest)| rest).contains('@') {
        return Err("contains a user name or password, must be http(s)://host:port".to_owned());
    }
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") if cfg!(feature = "tls") => {}
        Some("https") => {
            return Err(format!("{url:?} requires TLS; build damper-sdk with feature `tls`"));
        }
        _ => return Err(format!("{url:?} must begin with http:// or https://")),
    }
    let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
        return Err(format!("{url:?} has no host"));
    };
    if authority.port_u16().is_none() && !authority.as_str().ends_with(authority.host()) {
        return Err(format!("{url:?}: port must be 1 to 65535"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(format!("{url:?} has a path, must be http(s)://host:port"));
    }
    Ok(uri)
}

/// Returns true if the connection is encrypted.
#[must_use]
pub fn is_tls(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// Returns the host, without the brackets of an IPv6 address.
#[must_use]
pub fn host(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns the port, by default that of the scheme.
#[must_use]
pub fn port(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if is_tls(uri) { 443 } else { 80 })
}

/// Returns true if the text is an address of this machine.
#[must_use]
pub fn is_loopback(uri: &Uri) -> bool {
    let host = host(uri);
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_address_is_explained() {
        let table = [
            ("127.0.0.1:7600", "must begin"),
            ("ftp://a:1", "must begin"),
            ("http://a:1/path", "has a path"),
            ("http://a:1/?q", "has a path"),
            ("http://", "no URL"),
            ("http://a:port", "65535"),
            ("http://a:99999", "65535"),
            ("no url", "no URL"),
        ];
        for (url, problem) in table {
            let error = parse(url).unwrap_err();
            assert!(error.contains(problem) && error.contains(url), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        for url in ["http://kim:pass@a:1", "kim:pass@a:1", "https://pass@a"] {
            assert!(!parse(url).unwrap_err().contains("pass@"), "{url}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        let is = |url: &str| is_loopback(&url.parse().unwrap());
        for url in [
            "http://127.0.0.1:1",
            "http://127.9.9.9",
            "http://[::1]:1",
            "http://localhost",
            "http://A.LocalHost:1",
        ] {
            assert!(is(url), "{url}");
        }
        assert!(is("http://[::ffff:127.0.0.1]:1"));
        for url in [
            "http://10.0.0.1:1",
            "http://[::]:1",
            "http://localhost.example.org",
            "http://damper",
            "http://0.0.0.0",
        ] {
            assert!(!is(url), "{url}");
        }
    }

    #[test]
    fn the_port_follows_the_scheme_by_default() {
        let port_of = |url: &str| port(&url.parse().unwrap());
        assert_eq!((port_of("http://a"), port_of("https://a"), port_of("https://a:7")), (80, 443, 7));
        assert_eq!(host(&"http://[::1]:7".parse().unwrap()), "::1");
    }

    #[test]
    fn https_needs_the_tls_feature() {
        let parsed = parse("https://a:1");
        match cfg!(feature = "tls") {
            true => assert!(is_tls(&parsed.unwrap())),
            false => assert!(parsed.unwrap_err().contains("feature `tls`")),
        }
    }
}
