//! Exports metrics at an interval and at the end.

use super::Stop;
use crate::metrics;
use crate::routes::Runtime;

/// Exports until stopped.
pub(super) async fn run(engine: &Runtime, mut stop: Stop) {
    let mut is_ending = false;
    while !is_ending {
        tokio::select! {
            () = tokio::time::sleep(metrics::INTERVAL) => {}
            () = stop.stopped() => is_ending = true,
        }
        metrics::publish(engine).await;
    }
}
