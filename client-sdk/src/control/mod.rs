//! Background work of the SDK: receives rules, sends reports.
//!
//! A single task runs all [parts](background): the stream (which first restores the state file), the override
//! file, the writer of the state file and, with the feature `metrics`, the metrics export. It holds the
//! shared [`ControlContext`], never the [`Damper`](crate::Damper) itself, so dropping the last clone ends it.
//!
//! The runtime belongs to the application. Long work (large tables, disk, override file) runs on separate
//! threads.

mod applier;
mod background;
mod channel;
mod failed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod opening;
mod overrides;
mod persist;
#[cfg(feature = "metrics")]
pub(crate) mod publish;
mod reconnect;
mod refusals;
mod report;
mod state_file;
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

use self::applier::{Applier, ApplyOutcome, KillMessage, Position, Present, Response};
use self::overrides::Override;
use self::persist::Persister;
use self::state_file::StateFile;
pub use self::status::{NotReady, Source, Status};
#[cfg(feature = "queue")]
pub(crate) use self::{
    channel::SafeChannel,
    opening::{ConnectError, Connector, OPEN_WITHIN, error_of, hide},
    reconnect::Replicas,
};
use crate::options::Settings;
use crate::routes::Runtime;

const SDK_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Limit for the shutdown, in case a disk hangs.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Background work of one `Damper`; ends when dropped.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<ControlContext>,
    stop: watch::Sender<bool>,
    /// Locked by each caller of `shutdown`.
    task: tokio::sync::Mutex<JoinHandle<()>>,
}

/// State shared by the parts of the background work.
#[derive(Debug)]
struct ControlContext {
    settings: Settings,
    engine: Arc<Runtime>,
    applier: Mutex<Applier>,
    status: watch::Sender<Status>,
    keeper: Persister,
    place: Option<StateFile>,
    /// Locked by the part that polls it.
    override_file: tokio::sync::Mutex<Option<Override>>,
    /// True once the override file was read, so that no rules apply without it.
    override_read: watch::Sender<bool>,
    /// True once the state file was restored: a restarted stream must not restore it again.
    started: AtomicBool,
}

/// Signals a part to end.
#[derive(Clone, Debug)]
struct Stop(watch::Receiver<bool>);

impl Control {
    /// Starts the background work on this runtime and returns at once.
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

    /// Ends the background work: sends a last report, closes the stream, stores the rules.
    pub(crate) async fn shutdown(&self) {
        self.stop.send_replace(true);
        let ended = async {
            let mut task = self.task.lock().await;
            // A join error means that the runtime has ended.
            if !task.is_finished() {
                let _ = (&mut *task).await;
            }
        };
        if tokio::time::timeout(END_WITHIN, ended).await.is_err() {
            tracing::warn!("background task did not end within {END_WITHIN:?}");
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
        // Responses are parsed before the state changes, so the state is consistent after a panic.
        self.applier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present status; kills expire on their own.
    fn status(&self) -> Status {
        let kills = self.engine.kills().in_force(self.engine.clock().now()).len();
        Status { kills, ..self.status.borrow().clone() }
    }

    fn present(&self) -> Present {
        Present { time: self.engine.clock().now(), wall: SystemTime::now() }
    }

    /// Applies a response of the server, kills first.
    fn apply(&self, position: Position, response: Response, kills: Option<KillMessage>) -> ApplyOutcome {
        let mut applier = self.applier();
        let is_about_rules = response.is_about_rules();
        if let Err(problem) = applier.apply_kills(&position, &response, kills) {
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

    /// Restores the state file.
    fn restore(&self, image: applier::PersistedState) {
        let mut applier = self.applier();
        applier.restore(image, self.present());
        self.throw(&mut applier);
        self.swap(&applier, Source::LastKnownGood);
    }

    /// Applies the kills held, if they changed.
    fn throw(&self, applier: &mut Applier) {
        let Some(kills) = applier.thrown() else { return };
        let now = self.engine.clock().now();
        let before = self.engine.kills().in_force(now).len();
        self.engine.obey(kills);
        match self.engine.kills().in_force(now).as_slice() {
            [] if before == 0 => {}
            [] => tracing::info!("no kills in force"),
            [first, others @ ..] => {
                let (kill, left) = (&first.kill, first.remaining(now));
                let (routes, reason, others) = (kill.pattern(), kill.reason(), others.len());
                tracing::warn!(%routes, calls = kill.calls(), reason, ?left, others, "kills in force");
            }
        }
    }

    /// Applies the rules held and records their source.
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

    /// Applies the lower mode of the variable and the override file.
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
        // An error means that the last `Damper` was dropped, which also ends the work.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// Converts a mode to the wire; `None` is unspecified.
fn mode_to_wire(mode: Option<Mode>) -> i32 {
    mode.map_or(v1::Mode::Unspecified, v1::Mode::from).into()
}
