//! How far the change of a revision has come: proof of delivery, as a stream that ends.
//!
//! The watcher is woken by the hub's events (a client came, went, was sent something, answered) and by the table's,
//! never by the clock alone; it then takes a census of those whom the change concerns ([`census`]). A census looks at
//! every client once, so it is taken at most every few milliseconds, however many answers come in between, and told at
//! most every tenth of a second unless it is the last.

use std::sync::Arc;
use std::time::Duration;

use damper_core::Faults;
use damper_proto::{convert, v1};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::api::response_stream::{Out, Reader, ResponseStream};
use crate::cluster::Cluster;
use crate::push::convergence::ConvergenceTracker;
use crate::push::convergence::{CONVERGENCE_SHARE, CONVERGENCE_WITHIN};
use crate::state::error::ApiError;
use crate::state::exclusive::CancelCheck;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;

const DEFAULT_WITHIN: Duration = Duration::from_secs(30);
/// How often a census is taken at most, and how often it is told.
const TAKE_EVERY: Duration = Duration::from_millis(5);
const TELL_EVERY: Duration = Duration::from_millis(100);
/// It rests so many times as long as it took.
const PAUSE: u32 = 4;
/// How long the census at the deadline may take. It runs off the runtime, so it is never ready at once.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// What somebody waits for.
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
            faults.add("revision", "must be given");
        }
        let share = share.unwrap_or(1.0);
        if !CONVERGENCE_SHARE.contains(&share) {
            faults.add("share", format!("{share} is not in 0.01 to 1"));
        }
        let within = within.map_or(Some(DEFAULT_WITHIN), convert::length);
        let within = within.filter(|within| CONVERGENCE_WITHIN.contains(within));
        if within.is_none() {
            faults.add("within", "is not in 100ms to 10m");
        }
        faults.or(()).map_err(ApiError::Faults)?;
        Ok(Self { revision, share, within: within.unwrap_or(DEFAULT_WITHIN) })
    }
}

/// Opens the stream. A revision whose change is no longer kept is refused before.
pub(crate) async fn open(
    cluster: &Arc<Cluster>,
    plan: ConvergenceOptions,
    reader: Reader,
) -> Result<ResponseStream<v1::Convergence>, ApiError> {
    let begun = Instant::now();
    let table = cluster.fleet.table();
    let subjects = match table.revision() >= plan.revision {
        // A store that does not answer is waited for as the change itself is.
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

/// What the change of a revision was about, from memory or from the store.
async fn subjects(cluster: &Cluster, table: &Snapshot, revision: u64) -> Result<Vec<ResourceKey>, ApiError> {
    if let Some(subjects) = table.changed_at(revision) {
        return Ok(subjects.to_vec());
    }
    let asked = revision;
    match cluster.fleet.state.store.changes(revision - 1, revision).await {
        Ok(changes) => {
            let change = changes.iter().find(|change| change.revision == revision);
            let change =
                change.ok_or_else(|| ApiError::NotFound(format!("there is no revision {revision}")))?;
            Ok(change.edits.iter().filter_map(|edit| ResourceKey::of_key(&edit.key)).collect())
        }
        Err(damper_store::StoreError::Compacted { oldest }) => Err(ApiError::NoLongerKept { asked, oldest }),
        Err(error) => Err(error.into()),
    }
}

/// One who waits.
struct ConvergenceWatcher {
    cluster: Arc<Cluster>,
    tables: watch::Receiver<Arc<Snapshot>>,
    moves: watch::Receiver<u64>,
    epoch: Arc<str>,
    /// None before this replica has reached the revision.
    census: Option<ConvergenceTracker>,
    begun: Instant,
    /// How long the last census took, its wait included.
    took: Duration,
    plan: ConvergenceOptions,
}

impl ConvergenceWatcher {
    /// Tells how far the change has come, until it has come, can not come or time is up.
    async fn serve(mut self, out: Out<v1::Convergence>) -> Result<(), ApiError> {
        let deadline = self.begun + self.plan.within;
        let mut told = None;
        let mut next_telling = self.begun;
        loop {
            // Seen before the census: what happens during it wakes the watcher again.
            self.moves.mark_unchanged();
            let (mut state, look_again) = match timeout_at(deadline + LAST_LOOK, self.look()).await {
                Ok(looked) => looked?,
                Err(_) => (self.latest(told.as_ref()), None),
            };
            let now = Instant::now();
            state.timed_out = !(state.done || state.hopeless) && now >= deadline;
            if state.done || state.hopeless || state.timed_out {
                // Who is gone is told nothing.
                let _ = out.send(state).await;
                return Ok(());
            }
            let news = told.as_ref() != Some(&without_time(&state));
            if news && now >= next_telling {
                told = Some(without_time(&state));
                next_telling = now + TELL_EVERY;
                if out.send(state).await.is_err() {
                    return Ok(());
                }
            }
            let untold = news && now < next_telling;
            let wake = if untold { next_telling.min(deadline) } else { deadline };
            let wake = look_again.map_or(wake, |again| wake.min(again));
            tokio::select! {
                () = out.closed() => return Ok(()),
                () = self.event(now + TAKE_EVERY.max(self.took * PAUSE)) => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Something has happened, and the last census is old enough.
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

    /// How far the change has come now, and when it may be otherwise without an event.
    async fn look(&mut self) -> Result<(v1::Convergence, Option<Instant>), ApiError> {
        let table = self.tables.borrow_and_update().clone();
        if *table.epoch() != self.epoch {
            return Err(ApiError::unavailable("the store was replaced; its revisions are others now"));
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
        let (census, counted) = self.cluster.fleet.counting.take(counting).await?;
        self.census = Some(census);
        self.took = begun.elapsed();
        let share = self.plan.share;
        // Of the clients of a replica that is not heard nothing is known, so nothing is said for certain.
        let all_heard = unknown.missing_replicas.is_empty();
        let (done, hopeless) = (all_heard && counted.reaches(share), all_heard && counted.is_hopeless(share));
        let v1::Convergence { elapsed, missing_replicas, .. } = unknown;
        let state = v1::Convergence { done, hopeless, elapsed, missing_replicas, ..counted.told };
        Ok((state, counted.awaited_until))
    }

    /// The last state that was sent, as of now.
    fn latest(&self, sent: Option<&v1::Convergence>) -> v1::Convergence {
        let unknown = self.unknown();
        let Some(sent) = sent else { return unknown };
        let v1::Convergence { elapsed, missing_replicas, .. } = unknown;
        v1::Convergence { elapsed, missing_replicas, ..sent.clone() }
    }

    /// What is known before it is known whom the change concerns.
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
    fn everything_wrong_with_a_question_is_told_at_once() {
        let within = Some(prost_types::Duration { seconds: 601, nanos: 0 });
        let bad = v1::WatchConvergenceRequest { revision: 0, share: Some(f64::NAN), within };
        let Err(ApiError::Faults(faults)) = ConvergenceOptions::read(bad) else { panic!("it is refused") };
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["revision", "share", "within"]);
    }
}
