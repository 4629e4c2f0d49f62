//! Connections to peers: plaintext, or TLS as set by their addresses.
//!
//! Each attempt makes a new connection, so that reloaded certificates are used. The own certificate also
//! serves as the client certificate.

use std::time::Duration;

use damper_proto::v1::replicas_client::ReplicasClient;
use tokio::task::spawn_blocking;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::cluster::Cluster;
use crate::cluster::MAX_MESSAGE_BYTES;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// Connects to a peer. Errors with the reason as text.
pub(crate) async fn connect(cluster: &Cluster, address: &str) -> Result<ReplicasClient<Channel>, String> {
    let wrong = |error: tonic::transport::Error| format!("{address}: {}", with_sources(&error));
    let mut endpoint = Endpoint::from_shared(address.to_owned())
        .map_err(wrong)?
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PROBE_EVERY)
        .keep_alive_timeout(PROBE_WITHIN)
        .keep_alive_while_idle(true);
    if address.starts_with("https://") {
        endpoint = endpoint.tls_config(tls(cluster).await?).map_err(wrong)?;
    }
    let channel = endpoint.connect().await.map_err(wrong)?;
    Ok(ReplicasClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// Returns the trusted authorities and the certificate of this replica.
async fn tls(cluster: &Cluster) -> Result<ClientTlsConfig, String> {
    let mut tls = ClientTlsConfig::new();
    let authorities = match &cluster.config.peer_ca {
        Some(path) => {
            let reading = path.clone();
            let read = spawn_blocking(move || std::fs::read(reading)).await;
            let read = read.map_err(std::io::Error::other).flatten();
            Some(read.map_err(|error| format!("{}: {error}", path.display()))?)
        }
        None => cluster.tls.as_ref().and_then(|keychain| keychain.client_ca_pem()),
    };
    tls = match authorities {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_native_roots(),
    };
    if let Some(keychain) = &cluster.tls {
        let (certificate, key) = keychain.own_pem();
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &cluster.config.peer_name {
        tls = tls.domain_name(name.clone());
    }
    Ok(tls)
}

/// Formats the error with its sources, which contain the errors of the system.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
