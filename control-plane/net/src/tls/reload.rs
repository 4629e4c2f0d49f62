//! Certificate in use, reloaded when its files change.
//!
//! Compares the contents of the files, not their times or names: a mounted secret changes by a swapped
//! symlink, an editor renames. A connection keeps its certificate, so a reload ends none, unless the client's
//! certificate is of a removed authority. Invalid files leave the previous ones in use; that is logged once
//! per change, and a metric stays 1 until the files are valid.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_rustls::rustls::ServerConfig;

use crate::tls::TlsCounters;
use crate::tls::Trust;
use crate::tls::authorities::Authorities;
use crate::tls::certificate::CertificateValidity;
use crate::tls::files::{LoadedTls, TlsFiles};
use crate::tls::{Pem, TlsConfig};

/// Pause between two reads of the files, which may be read between two writes; repeated until both reads
/// agree.
const STILL_AFTER: Duration = Duration::from_millis(20);
const STILL_TRIES: u32 = 50;

/// Certificate, key and authorities in use, for each new connection.
pub struct TlsReloader {
    tls: TlsConfig,
    current: RwLock<Current>,
    authorities: watch::Sender<Authorities>,
    counters: TlsCounters,
}

struct Current {
    material: TlsFiles,
    config: Arc<ServerConfig>,
    validity: CertificateValidity,
    /// Why the current files cannot be used.
    refused: Option<String>,
}

impl fmt::Debug for TlsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keychain").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl TlsReloader {
    /// Reads all files. Errors with all faults.
    pub fn open(tls: TlsConfig, counters: TlsCounters) -> Result<Self, Vec<String>> {
        let material = TlsFiles::read(&tls)?;
        let loaded = material.load(&tls)?;
        report(&loaded, &counters);
        let LoadedTls { config, authorities, validity } = loaded;
        let current = RwLock::new(Current { material, config, validity, refused: None });
        Ok(Self { tls, current, authorities: watch::Sender::new(authorities), counters })
    }

    /// Returns the validity of the certificate in use.
    pub fn validity(&self) -> CertificateValidity {
        self.current.read().unwrap_or_else(PoisonError::into_inner).validity
    }

    /// Returns why the current files are not in use; `None` if they are.
    pub fn refused(&self) -> Option<String> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    /// Returns the configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Returns the authorities and their later changes. Call it before [`Self::config`], so that no change is
    /// missed.
    pub fn trust(&self) -> Trust {
        Trust(self.authorities.subscribe())
    }

    /// Returns the certificate in use and its key as PEM, which this server shows to its peers.
    pub fn own_pem(&self) -> (Vec<u8>, Vec<u8>) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (current.material.certificate.clone(), current.material.key.clone())
    }

    /// Returns the authorities of client certificates as PEM.
    pub fn client_ca_pem(&self) -> Option<Vec<u8>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).material.client_ca.clone()
    }

    /// Reloads the files when they change; never returns.
    pub async fn follow(self: Arc<Self>) {
        let all = [Some(&self.tls.certificate), Some(&self.tls.key), self.tls.client_ca.as_ref()];
        if all.into_iter().flatten().all(|pem| matches!(pem, Pem::Text(_))) {
            return pending().await;
        }
        let mut again = interval(self.tls.reload_interval);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refused = None;
        loop {
            again.tick().await;
            self.refresh(&mut refused).await;
        }
    }

    /// Reads the files once. `refused` holds the last unusable ones.
    async fn refresh(&self, refused: &mut Option<Result<TlsFiles, Vec<String>>>) {
        let found = self.still().await;
        let is_in_use = {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().is_ok_and(|found| *found == current.material)
        };
        if is_in_use {
            self.set_refused(None);
            *refused = None;
            return;
        }
        if refused.as_ref() == Some(&found) {
            return;
        }
        let loaded = found.as_ref().map_err(Clone::clone).and_then(|material| material.load(&self.tls));
        match (found, loaded) {
            (Ok(material), Ok(loaded)) => {
                report(&loaded, &self.counters);
                self.set_refused(None);
                self.take(material, loaded);
                *refused = None;
                tracing::info!("certificate reloaded");
            }
            (found, loaded) => {
                let faults = loaded.err().unwrap_or_default().join("; ");
                tracing::error!(faults, "certificate reload failed; keeping the previous certificate");
                self.set_refused(Some(faults));
                *refused = Some(found);
            }
        }
    }

    /// Uses the certificate for new connections and closes those whose client certificates are no longer
    /// trusted.
    fn take(&self, material: TlsFiles, LoadedTls { config, authorities, validity }: LoadedTls) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = current.material.client_ca != material.client_ca;
        *current = Current { material, config, validity, refused: None };
        drop(current);
        if is_other {
            self.authorities.send_replace(authorities);
        }
    }

    fn set_refused(&self, why: Option<String>) {
        self.counters.reload_failing.set(if why.is_some() { 1.0 } else { 0.0 });
        self.current.write().unwrap_or_else(PoisonError::into_inner).refused = why;
    }

    /// Returns the files once two reads agree.
    async fn still(&self) -> Result<TlsFiles, Vec<String>> {
        let mut last = self.read().await;
        for _ in 0..STILL_TRIES {
            let is_in_use = {
                let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
                last.as_ref().is_ok_and(|last| *last == current.material)
            };
            if is_in_use {
                break;
            }
            sleep(STILL_AFTER).await;
            let next = self.read().await;
            if next == last {
                break;
            }
            last = next;
        }
        last
    }

    async fn read(&self) -> Result<TlsFiles, Vec<String>> {
        let tls = self.tls.clone();
        let read = tokio::task::spawn_blocking(move || TlsFiles::read(&tls)).await;
        read.unwrap_or_else(|_| Err(vec!["the files could not be read".to_owned()]))
    }
}

/// Logs the warning and sets the metrics of a certificate.
fn report(loaded: &LoadedTls, counters: &TlsCounters) {
    if let Some(ends_at) = loaded.validity.ends_at {
        let seconds = ends_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        counters.certificate_expires_at.set(seconds as f64);
    }
    if let Some(warning) = loaded.validity.warning(SystemTime::now()) {
        tracing::warn!("{warning}");
    }
}
