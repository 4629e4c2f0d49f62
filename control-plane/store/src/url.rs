//! URL of a store: parses the text of `--store` and opens the store.
//!
//! `sled:PATH` is the embedded store in a folder. `etcd://H1:PORT,H2:PORT/PREFIX` is etcd, `etcds://` the
//! same over TLS with `?ca=FILE&cert=FILE&key=FILE&domain=NAME`, each optional. A user name may stand before
//! `@`. A password may not, since every user of the machine can read a command line: the caller adds it from
//! a file or the environment.

use crate::open_error::OpenError;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Store, etcd, sled};

/// URL of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// The embedded store in this folder, created when missing.
    Sled(PathBuf),
    /// An etcd cluster.
    Etcd(etcd::EtcdConfig),
}

/// Invalid store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "store {text:?}: {reason}; expected sled:PATH, etcd://HOST:PORT[,HOST:PORT...][/PREFIX] or etcds://..."
)]
pub struct StoreUrlError {
    text: String,
    reason: String,
}

impl StoreUrl {
    /// Opens the store. An embedded store is read from disk now; etcd is first contacted by the first
    /// request, so that a control plane can be started before its etcd.
    pub async fn open(self) -> Result<Arc<dyn Store>, OpenError> {
        Ok(match self {
            Self::Sled(path) => Arc::new(sled::SledStore::open(path).await?),
            Self::Etcd(settings) => Arc::new(etcd::EtcdStore::open(settings)?),
        })
    }
}

impl StoreUrl {
    /// Returns how other users could read the embedded store, as text; `None` if they cannot. A volume
    /// may have to be shared with a group, so that this is for a warning.
    pub fn readable_by_others(&self) -> Option<String> {
        match self {
            Self::Sled(path) => readable_by_others(path),
            Self::Etcd(_) => None,
        }
    }

    /// The first place of an etcd that is on another machine and is spoken to without TLS.
    pub fn plaintext_elsewhere(&self) -> Option<&str> {
        let Self::Etcd(settings) = self else { return None };
        let elsewhere = settings.endpoints.iter().find(|endpoint| !is_loopback(endpoint));
        elsewhere.filter(|_| settings.tls.is_none()).map(String::as_str)
    }
}

#[cfg(unix)]
fn readable_by_others(path: &std::path::Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = path.canonicalize().ok()?;
    let mode = |path: &std::path::Path| Some(path.metadata().ok()?.permissions().mode() & 0o777);
    let own = mode(&path)?;
    // A closed parent folder also protects it.
    let is_reached = path.ancestors().skip(1).all(|above| mode(above).is_none_or(|mode| mode & 0o011 != 0));
    (own & 0o055 != 0 && is_reached).then(|| format!("{} has the mode {own:o}", path.display()))
}

#[cfg(not(unix))]
fn readable_by_others(_path: &std::path::Path) -> Option<String> {
    None
}

fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled(path) => write!(f, "sled:{}", path.display()),
            Self::Etcd(settings) => {
                let scheme = if settings.tls.is_some() { "etcds" } else { "etcd" };
                write!(f, "{scheme}://{}{}", settings.endpoints.join(","), settings.prefix)
            }
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let fail = |reason: String| StoreUrlError { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("sled:") {
            if path.is_empty() {
                return Err(fail("the path is missing".to_owned()));
            }
            return Ok(Self::Sled(PathBuf::from(path)));
        }
        if let Some(rest) = text.strip_prefix("etcd://") {
            return etcd_settings(rest, None).map(Self::Etcd).map_err(fail);
        }
        if let Some(rest) = text.strip_prefix("etcds://") {
            return etcd_settings(rest, Some(etcd::EtcdTls::default())).map(Self::Etcd).map_err(fail);
        }
        Err(fail("neither sled nor etcd".to_owned()))
    }
}

/// `[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?NAME=VALUE&...]`
fn etcd_settings(text: &str, mut tls: Option<etcd::EtcdTls>) -> Result<etcd::EtcdConfig, String> {
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not NAME=VALUE"))?;
        let tls = tls.as_mut().ok_or_else(|| format!("{name:?} needs etcds://"))?;
        match name {
            "ca" => tls.ca = Some(PathBuf::from(value)),
            "cert" => tls.cert = Some(PathBuf::from(value)),
            "key" => tls.key = Some(PathBuf::from(value)),
            "domain" => tls.domain = Some(value.to_owned()),
            _ => return Err(format!("unknown option {name:?}; known are ca, cert, key, domain")),
        }
    }
    let (hosts, prefix) = match text.split_once('/') {
        Some((hosts, prefix)) if !prefix.trim_matches('/').is_empty() => {
            (hosts, format!("/{}/", prefix.trim_matches('/')))
        }
        Some((hosts, _)) => (hosts, etcd::DEFAULT_PREFIX.to_owned()),
        None => (text, etcd::DEFAULT_PREFIX.to_owned()),
    };
    let (user, hosts) = match hosts.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => {
            return Err(
                "a password must not be on the command line; use the file or the environment variable"
                    .to_owned(),
            );
        }
        Some((user, hosts)) => (Some(user.to_owned()), hosts),
        None => (None, hosts),
    };
    let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    for endpoint in &endpoints {
        let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            return Err(format!("{endpoint:?} is not HOST:PORT"));
        }
    }
    Ok(etcd::EtcdConfig { endpoints, prefix, user, password: None, tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<StoreUrl>().unwrap_err().to_string()
    }

    #[test]
    fn an_etcd_address_names_endpoints_prefix_user_and_tls_files() {
        let location: StoreUrl = "etcds://ann@a:1,[::1]:2/x/y/?ca=/c.pem&domain=etcd.local".parse().unwrap();
        let StoreUrl::Etcd(settings) = location else { panic!("not etcd") };
        assert_eq!(settings.endpoints, ["a:1", "[::1]:2"]);
        assert_eq!(settings.prefix, "/x/y/");
        assert_eq!(settings.user.as_deref(), Some("ann"));
        let tls = settings.tls.unwrap();
        assert_eq!(tls.ca, Some(PathBuf::from("/c.pem")));
        assert_eq!(tls.domain.as_deref(), Some("etcd.local"));
    }

    #[test]
    fn remote_etcd_without_tls_is_detected() {
        let elsewhere =
            |text: &str| text.parse::<StoreUrl>().unwrap().plaintext_elsewhere().map(str::to_owned);
        for (text, expected) in [
            ("etcd://127.0.0.1:2379,[::1]:2379,localhost:2379", None),
            ("etcd://127.0.0.1:1,10.0.0.1:2", Some("10.0.0.1:2")),
            ("etcd://localhost.example.org:1", Some("localhost.example.org:1")),
            ("etcd://[2001:db8::1]:1", Some("[2001:db8::1]:1")),
            ("etcds://10.0.0.1:1", None),
            ("sled:x", None),
        ] {
            assert_eq!(elsewhere(text).as_deref(), expected, "{text}");
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn new_folder_is_private_and_open_one_is_reported() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let open_to_all = |path: &std::path::Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        open_to_all(folder.path());
        let above = folder.path().join("above");
        let store = StoreUrl::Sled(above.join("store"));
        drop(store.clone().open().await.unwrap());
        for made in [&above, &above.join("store")] {
            assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", made.display());
        }
        assert_eq!(store.readable_by_others(), None);
        open_to_all(&above.join("store"));
        assert_eq!(store.readable_by_others(), None, "the folder above is closed");
        open_to_all(&above);
        let problem = store.readable_by_others().unwrap();
        assert!(problem.ends_with("above/store has the mode 755"), "{problem}");
        drop(store.open().await.unwrap());
    }

    #[test]
    fn the_prefix_has_a_default() {
        for text in ["etcd://a:1", "etcd://a:1/", "etcd://a:1//"] {
            let StoreUrl::Etcd(settings) = text.parse().unwrap() else { panic!("not etcd") };
            assert_eq!(settings.prefix, etcd::DEFAULT_PREFIX);
        }
    }

    #[test]
    fn error_names_the_problem() {
        assert!(refused("sled:").contains("path is missing"));
        assert!(refused("redis://x").contains("neither sled nor etcd"));
        assert!(refused("etcd://a").contains("HOST:PORT"));
        assert!(refused("etcd://a:1,").contains("HOST:PORT"));
        assert!(refused("etcd://ann:secret@a:1").contains("password"));
        assert!(refused("etcd://a:1?ca=x").contains("needs etcds://"));
        assert!(refused("etcds://a:1?cx=x").contains("unknown option"));
    }
}
