//! The files that prove who the other side is, and who we are.
//!
//! They are read whole, with a bound, each time. Where a file of authorities is named only those are trusted, not
//! the system's besides. What is wrong is said with the file's name; nothing of a key is ever repeated, so errors of
//! its parser, which quote lines, are not shown.

use std::path::PathBuf;

#[cfg(not(feature = "tls"))]
use tonic::transport::Endpoint;

/// What was said about TLS.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no address asks for TLS then"))]
pub(crate) struct Files {
    pub(crate) ca_file: Option<PathBuf>,
    /// The certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: Option<String>,
}

#[cfg(feature = "tls")]
pub(crate) use self::built_in::check_name;

/// Without TLS built in no name is compared with a certificate.
#[cfg(not(feature = "tls"))]
pub(crate) fn check_name(_: &str) -> Result<(), String> {
    Ok(())
}

#[cfg(not(feature = "tls"))]
impl Files {
    /// No address asks for it: see [`address::parse`](crate::address::parse).
    pub(crate) fn set_up(&self, _: Endpoint) -> Result<Endpoint, String> {
        Err("TLS is not built in".to_owned())
    }
}

#[cfg(feature = "tls")]
mod built_in {
    use std::error::Error;
    use std::fmt;
    use std::fs::File;
    use std::io::Read as _;
    use std::path::Path;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

    use super::Files;
    use crate::problem;

    /// The system's own bundle has a quarter of this.
    const MAX_BYTES: u64 = 1 << 20;

    /// Whether a certificate can be for this name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check_name(name: &str) -> Result<(), String> {
        let parsed = ServerName::try_from(name);
        parsed.map(|_| ()).map_err(|_| format!("{name:?} is neither a DNS name nor an IP address"))
    }

    impl Files {
        /// Reads the files and sets TLS up.
        ///
        /// # Errors
        /// Which of them is of no use, and why.
        pub(crate) fn set_up(&self, endpoint: Endpoint) -> Result<Endpoint, String> {
            let mut config = ClientTlsConfig::new();
            config = match &self.ca_file {
                Some(path) => config.ca_certificate(Certificate::from_pem(authorities(path)?.0)),
                None => config.with_native_roots(),
            };
            if let Some((cert, key)) = &self.certificate {
                let Shown { chain, secret, .. } = identity(cert, key)?;
                config = config.identity(Identity::from_pem(chain, secret));
            }
            if let Some(name) = &self.server_name {
                config = config.domain_name(name);
            }
            endpoint.tls_config(config).map_err(|error| self.not_set_up(&error))
        }

        /// The same for a handshake alone with this host.
        ///
        /// # Errors
        /// Which of the files is of no use, and why.
        pub(crate) fn handshake(&self, host: &str) -> Result<(ClientConfig, ServerName<'static>), String> {
            let name = self.server_name.as_deref().unwrap_or(host);
            check_name(name)?;
            let name = ServerName::try_from(name.to_owned()).expect("it was checked");
            let roots = match &self.ca_file {
                Some(path) => authorities(path)?.1,
                None => {
                    let mut roots = RootCertStore::empty();
                    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                    roots
                }
            };
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
            let config = config.map_err(|error| self.not_set_up(&error))?.with_root_certificates(roots);
            let mut config = match &self.certificate {
                Some((cert, key)) => {
                    let Shown { certificates, key, .. } = identity(cert, key)?;
                    config
                        .with_client_auth_cert(certificates, key)
                        .map_err(|error| self.not_set_up(&error))?
                }
                None => config.with_no_client_auth(),
            };
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok((config, name))
        }

        fn not_set_up(&self, error: &(dyn Error + 'static)) -> String {
            let problem = problem::of(error).unwrap_or_else(|| problem::with_sources(error));
            match &self.certificate {
                Some((cert, key)) => {
                    format!(
                        "TLS with the certificate {} and the key {}: {problem}",
                        cert.display(),
                        key.display()
                    )
                }
                None => format!("TLS: {problem}"),
            }
        }
    }

    /// Our own certificate with its key: as text, and what it says.
    struct Shown {
        chain: Vec<u8>,
        secret: Vec<u8>,
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    }

    /// What a file of authorities holds, each of them readable.
    fn authorities(path: &Path) -> Result<(Vec<u8>, RootCertStore), String> {
        let named = |problem: &dyn fmt::Display| format!("the CA file {}: {problem}", path.display());
        let pem = read(path).map_err(|problem| named(&problem))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|_| named(&"is no proper PEM"))?;
            roots.add(certificate).map_err(|_| named(&"holds a certificate that can not be read"))?;
        }
        match roots.is_empty() {
            true => Err(named(&"holds no certificate in PEM")),
            false => Ok((pem, roots)),
        }
    }

    /// Our own certificate and its key.
    fn identity(cert: &Path, key: &Path) -> Result<Shown, String> {
        let named =
            |problem: &dyn fmt::Display| format!("the certificate file {}: {problem}", cert.display());
        let chain = read(cert).map_err(|problem| named(&problem))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let certificates = certificates.map_err(|_| named(&"is no proper PEM"))?;
        if certificates.is_empty() {
            return Err(named(&"holds no certificate in PEM"));
        }
        let named = |problem: &dyn fmt::Display| format!("the key file {}: {problem}", key.display());
        let secret = read(key).map_err(|problem| named(&problem))?;
        let key = PrivateKeyDer::from_pem_slice(&secret)
            .map_err(|_| named(&"holds no unencrypted private key in PEM"))?;
        Ok(Shown { chain, secret, certificates, key })
    }

    fn read(path: &Path) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        match bytes.len() as u64 > MAX_BYTES {
            true => Err(format!("has more than {MAX_BYTES} bytes")),
            false => Ok(bytes),
        }
    }
}
