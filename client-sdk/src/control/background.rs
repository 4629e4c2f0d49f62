//! Runs the parts of the background task and restarts a part that panics.
//!
//! A part that panics restarts after a growing wait. The other parts and the application's calls continue
//! with the rules in force. No input from a server, file or variable causes a panic, so `panic = "abort"` is
//! equally safe.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::{ControlContext, Stop, overrides, persist, stream};
use crate::background::reconnect_backoff::ReconnectBackoff;
use crate::background::worker::{self, TimedThread};

/// Limit for reading the state file and the override file before the stream begins.
const START_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait after a panic.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs all parts until stopped.
pub(super) async fn run(shared: Arc<ControlContext>, stop: Stop) {
    let part = |name, begin| supervise(name, begin, Arc::clone(&shared), stop.clone());
    #[cfg(feature = "metrics")]
    let publishing = part("metrics", |shared, stop| {
        Box::pin(async move { super::publish::run(&shared.engine, stop).await })
    });
    #[cfg(not(feature = "metrics"))]
    let publishing = std::future::ready(());
    tokio::join!(
        part("stream", |shared, stop| Box::pin(follow(shared, stop))),
        part("override", |shared, stop| Box::pin(async move { overrides::follow(&shared, stop).await })),
        part("disk", |shared, stop| Box::pin(async move { persist::run(&shared, stop).await })),
        publishing,
    );
}

/// Runs a part until it returns, and restarts it after each panic.
async fn supervise(
    name: &'static str,
    begin: fn(Arc<ControlContext>, Stop) -> Work,
    shared: Arc<ControlContext>,
    mut stop: Stop,
) {
    let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
    while let Err(panic) = caught(begin(Arc::clone(&shared), stop.clone())).await {
        let (wait, words) = (waits.next(), words(panic.as_ref()));
        tracing::error!(
            part = name,
            panic = words,
            ?wait,
            "background task panicked; restarting it, calls continue"
        );
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.stopped() => return,
        }
    }
}

/// Runs work until its end or panic.
async fn caught(mut work: Work) -> Result<(), Box<dyn Any + Send>> {
    // It is not polled after a panic, and the state that it shares is consistent then: see
    // `ControlContext::applier`.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Restores the state file, then follows the control plane.
async fn follow(shared: Arc<ControlContext>, mut stop: Stop) {
    if !shared.started.swap(true, Ordering::Relaxed) {
        tokio::select! {
            () = take_up(&shared) => {}
            () = stop.stopped() => return,
        }
    }
    stream::run(&shared, stop).await;
}

/// Reads the override before the rules, so that rules never apply without it.
async fn take_up(shared: &Arc<ControlContext>) {
    let mut override_read = shared.override_read.subscribe();
    // If it is late, the next poll reduces the rules' mode.
    let _ = tokio::time::timeout(START_WITHIN, override_read.wait_for(|read| *read)).await;
    let Some(place) = shared.place.clone() else { return };
    let path = place.path();
    let problem = match TimedThread::default().within(START_WITHIN, move || place.load()).await {
        Ok(Ok(None)) => return,
        Ok(Ok(Some(image))) => {
            let taking = Arc::clone(shared);
            match worker::run_blocking(move || taking.restore(image)).await {
                Ok(()) => return,
                Err(problem) => problem,
            }
        }
        Ok(Err(error)) => error.to_string(),
        Err(problem) => problem,
    };
    tracing::warn!(file = %path.display(), %problem, "cannot load the rules on disk; no retries until the control plane responds");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::runtime::Handle;
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;
    use crate::control::Control;
    use crate::control::applier::{PersistedState, Position};
    use crate::control::state_file::StateFile;
    use crate::control::status::Source;
    use crate::options::Options;
    use crate::routes::Runtime;

    fn shared() -> Arc<ControlContext> {
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        Arc::new(ControlContext::new(options.resolve().unwrap(), Runtime::new("orders", "default")))
    }

    #[tokio::test]
    async fn all_background_work_is_one_task() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        let options = options.state_dir(folder.path()).override_file(folder.path().join("mode"));
        let engine = Runtime::new("orders", "default");
        let control = Control::start(options.resolve().unwrap(), engine, &Handle::current());
        let mut status = control.shared.status.subscribe();
        status.wait_for(|status| status.last_problem.is_some()).await.unwrap();
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
        control.shutdown().await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[test]
    fn rules_on_disk_are_used_while_blocking_threads_are_busy() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.unwrap();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let taken = runtime.spawn_blocking(move || wait.recv().is_ok());
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        let settings = options.state_dir(folder.path()).resolve().unwrap();
        let position = Position { epoch: "e".to_owned(), revision: 7, commit: 1 };
        let place = StateFile::new(folder.path(), &settings.identity);
        place.store(PersistedState { position: Some(position), ..PersistedState::default() }).unwrap();
        let engine = Runtime::new("orders", "default");
        let read = runtime.block_on(async {
            let control = Control::start(settings, engine, &Handle::current());
            let mut status = control.shared.status.subscribe();
            let loaded = status.wait_for(|status| status.source == Source::LastKnownGood);
            // Longer than a read takes on a busy machine; reaching it is a failure.
            let loaded = tokio::time::timeout(Duration::from_secs(30), loaded).await;
            loaded.map(|status| status.unwrap().revision)
        });
        drop(go_on);
        assert_eq!(read, Ok(7));
        runtime.block_on(taken).unwrap();
    }

    #[tokio::test]
    async fn each_shutdown_waits_for_the_end() {
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        let engine = Runtime::new("orders", "default");
        let control = Control::start(options.resolve().unwrap(), engine, &Handle::current());
        let end = || async {
            control.shutdown().await;
            Handle::current().metrics().num_alive_tasks()
        };
        assert_eq!(tokio::join!(end(), end()), (0, 0));
        assert_eq!(end().await, 0, "again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_part_restarts_after_growing_waits() {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (_stop, stopped) = watch::channel(false);
        let begun = Instant::now();
        let run = |_, _| -> Work {
            Box::pin(async {
                assert!(STARTED.fetch_add(1, Ordering::Relaxed) >= 12, "expected by the test");
            })
        };
        supervise("test", run, shared(), Stop(stopped)).await;
        assert_eq!(STARTED.load(Ordering::Relaxed), 13);
        // Full jitter up to 0.5, 1, 2, 4, 8, 16 and six times 30 s: 105 s on average.
        assert!(begun.elapsed() > Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_always_panics_ends_with_the_last_damper() {
        let (stop, stopped) = watch::channel(false);
        let run = |_, _| -> Work { Box::pin(async { panic!("expected by the test") }) };
        let supervisor = tokio::spawn(supervise("test", run, shared(), Stop(stopped)));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!supervisor.is_finished());
        drop(stop);
        supervisor.await.unwrap();
    }
}
