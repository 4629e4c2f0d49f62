//! The parts of a configuration about TLS.

use std::path::PathBuf;
use std::sync::Arc;

use damper_endpoint::{ServerFiles, ServerPem};
use damper_sdk::Faults;
use serde::Deserialize;
use tokio_rustls::rustls::ServerConfig;

use super::Check;

/// Place of [`InboundTls`] in a configuration.
const PATH: &str = "inbound.tls";

/// TLS to endpoints.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Authorities to trust, PEM. Default: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Client certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub key_file: Option<PathBuf>,
    /// Name that certificates must match. Default: the host.
    pub server_name: Option<String>,
}

/// TLS from callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundTls {
    /// Certificate and key of the service, and the authorities of its callers.
    pub files: ServerFiles,
    /// What the service learns of a caller's certificate; `None` if callers show none.
    pub peer: Option<Peer>,
}

/// What the service learns of a caller's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Its hash and names, in `x-forwarded-client-cert`.
    Forward,
    /// Nothing.
    Drop,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct InboundTlsFile {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    peer: Option<String>,
}

impl Check {
    pub(super) fn inbound_tls(&mut self, file: InboundTlsFile) -> Option<InboundTls> {
        let mut required = |field: &str, path: Option<PathBuf>| {
            let path = path.filter(|path| !path.as_os_str().is_empty());
            if path.is_none() {
                self.faults.add(format!("{PATH}.{field}"), "required");
            }
            path
        };
        let (cert_file, key_file) =
            (required("cert_file", file.cert_file), required("key_file", file.key_file));
        let client_ca_file = file.client_ca_file.map(|path| required("client_ca_file", Some(path)));
        let peer = self.peer(client_ca_file.is_some(), file.peer.as_deref());
        let client_ca_file = client_ca_file.map_or(Some(None), |path| path.map(Some));
        let files =
            ServerFiles { cert_file: cert_file?, key_file: key_file?, client_ca_file: client_ca_file? };
        Some(InboundTls { files, peer: peer? })
    }

    /// The service may trust the header of a certificate, so its owner decides.
    fn peer(&mut self, has_clients: bool, text: Option<&str>) -> Option<Option<Peer>> {
        let problem = match (has_clients, text) {
            (false, None) => return Some(None),
            (true, Some("forward")) => return Some(Some(Peer::Forward)),
            (true, Some("drop")) => return Some(Some(Peer::Drop)),
            (false, Some(_)) => "callers show a certificate only with client_ca_file".to_owned(),
            (true, None) => "required with client_ca_file; must be forward (the service gets \
                             x-forwarded-client-cert) or drop"
                .to_owned(),
            (true, Some(other)) => format!("{other:?} must be forward or drop"),
        };
        self.faults.add(format!("{PATH}.peer"), problem);
        None
    }
}

impl InboundTls {
    /// Reads the files, unless their contents are those known. Blocks.
    ///
    /// # Errors
    /// All files that cannot be used, with the paths of their fields.
    pub(crate) fn load(
        &self,
        known: Option<&ServerPem>,
    ) -> Result<Option<(ServerPem, Arc<ServerConfig>)>, Faults> {
        let loaded = self.files.read().and_then(|pem| match known == Some(&pem) {
            true => Ok(None),
            false => self.files.config(&pem).map(|config| Some((pem, Arc::new(config)))),
        });
        loaded.map_err(|inner| {
            let mut faults = Faults::none();
            faults.nest(PATH, inner);
            faults
        })
    }
}
