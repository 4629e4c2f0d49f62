//! An open-loop load: request n is due at a fixed time, whatever became of those before it.
//!
//! Latency runs from when a request was **due**, not from when it was sent: a generator that falls behind, or a chain
//! that makes it wait, shows in the figures and is not hidden by sending less (coordinated omission). The customer
//! gives up after a fixed patience and hangs up, which cancels the request on the wire. It repeats nothing.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Request;
use tonic::transport::Endpoint;

use crate::hop;

/// The load on the top of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests per second.
    pub rate: u32,
    /// How long the customer waits, from when the request was due.
    pub patience: Duration,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it was due, after the load began.
    pub due: Duration,
    /// From then to its end.
    pub took: Duration,
    /// Whether it was answered well and in time.
    pub success: bool,
}

impl Load {
    /// When a request is due after the load has begun.
    #[must_use]
    pub fn due(&self, number: usize) -> Duration {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Duration::from_secs(1) * number / self.rate
    }

    /// Sends what is due within a time from `begin` on, waits until all of it has ended, and says how, in order.
    ///
    /// # Errors
    /// Nobody listens.
    pub async fn run(self, top: SocketAddr, begin: Instant, during: Duration) -> anyhow::Result<Vec<Ended>> {
        let channel = Endpoint::from_shared(format!("http://{top}"))?.connect().await?;
        let mut under_way = JoinSet::new();
        for number in (0..).take_while(|number| self.due(*number) < during) {
            let due = begin + self.due(number);
            sleep_until(due).await;
            let request = hop::call(channel.clone(), Request::new(number.to_string()));
            under_way.spawn(async move {
                let answer = timeout_at(due + self.patience, request).await;
                (number, due.elapsed(), matches!(answer, Ok(Ok(_))))
            });
        }
        let mut ended = under_way.join_all().await;
        ended.sort_unstable_by_key(|(number, ..)| *number);
        let told =
            ended.into_iter().map(|(number, took, success)| Ended { due: self.due(number), took, success });
        Ok(told.collect())
    }
}
