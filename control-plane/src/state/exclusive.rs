//! Work that keeps a processor busy for a while: aside, one at a time, and no longer than somebody waits for it.
//!
//! Whoever waits for their turn can be given up as any other future; so can whoever waits for the work. The work itself
//! runs on a thread that nobody can stop: it asks between its parts whether it is still awaited.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_util::sync::CancellationToken;

use crate::state::error::ApiError;
use damper_net::limits::{Limit, LimitExceeded};

/// The most pieces of work that wait, the one included that is being done.
const MAX_WAITING: usize = 128;
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Whose work is done; the others wait.
#[derive(Clone, Debug)]
pub(crate) struct ExclusiveWorker {
    turn: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

/// Tells work whether somebody waits for it still.
#[derive(Debug)]
pub(crate) struct CancelCheck {
    given_up: CancellationToken,
}

impl ExclusiveWorker {
    pub(crate) fn new() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), queue: Arc::new(Semaphore::new(MAX_WAITING)) }
    }

    /// Does the work once it is its turn; it is given up where this is dropped.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelCheck) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.queue.clone().try_acquire_owned().map_err(|refused| match refused {
            TryAcquireError::Closed => stopping(),
            TryAcquireError::NoPermits => {
                let text = format!("{MAX_WAITING} requests wait for their turn already");
                LimitExceeded { limit: Limit::Queue, text, retry_after: Some(AGAIN_AFTER) }.into()
            }
        })?;
        self.taken(work, Some(place)).await
    }

    /// Does the work once it is its turn, however much waits.
    pub(crate) async fn take_in_any_case<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelCheck) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.taken(work, None).await
    }

    async fn taken<T: Send + 'static>(
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
    ApiError::unavailable("the server is stopping")
}

impl CancelCheck {
    /// Does one part after the other; fails before the next one where nobody waits any more.
    pub(crate) fn each<P, T>(
        &self,
        parts: &[P],
        mut work: impl FnMut(&P) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        let unless_given_up = |part| match self.given_up.is_cancelled() {
            true => Err(ApiError::unavailable("nobody waits for it any more")),
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

    /// Work that has its turn, and has begun.
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
        let working = tokio::spawn(async move { turn.take(work).await });
        begun.await.unwrap();
        working
    }

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_is_told_when_that_takes_too_long() {
        let turn = ExclusiveWorker::new();
        let (release, released) = mpsc::channel();
        let first = begun(&turn, move |_| {
            released.recv().unwrap();
            "first"
        })
        .await;
        let (begins, begun) = oneshot::channel();
        let second = turn.take(move |_| Ok(begins.send(())));
        let late = within(Duration::ZERO, second).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
        assert!(begun.await.is_err(), "it began beside the first");
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap().unwrap(), "first");
        assert_eq!(timeout(PATIENCE, turn.take(|_| Ok("third"))).await.unwrap().unwrap(), "third");
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_is_told_so_and_gives_its_turn_back() {
        let turn = ExclusiveWorker::new();
        let (ends, ended) = oneshot::channel();
        let first = begun(&turn, move |awaited| {
            let given_up = timeout(PATIENCE, awaited.given_up.cancelled());
            ends.send(Handle::current().block_on(given_up).is_ok()).unwrap();
        })
        .await;
        first.abort();
        assert!(ended.await.unwrap(), "it was not told");
        timeout(PATIENCE, turn.take(|_| Ok(()))).await.expect("it has its turn").unwrap();
    }

    #[tokio::test]
    async fn work_is_refused_when_too_much_waits() {
        let turn = ExclusiveWorker::new();
        let (release, released) = mpsc::channel::<()>();
        let first = begun(&turn, move |_| released.recv().unwrap()).await;
        let waiting: Vec<_> = (1..MAX_WAITING).map(|_| Box::pin(turn.take(|_| Ok(())))).collect();
        let mut waiting = futures_util::future::join_all(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let refused = turn.take(|_| Ok(())).await.unwrap_err();
        assert!(
            matches!(refused, ApiError::LimitExceeded(LimitExceeded { limit: Limit::Queue, .. })),
            "{refused:?}"
        );
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(timeout(PATIENCE, waiting).await.unwrap().iter().all(Result::is_ok));
        turn.take(|_| Ok(())).await.unwrap();
    }

    #[test]
    fn work_that_is_given_up_ends_after_the_part_that_it_is_at() {
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
