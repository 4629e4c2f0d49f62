//! The handle that a service holds: connect, layers, readiness, status, shutdown.

use std::sync::Arc;
use std::time::Duration;

use damper_core::repeat_limit::Served;
use damper_core::{Counters, Faults, Kill};
use tokio::runtime::Handle;

use crate::client::ClientLayer;
use crate::control::{Control, NotReady, Status};
use crate::options::Options;
use crate::routes::Engine;
use crate::server::ServerLayer;

/// Damper in this process, as one service.
///
/// Clones are the same one. Keep one for as long as the process serves: dropping the last ends the work in
/// the background; the layers stay, with the rules that were in force by then.
///
/// ```no_run
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// use damper_sdk::{Damper, Options};
///
/// let damper = Damper::connect(Options::new(["http://127.0.0.1:7600"]).service("orders"))?;
/// let to_inventory = damper.client_layer("inventory")?;
/// let server_layer = damper.server_layer();
/// # drop((to_inventory, server_layer));
/// // serve, and then:
/// damper.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Damper {
    engine: Arc<Engine>,
    control: Arc<Control>,
}

impl Damper {
    /// Begins to follow the control plane, in the background of the present tokio runtime. Never waits: until
    /// rules arrive nothing is retried, or the last known good ones apply, see [`Options::state_dir`].
    ///
    /// # Errors
    /// Everything that is wrong with the options and variables, at once; also if there is no tokio runtime.
    /// Not if the control plane is away.
    pub fn connect(options: Options) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        let settings = options.resolve().map_err(|found| faults.nest("", found)).ok();
        let runtime = Handle::try_current()
            .map_err(|_| faults.add("runtime", "there is none: connect from within a tokio runtime"))
            .ok();
        let (Some(settings), Some(runtime)) = (settings, runtime) else {
            return Err(faults);
        };
        let engine = Engine::new(&settings.identity.service, &settings.identity.cluster);
        engine.measure(settings.detail);
        let control = Control::start(settings, Arc::clone(&engine), &runtime);
        Ok(Self { engine, control: Arc::new(control) })
    }

    /// A layer for a channel to the service of this name, which is how that service names itself.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn client_layer(&self, callee_service: &str) -> Result<ClientLayer, Faults> {
        let callee = self.engine.callee(callee_service)?;
        Ok(ClientLayer::new(Arc::clone(&self.engine), callee))
    }

    /// A layer for the server of this process; the outermost one.
    #[must_use]
    pub fn server_layer(&self) -> ServerLayer {
        ServerLayer::new(Arc::clone(&self.engine))
    }

    /// Waits until live rules are in force, at most this long. A service need not wait: it works without.
    ///
    /// # Errors
    /// They did not arrive; what it runs on instead.
    pub async fn ready(&self, within: Duration) -> Result<(), NotReady> {
        self.control.ready(within).await
    }

    /// What this process runs on at present.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control.status()
    }

    /// Shows what has happened on each route that this process calls: callee service, callee method, counters
    /// since the process started. For a service's own metrics; the control plane has the same figures.
    pub fn for_each_route(&self, mut show: impl FnMut(&str, &str, &Counters)) {
        self.engine.for_each_route(|service, method, route| show(service, method, &route.state().counters));
    }

    /// Shows the kills in force in this process, and what is left of their time: for a service's own health page.
    pub fn for_each_kill(&self, show: impl FnMut(&Kill, Duration)) {
        self.engine.for_each_kill(show);
    }

    /// Shows what has arrived at each method that this process serves: first sends, repeats by who made them,
    /// repeats refused, since the process started. Nothing without a [server layer](Self::server_layer).
    pub fn for_each_served(&self, show: impl FnMut(&str, &Served)) {
        self.engine.methods().for_each(show);
    }

    /// Sends a last report, closes the stream and ends the work in the background, for all clones. Takes at
    /// most a few seconds, whatever the control plane does.
    pub async fn shutdown(&self) {
        self.control.shutdown().await;
    }
}
