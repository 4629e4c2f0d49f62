//! Certificates and keys as read from files, and their rustls configuration.
//!
//! Reports all faults at once, each with its setting and file, never with the contents.

use std::fmt::Display;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::tls::authorities::Authorities;
use crate::tls::certificate::CertificateValidity;
use crate::tls::{ClientCertificates, Pem, TlsConfig};

const CERTIFICATE: &str = "tls_cert";
const KEY: &str = "tls_key";
const CLIENT_CA: &str = "tls_client_ca";

/// PEM texts from files and settings.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    pub client_ca: Option<Vec<u8>>,
}

/// rustls configuration made of the files.
pub(super) struct LoadedTls {
    pub config: Arc<ServerConfig>,
    pub authorities: Authorities,
    pub validity: CertificateValidity,
}

impl TlsFiles {
    /// Reads the files of the configuration.
    pub(super) fn read(tls: &TlsConfig) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut read = |setting: &str, from: &Pem| match from {
            Pem::Text(text) => text.clone().into_bytes(),
            Pem::File(path) => std::fs::read(path).unwrap_or_else(|error| {
                faults.push(fault(setting, from, &error));
                Vec::new()
            }),
        };
        let certificate = read(CERTIFICATE, &tls.certificate);
        let key = read(KEY, &tls.key);
        let client_ca = tls.client_ca.as_ref().map(|from| read(CLIENT_CA, from));
        if faults.is_empty() { Ok(Self { certificate, key, client_ca }) } else { Err(faults) }
    }

    /// Builds the server configuration.
    pub(super) fn load(&self, tls: &TlsConfig) -> Result<LoadedTls, Vec<String>> {
        let provider = Arc::new(ring::default_provider());
        let mut faults = Vec::new();
        let chain = certificates(&self.certificate)
            .map_err(|problem| faults.push(fault(CERTIFICATE, &tls.certificate, &problem)));
        let key = key(&self.key, &provider).map_err(|problem| faults.push(fault(KEY, &tls.key, &problem)));
        let verifier = self.verifier(tls, &provider).map_err(|problem| faults.push(problem));
        let (Ok(chain), Ok(key), Ok(verifier)) = (chain, key, verifier) else { return Err(faults) };
        let validity = X509Certificate::from_der(&chain[0]).map(|(_, read)| CertificateValidity::of(&read));
        let shown = CertifiedKey::new(chain, key);
        if let Err(error) = shown.keys_match() {
            return Err(vec![fault(
                KEY,
                &tls.key,
                &format!("this private key does not belong to the certificate: {error}"),
            )]);
        }
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|error| vec![error.to_string()])?;
        let authorities = Authorities(verifier.clone());
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedTls { config: Arc::new(config), authorities, validity: validity.unwrap_or_default() })
    }

    fn verifier(
        &self,
        tls: &TlsConfig,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let (Some(from), Some(bytes)) = (&tls.client_ca, &self.client_ca) else {
            return match tls.client_certificates {
                ClientCertificates::Optional => Ok(None),
                ClientCertificates::Required => Err(format!(
                    "tls_client_certs: `required` requires {CLIENT_CA}, the CA that verifies client certificates"
                )),
            };
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(bytes).map_err(|problem| fault(CLIENT_CA, from, &problem))? {
            roots.add(authority).map_err(|error| fault(CLIENT_CA, from, &error))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = match tls.client_certificates {
            ClientCertificates::Optional => builder.allow_unauthenticated(),
            ClientCertificates::Required => builder,
        };
        builder.build().map(Some).map_err(|error| fault(CLIENT_CA, from, &error))
    }
}

fn fault(setting: &str, from: &Pem, problem: &dyn Display) -> String {
    match from {
        Pem::File(path) => format!("{setting}: {}: {problem}", path.display()),
        Pem::Text(_) => format!("DAMPER_{}_PEM: {problem}", setting.to_uppercase()),
    }
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    let all = all.map_err(|_| "is not PEM text".to_owned())?;
    if all.is_empty() {
        return Err("has no certificate (-----BEGIN CERTIFICATE-----)".to_owned());
    }
    for (n, certificate) in all.iter().enumerate() {
        if X509Certificate::from_der(certificate).is_err() {
            return Err(format!("certificate {} cannot be read", n + 1));
        }
    }
    Ok(all)
}

fn key(
    bytes: &[u8],
    provider: &CryptoProvider,
) -> Result<Arc<dyn tokio_rustls::rustls::sign::SigningKey>, String> {
    let read = PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            "has no private key (-----BEGIN PRIVATE KEY-----), or one that is encrypted".to_owned()
        }
        _ => "is not PEM text".to_owned(),
    })?;
    provider.key_provider.load_private_key(read).map_err(|_| "has a key of an unsupported type".to_owned())
}
