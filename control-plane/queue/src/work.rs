//! The stream of a worker: what it sends is applied, and what it gets is queued for it.
//!
//! Settlements of a worker are independent of each other: each waits for its commit, and shares it with
//! others. The stream ends when its sender is dropped; settlements in flight are still carried out.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use crate::id::LeaseId;
use crate::shared::Inner;
use crate::state::worker::{TooManyCredits, WorkerNo};
use crate::store::{Error, LeaseClaim};
use crate::worker::{FromWorker, MAX_DELIVERIES, MAX_UNSENT, ToWorker, WorkerIdentity};

/// Messages of a worker that may wait to be applied.
const MAX_UNREAD: usize = 64;

/// The server's end of a worker's stream. Dropping `events` ends it.
#[derive(Debug)]
pub struct Work {
    /// What the worker sends.
    pub events: mpsc::Sender<FromWorker>,
    /// What it gets. Ends after a Goodbye, or if the worker broke the protocol.
    pub deliveries: mpsc::Receiver<ToWorker>,
}

impl Inner {
    /// Connects a worker.
    ///
    /// # Errors
    /// The store does not respond, so the leases cannot be confirmed.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        identity: WorkerIdentity,
        queues: Vec<(String, u32)>,
        leases: Vec<LeaseId>,
    ) -> Result<Work, Error> {
        let (out, deliveries) = mpsc::channel(MAX_UNSENT);
        let (events, received) = mpsc::channel(MAX_UNREAD);
        let (no, unknown) = {
            let mut state = self.state();
            let now = self.now();
            let no = state.connect(identity, out.clone(), now);
            let unknown: Vec<LeaseId> = leases.into_iter().filter(|id| !state.resume(no, *id, now)).collect();
            (no, unknown)
        };
        let guard = Connected { inner: self.clone(), no };
        let lost = self.claim(no, unknown).await?;
        // There is room for it: nothing was sent before.
        let _ = out.try_send(ToWorker::Welcome(lost));
        tokio::spawn(serve(guard, queues, received, out));
        Ok(Work { events, deliveries })
    }

    /// Takes over leases that a worker named, from other servers. Returns those that have ended.
    async fn claim(&self, no: WorkerNo, ids: Vec<LeaseId>) -> Result<Vec<LeaseId>, Error> {
        let store = self.store.id();
        let (own, mut lost): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| id.store == store);
        if own.is_empty() {
            return Ok(lost);
        }
        let server = self.server();
        let claim = |id: &LeaseId| LeaseClaim { id: id.job, delivery: id.delivery, token: id.token, server };
        let claimed = try_join_all(own.iter().map(|id| self.writer.claim(claim(id)))).await?;
        let mut state = self.state();
        let now = self.now();
        for (id, record) in own.into_iter().zip(claimed) {
            let lease = record.and_then(|record| state.lease_of(record, now));
            if let Some(lease) = lease {
                state.adopt(lease, now);
            }
            if !state.resume(no, id, now) {
                lost.push(id);
            }
        }
        Ok(lost)
    }
}

/// Removes the stream when it ends, however it does.
struct Connected {
    inner: Arc<Inner>,
    no: WorkerNo,
}

impl Drop for Connected {
    fn drop(&mut self) {
        let ended = self.inner.state().disconnect(self.no, self.inner.now());
        self.inner.ends.notify_one();
        self.inner.wake.notify_one();
        if !ended.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            self.inner.end_all(ended);
        }
    }
}

async fn serve(
    connected: Connected,
    queues: Vec<(String, u32)>,
    mut events: mpsc::Receiver<FromWorker>,
    out: mpsc::Sender<ToWorker>,
) {
    let (inner, no) = (connected.inner.clone(), connected.no);
    let mut settling = FuturesUnordered::new();
    let mut is_valid = queues.into_iter().all(|(queue, more)| inner.credit(no, &queue, more).is_ok());
    while is_valid {
        tokio::select! {
            // What the worker has sent before its end counts.
            biased;
            Some((lease, lost)) = settling.next() => {
                // The worker may have gone: then it needs no answer.
                let _ = out.send(ToWorker::Settled { lease, lost }).await;
            }
            event = events.recv(), if settling.len() < MAX_DELIVERIES => {
                let Some(event) = event else { break };
                if inner.state().is_alive(no, inner.now()) {
                    inner.wake.notify_one();
                }
                match event {
                    FromWorker::Credits(queue, more) => is_valid = inner.credit(no, &queue, more).is_ok(),
                    FromWorker::Started(leases) => inner.state().started(no, &leases),
                    FromWorker::Settle(lease, how) => {
                        let inner = inner.clone();
                        settling.push(async move { (lease, inner.settle(no, lease, how).await) });
                    }
                    FromWorker::Alive => {}
                    FromWorker::Bye => {
                        let ended = inner.state().leaves(no);
                        inner.end_all(ended);
                    }
                }
            }
            () = out.closed() => break,
        }
    }
    drop(connected);
    // The stream has ended, but the results count.
    while settling.next().await.is_some() {}
}

impl Inner {
    fn credit(&self, no: WorkerNo, queue: &str, more: u32) -> Result<(), TooManyCredits> {
        self.state().credit(no, queue, more)?;
        self.wake.notify_one();
        Ok(())
    }
}
