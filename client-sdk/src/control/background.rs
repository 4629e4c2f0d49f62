//! The one task in the background: its parts, and what becomes of one that panics.
//!
//! A part that panics is started again after a growing wait; the others and the application's calls go on meanwhile,
//! by the rules in force. Nothing that a server, a file or a variable says makes one panic, so a process built with
//! `panic = "abort"` is as safe.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::{ControlContext, Stop, keep, overrides, stream};
use crate::aside::{self, TimedThread};
use crate::waits::ReconnectBackoff;

/// The file on disk and the override file are given this long before the stream begins without them.
const START_WITHIN: Duration = Duration::from_secs(5);

/// The longest wait after a panic.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Does all parts until they are told to stop.
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
        part("disk", |shared, stop| Box::pin(async move { keep::run(&shared, stop).await })),
        publishing,
    );
}

/// Does a part until it returns, again after each panic.
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
            "Damper's background work failed; calls go on, it will start again"
        );
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.stopped() => return,
        }
    }
}

/// What work comes to: its end, or what it panicked with.
async fn caught(mut work: Work) -> Result<(), Box<dyn Any + Send>> {
    // It is not asked again after a panic, and what it shares with others is sound then: see `Shared::applier`.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

/// Takes up what is on this machine, then follows the control plane.
async fn follow(shared: Arc<ControlContext>, mut stop: Stop) {
    if !shared.started.swap(true, Ordering::Relaxed) {
        tokio::select! {
            () = take_up(&shared) => {}
            () = stop.stopped() => return,
        }
    }
    stream::run(&shared, stop).await;
}

/// The override before the rules, so that they never run ahead of it.
async fn take_up(shared: &Arc<ControlContext>) {
    let mut override_read = shared.override_read.subscribe();
    // Late or not, the next poll will reduce what the rules do.
    let _ = tokio::time::timeout(START_WITHIN, override_read.wait_for(|read| *read)).await;
    let Some(place) = shared.place.clone() else { return };
    let path = place.path();
    let problem = match TimedThread::default().within(START_WITHIN, move || place.load()).await {
        Ok(Ok(None)) => return,
        Ok(Ok(Some(image))) => {
            let taking = Arc::clone(shared);
            match aside::aside(move || taking.restore(image)).await {
                Ok(()) => return,
                Err(problem) => problem,
            }
        }
        Ok(Err(error)) => error.to_string(),
        Err(problem) => problem,
    };
    tracing::warn!(file = %path.display(), %problem, "the rules on disk are of no use; nothing is retried until the control plane answers");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::runtime::Handle;
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;
    use crate::control::Control;
    use crate::options::Options;
    use crate::routes::Runtime;

    fn shared() -> Arc<ControlContext> {
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        Arc::new(ControlContext::new(options.resolve().unwrap(), Runtime::new("orders", "default")))
    }

    #[tokio::test]
    async fn everything_in_the_background_is_one_task() {
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

    #[tokio::test]
    async fn each_one_that_ends_the_work_sees_it_ended() {
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(|_| None);
        let engine = Runtime::new("orders", "default");
        let control = Control::start(options.resolve().unwrap(), engine, &Handle::current());
        let end = || async {
            control.shutdown().await;
            Handle::current().metrics().num_alive_tasks()
        };
        assert_eq!(tokio::join!(end(), end()), (0, 0));
        assert_eq!(end().await, 0, "once more");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_started_again_after_growing_waits_until_it_returns() {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (_stop, stopped) = watch::channel(false);
        let begun = Instant::now();
        let run = |_, _| -> Work {
            Box::pin(async {
                assert!(STARTED.fetch_add(1, Ordering::Relaxed) >= 12, "a panic of the test's own");
            })
        };
        supervise("test", run, shared(), Stop(stopped)).await;
        assert_eq!(STARTED.load(Ordering::Relaxed), 13);
        // Full jitter up to 0.5, 1, 2, 4, 8, 16 and six times 30 s: 105 s on average.
        assert!(begun.elapsed() > Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_forever_still_ends_with_the_last_damper() {
        let (stop, stopped) = watch::channel(false);
        let run = |_, _| -> Work { Box::pin(async { panic!("a panic of the test's own") }) };
        let supervisor = tokio::spawn(supervise("test", run, shared(), Stop(stopped)));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!supervisor.is_finished());
        drop(stop);
        supervisor.await.unwrap();
    }
}
