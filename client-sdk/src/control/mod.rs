//! The control plane's side of the SDK: rules in, reports out, in the background.
//!
//! One task does all of it, [in parts](background): the stream (which first takes up what is on disk), the override
//! file, the writer of the rules on disk, and with the feature `metrics` the publishing of counters. It holds what
//! the parts [share](Shared), never the [`Damper`](crate::Damper) itself, so that dropping its last clone ends it.
//!
//! The runtime is the application's. What takes time (a long table, the disk, the override file) is done on
//! threads beside it.

mod applier;
mod background;
mod channel;
mod failed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod keep;
mod last_known_good;
mod opening;
pub(crate) mod overrides;
#[cfg(feature = "metrics")]
mod publish;
mod reconnect;
mod report;
mod status;
mod stream;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use damper_core::Mode;
use damper_proto::v1;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::applier::{Applier, ApplyOutcome, Position, Present, Response, Told};
use self::keep::Persister;
use self::last_known_good::StateFile;
use self::overrides::Override;
pub use self::status::{NotReady, Source, Status};
use crate::options::Settings;
use crate::routes::Runtime;

const SDK_VERSION: &str = env!("CARGO_PKG_VERSION");
/// A disk that hangs must not hold up the end of the process.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The background work of one `Damper`; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<ControlContext>,
    stop: watch::Sender<bool>,
    /// Waited for by each one that ends it.
    task: tokio::sync::Mutex<JoinHandle<()>>,
}

/// What the parts of the background work share.
#[derive(Debug)]
struct ControlContext {
    settings: Settings,
    engine: Arc<Runtime>,
    applier: Mutex<Applier>,
    status: watch::Sender<Status>,
    keeper: Persister,
    place: Option<StateFile>,
    /// Held by the part that follows it.
    override_file: tokio::sync::Mutex<Option<Override>>,
    /// True once the override file was read, so that no rules run ahead of it.
    override_read: watch::Sender<bool>,
    /// True once the rules on disk were taken up: a stream that starts again must not go back to them.
    started: AtomicBool,
}

/// Tells a part when to end.
#[derive(Clone, Debug)]
struct Stop(watch::Receiver<bool>);

impl Control {
    /// Begins the background work on this runtime; returns at once.
    pub(crate) fn start(settings: Settings, engine: Arc<Runtime>, runtime: &Handle) -> Self {
        let shared = Arc::new(ControlContext::new(settings, engine));
        shared.limit_mode(None);
        let (stop, stopped) = watch::channel(false);
        let task = runtime.spawn(background::run(Arc::clone(&shared), Stop(stopped)));
        Self { shared, stop, task: tokio::sync::Mutex::new(task) }
    }

    pub(crate) fn status(&self) -> Status {
        self.shared.status()
    }

    /// Waits until live rules are in force.
    pub(crate) async fn ready(&self, within: Duration) -> Result<(), NotReady> {
        let mut status = self.shared.status.subscribe();
        let live = status.wait_for(|status| status.source == Source::Live);
        match tokio::time::timeout(within, live).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotReady { waited: within, status: self.status() }),
        }
    }

    /// Ends the background work: a last report, the stream closed, the rules on disk.
    pub(crate) async fn shutdown(&self) {
        self.stop.send_replace(true);
        let ended = async {
            let mut task = self.task.lock().await;
            // An error of its own is that the runtime ended before.
            if !task.is_finished() {
                let _ = (&mut *task).await;
            }
        };
        if tokio::time::timeout(END_WITHIN, ended).await.is_err() {
            tracing::warn!("Damper's background work has not ended within {END_WITHIN:?}");
        }
    }
}

impl ControlContext {
    fn new(settings: Settings, engine: Arc<Runtime>) -> Self {
        let place = settings.state_dir.as_deref().map(|folder| StateFile::new(folder, &settings.identity));
        let override_file = settings.override_file.clone().map(Override::new);
        Self {
            settings,
            engine,
            applier: Mutex::default(),
            status: watch::Sender::default(),
            keeper: Persister::new(),
            place,
            override_file: override_file.into(),
            override_read: watch::Sender::default(),
            started: AtomicBool::new(false),
        }
    }

    fn applier(&self) -> MutexGuard<'_, Applier> {
        // Each response is read before anything is changed, so what is held is sound after a panic.
        self.applier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force at this moment: kills end by themselves.
    fn status(&self) -> Status {
        let kills = self.engine.kills().in_force(self.engine.clock().now()).len();
        Status { kills, ..self.status.borrow().clone() }
    }

    fn present(&self) -> Present {
        Present { time: self.engine.clock().now(), wall: SystemTime::now() }
    }

    /// Takes over a response of the server, and puts what changed in force, kills before all else.
    fn apply(&self, position: Position, response: Response, kills: Option<Told>) -> ApplyOutcome {
        let mut applier = self.applier();
        let is_about_rules = response.is_about_rules();
        if let Err(problem) = applier.hear(&position, &response, kills) {
            return ApplyOutcome::OutOfStep(problem);
        }
        self.throw(&mut applier);
        let outcome = applier.take(position, response);
        match outcome {
            ApplyOutcome::Applied { .. } if is_about_rules => self.swap(&applier, Source::Live),
            ApplyOutcome::Applied { .. } | ApplyOutcome::Confirmed => self.show(&applier, Source::Live, None),
            ApplyOutcome::Stale | ApplyOutcome::Incomplete | ApplyOutcome::OutOfStep(_) => {}
        }
        outcome
    }

    /// Takes up what was kept on disk.
    fn restore(&self, image: applier::PersistedState) {
        let mut applier = self.applier();
        applier.restore(image, self.present());
        self.throw(&mut applier);
        self.swap(&applier, Source::LastKnownGood);
    }

    /// Puts the kills held in force, if they are others.
    fn throw(&self, applier: &mut Applier) {
        let Some(kills) = applier.thrown() else { return };
        let now = self.engine.clock().now();
        let before = self.engine.kills().in_force(now).len();
        self.engine.obey(kills);
        match self.engine.kills().in_force(now).as_slice() {
            [] if before == 0 => {}
            [] => tracing::info!("no kill is in force any more"),
            [first, others @ ..] => {
                let (kill, left) = (&first.kill, first.remaining(now));
                let (routes, reason, others) = (kill.pattern(), kill.reason(), others.len());
                tracing::warn!(%routes, calls = kill.calls(), reason, ?left, others, "kills are in force");
            }
        }
    }

    /// Puts the rules held in force and says where they came from.
    fn swap(&self, applier: &Applier, source: Source) {
        let table = applier.table();
        let rules = table.len();
        self.engine.apply(table);
        self.show(applier, source, Some(rules));
    }

    fn show(&self, applier: &Applier, source: Source, rules: Option<usize>) {
        let position = applier.position().cloned();
        let refused = applier.refused_count();
        self.status.send_modify(|status| {
            status.source = source;
            status.rules = rules.unwrap_or(status.rules);
            status.refused = refused;
            (status.epoch, status.revision) =
                position.map_or_else(Default::default, |at| (at.epoch, at.revision));
        });
    }

    /// Puts the lower of the variable and what the file asks for in force.
    fn limit_mode(&self, file: Option<Mode>) {
        let most = overrides::lower(self.settings.mode, file);
        if self.status.borrow().override_mode == most {
            return;
        }
        self.engine.limit_mode(most);
        tracing::info!(mode = ?most, "local override changed");
        self.status.send_modify(|status| status.override_mode = most);
    }
}

impl Stop {
    /// Returns when the work is to end.
    async fn stopped(&mut self) {
        // An error means that the last `Damper` is gone, which ends the work as well.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// How a mode is said on the wire; none is unspecified.
fn mode_to_wire(mode: Option<Mode>) -> i32 {
    mode.map_or(v1::Mode::Unspecified, v1::Mode::from).into()
}
