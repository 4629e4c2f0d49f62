//! TLS files: trusted authorities, client certificate and key.
//!
//! Files are read completely, up to a limit, each time. A file of authorities replaces those of the system.
//! Errors contain the file name. Nothing of a key is printed: errors of its parser, which quote lines, are
//! replaced.

use std::path::PathBuf;

#[cfg(not(feature = "tls"))]
use tonic::transport::Endpoint;

/// TLS settings.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no address asks for TLS then"))]
pub(crate) struct Files {
    pub(crate) ca_file: Option<PathBuf>,
    /// The certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: Option<String>,
}

#[cfg(feature = "tls")]
pub(crate) use self::built_in::*;

/// Without TLS no name is checked.
#[cfg(not(feature = "tls"))]
pub(crate) fn check_name(_: &str) -> Result<(), String> {
    Ok(())
}

#[cfg(not(feature = "tls"))]
impl Files {
    /// No address requires TLS: see [`address::parse`](crate::address::parse).
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

    /// Limit in bytes: four times the system's own bundle.
    const MAX_BYTES: u64 = 1 << 20;

    /// Checks that a certificate can have this name.
    ///
    /// # Errors
    /// The problem with the name.
    pub(crate) fn check_name(name: &str) -> Result<(), String> {
        let parsed = ServerName::try_from(name);
        parsed.map(|_| ()).map_err(|_| format!("{name:?} is neither a DNS name nor an IP address"))
    }

    impl Files {
        /// Reads the files and configures TLS.
        ///
        /// # Errors
        /// The file that cannot be used, with the reason.
        pub(crate) fn set_up(&self, endpoint: Endpoint) -> Result<Endpoint, String> {
            let mut config = ClientTlsConfig::new();
            config = match &self.ca_file {
                Some(path) => {
                    let pem = read_authorities(path)?;
                    authorities(path, &pem)?;
                    config.ca_certificate(Certificate::from_pem(pem))
                }
                None => config.with_native_roots(),
            };
            if let Some((cert, key)) = &self.certificate {
                let (cert_pem, key_pem) = (read_certificate(cert)?, read_key(key)?);
                certificates(cert, &cert_pem)?;
                private_key(key, &key_pem)?;
                config = config.identity(Identity::from_pem(cert_pem, key_pem));
            }
            if let Some(name) = &self.server_name {
                config = config.domain_name(name);
            }
            endpoint.tls_config(config).map_err(|error| self.not_set_up(&error))
        }

        /// As [`set_up`](Self::set_up), for a handshake with this host.
        ///
        /// # Errors
        /// The file that cannot be used, with the reason.
        pub(crate) fn handshake(&self, host: &str) -> Result<(ClientConfig, ServerName<'static>), String> {
            let name = self.server_name.as_deref().unwrap_or(host);
            check_name(name)?;
            let name = ServerName::try_from(name.to_owned()).expect("it was checked");
            let roots = match &self.ca_file {
                Some(path) => authorities(path, &read_authorities(path)?)?,
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
                    let chain = certificates(cert, &read_certificate(cert)?)?;
                    let key = private_key(key, &read_key(key)?)?;
                    config.with_client_auth_cert(chain, key).map_err(|error| self.not_set_up(&error))?
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

    /// Reads a file of authorities.
    pub(crate) fn read_authorities(path: &Path) -> Result<Vec<u8>, String> {
        read(path).map_err(|problem| of_authorities(path, &problem))
    }

    /// Returns the authorities of a file, each of which must be readable.
    pub(crate) fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|_| of_authorities(path, &"is not valid PEM"))?;
            let unread = |_| of_authorities(path, &"contains a certificate that cannot be read");
            roots.add(certificate).map_err(unread)?;
        }
        match roots.is_empty() {
            true => Err(of_authorities(path, &"contains no certificate in PEM")),
            false => Ok(roots),
        }
    }

    /// Reads a file of a certificate.
    pub(crate) fn read_certificate(path: &Path) -> Result<Vec<u8>, String> {
        read(path).map_err(|problem| of_certificate(path, &problem))
    }

    /// Returns the certificate of a file with those of its issuers.
    pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|_| of_certificate(path, &"is not valid PEM"))?;
        match certificates.is_empty() {
            true => Err(of_certificate(path, &"contains no certificate in PEM")),
            false => Ok(certificates),
        }
    }

    /// Reads a file of a key.
    pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>, String> {
        read(path).map_err(|problem| of_key(path, &problem))
    }

    /// Returns the key of a file.
    pub(crate) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(pem)
            .map_err(|_| of_key(path, &"contains no unencrypted private key in PEM"))
    }

    fn of_authorities(path: &Path, problem: &dyn fmt::Display) -> String {
        format!("the CA file {}: {problem}", path.display())
    }

    fn of_certificate(path: &Path, problem: &dyn fmt::Display) -> String {
        format!("the certificate file {}: {problem}", path.display())
    }

    fn of_key(path: &Path, problem: &dyn fmt::Display) -> String {
        format!("the key file {}: {problem}", path.display())
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
