//! What TLS uses now, and how it follows the files.
//!
//! The files' contents are looked at, not their times or names: a mounted secret changes by swapping a symlink, an
//! editor by renaming. A connection keeps what it began with, so that a new certificate ends none; it ends if its client's
//! certificate is of an authority that is gone. What can not be used leaves what is in use; that is logged once per
//! change, and a metric stays up until the files are good again.

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

/// Files that belong together may be caught between two changes; they are read until they hold still.
const STILL_AFTER: Duration = Duration::from_millis(20);
const STILL_TRIES: u32 = 50;

/// The certificate, key and authorities in use; every new connection asks.
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
    /// Why the files as they are now can not be used instead.
    refused: Option<String>,
}

impl fmt::Debug for TlsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keychain").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl TlsReloader {
    /// Reads everything; all faults at once.
    pub fn open(tls: TlsConfig, counters: TlsCounters) -> Result<Self, Vec<String>> {
        let material = TlsFiles::read(&tls)?;
        let loaded = material.load(&tls)?;
        tell(&loaded, &counters);
        let LoadedTls { config, authorities, validity } = loaded;
        let current = RwLock::new(Current { material, config, validity, refused: None });
        Ok(Self { tls, current, authorities: watch::Sender::new(authorities), counters })
    }

    /// From when to when the certificate in use is good.
    pub fn validity(&self) -> CertificateValidity {
        self.current.read().unwrap_or_else(PoisonError::into_inner).validity
    }

    /// Why the files as they are now are not in use; none where they are.
    pub fn refused(&self) -> Option<String> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    /// What a new connection is served with.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// The authorities of clients from now on. To be taken before [`Self::config`], so that no change is missed.
    pub fn trust(&self) -> Trust {
        Trust(self.authorities.subscribe())
    }

    /// The certificate in use and its key, as PEM: what this server shows where it is a client itself.
    pub fn own_pem(&self) -> (Vec<u8>, Vec<u8>) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (current.material.certificate.clone(), current.material.key.clone())
    }

    /// The authorities of clients, as PEM.
    pub fn client_ca_pem(&self) -> Option<Vec<u8>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).material.client_ca.clone()
    }

    /// Follows the files; never ends.
    pub async fn follow(self: Arc<Self>) {
        let all = [Some(&self.tls.certificate), Some(&self.tls.key), self.tls.client_ca.as_ref()];
        if all.into_iter().flatten().all(|pem| matches!(pem, Pem::Text(_))) {
            return pending().await;
        }
        let mut again = interval(self.tls.look_again_after);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refused = None;
        loop {
            again.tick().await;
            self.look(&mut refused).await;
        }
    }

    /// Looks at the files once. `refused` is what was there when they could not be used.
    async fn look(&self, refused: &mut Option<Result<TlsFiles, Vec<String>>>) {
        let found = self.still().await;
        let is_in_use = {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().is_ok_and(|found| *found == current.material)
        };
        if is_in_use {
            self.tell_refused(None);
            *refused = None;
            return;
        }
        if refused.as_ref() == Some(&found) {
            return;
        }
        let loaded = found.as_ref().map_err(Clone::clone).and_then(|material| material.load(&self.tls));
        match (found, loaded) {
            (Ok(material), Ok(loaded)) => {
                tell(&loaded, &self.counters);
                self.tell_refused(None);
                self.take(material, loaded);
                *refused = None;
                tracing::info!("new connections are served with the changed certificate");
            }
            (found, loaded) => {
                let faults = loaded.err().unwrap_or_default().join("; ");
                tracing::error!(faults, "the changed certificate can not be used; the one before stays");
                self.tell_refused(Some(faults));
                *refused = Some(found);
            }
        }
    }

    /// Serves new connections with this, and ends those that other authorities vouched for.
    fn take(&self, material: TlsFiles, LoadedTls { config, authorities, validity }: LoadedTls) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = current.material.client_ca != material.client_ca;
        *current = Current { material, config, validity, refused: None };
        drop(current);
        if is_other {
            self.authorities.send_replace(authorities);
        }
    }

    fn tell_refused(&self, why: Option<String>) {
        self.counters.reload_failing.set(if why.is_some() { 1.0 } else { 0.0 });
        self.current.write().unwrap_or_else(PoisonError::into_inner).refused = why;
    }

    /// The files once two looks in a row find the same.
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

/// Says until when the certificate is good.
fn tell(loaded: &LoadedTls, counters: &TlsCounters) {
    if let Some(ends_at) = loaded.validity.ends_at {
        let seconds = ends_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        counters.certificate_expires_at.set(seconds as f64);
    }
    if let Some(warning) = loaded.validity.warning(SystemTime::now()) {
        tracing::warn!("{warning}");
    }
}
