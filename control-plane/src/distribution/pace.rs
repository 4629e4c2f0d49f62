//! When a change of the table is shown to the streams.
//!
//! The first change after a quiet moment is shown at once: one operator's change arrives without delay. What
//! follows within the next moment is merged until it is quiet again, but no longer than `MERGE_AT_MOST`: a
//! script that writes rule by rule causes a few responses instead of one per rule and client.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::table::TableView;

const QUIET: Duration = Duration::from_millis(20);
const MERGE_AT_MOST: Duration = Duration::from_millis(200);

/// Passes tables on until the source or all receivers are gone.
pub(crate) async fn pass_on(mut table: watch::Receiver<Arc<TableView>>, out: watch::Sender<Arc<TableView>>) {
    let mut quiet_until = Instant::now();
    while table.changed().await.is_ok() {
        if Instant::now() < quiet_until {
            let latest = Instant::now() + MERGE_AT_MOST;
            quiet_until = Instant::now() + QUIET;
            merge(&mut table, quiet_until, latest).await;
        }
        let view = table.borrow_and_update().clone();
        out.send_replace(view);
        quiet_until = Instant::now() + QUIET;
    }
}

async fn merge(table: &mut watch::Receiver<Arc<TableView>>, mut quiet_until: Instant, latest: Instant) {
    loop {
        tokio::select! {
            () = sleep_until(quiet_until.min(latest)) => return,
            changed = table.changed() => match changed {
                Ok(()) => quiet_until = Instant::now() + QUIET,
                Err(_) => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::State;

    fn view(revision: u64) -> Arc<TableView> {
        Arc::new(TableView::of(&State { epoch: "e".to_owned(), revision, entries: Default::default() }))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_goes_at_once_and_a_burst_is_merged_for_200_ms_at_most() {
        let (table, source) = watch::channel(view(0));
        let (out, mut shown) = watch::channel(view(0));
        tokio::spawn(pass_on(source, out));
        let start = Instant::now();
        let writes = tokio::spawn(async move {
            for revision in 1..=60 {
                table.send_replace(view(revision));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            table
        });
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(revision, _)| *revision < 60) {
            shown.changed().await.unwrap();
            seen.push((shown.borrow_and_update().revision(), start.elapsed()));
        }
        drop(writes.await);
        assert_eq!(seen[0], (1, Duration::ZERO));
        assert!(seen.len() <= 5, "{seen:?}");
        for pair in seen.windows(2) {
            assert!(pair[1].1 - pair[0].1 <= MERGE_AT_MOST + QUIET, "{seen:?}");
        }
    }
}
