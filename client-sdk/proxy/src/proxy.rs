//! The proxy: opens the listeners, serves, drains.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use damper_sdk::{Damper, Faults};
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::admin::{Admin, Metrics, Readiness};
use crate::config::Config;
use crate::context::{Contexts, MAX_REQUESTS};
use crate::counters::{Counters, Snapshot};
use crate::inbound::{Inbound, Reach};
use crate::listen::{self, Drain};
use crate::outbound::Outbound;

/// A proxy whose listeners are open.
pub struct Proxy {
    damper: Damper,
    addresses: Addresses,
    drain: Duration,
    inbound: Option<(TcpListener, Inbound)>,
    outbound: Vec<(TcpListener, Outbound)>,
    admin: TcpListener,
    counters: Arc<Counters>,
    reach: Option<Arc<Reach>>,
    more: Option<Metrics>,
}

/// The addresses of the listeners: ports that were 0 are those that the system chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For callers of the service.
    pub inbound: Option<SocketAddr>,
    /// For calls, in the order of the configuration.
    pub outbound: Vec<SocketAddr>,
    /// For operators.
    pub admin: SocketAddr,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A listener did not open.
    #[error("{path}: {address}: {source}")]
    Listen {
        /// Path in the configuration.
        path: String,
        /// Its address.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The name or the endpoints of a callee are wrong.
    #[error("{path}: {faults}")]
    Callee {
        /// Path in the configuration.
        path: String,
        /// The faults.
        faults: Faults,
    },
}

impl Proxy {
    /// Opens the listeners. The proxy serves once it [runs](Self::run).
    ///
    /// # Errors
    /// The first listener that does not open, or callee that is wrong.
    pub async fn bind(config: Config, damper: Damper) -> Result<Self, StartError> {
        let (contexts, counters) = (Contexts::new(MAX_REQUESTS), Arc::new(Counters::default()));
        let mut proxy = Self {
            addresses: Addresses { inbound: None, outbound: Vec::new(), admin: config.admin },
            admin: listener("admin", config.admin).await?,
            drain: config.drain,
            inbound: None,
            outbound: Vec::new(),
            counters: Arc::clone(&counters),
            reach: None,
            more: None,
            damper: damper.clone(),
        };
        proxy.addresses.admin = local("admin", &proxy.admin, config.admin)?;
        for (index, outbound) in config.outbound.into_iter().enumerate() {
            let path = format!("outbound[{index}]");
            let calls = Outbound::new(&outbound.callee, &damper, &contexts, &counters);
            let calls = calls.map_err(|faults| StartError::Callee { path: path.clone(), faults })?;
            let listener = listener(&path, outbound.listen).await?;
            proxy.addresses.outbound.push(local(&path, &listener, outbound.listen)?);
            proxy.outbound.push((listener, calls));
        }
        if let Some(inbound) = config.inbound {
            let listener = listener("inbound", inbound.listen).await?;
            proxy.addresses.inbound = Some(local("inbound", &listener, inbound.listen)?);
            let layer = if inbound.edge { damper.server_layer().edge() } else { damper.server_layer() };
            let reach = Arc::<Reach>::default();
            proxy.reach = Some(Arc::clone(&reach));
            proxy.inbound = Some((listener, Inbound { to: inbound.to, layer, contexts, counters, reach }));
        }
        Ok(proxy)
    }

    /// Adds metrics to `/metrics`, in the text format of Prometheus: those of the SDK, whose recorder belongs
    /// to the process.
    #[must_use]
    pub fn metrics(self, more: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { more: Some(Arc::new(more)), ..self }
    }

    /// Returns the addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns a function that reads what the proxy has counted so far.
    pub fn counters(&self) -> impl Fn() -> Snapshot + Send + Sync + use<> {
        let counters = Arc::clone(&self.counters);
        move || counters.snapshot()
    }

    /// Serves until `shutdown`, then drains for the time of the configuration. Callers go first: while their
    /// requests end, the service still makes calls. Ends the handle of the SDK.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (callers, calls, operators) = (Drain::default(), Drain::default(), Drain::default());
        let readiness = Readiness {
            damper: self.damper.clone(),
            reach: self.reach,
            inbound: callers.begins.clone(),
            began: Instant::now(),
        };
        let (counters, more) = (self.counters, self.more);
        let metrics = move || counters.text() + &more.as_ref().map(|more| more()).unwrap_or_default();
        let admin = Admin::new(move || readiness.problem().map(str::to_owned), metrics);
        let admin = admin.draining(callers.begins.clone());
        operators.tasks.spawn(admin.run(self.admin, operators.clone()));
        for (listener, outbound) in self.outbound {
            calls.tasks.spawn(serve_calls(listener, outbound, calls.clone()));
        }
        if let Some((listener, inbound)) = self.inbound {
            callers.tasks.spawn(inbound.run(listener, callers.clone()));
        }
        shutdown.await;
        let drained = async {
            callers.stopped().await;
            calls.stopped().await;
        };
        if tokio::time::timeout(self.drain, drained).await.is_err() {
            tracing::warn!(target: "damper", "requests did not end within the drain time");
        }
        operators.stops.cancel();
        self.damper.shutdown().await;
    }
}

async fn serve_calls(listener: TcpListener, outbound: Outbound, drain: Drain) {
    let stops = drain.stops.clone();
    listen::accept(listener, drain, |stream| {
        let (outbound, stops) = (outbound.clone(), stops.clone());
        let service = service_fn(move |request| outbound.clone().call(request));
        listen::serve(stream, service, stops.cancelled_owned())
    })
    .await;
}

async fn listener(path: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let path = format!("{path}.listen");
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { path, address, source })
}

fn local(path: &str, listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, StartError> {
    let path = format!("{path}.listen");
    listener.local_addr().map_err(|source| StartError::Listen { path, address, source })
}
