//! The proxy: opens the listeners, serves, follows its configuration, drains.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use damper_sdk::Damper;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::{Admin, Metrics, Readiness};
use crate::config::Config;
use crate::context::{Contexts, MAX_REQUESTS};
use crate::counters::{Counters, Snapshot};
use crate::follow::Follow;
use crate::inbound::Reach;
use crate::listen::Drain;
use crate::listeners::{Listeners, Shared, StartError, listener};

/// A proxy whose listeners are open.
pub struct Proxy {
    shared: Shared,
    addresses: Addresses,
    drain: Duration,
    listeners: Listeners,
    admin: TcpListener,
    more: Option<Metrics>,
    follow: Option<Follow>,
}

/// The addresses of the listeners: ports that were 0 are those that the system chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For callers of the service.
    pub inbound: Option<SocketAddr>,
    /// For calls, in the order of the configuration.
    pub outbound: Vec<SocketAddr>,
    /// For calls by HTTP CONNECT.
    pub connect: Option<SocketAddr>,
    /// For operators.
    pub admin: SocketAddr,
}

impl Proxy {
    /// Opens the listeners. The proxy serves once it [runs](Self::run).
    ///
    /// # Errors
    /// All listeners that do not open, and callees that are wrong.
    pub async fn bind(config: Config, damper: Damper) -> Result<Self, Vec<StartError>> {
        let shared = Shared {
            damper,
            contexts: Contexts::new(MAX_REQUESTS),
            counters: Arc::new(Counters::default()),
            reach: Arc::new(Reach::default()),
            draining: CancellationToken::new(),
        };
        let (admin, address) = listener("admin", config.admin).await.map_err(|fault| vec![fault])?;
        let (drain, mut listeners) = (config.drain, Listeners::new(shared.clone(), &config));
        listeners.change(config).await?;
        let addresses = Addresses {
            inbound: listeners.inbound.first().map(|slot| slot.address),
            outbound: listeners.outbound.iter().map(|slot| slot.address).collect(),
            connect: listeners.connect.first().map(|slot| slot.address),
            admin: address,
        };
        Ok(Self { shared, addresses, drain, listeners, admin, more: None, follow: None })
    }

    /// Adds metrics to `/metrics`, in the text format of Prometheus: those of the SDK, whose recorder belongs
    /// to the process.
    #[must_use]
    pub fn metrics(self, more: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { more: Some(Arc::new(more)), ..self }
    }

    /// Follows the file of the configuration: changes apply while the proxy runs.
    #[must_use]
    pub fn follow(self, follow: Follow) -> Self {
        Self { follow: Some(follow), ..self }
    }

    /// Returns the addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns a function that reads what the proxy has counted so far.
    pub fn counters(&self) -> impl Fn() -> Snapshot + Send + Sync + use<> {
        let counters = Arc::clone(&self.shared.counters);
        move || counters.snapshot()
    }

    /// Serves until `shutdown`, then drains for the time of the configuration. Callers go first: while their
    /// requests end, the service still makes calls. Ends the handle of the SDK.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { shared, mut drain, mut listeners, admin: listener, more, mut follow, .. } = self;
        let Shared { damper, counters, reach, draining, .. } = shared;
        let operators = Drain::default();
        let (inbound, began) = (draining.clone(), Instant::now());
        let readiness = Readiness { damper: damper.clone(), reach, inbound, began };
        let (counted, noted) = (Arc::clone(&counters), Arc::clone(&counters));
        let metrics = move || counted.text() + &more.as_ref().map(|more| more()).unwrap_or_default();
        let admin = Admin::new(move || readiness.problem().map(str::to_owned), metrics);
        let admin = admin.draining(draining.clone()).noting(move || noted.rejection());
        operators.tasks.spawn(admin.run(listener, operators.clone()));
        listeners.serve();
        let following = async {
            let Some(follow) = &mut follow else { return std::future::pending::<()>().await };
            let mut waiting = None;
            loop {
                let (changed, is_again) = match (follow.changed(waiting.is_some()).await, waiting.take()) {
                    (Some(changed), _) => (changed, false),
                    (None, Some(config)) => (Ok(config), true),
                    (None, None) => continue,
                };
                match apply(follow, changed, is_again, &mut listeners, &counters).await {
                    Applied::InForce(changed) => drain = changed,
                    Applied::Waits(config) => waiting = Some(*config),
                    Applied::Rejected => {}
                }
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = following => {}
        }
        draining.cancel();
        if tokio::time::timeout(drain, listeners.stopped()).await.is_err() {
            tracing::warn!(target: "damper", "requests did not end within the drain time");
        }
        operators.stops.cancel();
        damper.shutdown().await;
    }
}

/// What became of a changed configuration.
enum Applied {
    /// It is in force, with this drain time.
    InForce(Duration),
    /// A listener did not open or a file was not there, which may be otherwise later.
    Waits(Box<Config>),
    Rejected,
}

/// Applies what was read of a changed file.
async fn apply(
    follow: &Follow,
    changed: Result<Config, String>,
    is_again: bool,
    listeners: &mut Listeners,
    counters: &Counters,
) -> Applied {
    let file = follow.file().display();
    let (problem, waits) = match changed {
        Ok(config) => match listeners.change(config.clone()).await {
            Ok(()) => {
                counters.applied();
                listeners.serve();
                tracing::info!(target: "damper", %file, "changed configuration in force");
                return Applied::InForce(config.drain);
            }
            Err(faults) => {
                let may_pass =
                    |fault: &_| matches!(fault, StartError::Listen { .. } | StartError::File { .. });
                let waits = faults.iter().all(may_pass);
                let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
                (lines.join("\n"), waits.then_some(config))
            }
        },
        Err(problem) => (problem, None),
    };
    if !is_again {
        tracing::error!(target: "damper", %file, %problem, "configuration rejected; the former one stays in force");
    }
    counters.rejected(problem, is_again);
    waits.map_or(Applied::Rejected, |config| Applied::Waits(Box::new(config)))
}
