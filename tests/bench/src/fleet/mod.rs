//! Many processes of services as a control plane sees them, and the `damper serve` that they are connected to.
//!
//! The clients are not the SDK but speak its protocol, so that thousands of them fit beside the server.

mod client;
mod held;
pub mod raw;
mod rules;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use self::client::Client;
pub use self::held::{HeldFleet, Holding, hold};
pub use self::rules::{apply, put, put_late, put_request, rule, write_rules};
pub(crate) use self::server::certificate;
pub use self::server::{Door, Server, Settings};

/// How many clients connect at the same time.
const CONNECTING: usize = 64;
/// How long clients get until all are connected, and a change until all have it.
const PATIENCE: Duration = Duration::from_secs(180);

/// Told when a client has a change.
type Tell = mpsc::UnboundedSender<Instant>;

/// All clients: they stay as long as this does.
#[derive(Debug)]
pub struct Fleet {
    size: usize,
    connected: watch::Sender<usize>,
    tell: watch::Sender<Option<Tell>>,
    reported_routes: watch::Sender<usize>,
    failed: watch::Sender<Option<String>>,
}

impl Fleet {
    /// Connects so many clients; each reports this many routes every 5 s (0: it reports nothing), as an SDK does
    /// whose routes are called.
    ///
    /// # Errors
    /// They are not all connected in time.
    pub async fn connect(door: &Door, size: usize, reported_routes: usize) -> Result<Self> {
        let fleet = Self {
            size,
            connected: watch::Sender::new(0),
            tell: watch::Sender::new(None),
            reported_routes: watch::Sender::new(reported_routes),
            failed: watch::Sender::new(None),
        };
        let slots = Arc::new(Semaphore::new(CONNECTING));
        for place in 0..size {
            let slot = Arc::clone(&slots).acquire_owned().await?;
            tokio::spawn(Client::new(place, door.clone(), &fleet).run(slot));
        }
        let mut connected = fleet.connected.subscribe();
        if timeout(PATIENCE, connected.wait_for(|connected| *connected >= size)).await.is_err() {
            fleet.check()?;
            bail!("{} of {size} clients connected", *fleet.connected.borrow());
        }
        Ok(fleet)
    }

    /// From now on each client reports this many routes every 5 s; 0: nothing.
    pub fn report(&self, routes: usize) {
        self.reported_routes.send_replace(routes);
    }

    /// Fails where a client has.
    ///
    /// # Errors
    /// Why the last one did.
    pub fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    }

    /// Makes a change that concerns every client, and says how long after that each of them had taken it and
    /// answered, in seconds, ascending.
    ///
    /// # Errors
    /// It is not made, or did not reach all of them in time.
    pub async fn arrival(&self, change: impl Future<Output = Result<()>>) -> Result<Vec<f64>> {
        let (tell, mut told) = mpsc::unbounded_channel();
        self.tell.send_replace(Some(tell));
        let begun = Instant::now();
        change.await?;
        let mut seconds = Vec::with_capacity(self.size);
        while seconds.len() < self.size {
            let arrived = timeout(PATIENCE, told.recv()).await;
            let arrived = arrived.with_context(|| format!("{} of {} have it", seconds.len(), self.size))?;
            let at = arrived.context("the clients are gone")?;
            seconds.push(at.saturating_duration_since(begun).as_secs_f64());
        }
        self.check()?;
        seconds.sort_by(f64::total_cmp);
        Ok(seconds)
    }
}
