//! Work that takes the processor for long, away from the runtime.
//!
//! A table of 100,000 rules takes tenths of a second to read and to put in force. On the runtime, which is the
//! application's and may have one thread, calls would wait for it. So does looking up a name, and reading files.
//! tokio's threads for blocking work are the application's too and may all be busy, just when rules matter; so
//! this is a thread of its own.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};

/// Does the work on a thread of its own.
///
/// # Errors
/// The thread could not be had, or the work panicked.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    begin(work)?.await.map_err(|_| "the work was not done".to_owned())
}

/// Work that may hang for ever, as a read of a network's file system may. It is waited for only so long, and never
/// begun a second time beside itself.
#[derive(Debug)]
pub(crate) struct TimedThread<T>(Option<oneshot::Receiver<T>>);

impl<T: Send + 'static> TimedThread<T> {
    /// Does the work on a thread of its own, or waits again for what has not ended since the last time.
    ///
    /// # Errors
    /// It has not ended in time, or the thread could not be had.
    pub(crate) async fn within(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        // What ended since then is old: it is done anew.
        self.0.take_if(|told| !matches!(told.try_recv(), Err(TryRecvError::Empty)));
        self.answer_within(limit, work).await
    }

    /// The same, but what has ended since the last time is the answer.
    ///
    /// # Errors
    /// It has not ended in time, or the thread could not be had.
    pub(crate) async fn answer_within(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let told = match &mut self.0 {
            Some(told) => told,
            none => none.insert(begin(work)?),
        };
        let answer =
            tokio::time::timeout(limit, told).await.map_err(|_| format!("not done within {limit:?}"))?;
        self.0 = None;
        answer.map_err(|_| "its thread ended without an answer".to_owned())
    }
}

#[cfg(test)]
impl<T> TimedThread<T> {
    pub(crate) fn is_under_way(&self) -> bool {
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
    let (tell, told) = oneshot::channel();
    let spawned = thread::Builder::new().name("damper-aside".to_owned()).spawn(move || {
        // Nobody is left to tell only when the runtime has ended, or nobody waits any more.
        let _ = tell.send(work());
    });
    spawned.map(|_| told).map_err(|error| format!("no thread for work beside the runtime: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_runtime_goes_on_meanwhile() {
        let (go_on, wait) = mpsc::channel();
        let work = aside(move || wait.recv().is_ok());
        let meanwhile = async { go_on.send(()).is_ok() };
        assert_eq!(tokio::join!(work, meanwhile), (Ok(true), true));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        assert!(aside(|| -> () { panic!("a panic of the test's own") }).await.is_err());
    }

    #[tokio::test]
    async fn what_hangs_is_not_begun_again_and_what_it_says_too_late_is_not_taken() {
        let mut slow = TimedThread::default();
        let (end, hanging) = mpsc::channel::<()>();
        let limit = Duration::from_millis(20);
        let first = move || {
            let _ = hanging.recv();
            1
        };
        assert!(slow.within(limit, first).await.unwrap_err().contains("not done within"));
        let never = || -> i32 { panic!("a second time beside the first") };
        assert!(slow.within(limit, never).await.is_err());
        drop(end);
        while slow.0.as_mut().is_some_and(|told| told.is_empty()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(slow.within(Duration::from_secs(60), || 2).await, Ok(2));
    }
}
