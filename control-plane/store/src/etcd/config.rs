//! Which etcd a store is in: its members, the prefix of the keys, and what is shown to it and believed of it. Files are
//! named here. They are read when the store is opened, and again when etcd cannot be reached. Passwords are not shown.

use std::path::PathBuf;

/// Which etcd, and how to reach it.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `HOST:PORT` of the members; at least one.
    pub endpoints: Vec<String>,
    /// What all keys begin with. Default [`DEFAULT_PREFIX`](crate::etcd::DEFAULT_PREFIX).
    pub prefix: String,
    /// The user to authenticate as, where etcd asks for one.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// TLS; none = plaintext.
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
    /// The authorities that sign etcd's certificate.
    pub ca: Option<PathBuf>,
    /// Our certificate, where etcd asks for one; with `key`.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The name in etcd's certificate, where it is not the host's.
    pub domain: Option<String>,
}
