//! Runs CPU-heavy work off the runtime, one piece at a time, and cancels it when its caller is gone.
//!
//! Waiting for a turn or for the result is cancelled by dropping the future. The work runs on a blocking
//! thread that cannot be aborted, so it checks between its parts whether it was cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_util::sync::CancellationToken;

use crate::state::error::ApiError;
use damper_net::limits::{Limit, LimitExceeded};

/// Maximum number of waiting pieces of work, the running one included.
const MAX_WAITING: usize = 128;
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Worker with one turn.
#[derive(Clone, Debug)]
pub(crate) struct ExclusiveWorker {
    turn: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

/// Cancellation check of running work.
#[derive(Debug)]
pub(crate) struct CancelCheck {
    given_up: CancellationToken,
}

impl ExclusiveWorker {
    pub(crate) fn new() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), queue: Arc::new(Semaphore::new(MAX_WAITING)) }
    }

    /// Runs the work at its turn, or cancels it if the future is dropped. Errors if the queue is full.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelCheck) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.queue.clone().try_acquire_owned().map_err(|refused| match refused {
            TryAcquireError::Closed => stopping(),
            TryAcquireError::NoPermits => {
                let text = format!("{MAX_WAITING} requests are waiting already");
                LimitExceeded { limit: Limit::Queue, text, retry_after: Some(AGAIN_AFTER) }.into()
            }
        })?;
        self.run_in_turn(work, Some(place)).await
    }

    /// Runs the work at its turn, however long the queue is.
    pub(crate) async fn run_unqueued<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelCheck) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.run_in_turn(work, None).await
    }

    async fn run_in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelCheck) -> Result<T, ApiError> + Send + 'static,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<T, ApiError> {
        let turn = self.turn.clone().acquire_owned().await.map_err(|_| stopping())?;
        let given_up = CancellationToken::new();
        let awaited = CancelCheck { given_up: given_up.clone() };
        let _until_dropped = given_up.drop_guard();
        let working = tokio::task::spawn_blocking(move || {
            let _held = (turn, place);
            work(&awaited)
        });
        working.await.map_err(|_| stopping())?
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("this server of the control plane is stopping")
}

impl CancelCheck {
    /// Runs the parts in order; errors before the next part if the caller is gone.
    pub(crate) fn each<P, T>(
        &self,
        parts: &[P],
        mut work: impl FnMut(&P) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        let unless_given_up = |part| match self.given_up.is_cancelled() {
            true => Err(ApiError::unavailable("the caller cancelled the request")),
            false => work(part),
        };
        parts.iter().map(unless_given_up).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::runtime::Handle;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;
    use tonic::Code;

    use super::*;
    use crate::state::error::within;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Starts work and waits until it runs.
    async fn begun<T: Send + 'static>(
        turn: &ExclusiveWorker,
        work: impl FnOnce(&CancelCheck) -> T + Send + 'static,
    ) -> JoinHandle<Result<T, ApiError>> {
        let (begins, begun) = oneshot::channel();
        let turn = turn.clone();
        let work = move |awaited: &CancelCheck| {
            begins.send(()).unwrap();
            Ok(work(awaited))
        };
        let working = tokio::spawn(async move { turn.run(work).await });
        begun.await.unwrap();
        working
    }

    #[tokio::test]
    async fn second_task_waits_and_times_out() {
        let turn = ExclusiveWorker::new();
        let (release, released) = mpsc::channel();
        let first = begun(&turn, move |_| {
            released.recv().unwrap();
            "first"
        })
        .await;
        let (begins, begun) = oneshot::channel();
        let second = turn.run(move |_| Ok(begins.send(())));
        let late = within(Duration::ZERO, second).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
        assert!(begun.await.is_err(), "it began during the first");
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap().unwrap(), "first");
        assert_eq!(timeout(PATIENCE, turn.run(|_| Ok("third"))).await.unwrap().unwrap(), "third");
    }

    #[tokio::test]
    async fn cancelled_work_ends_and_releases_its_turn() {
        let turn = ExclusiveWorker::new();
        let (ends, ended) = oneshot::channel();
        let first = begun(&turn, move |awaited| {
            let given_up = timeout(PATIENCE, awaited.given_up.cancelled());
            ends.send(Handle::current().block_on(given_up).is_ok()).unwrap();
        })
        .await;
        first.abort();
        assert!(ended.await.unwrap(), "it was not cancelled");
        timeout(PATIENCE, turn.run(|_| Ok(()))).await.expect("it has its turn").unwrap();
    }

    #[tokio::test]
    async fn work_is_refused_when_too_much_waits() {
        let turn = ExclusiveWorker::new();
        let (release, released) = mpsc::channel::<()>();
        let first = begun(&turn, move |_| released.recv().unwrap()).await;
        let waiting: Vec<_> = (1..MAX_WAITING).map(|_| Box::pin(turn.run(|_| Ok(())))).collect();
        let mut waiting = futures_util::future::join_all(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let refused = turn.run(|_| Ok(())).await.unwrap_err();
        assert!(
            matches!(refused, ApiError::LimitExceeded(LimitExceeded { limit: Limit::Queue, .. })),
            "{refused:?}"
        );
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(timeout(PATIENCE, waiting).await.unwrap().iter().all(Result::is_ok));
        turn.run(|_| Ok(())).await.unwrap();
    }

    #[test]
    fn cancelled_work_ends_after_its_current_part() {
        let awaited = CancelCheck { given_up: CancellationToken::new() };
        assert_eq!(awaited.each(&[1, 2], |part| Ok(*part)).unwrap(), [1, 2]);
        let mut done = Vec::new();
        let ended = awaited.each(&[1, 2, 3, 4], |part| {
            done.push(*part);
            if *part == 2 {
                awaited.given_up.cancel();
            }
            Ok(())
        });
        assert!(ended.is_err());
        assert_eq!(done, [1, 2]);
    }
}
