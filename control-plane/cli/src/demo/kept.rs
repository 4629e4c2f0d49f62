//! Orders that inventory hands over to the durable queue, and their deliveries at stock.
//!
//! Counted where they happen, as the ledger counts attempts: an order is kept when inventory has the job's
//! id, and delivered when stock takes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::Notify;

/// The queue of the demo.
pub(super) const QUEUE: &str = "stock-later";
/// Metadata of a delivery of a job.
pub(super) const JOB: &str = "damper-job";

/// Counters of kept orders.
#[derive(Debug, Default)]
pub(super) struct Kept {
    hands_over: AtomicBool,
    orders: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicU64,
    taken: Notify,
}

/// Figures of kept orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct KeptOrders {
    pub(super) kept: u64,
    pub(super) delivered: u64,
    /// Deliveries that stock failed.
    pub(super) failed_deliveries: u64,
}

impl Kept {
    /// Sets whether inventory hands over orders that stock does not take.
    pub(super) fn set_hands_over(&self, hands_over: bool) {
        self.hands_over.store(hands_over, Ordering::Relaxed);
    }

    pub(super) fn hands_over(&self) -> bool {
        self.hands_over.load(Ordering::Relaxed)
    }

    pub(super) fn order(&self) {
        self.orders.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the end of a delivery at stock.
    pub(super) fn delivery(&self, is_taken: bool) {
        let counter = if is_taken { &self.delivered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.taken.notify_waiters();
    }

    pub(super) fn figures(&self) -> KeptOrders {
        KeptOrders {
            kept: self.orders.load(Ordering::Relaxed),
            delivered: self.delivered.load(Ordering::Relaxed),
            failed_deliveries: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Waits until every kept order is delivered.
    pub(super) async fn delivered(&self) -> KeptOrders {
        loop {
            let mut taken = std::pin::pin!(self.taken.notified());
            taken.as_mut().enable();
            let figures = self.figures();
            if figures.delivered >= figures.kept {
                return figures;
            }
            taken.await;
        }
    }
}
