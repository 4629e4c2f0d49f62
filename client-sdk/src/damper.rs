//! The handle that a service holds: connect, layers, readiness, status, shutdown.

use std::sync::Arc;
use std::time::Duration;

use damper_core::repeat_limit::Served;
use damper_core::{Counters, Faults, Kill, Table};
use tokio::runtime::Handle;

use crate::client::ClientLayer;
use crate::control::{Control, NotReady, Source, Status};
use crate::identity::DEFAULT_CLUSTER;
use crate::options::Options;
use crate::routes::Runtime;
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
    engine: Arc<Runtime>,
    rules: Rules,
}

/// Where the rules come from.
#[derive(Clone, Debug)]
enum Rules {
    Followed(Arc<Control>),
    /// As many as were given when it was made.
    Fixed(usize),
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
        let engine = Runtime::new(&settings.identity.service, &settings.identity.cluster);
        engine.measure(settings.detail);
        let control = Control::start(settings, Arc::clone(&engine), &runtime);
        Ok(Self { engine, rules: Rules::Followed(Arc::new(control)) })
    }

    /// Damper without rules and without a control plane: calls pass. For tests, and for a service that goes on
    /// where [`connect`](Self::connect) fails.
    ///
    /// It reads no variable, starts nothing in the background and needs no runtime.
    ///
    /// ```
    /// let damper = damper_sdk::Damper::off();
    /// assert!(damper.client_layer("inventory").is_ok());
    /// ```
    #[must_use]
    pub fn off() -> Self {
        Self::with_table("off", Table::default())
    }

    /// Damper with these rules and guards for as long as it lives, and no control plane: for tests of what a handler
    /// does under a rule. The manifests are those that `damper apply` takes; `service` is the caller in their keys, in
    /// the cluster `default`.
    ///
    /// It reads no variable and starts nothing in the background.
    ///
    /// ```
    /// let rule = r#"
    ///     kind: Rule
    ///     key: { caller_service: shop, caller_cluster: "*", callee_service: price, callee_method: "*" }
    ///     policy: { mode: enforce, retry: { max_attempts: 3 } }
    /// "#;
    /// let damper = damper_sdk::Damper::fixed("shop", rule)?;
    /// assert_eq!(damper.status().rules, 1);
    /// # Ok::<(), damper_sdk::Faults>(())
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with the name and the manifests, at once.
    #[cfg(feature = "manifest")]
    pub fn fixed(service: &str, manifests: &str) -> Result<Self, Faults> {
        use damper_core::key;
        use damper_proto::manifest;

        let mut faults = Faults::none();
        key::check_name("service", service, &mut faults);
        let read = manifest::parse(manifests).and_then(|documents| manifest::check(&documents));
        let checked = read.unwrap_or_else(|error| {
            for problem in &error.problems {
                faults.add("manifests", problem.to_string());
            }
            manifest::Checked::default()
        });
        let mut table = Table::default();
        for rule in checked.rules {
            table.insert(Arc::new(rule));
        }
        for guard in checked.guards {
            table.insert_guard(Arc::new(guard));
        }
        faults.or(Self::with_table(service, table))
    }

    fn with_table(service: &str, table: Table) -> Self {
        let (engine, rules) = (Runtime::new(service, DEFAULT_CLUSTER), table.len());
        engine.apply(table);
        Self { engine, rules: Rules::Fixed(rules) }
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
        match &self.rules {
            Rules::Followed(control) => control.ready(within).await,
            Rules::Fixed(_) => Ok(()),
        }
    }

    /// What this process runs on at present.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.rules {
            Rules::Followed(control) => control.status(),
            Rules::Fixed(rules) => Status { source: Source::Fixed, rules: *rules, ..Status::default() },
        }
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
        if let Rules::Followed(control) = &self.rules {
            control.shutdown().await;
        }
    }
}
