//! The listeners of a proxy, which follow its configuration.
//!
//! A listener whose address stays keeps its connections. What it serves is exchanged: calls take it as they
//! arrive, callers of the service and tunnels as they connect. A configuration with a fault changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use damper_sdk::{Damper, Faults};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{self, Config};
use crate::connect::Connect;
use crate::context::Contexts;
use crate::counters::Counters;
use crate::inbound::{Inbound, Reach, Tls};
use crate::listen::{self, Drain};
use crate::outbound::Outbound;

/// Why a proxy did not start, or did not follow a new configuration.
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
    /// A file of a certificate cannot be used.
    #[error("{path}: {problem}")]
    File {
        /// Path in the configuration.
        path: String,
        /// The file, with the reason.
        problem: String,
    },
    /// The name or the endpoints of a callee are wrong.
    #[error("{path}: {faults}")]
    Callee {
        /// Path in the configuration.
        path: String,
        /// The faults.
        faults: Faults,
    },
    /// The field cannot change while the proxy runs.
    #[error("{path}: a change takes effect only after a restart of the proxy")]
    Fixed {
        /// Path in the configuration.
        path: &'static str,
    },
}

/// What all listeners share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) damper: Damper,
    pub(crate) contexts: Arc<Contexts>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) reach: Arc<Reach>,
    /// Callers are sent away.
    pub(crate) draining: CancellationToken,
}

/// All listeners but the admin port.
pub(crate) struct Listeners {
    shared: Shared,
    service: Option<String>,
    admin: SocketAddr,
    pub(crate) inbound: Slots<config::Inbound, Arc<Inbound>>,
    pub(crate) outbound: Slots<config::Outbound, Outbound>,
    pub(crate) connect: Slots<config::Connect, Arc<Connect>>,
    /// Ends with the connections of listeners that were removed.
    leaving: TaskTracker,
}

/// The listeners of one kind.
pub(crate) type Slots<C, T> = Vec<Slot<C, T>>;

/// A listener, and what it serves.
pub(crate) struct Slot<C, T> {
    config: C,
    pub(crate) address: SocketAddr,
    serves: watch::Sender<T>,
    drain: Drain,
    /// `None` once it serves.
    listener: Option<TcpListener>,
}

/// The part of a configuration that has a listener.
pub(crate) trait Listen: PartialEq {
    fn listen(&self) -> SocketAddr;
}

impl Listen for config::Inbound {
    fn listen(&self) -> SocketAddr {
        self.listen
    }
}

impl Listen for config::Outbound {
    fn listen(&self) -> SocketAddr {
        self.listen
    }
}

impl Listen for config::Connect {
    fn listen(&self) -> SocketAddr {
        self.listen
    }
}

/// What becomes of a listener.
enum Step<C, T> {
    Keep(usize),
    Exchange(usize, C, T),
    Open(Slot<C, T>),
}

impl Listeners {
    /// Returns no listener yet; [`change`](Self::change) opens those of the configuration.
    pub(crate) fn new(shared: Shared, config: &Config) -> Self {
        Self {
            shared,
            service: config.service.clone(),
            admin: config.admin,
            inbound: Vec::new(),
            outbound: Vec::new(),
            connect: Vec::new(),
            leaving: TaskTracker::new(),
        }
    }

    /// Follows a configuration.
    ///
    /// # Errors
    /// All faults of it that show only now. Nothing has changed then.
    pub(crate) async fn change(&mut self, config: Config) -> Result<(), Vec<StartError>> {
        let mut faults = Vec::new();
        for (path, stays) in
            [("service", config.service == self.service), ("admin", config.admin == self.admin)]
        {
            if !stays {
                faults.push(StartError::Fixed { path });
            }
        }
        let Shared { damper, contexts, counters, reach, draining } = &self.shared;
        let has_changed = config.inbound.as_ref() != self.inbound.first().map(|slot| &slot.config);
        let settings =
            config.inbound.as_ref().filter(|_| has_changed).and_then(|inbound| inbound.tls.clone());
        let tls = open(settings, counters, &mut faults).await;
        let inbound = |inbound: &config::Inbound| {
            let layer = if inbound.edge { damper.server_layer().edge() } else { damper.server_layer() };
            let (contexts, counters) = (Arc::clone(contexts), Arc::clone(counters));
            let (to, is_edge) = (inbound.to, inbound.edge);
            let (reach, tls) = (Arc::clone(reach), tls.clone());
            Ok(Arc::new(Inbound { to, layer, contexts, counters, reach, is_edge, tls }))
        };
        let outbound = |outbound: &config::Outbound| {
            Outbound::new(&outbound.callee, Some(outbound.listen), damper, contexts, counters)
        };
        let connect = |connect: &config::Connect| {
            Connect::new(connect.clone(), damper, contexts, counters).map(Arc::new)
        };
        let path = |kind: &'static str| move |_: usize| kind.to_owned();
        let callers = Drain { begins: draining.clone(), ..Drain::default() };
        let inbound =
            plan(&self.inbound, config.inbound, path("inbound"), inbound, &callers, &mut faults).await;
        let each = |index| format!("outbound[{index}]");
        let drain = Drain::default();
        let outbound = plan(&self.outbound, config.outbound, each, outbound, &drain, &mut faults).await;
        let connect =
            plan(&self.connect, config.connect, path("connect"), connect, &drain, &mut faults).await;
        if !faults.is_empty() {
            return Err(faults);
        }
        self.shared.reach.needs(!inbound.is_empty());
        if has_changed {
            self.shared.counters.tls_fault(None);
        }
        commit(&mut self.inbound, inbound, &self.leaving);
        commit(&mut self.outbound, outbound, &self.leaving);
        commit(&mut self.connect, connect, &self.leaving);
        Ok(())
    }

    /// Serves on all listeners that do not yet.
    pub(crate) fn serve(&mut self) {
        for slot in &mut self.inbound {
            slot.serve(Inbound::run);
        }
        for slot in &mut self.outbound {
            slot.serve(serve_calls);
        }
        for slot in &mut self.connect {
            slot.serve(serve_tunnels);
        }
    }

    /// Stops. Callers go first: while their requests end, the service still makes calls.
    pub(crate) async fn stopped(self) {
        stop(self.inbound).await;
        tokio::join!(stop(self.outbound), stop(self.connect));
        self.leaving.close();
        self.leaving.wait().await;
    }
}

/// Reads the files of the callers' TLS, and adds the faults.
async fn open(
    settings: Option<config::InboundTls>,
    counters: &Arc<Counters>,
    faults: &mut Vec<StartError>,
) -> Option<Arc<Tls>> {
    let (settings, counters) = (settings?, Arc::clone(counters));
    let opening = tokio::task::spawn_blocking(move || Tls::open(settings, &counters));
    match opening.await.expect("it does not panic") {
        Ok(tls) => Some(Arc::new(tls)),
        Err(found) => {
            for fault in found.iter() {
                let (path, problem) = (fault.path.clone(), fault.problem.clone());
                faults.push(StartError::File { path, problem });
            }
            None
        }
    }
}

/// Returns what becomes of the listeners, and adds the faults.
async fn plan<C: Listen, T>(
    slots: &Slots<C, T>,
    wanted: impl IntoIterator<Item = C>,
    path: impl Fn(usize) -> String,
    make: impl Fn(&C) -> Result<T, Faults>,
    drain: &Drain,
    faults: &mut Vec<StartError>,
) -> Vec<Step<C, T>> {
    let mut free: Vec<usize> = (0..slots.len()).collect();
    let mut steps = Vec::new();
    for (index, config) in wanted.into_iter().enumerate() {
        // Several can have port 0: each keeps its own.
        let same = free.iter().position(|at| slots[*at].config == config);
        let same = same.or_else(|| free.iter().position(|at| slots[*at].config.listen() == config.listen()));
        let kept = same.map(|place| free.remove(place));
        if let Some(at) = kept.filter(|at| slots[*at].config == config) {
            steps.push(Step::Keep(at));
            continue;
        }
        let serves = match make(&config) {
            Ok(serves) => serves,
            Err(found) => {
                faults.push(StartError::Callee { path: path(index), faults: found });
                continue;
            }
        };
        match kept {
            Some(at) => steps.push(Step::Exchange(at, config, serves)),
            None => match Slot::open(&path(index), config, serves, drain).await {
                Ok(slot) => steps.push(Step::Open(slot)),
                Err(fault) => faults.push(fault),
            },
        }
    }
    steps
}

fn commit<C, T>(slots: &mut Slots<C, T>, steps: Vec<Step<C, T>>, leaving: &TaskTracker) {
    let mut before: Vec<_> = std::mem::take(slots).into_iter().map(Some).collect();
    for step in steps {
        let kept = match step {
            Step::Keep(at) => before[at].take(),
            Step::Exchange(at, config, serves) => before[at].take().map(|slot| {
                slot.serves.send_replace(serves);
                Slot { config, ..slot }
            }),
            Step::Open(slot) => Some(slot),
        };
        slots.extend(kept);
    }
    for slot in before.into_iter().flatten() {
        let drain = slot.drain;
        leaving.spawn(async move { drain.stopped().await });
    }
}

async fn stop<C, T>(slots: Slots<C, T>) {
    let drains: Vec<_> = slots.into_iter().map(|slot| slot.drain).collect();
    drains.iter().for_each(Drain::stop);
    for drain in drains {
        drain.stopped().await;
    }
}

impl<C: Listen, T> Slot<C, T> {
    async fn open(path: &str, config: C, serves: T, drain: &Drain) -> Result<Self, StartError> {
        let listener = listener(path, config.listen()).await?;
        let (serves, _) = watch::channel(serves);
        // The tasks and the end are its own, only the beginning of a drain is shared.
        let drain = Drain { begins: drain.begins.child_token(), ..Drain::default() };
        Ok(Self { config, address: listener.1, serves, drain, listener: Some(listener.0) })
    }

    fn serve<F>(&mut self, run: impl FnOnce(TcpListener, watch::Receiver<T>, Drain) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(listener) = self.listener.take() {
            self.drain.tasks.spawn(run(listener, self.serves.subscribe(), self.drain.clone()));
        }
    }
}

async fn serve_calls(listener: TcpListener, serves: watch::Receiver<Outbound>, drain: Drain) {
    let stops = drain.stops.clone();
    listen::accept(listener, drain, |stream| {
        let (serves, stops) = (serves.clone(), stops.clone());
        let service = service_fn(move |request| {
            let outbound = serves.borrow().clone();
            outbound.call(request)
        });
        listen::serve(stream, service, stops.cancelled_owned())
    })
    .await;
}

async fn serve_tunnels(listener: TcpListener, serves: watch::Receiver<Arc<Connect>>, drain: Drain) {
    let stops = drain.stops.clone();
    let mut newest = serves.clone();
    let tidy = async {
        loop {
            let connect = Arc::clone(&newest.borrow_and_update());
            tokio::select! {
                () = connect.tidy() => {}
                changed = newest.changed() => if changed.is_err() { return std::future::pending().await },
            }
        }
    };
    let accept = listen::accept(listener, drain, |stream: TcpStream| {
        let (mut serves, stops) = (serves.clone(), stops.clone());
        let connect = Arc::clone(&serves.borrow_and_update());
        let goodbye = async move {
            tokio::select! {
                () = stops.cancelled() => {}
                // Its configuration has changed, or the listener has gone.
                _ = serves.changed() => {}
            }
        };
        connect.serve(stream, goodbye)
    });
    tokio::select! {
        () = accept => {}
        () = tidy => {}
    }
}

/// Opens a listener; returns it with its address.
pub(crate) async fn listener(
    path: &str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let fault = |source| StartError::Listen { path: format!("{path}.listen"), address, source };
    let listener = TcpListener::bind(address).await.map_err(fault)?;
    let local = listener.local_addr().map_err(fault)?;
    Ok((listener, local))
}
