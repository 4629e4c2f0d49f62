//! TLS of a server: its certificate, and the authorities of its clients' certificates.
//!
//! Reading and use of the files are two steps, so that a server can read them for each connection and build
//! its configuration only after a change. All faults are reported together, under the name of each field.
//! Sessions are never resumed: an expired or removed certificate counts from the next connection on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use damper_core::Faults;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::problem;
use crate::tls::{authorities, certificates, private_key, read_authorities, read_certificate, read_key};

/// The files of a server that speaks HTTP/2 over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate of the server with those of its issuers, PEM.
    pub cert_file: PathBuf,
    /// Its key, PEM.
    pub key_file: PathBuf,
    /// Authorities of client certificates, PEM. With it, each client must show a certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// The contents of [`ServerFiles`].
#[derive(Clone, PartialEq, Eq)]
pub struct ServerPem {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl ServerFiles {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// All files that cannot be read.
    pub fn read(&self) -> Result<ServerPem, Faults> {
        let mut faults = Faults::none();
        let mut read = |field, path, read: fn(&Path) -> Result<Vec<u8>, String>| {
            read(path).map_err(|problem| faults.add(field, problem)).ok()
        };
        let cert = read("cert_file", &self.cert_file, read_certificate);
        let key = read("key_file", &self.key_file, read_key);
        let client_ca =
            self.client_ca_file.as_ref().map(|path| read("client_ca_file", path, read_authorities));
        let whole = || {
            let client_ca = client_ca.map_or(Some(None), |pem| pem.map(Some))?;
            Some(ServerPem { cert: cert?, key: key?, client_ca })
        };
        whole().ok_or(faults)
    }

    /// Returns the configuration of a server with these contents.
    ///
    /// # Errors
    /// All files that cannot be used.
    pub fn config(&self, pem: &ServerPem) -> Result<ServerConfig, Faults> {
        let mut faults = Faults::none();
        let chain =
            certificates(&self.cert_file, &pem.cert).map_err(|problem| faults.add("cert_file", problem)).ok();
        let key =
            private_key(&self.key_file, &pem.key).map_err(|problem| faults.add("key_file", problem)).ok();
        let roots = match (&self.client_ca_file, &pem.client_ca) {
            (Some(path), Some(pem)) => {
                authorities(path, pem).map_err(|problem| faults.add("client_ca_file", problem)).ok().map(Some)
            }
            _ => Some(None),
        };
        let (Some(chain), Some(key), Some(roots)) = (chain, key, roots) else { return Err(faults) };
        let unusable = |field: &str, path: &Path, error: &(dyn std::error::Error + 'static)| {
            let mut faults = Faults::none();
            let why = problem::of(error).unwrap_or_else(|| problem::with_sources(error));
            faults.add(field, format!("{}: {why}", path.display()));
            faults
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("cert_file", &self.cert_file, &error))?;
        let config = match (roots, &self.client_ca_file) {
            (Some(roots), Some(path)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| unusable("client_ca_file", path, &error))?;
                config.with_client_cert_verifier(verifier)
            }
            _ => config.with_no_client_auth(),
        };
        let mut config = config
            .with_single_cert(chain, key)
            .map_err(|error| unusable("key_file", &self.key_file, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}
