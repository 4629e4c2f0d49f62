//! etcd configuration: endpoints, key prefix and credentials.
//!
//! Files are named here, read when the store is opened, and read again when etcd is unreachable. `Debug`
//! hides passwords.

use std::path::PathBuf;

/// etcd endpoints and credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `HOST:PORT` of the members; at least one.
    pub endpoints: Vec<String>,
    /// Prefix of all keys. Default [`DEFAULT_PREFIX`](crate::etcd::DEFAULT_PREFIX).
    pub prefix: String,
    /// User, if etcd requires authentication.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// TLS; `None`: plaintext.
    pub tls: Option<EtcdTls>,
}

impl std::fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "..."))
            .field("tls", &self.tls)
            .finish()
    }
}

/// TLS files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authorities of etcd's certificate.
    pub ca: Option<PathBuf>,
    /// Client certificate, if etcd requires one; with `key`.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Name in etcd's certificate, if it is not the host's.
    pub domain: Option<String>,
}
