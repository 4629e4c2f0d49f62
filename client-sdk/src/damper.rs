//! The handle of a service: connect, layers, readiness, status, shutdown.

use std::sync::Arc;
use std::time::Duration;

use damper_core::repeat_limit::Served;
use damper_core::{Counters, Faults, Kill, Table, key};
use damper_retry::ByType;
use tokio::runtime::Handle;

use crate::client::ClientLayer;
use crate::control::{Control, NotReady, Source, Status};
use crate::operation::{Governed, Operation};
use crate::options::Options;
use crate::options::identity::DEFAULT_CLUSTER;
#[cfg(feature = "queue")]
use crate::queue::Queues;
use crate::routes::Runtime;
use crate::server::ServerLayer;

/// Damper in this process, as one service.
///
/// Clones share one instance. Keep one as long as the process serves: dropping the last ends the background
/// task. The layers continue with the rules then in force.
///
/// ```no_run
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// use damper_sdk::{Damper, Options};
///
/// let damper = Damper::connect(Options::new(["http://127.0.0.1:7600"]).service("orders"))?;
/// let to_inventory = damper.client_layer("inventory")?;
/// let server_layer = damper.server_layer();
/// # drop((to_inventory, server_layer));
/// // After serving:
/// damper.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Damper {
    engine: Arc<Runtime>,
    rules: Rules,
    #[cfg(feature = "queue")]
    queues: Arc<Queues>,
}

/// Source of the rules.
#[derive(Clone, Debug)]
enum Rules {
    Followed(Arc<Control>),
    /// The number of rules.
    Fixed(usize),
}

impl Damper {
    /// Starts to follow the control plane, in the background of the current tokio runtime, and returns at
    /// once. Until rules arrive nothing is retried, or the rules of the state file apply, see
    /// [`Options::state_dir`].
    ///
    /// # Errors
    /// All problems of the options and variables together, or there is no tokio runtime. A control plane that
    /// is unavailable is no error.
    pub fn connect(options: Options) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        let settings = options.resolve().map_err(|found| faults.nest("", found)).ok();
        let runtime = Handle::try_current()
            .map_err(|_| faults.add("runtime", "required; call `connect` within a tokio runtime"))
            .ok();
        let (Some(settings), Some(runtime)) = (settings, runtime) else {
            return Err(faults);
        };
        let engine = Runtime::new(&settings.identity.service, &settings.identity.cluster);
        engine.measure(settings.detail);
        #[cfg(feature = "queue")]
        let queues = Arc::new(Queues::new(&settings, &engine));
        let control = Control::start(settings, Arc::clone(&engine), &runtime);
        Ok(Self {
            engine,
            rules: Rules::Followed(Arc::new(control)),
            #[cfg(feature = "queue")]
            queues,
        })
    }

    /// Returns Damper without rules and control plane: calls pass unchanged. For tests, and for services that
    /// continue if [`connect`](Self::connect) fails.
    ///
    /// Reads no variables, starts no background task and needs no runtime.
    ///
    /// ```
    /// let damper = damper_sdk::Damper::off();
    /// assert!(damper.client_layer("inventory").is_ok());
    /// ```
    #[must_use]
    pub fn off() -> Self {
        Self::with_table("off", Table::default())
    }

    /// Returns Damper with fixed rules and guards, without a control plane, to test how a handler behaves
    /// under a rule. The manifests have the format of `damper apply`. `service` is the caller in their keys,
    /// in the cluster `default`.
    ///
    /// Reads no variables and starts no background task.
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
    /// All problems of the name and the manifests together.
    #[cfg(feature = "manifest")]
    pub fn fixed(service: &str, manifests: &str) -> Result<Self, Faults> {
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
        Self {
            #[cfg(feature = "queue")]
            queues: Arc::new(Queues::off(&engine)),
            engine,
            rules: Rules::Fixed(rules),
        }
    }

    /// Returns a layer for channels to the service of this name, which must be the name that the service
    /// itself uses.
    ///
    /// # Errors
    /// The problem with the name.
    pub fn client_layer(&self, callee_service: &str) -> Result<ClientLayer, Faults> {
        let callee = self.engine.callee(callee_service)?;
        Ok(ClientLayer::new(Arc::clone(&self.engine), callee))
    }

    /// Returns any async call as the route `method` to `callee_service`: a database statement, an HTTP
    /// request, a message to a broker. The route has rules, guards, kills and statistics like one of gRPC
    /// calls.
    ///
    /// `method` has the form `group/name`. Use few and fixed names: as of gRPC methods, 1,000 are
    /// distinguished.
    ///
    /// ```
    /// # use std::io;
    /// # async fn insert() -> io::Result<u64> { Ok(1) }
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let damper = damper_sdk::Damper::off();
    /// let orders_insert = damper.operation("billing-db", "orders/insert")?;
    /// let rows = orders_insert.call(async |_| insert().await).await?;
    /// # assert_eq!(rows, 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The problems with the names.
    pub fn operation(&self, callee_service: &str, method: &str) -> Result<Operation, Faults> {
        let mut faults = Faults::none();
        key::check_method("callee_method", method, &mut faults);
        let callee = self.engine.callee(callee_service).map_err(|found| faults.nest("", found)).ok();
        let Some(callee) = callee.filter(|_| faults.is_empty()) else { return Err(faults) };
        let source = Governed::new(Arc::clone(&self.engine), callee, method);
        Ok(Operation::from_source(format!("{callee_service} {method}"), source, ByType))
    }

    /// Returns a layer for HTTP clients of the service of this name.
    ///
    /// # Errors
    /// The problem with the name.
    #[cfg(feature = "http")]
    pub fn http_client(&self, callee_service: &str) -> Result<crate::http::HttpClientLayer, Faults> {
        let callee = self.engine.callee(callee_service)?;
        Ok(crate::http::HttpClientLayer::new(Arc::clone(&self.engine), callee))
    }

    /// Returns the layer for an HTTP server of this process, such as axum. It must be the outermost layer.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http_server_layer(&self) -> crate::http::HttpServerLayer {
        crate::http::HttpServerLayer::new(Arc::clone(&self.engine))
    }

    /// Returns the layer for the server of this process. It must be the outermost layer.
    #[must_use]
    pub fn server_layer(&self) -> ServerLayer {
        ServerLayer::new(Arc::clone(&self.engine))
    }

    /// Returns the durable queues, to submit jobs.
    ///
    /// ```no_run
    /// # async fn submit(damper: damper_sdk::Damper) -> Result<(), damper_sdk::queue::SubmitError> {
    /// use damper_sdk::queue::NewJob;
    ///
    /// let job = NewJob::new("emails", "welcome-17", "mailer", "mail.Mailer/Welcome");
    /// let job = job.body("ann@example.com");
    /// damper.jobs().submit(job).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "queue")]
    #[must_use]
    pub fn jobs(&self) -> crate::queue::Jobs {
        self.queues.jobs()
    }

    /// Returns a worker for the jobs of a queue, which [`handle`](crate::queue::Worker::handle) or
    /// [`forward`](crate::queue::Worker::forward) completes.
    ///
    /// ```no_run
    /// # use damper_sdk::{Damper, Faults};
    /// # fn start(damper: Damper, channel: tonic::transport::Channel) -> Result<(), Faults> {
    /// damper.worker("stock-later").forward("inventory", channel.clone()).concurrency(32).start()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "queue")]
    #[must_use]
    pub fn worker(&self, queue: &str) -> crate::queue::Worker {
        self.queues.worker(queue)
    }

    /// Returns the results of hand-overs since the process started.
    #[cfg(feature = "queue")]
    #[must_use]
    pub fn hand_overs(&self) -> crate::queue::HandOverStats {
        self.queues.hand_overs()
    }

    /// Waits until live rules are in force, at most this long. Optional: a service works without.
    ///
    /// # Errors
    /// The rules did not arrive; contains the status.
    pub async fn ready(&self, within: Duration) -> Result<(), NotReady> {
        match &self.rules {
            Rules::Followed(control) => control.ready(within).await,
            Rules::Fixed(_) => Ok(()),
        }
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.rules {
            Rules::Followed(control) => control.status(),
            Rules::Fixed(rules) => Status { source: Source::Fixed, rules: *rules, ..Status::default() },
        }
    }

    /// Calls `show` for each route that this process calls: callee service, callee method, counters since the
    /// process started. For a service's own metrics; the control plane has the same statistics.
    pub fn for_each_route(&self, mut show: impl FnMut(&str, &str, &Counters)) {
        self.engine.for_each_route(|service, method, route| show(service, method, &route.state().counters));
    }

    /// Calls `show` for each kill in force with its time left, for a service's own health page.
    pub fn for_each_kill(&self, show: impl FnMut(&Kill, Duration)) {
        self.engine.for_each_kill(show);
    }

    /// Calls `show` for each method that this process serves: first attempts, retries by origin and retries
    /// rejected since the process started. Empty without a [server layer](Self::server_layer).
    pub fn for_each_served(&self, show: impl FnMut(&str, &Served)) {
        self.engine.methods().for_each(show);
    }

    /// Sends a last report, closes the stream and ends the background task, for all clones. Takes a few
    /// seconds at most, even if the control plane is unavailable. Workers of queues stop before, within their
    /// drain time.
    pub async fn shutdown(&self) {
        #[cfg(feature = "queue")]
        self.queues.shutdown().await;
        if let Rules::Followed(control) = &self.rules {
            control.shutdown().await;
        }
    }
}

#[cfg(feature = "fuzzing")]
impl crate::fuzzing::FuzzHarness {
    /// As [`Damper::client_layer`](crate::Damper::client_layer).
    ///
    /// # Errors
    /// The problem with the name.
    pub fn client_layer(&self, callee_service: &str) -> Result<ClientLayer, Faults> {
        let callee = self.engine().callee(callee_service)?;
        Ok(ClientLayer::new(Arc::clone(self.engine()), callee))
    }

    /// As [`Damper::server_layer`](crate::Damper::server_layer).
    #[must_use]
    pub fn server_layer(&self) -> ServerLayer {
        ServerLayer::new(Arc::clone(self.engine()))
    }
}
