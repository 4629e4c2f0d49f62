//! Delays changes of the snapshot for the streams.
//!
//! The first change after a pause is published at once. Further changes are merged until there is another
//! pause, for at most `MERGE_AT_MOST`, so that a script that writes rule by rule causes a few responses
//! instead of one per rule and client. A kill that is set or ended is published at once, with all merged
//! changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::state::snapshot::Snapshot;

const QUIET: Duration = Duration::from_millis(20);
const MERGE_AT_MOST: Duration = Duration::from_millis(200);

/// Passes snapshots on until the source or all receivers are gone.
pub(crate) async fn pass_on(mut table: watch::Receiver<Arc<Snapshot>>, out: watch::Sender<Arc<Snapshot>>) {
    let mut quiet_until = Instant::now();
    while table.changed().await.is_ok() {
        if Instant::now() < quiet_until && !brings_kills(&table, &out) {
            let latest = Instant::now() + MERGE_AT_MOST;
            quiet_until = Instant::now() + QUIET;
            merge(&mut table, &out, quiet_until, latest).await;
        }
        let view = table.borrow_and_update().clone();
        out.send_replace(view);
        quiet_until = Instant::now() + QUIET;
    }
}

async fn merge(
    table: &mut watch::Receiver<Arc<Snapshot>>,
    out: &watch::Sender<Arc<Snapshot>>,
    mut quiet_until: Instant,
    latest: Instant,
) {
    loop {
        tokio::select! {
            () = sleep_until(quiet_until.min(latest)) => return,
            changed = table.changed() => match changed {
                Ok(()) if !brings_kills(table, out) => quiet_until = Instant::now() + QUIET,
                _ => return,
            },
        }
    }
}

/// True if the snapshot has other kills than the last published one.
fn brings_kills(table: &watch::Receiver<Arc<Snapshot>>, shown: &watch::Sender<Arc<Snapshot>>) -> bool {
    !table.borrow().kills().same(shown.borrow().kills())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use damper_core::Pattern;
    use damper_proto::v1;

    use super::*;
    use crate::state::kills::StoredKill;
    use crate::state::resource_key::ResourceKey;
    use damper_store::{Entry, StoreContents};

    fn view(revision: u64) -> Arc<Snapshot> {
        Arc::new(Snapshot::of(&StoreContents { epoch: "e".to_owned(), revision, ..StoreContents::default() }))
    }

    fn view_with_kill(revision: u64, set_at: u64) -> Arc<Snapshot> {
        let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
        let expires_at = Some((SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000_000)).into());
        let kill = v1::KillSwitch { reason: "r".to_owned(), expires_at, ..Default::default() };
        let entry = Entry { revision: set_at, value: StoredKill::value(&kill).into() };
        let entries = [(ResourceKey::Kill(pattern).key(), entry)].into_iter().collect();
        Arc::new(Snapshot::of(&StoreContents {
            epoch: "e".to_owned(),
            revision,
            entries,
            ..StoreContents::default()
        }))
    }

    /// Kills that are set, replaced and ended among writes every 10 ms.
    #[tokio::test(start_paused = true)]
    async fn a_kill_is_shown_at_once_with_what_was_being_merged() {
        let (table, source) = watch::channel(view(0));
        let (out, mut shown) = watch::channel(view(0));
        tokio::spawn(pass_on(source, out));
        let start = Instant::now();
        tokio::spawn(async move {
            for revision in 1..=9 {
                table.send_replace(match revision {
                    1..3 => view(revision),
                    3..6 => view_with_kill(revision, 3),
                    6..8 => view_with_kill(revision, 6),
                    _ => view(revision),
                });
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // The source stays open, so that its end publishes nothing.
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(revision, _)| *revision < 9) {
            shown.changed().await.unwrap();
            let elapsed = start.elapsed().as_millis();
            seen.push((shown.borrow_and_update().revision(), elapsed));
        }
        // The paused clock is exact to a millisecond.
        assert_eq!(seen.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), [1, 3, 6, 8, 9]);
        for ((revision, at), expected) in seen.iter().zip([0, 20, 50, 70]) {
            assert!(at.abs_diff(expected) <= 2, "revision {revision} was shown after {at} ms: {seen:?}");
        }
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
