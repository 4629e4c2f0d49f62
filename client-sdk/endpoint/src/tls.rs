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
pub(crate) use self::built_in::check_name;

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

        /// As [`set_up`](Self::set_up), for a handshake with this host.
        ///
        /// # Errors
        /// The file that cannot be used, with the reason.
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

    /// The client certificate with its key, as text and parsed.
    struct Shown {
        chain: Vec<u8>,
        secret: Vec<u8>,
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    }

    /// Reads a file of authorities, each of which must be readable.
    fn authorities(path: &Path) -> Result<(Vec<u8>, RootCertStore), String> {
        let named = |problem: &dyn fmt::Display| format!("the CA file {}: {problem}", path.display());
        let pem = read(path).map_err(|problem| named(&problem))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|_| named(&"is not valid PEM"))?;
            roots.add(certificate).map_err(|_| named(&"contains a certificate that cannot be read"))?;
        }
        match roots.is_empty() {
            true => Err(named(&"contains no certificate in PEM")),
            false => Ok((pem, roots)),
        }
    }

    /// Reads the client certificate and its key.
    fn identity(cert: &Path, key: &Path) -> Result<Shown, String> {
        let named =
            |problem: &dyn fmt::Display| format!("the certificate file {}: {problem}", cert.display());
        let chain = read(cert).map_err(|problem| named(&problem))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let certificates = certificates.map_err(|_| named(&"is not valid PEM"))?;
        if certificates.is_empty() {
            return Err(named(&"contains no certificate in PEM"));
        }
        let named = |problem: &dyn fmt::Display| format!("the key file {}: {problem}", key.display());
        let secret = read(key).map_err(|problem| named(&problem))?;
        let key = PrivateKeyDer::from_pem_slice(&secret)
            .map_err(|_| named(&"contains no unencrypted private key in PEM"))?;
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
