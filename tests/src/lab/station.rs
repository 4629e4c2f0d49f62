//! A layer that can do only so much: one queue, served in order at a fixed speed.
//!
//! It is the plain thread pool behind a listen queue that overload is told of: a request that finds the queue full
//! is refused at once, and one that was queued is worked off in its turn **whether or not anybody still waits for
//! it**. So time spent on callers who have given up is lost, which is what keeps an overloaded service down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::Status;

/// How much a layer can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Requests served per second.
    pub per_second: u32,
    /// Requests that may wait.
    pub queue: usize,
    /// What refusing one more costs, in percent of serving it.
    pub refusal_percent: u32,
}

#[derive(Debug)]
pub(super) struct Station {
    queue: mpsc::Sender<oneshot::Sender<()>>,
    per_second: watch::Sender<u32>,
    refusal_percent: u32,
    /// Percent of requests served that refusals have cost and that nobody has spent yet.
    owed: Arc<AtomicU32>,
}

impl Station {
    /// Opens it, in the present runtime; it closes when it is dropped.
    pub(super) fn open(capacity: Capacity) -> Self {
        let (queue, waiting) = mpsc::channel(capacity.queue.max(1));
        let (per_second, speed) = watch::channel(capacity.per_second);
        let owed = Arc::new(AtomicU32::new(0));
        tokio::spawn(work(waiting, speed, Arc::clone(&owed)));
        Self { queue, per_second, refusal_percent: capacity.refusal_percent, owed }
    }

    /// Sets how many it serves per second; 0 stops it with all that wait.
    pub(super) fn set_speed(&self, per_second: u32) {
        self.per_second.send_replace(per_second);
    }

    /// Waits in the queue until it is this one's turn and it has been served.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) async fn serve(&self) -> Result<(), Status> {
        let (done, served) = oneshot::channel();
        self.queue.try_send(done).map_err(|_| {
            self.owed.fetch_add(self.refusal_percent, Ordering::Relaxed);
            Status::unavailable("the queue is full")
        })?;
        served.await.map_err(|_| Status::unavailable("closed"))
    }
}

/// Serves one after the other. While there is always a next one the schedule is absolute, so that a timer that fires
/// late takes nothing from the speed; time that passed with nothing to do, or at a standstill, is lost.
async fn work(
    mut waiting: mpsc::Receiver<oneshot::Sender<()>>,
    mut speed: watch::Receiver<u32>,
    owed: Arc<AtomicU32>,
) {
    let mut free_at = Instant::now();
    loop {
        let (done, idle) = match waiting.try_recv() {
            Ok(done) => (done, false),
            Err(_) => match waiting.recv().await {
                Some(done) => (done, true),
                None => return,
            },
        };
        let stopped = *speed.borrow() == 0;
        let Ok(per_second) = speed.wait_for(|per_second| *per_second > 0).await.map(|speed| *speed) else {
            return;
        };
        let from = if idle || stopped { Instant::now() } else { free_at };
        let one = Duration::from_secs(1) / per_second;
        free_at = from + one + one * owed.swap(0, Ordering::Relaxed) / 100;
        tokio::time::sleep_until(free_at).await;
        // A caller who has given up does not hear it; the time is spent all the same.
        let _ = done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_serves_at_its_speed_and_refuses_what_finds_the_queue_full() {
        let station = Station::open(Capacity { per_second: 100, queue: 20, refusal_percent: 0 });
        tokio::time::advance(Duration::from_secs(1)).await;
        let begun = Instant::now();
        let all = (0..50).map(|_| station.serve());
        let answers = futures_util::future::join_all(all).await;
        let served = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(served, 20);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(100) && took <= Duration::from_millis(201), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_take_their_share_of_the_time() {
        let station = Station::open(Capacity { per_second: 10, queue: 1, refusal_percent: 50 });
        let begun = Instant::now();
        let all = futures_util::future::join_all((0..5).map(|_| station.serve())).await;
        assert_eq!(all.iter().filter(|answer| answer.is_err()).count(), 4);
        assert!(
            begun.elapsed() >= Duration::from_millis(300),
            "1 + 4 x 0.5 of 100 ms: {:?}",
            begun.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_worked_off_though_nobody_waits_for_it() {
        let station = Station::open(Capacity { per_second: 10, queue: 10, refusal_percent: 0 });
        station.set_speed(0);
        for _ in 0..5 {
            let given_up = tokio::time::timeout(Duration::from_millis(1), station.serve()).await;
            assert!(given_up.is_err());
        }
        let begun = Instant::now();
        station.set_speed(10);
        station.serve().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    }
}
