//! Authorities and certificates for one test each.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

/// An authority that issues certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of a test");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for these names.
    pub(crate) fn issue(&self, names: &[&str]) -> Pair {
        self.issue_with(names, |_| {})
    }

    pub(crate) fn issue_with(&self, names: &[&str], edit: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }

    /// A server of this machine.
    pub(crate) fn server(&self) -> ServerTlsConfig {
        self.issue(&["127.0.0.1"]).server()
    }

    /// As above, requiring client certificates of an authority.
    pub(crate) fn server_that_asks(&self, clients: &Self) -> ServerTlsConfig {
        self.server().client_ca_root(Certificate::from_pem(&clients.pem))
    }
}

impl Pair {
    pub(crate) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(Identity::from_pem(&self.cert, &self.key))
    }
}

/// The files of one service.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn write_pair(&self, pair: &Pair) -> (PathBuf, PathBuf) {
        (self.write("cert.pem", &pair.cert), self.write("key.pem", &pair.key))
    }
}
