//! Streams the delivery of a revision until all its clients have acknowledged it.
//!
//! Events of the sessions (connect, disconnect, delivery, acknowledgement) and new snapshots wake the
//! watcher, never the clock alone. It then takes a census of the clients in the scope of the change
//! ([`ConvergenceTracker`]).
//!
//! A census visits every client, so the interval between two is at least 5 ms. A new state is sent at most
//! every 100 ms, except for the last one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use damper_core::Faults;
use damper_proto::{convert, v1};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::api::response_stream::{Out, Reader, ResponseStream};
use crate::cluster::Cluster;
use crate::push::convergence::{CONVERGENCE_SHARE, CONVERGENCE_WITHIN, ChangedSubjects, ConvergenceTracker};
use crate::state::error::ApiError;
use crate::state::exclusive::CancelCheck;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;

const DEFAULT_WITHIN: Duration = Duration::from_secs(30);
/// Shortest intervals between two censuses and between two messages.
const CENSUS_INTERVAL: Duration = Duration::from_millis(5);
const SEND_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after a census, as a multiple of its duration.
const PAUSE: u32 = 4;
/// Longest time for the census at the deadline. It runs off the runtime, so it is never ready at once.
const LAST_CENSUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The options of a convergence request.
pub(crate) struct ConvergenceOptions {
    revision: u64,
    share: f64,
    within: Duration,
}

impl ConvergenceOptions {
    pub(crate) fn read(request: v1::WatchConvergenceRequest) -> Result<Self, ApiError> {
        let v1::WatchConvergenceRequest { revision, share, within } = request;
        let mut faults = Faults::none();
        if revision == 0 {
            faults.add("revision", "is required");
        }
        let share = share.unwrap_or(1.0);
        if !CONVERGENCE_SHARE.contains(&share) {
            faults.add("share", format!("must be between 0.01 and 1, not {share}"));
        }
        let within = within.map_or(Some(DEFAULT_WITHIN), convert::length);
        let within = within.filter(|within| CONVERGENCE_WITHIN.contains(within));
        if within.is_none() {
            faults.add("within", "must be between 100ms and 10m");
        }
        faults.or(()).map_err(ApiError::Faults)?;
        Ok(Self { revision, share, within: within.unwrap_or(DEFAULT_WITHIN) })
    }
}

/// Opens the stream. Errors if the change of the revision is no longer kept.
pub(crate) async fn open(
    cluster: &Arc<Cluster>,
    plan: ConvergenceOptions,
    reader: Reader,
) -> Result<ResponseStream<v1::Convergence>, ApiError> {
    let begun = Instant::now();
    let table = cluster.fleet.table();
    let subjects = match table.revision() >= plan.revision {
        // While the store is unavailable, the change itself is waited for.
        true => timeout(plan.within, subjects(cluster, &table, plan.revision)).await.ok().transpose()?,
        false => None,
    };
    let watcher = ConvergenceWatcher {
        cluster: cluster.clone(),
        tables: cluster.fleet.state.table.clone(),
        moves: cluster.fleet.hub.moves(),
        epoch: table.epoch().clone(),
        census: subjects.map(|subjects| ConvergenceTracker::new(plan.revision, subjects)),
        begun,
        took: Duration::ZERO,
        plan,
    };
    Ok(ResponseStream::of(reader, 1, |out| watcher.serve(out)))
}

/// Returns the subjects of the change of a revision, from memory or from the store.
async fn subjects(cluster: &Cluster, table: &Snapshot, revision: u64) -> Result<ChangedSubjects, ApiError> {
    let watched = &cluster.fleet.watched_changes;
    if let Some(subjects) = watched.known(table.epoch(), revision) {
        return Ok(subjects);
    }
    let subjects = match table.changed_at(revision) {
        Some(subjects) => subjects.iter().cloned().collect(),
        None => stored_subjects(cluster, revision).await?,
    };
    Ok(watched.share(table.epoch(), revision, Arc::new(subjects)))
}

async fn stored_subjects(cluster: &Cluster, revision: u64) -> Result<HashSet<ResourceKey>, ApiError> {
    let asked = revision;
    let _turn = cluster.fleet.state.past.turn().await;
    match cluster.fleet.state.store.changes(revision - 1, revision).await {
        Ok(changes) => {
            let change = changes.iter().find(|change| change.revision == revision);
            let change = change.ok_or_else(|| {
                ApiError::NotFound(format!("there is no change with the revision {revision}"))
            })?;
            Ok(change.edits.iter().filter_map(|edit| ResourceKey::of_key(&edit.key)).collect())
        }
        Err(damper_store::StoreError::Compacted { oldest }) => Err(ApiError::NoLongerKept { asked, oldest }),
        Err(error) => Err(error.into()),
    }
}

/// The state of one convergence stream.
struct ConvergenceWatcher {
    cluster: Arc<Cluster>,
    tables: watch::Receiver<Arc<Snapshot>>,
    moves: watch::Receiver<u64>,
    epoch: Arc<str>,
    /// `None` until this replica has reached the revision.
    census: Option<ConvergenceTracker>,
    begun: Instant,
    /// Duration of the last census, with its queueing time.
    took: Duration,
    plan: ConvergenceOptions,
}

impl ConvergenceWatcher {
    /// Sends the state until the change has converged, cannot converge or times out.
    async fn serve(mut self, out: Out<v1::Convergence>) -> Result<(), ApiError> {
        let deadline = self.begun + self.plan.within;
        let mut sent = None;
        let mut next_send = self.begun;
        loop {
            // Reset before the census: an event during it wakes the watcher again.
            self.moves.mark_unchanged();
            let (mut state, refresh_at) =
                match timeout_at(deadline + LAST_CENSUS_TIMEOUT, self.refresh()).await {
                    Ok(refreshed) => refreshed?,
                    Err(_) => (self.latest(sent.as_ref()), None),
                };
            let now = Instant::now();
            state.timed_out = !(state.done || state.hopeless) && now >= deadline;
            if state.done || state.hopeless || state.timed_out {
                // The receiver may be closed.
                let _ = out.send(state).await;
                return Ok(());
            }
            let news = sent.as_ref() != Some(&without_time(&state));
            if news && now >= next_send {
                sent = Some(without_time(&state));
                next_send = now + SEND_INTERVAL;
                if out.send(state).await.is_err() {
                    return Ok(());
                }
            }
            let unsent = news && now < next_send;
            let wake = if unsent { next_send.min(deadline) } else { deadline };
            let wake = refresh_at.map_or(wake, |again| wake.min(again));
            tokio::select! {
                () = out.closed() => return Ok(()),
                () = self.event(now + CENSUS_INTERVAL.max(self.took * PAUSE)) => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Waits for an event and for the end of the pause.
    async fn event(&mut self, earliest: Instant) {
        let happened = tokio::select! {
            moved = self.moves.changed() => moved.is_ok(),
            changed = self.tables.changed() => changed.is_ok(),
        };
        if !happened {
            std::future::pending::<()>().await;
        }
        sleep_until(earliest).await;
    }

    /// Returns the current state, and the time of the next change without an event.
    async fn refresh(&mut self) -> Result<(v1::Convergence, Option<Instant>), ApiError> {
        let table = self.tables.borrow_and_update().clone();
        if *table.epoch() != self.epoch {
            return Err(ApiError::unavailable(
                "the store was replaced while this request waited; check whether the new store contains the \
                 change, and repeat the change if not",
            ));
        }
        if self.census.is_none() && table.revision() >= self.plan.revision {
            let subjects = subjects(&self.cluster, &table, self.plan.revision).await?;
            self.census = Some(ConvergenceTracker::new(self.plan.revision, subjects));
        }
        let unknown = self.unknown();
        let Some(mut census) = self.census.take() else { return Ok((unknown, None)) };
        let begun = Instant::now();
        let cluster = self.cluster.clone();
        let counting = move |_: &CancelCheck| {
            let counted = census.take(&cluster.fleet.hub, &table, Instant::now());
            Ok((census, counted))
        };
        let (census, counted) = self.cluster.fleet.counting.run(counting).await?;
        self.census = Some(census);
        self.took = begun.elapsed();
        let share = self.plan.share;
        // The clients of an unreachable replica are unknown, so neither result is certain.
        let all_reachable = unknown.missing_replicas.is_empty();
        let (done, hopeless) =
            (all_reachable && counted.reaches(share), all_reachable && counted.is_hopeless(share));
        let v1::Convergence { elapsed, missing_replicas, .. } = unknown;
        let state = v1::Convergence { done, hopeless, elapsed, missing_replicas, ..counted.counts };
        Ok((state, counted.awaited_until))
    }

    /// Returns the last sent state with the current time.
    fn latest(&self, sent: Option<&v1::Convergence>) -> v1::Convergence {
        let unknown = self.unknown();
        let Some(sent) = sent else { return unknown };
        let v1::Convergence { elapsed, missing_replicas, .. } = unknown;
        v1::Convergence { elapsed, missing_replicas, ..sent.clone() }
    }

    /// Returns the state before the subjects of the change are known.
    fn unknown(&self) -> v1::Convergence {
        let elapsed = prost_types::Duration::try_from(self.begun.elapsed()).ok();
        let missing_replicas = self.cluster.peers.missing();
        v1::Convergence { revision: self.plan.revision, elapsed, missing_replicas, ..Default::default() }
    }
}

fn without_time(state: &v1::Convergence) -> v1::Convergence {
    v1::Convergence { elapsed: None, ..state.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lists_all_faults_at_once() {
        let within = Some(prost_types::Duration { seconds: 601, nanos: 0 });
        let bad = v1::WatchConvergenceRequest { revision: 0, share: Some(f64::NAN), within };
        let Err(ApiError::Faults(faults)) = ConvergenceOptions::read(bad) else {
            panic!("the request is rejected")
        };
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["revision", "share", "within"]);
    }
}
