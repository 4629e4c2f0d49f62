//! Opens certificates, ports and the store before the server serves. Failures become a [`StartError`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::config::ServerConfig;
use crate::metrics::Metrics;
use crate::server::error::StartError;
use crate::state::snapshot::Snapshot;
use crate::state::watcher::LOAD_WITHIN;
use damper_net::tls::TlsReloader;
use damper_store::OpenError;
use damper_store::Store;
use damper_store::StoreUrl;

const LOCK_TRIES: u32 = 5;
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Opens the TLS files, if configured. Errors if an address is unprotected.
pub(crate) fn keychain(
    settings: &ServerConfig,
    metrics: &Metrics,
) -> Result<Option<Arc<TlsReloader>>, StartError> {
    let open_doors = settings.open_doors();
    if !settings.allow_insecure && !open_doors.is_empty() {
        return Err(StartError::Insecure(open_doors));
    }
    let tls = settings.tls.clone().map(|tls| TlsReloader::open(tls, metrics.net.tls.clone()).map(Arc::new));
    tls.transpose().map_err(StartError::Tls)
}

/// Binds a port.
pub(crate) async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    };
    bound.await.map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::AddressInUse { address },
        _ => StartError::Listen { address, source },
    })
}

/// Opens the store, with the password of the settings.
pub(crate) async fn open(settings: &ServerConfig) -> Result<Arc<dyn Store>, StartError> {
    let mut place = settings.store.clone();
    if let StoreUrl::Etcd(etcd) = &mut place
        && settings.etcd_password.is_some()
    {
        etcd.password = settings.etcd_password.clone();
    }
    let mut opened = place.clone().open().await;
    // A server that has just ended may still be closing its files.
    for _ in 0..LOCK_TRIES {
        if !matches!(opened, Err(OpenError::Locked { .. })) {
            break;
        }
        sleep(LOCK_AGAIN_AFTER).await;
        opened = place.clone().open().await;
    }
    opened.map_err(|error| match error {
        OpenError::Locked { .. } => StartError::StoreLocked(error),
        OpenError::Damaged { .. } => StartError::StoreDamaged(error.to_string()),
        _ => StartError::StoreUnusable(error),
    })
}

/// Reads the whole store.
pub(crate) async fn read(store: &dyn Store, place: &StoreUrl) -> Result<Snapshot, StartError> {
    let unreachable = |reason: String| StartError::StoreUnreachable { store: place.to_string(), reason };
    let read = async {
        store.create().await?;
        store.load().await
    };
    match timeout(LOAD_WITHIN, read).await {
        Ok(Ok(state)) => Ok(Snapshot::of(&state)),
        Ok(Err(damper_store::StoreError::Damaged { reason })) => Err(StartError::StoreDamaged(reason)),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no answer within {} s", LOAD_WITHIN.as_secs()))),
    }
}
