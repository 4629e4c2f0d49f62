//! Runs blocking or long work off the runtime.
//!
//! Reading and applying a table of 100,000 rules takes tenths of a second, a name lookup or a file read may
//! take seconds. On the application's runtime, which may have one thread, calls would wait. tokio's blocking
//! threads also belong to the application and may all be busy. This work therefore gets a thread of its own.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};

/// Runs `work` on a thread of its own.
///
/// # Errors
/// The thread could not be started, or `work` panicked.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    begin(work)?.await.map_err(|_| "the work panicked".to_owned())
}

/// Work that may hang forever, such as a read from a network file system. Waits for it up to a limit, and
/// never runs two at once.
#[derive(Debug)]
pub(crate) struct TimedThread<T>(Option<oneshot::Receiver<T>>);

impl<T: Send + 'static> TimedThread<T> {
    /// Runs `work` on a thread of its own, or keeps waiting for the previous run if that has not ended.
    ///
    /// # Errors
    /// The limit passed, or the thread could not be started.
    pub(crate) async fn within(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        // A result of an earlier run that was never read is out of date: run again.
        self.0.take_if(|receiver| !matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
        self.answer_within(limit, work).await
    }

    /// As [`within`](Self::within), but returns the result of an earlier run that has ended since.
    ///
    /// # Errors
    /// The limit passed, or the thread could not be started.
    pub(crate) async fn answer_within(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let receiver = match &mut self.0 {
            Some(receiver) => receiver,
            none => none.insert(begin(work)?),
        };
        let answer =
            tokio::time::timeout(limit, receiver).await.map_err(|_| format!("not done within {limit:?}"))?;
        self.0 = None;
        answer.map_err(|_| "the work panicked".to_owned())
    }
}

#[cfg(test)]
impl<T> TimedThread<T> {
    pub(crate) fn is_running(&self) -> bool {
        self.0.is_some()
    }
}

impl<T> Default for TimedThread<T> {
    fn default() -> Self {
        Self(None)
    }
}

fn begin<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, String> {
    let (sender, receiver) = oneshot::channel();
    let spawned = thread::Builder::new().name("damper-worker".to_owned()).spawn(move || {
        // The receiver is gone if the runtime has ended or the caller stopped waiting.
        let _ = sender.send(work());
    });
    spawned.map(|_| receiver).map_err(|error| format!("cannot start a thread: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_runtime_keeps_running() {
        let (go_on, wait) = mpsc::channel();
        let work = run_blocking(move || wait.recv().is_ok());
        let meanwhile = async { go_on.send(()).is_ok() };
        assert_eq!(tokio::join!(work, meanwhile), (Ok(true), true));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        assert!(run_blocking(|| -> () { panic!("expected by the test") }).await.is_err());
    }

    #[tokio::test]
    async fn hanging_work_runs_once_and_its_late_result_is_dropped() {
        let mut slow = TimedThread::default();
        let (end, hanging) = mpsc::channel::<()>();
        let limit = Duration::from_millis(20);
        let first = move || {
            let _ = hanging.recv();
            1
        };
        assert!(slow.within(limit, first).await.unwrap_err().contains("not done within"));
        let never = || -> i32 { panic!("must not run twice") };
        assert!(slow.within(limit, never).await.is_err());
        drop(end);
        while slow.0.as_mut().is_some_and(|receiver| receiver.is_empty()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(slow.within(Duration::from_secs(60), || 2).await, Ok(2));
    }
}
