//! What operators do with jobs: read, run now, cancel, replay, delete.
//!
//! A change of a selection reads its jobs page by page and changes each page in one commit, behind everything
//! else that waits for the store. It ends after [`WITHIN`] with what it has done, and is called again for the
//! rest. A replay writes due times one after the other: the schedule itself is the brake.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{JobEnd, Queue, Wall};
use damper_core::{Pattern, Ratio};
use futures_util::future::join_all;

use crate::clock::Now;
use crate::forget::CHUNK;
use crate::shared::{Inner, JobServer};
use crate::state::plan::deliverable;
use crate::store::{Body, Change, ChangeTo, Error, Filter, JobId, Lane, Page, Record, StateKind};

/// Time of one call.
const WITHIN: Duration = Duration::from_secs(15);

/// Jobs that a change applies to. Set parts must all match.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Queue, states, code, key, times.
    pub filter: Filter,
    /// Routes; `None`: all.
    pub route: Option<Pattern>,
    /// Jobs; empty: all.
    pub ids: Vec<JobId>,
}

/// A change of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// Waiting jobs are due now.
    Run,
    /// Waiting jobs end.
    Cancel,
    /// Dead jobs wait again.
    Replay {
        /// Jobs per second.
        rate: Ratio,
        /// Jobs of the same replay that earlier calls have changed.
        done: u64,
    },
    /// Dead and ended jobs are deleted.
    Purge,
    /// Jobs in any state are deleted, together with their queue.
    Remove,
}

/// Result of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Changed jobs, or those that would be.
    pub jobs: u64,
    /// Selected jobs in a state that the change does not apply to.
    pub skipped: u64,
    /// The time was up, or the store failed: there may be more.
    pub more: bool,
}

impl Changed {
    /// An error does not hide what was done before it: the repeated request meets it again.
    fn cut_short_by(self, error: Error) -> Result<Self, Error> {
        if self.jobs == 0 { Err(error) } else { Ok(Self { more: true, ..self }) }
    }
}

/// Result of a cancellation by a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// It will not be delivered.
    Cancelled,
    /// The service has no such job.
    NotFound,
    /// It was delivered, or has ended.
    TooLate,
}

impl JobServer {
    /// Cancels a job of a service that was never delivered.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn cancel(&self, service: &str, id: JobId) -> Result<Cancellation, Error> {
        let inner = &self.inner;
        let Some(record) = inner.store.get(id).await? else { return Ok(Cancellation::NotFound) };
        if record.lane.route.caller_service() != service {
            return Ok(Cancellation::NotFound);
        }
        match record.state.kind() {
            StateKind::Cancelled => return Ok(Cancellation::Cancelled),
            StateKind::Waiting | StateKind::Behind if record.job.deliveries == 0 => {}
            _ => return Ok(Cancellation::TooLate),
        }
        let to = ChangeTo::Cancelled(JobEnd::Cancelled.name().to_owned());
        let changed = inner.writer.change(Change { id, to, now: inner.now().wall }).await?;
        if !changed {
            return Ok(Cancellation::TooLate);
        }
        inner.state().queue(&record.lane.queue).totals.cancelled += 1;
        Ok(Cancellation::Cancelled)
    }

    /// Returns a job.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn get(&self, id: JobId) -> Result<Option<Record>, Error> {
        self.inner.store.get(id).await
    }

    /// Returns body and metadata of a job; `None` if they were removed.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn body(&self, id: JobId) -> Result<Option<Body>, Error> {
        self.inner.store.body(id).await
    }

    /// Returns at most `limit` jobs of a selection with ids greater than `after`, by id.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn list(
        &self,
        selection: &Selection,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page, Error> {
        self.inner.list(selection, after, limit).await
    }

    /// Returns why a due job is not delivered; empty: it is, or it is not due.
    #[must_use]
    pub fn held(&self, record: &Record) -> String {
        let (state, now) = (self.inner.state(), self.inner.now().wall);
        if record.state.kind() != StateKind::Waiting || record.at > now {
            return String::new();
        }
        if let Err(why) = deliverable(state.queues.get(&record.lane.queue).cloned()) {
            return why.to_owned();
        }
        let queue = state.by_name.get(&*record.lane.queue);
        let lane = queue.and_then(|queue| queue.lanes.get(&record.lane.route));
        lane.and_then(|lane| lane.held).map(|held| held.why.to_owned()).unwrap_or_default()
    }

    /// Returns the number of jobs of a queue that have not ended, as the store has it now.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn unended(&self, queue: &str) -> Result<u64, Error> {
        let lanes = self.inner.store.lanes().await?;
        let of_queue = lanes.iter().filter(|counts| counts.lane.queue == queue);
        Ok(of_queue.map(|counts| counts.waiting + counts.behind + counts.leased).sum())
    }

    /// Changes the jobs of a selection, or counts those that it would change.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn change(
        &self,
        selection: Selection,
        change: JobChange,
        only_count: bool,
    ) -> Result<Changed, Error> {
        self.inner.change(selection, change, only_count).await
    }
}

impl JobChange {
    fn applies_to(self) -> &'static [StateKind] {
        match self {
            Self::Run => &[StateKind::Waiting],
            Self::Cancel => &[StateKind::Waiting, StateKind::Behind],
            Self::Replay { .. } => &[StateKind::Dead],
            Self::Purge => &[StateKind::Done, StateKind::Dead, StateKind::Cancelled, StateKind::Expired],
            Self::Remove => &[
                StateKind::Waiting,
                StateKind::Behind,
                StateKind::Leased,
                StateKind::Done,
                StateKind::Dead,
                StateKind::Cancelled,
                StateKind::Expired,
            ],
        }
    }

    /// Returns the change of the `number`-th job.
    fn of(self, record: &Record, policy: &Queue, number: u64, now: Wall) -> ChangeTo {
        match self {
            Self::Run => ChangeTo::Due,
            Self::Cancel => ChangeTo::Cancelled(JobEnd::Cancelled.name().to_owned()),
            Self::Replay { rate, done } => {
                let interval_us = 10_000_000_000 / u64::from(rate.bp()).max(1);
                let due =
                    now + Duration::from_micros(interval_us.saturating_mul(done.saturating_add(number)));
                ChangeTo::Replayed(due, record.job.replayed(policy.settings(), due))
            }
            Self::Purge => ChangeTo::Deleted,
            Self::Remove => ChangeTo::Removed,
        }
    }
}

impl Inner {
    async fn list(&self, selection: &Selection, after: Option<JobId>, limit: usize) -> Result<Page, Error> {
        let mut filter = selection.filter.clone();
        if let Some(pattern) = &selection.route {
            filter.lanes = Some(self.lanes(&filter.queue, pattern));
        }
        if selection.ids.is_empty() {
            return self.store.list(filter, after, limit).await;
        }
        let mut ids: Vec<JobId> = selection.ids.iter().copied().filter(|id| Some(*id) > after).collect();
        ids.sort_unstable();
        ids.dedup();
        let next = ids.get(limit.saturating_sub(1)).copied().filter(|_| ids.len() > limit);
        let mut jobs = Vec::new();
        for id in ids.into_iter().take(limit) {
            jobs.extend(self.store.get(id).await?.filter(|record| filter.selects(record)));
        }
        Ok(Page { jobs, next })
    }

    /// Returns the lanes of a queue whose routes match a pattern.
    fn lanes(&self, queue: &str, pattern: &Pattern) -> Vec<Lane> {
        let state = self.state();
        let known = state.by_name.get(queue).into_iter().flat_map(|queue| queue.lanes.iter());
        known.filter(|lane| pattern.matches(&lane.lane.route)).map(|lane| (*lane.lane).clone()).collect()
    }

    async fn change(
        &self,
        mut selection: Selection,
        change: JobChange,
        only_count: bool,
    ) -> Result<Changed, Error> {
        let (began, mut result) = (self.now(), Changed::default());
        let applies = change.applies_to();
        if selection.filter.states.is_empty() && selection.ids.is_empty() {
            selection.filter.states = applies.to_vec();
        }
        let mut after = None;
        loop {
            let page = match self.list(&selection, after, CHUNK).await {
                Ok(page) => page,
                Err(error) => return result.cut_short_by(error),
            };
            let (fit, unfit): (Vec<Record>, Vec<Record>) =
                page.jobs.into_iter().partition(|record| applies.contains(&record.state.kind()));
            result.skipped += unfit.len() as u64;
            let (changed, failure) = match only_count {
                true => (fit.len() as u64, None),
                false => self.change_page(&fit, change, result.jobs, began).await,
            };
            result.jobs += changed;
            if let Some(error) = failure {
                return result.cut_short_by(error);
            }
            result.skipped += fit.len() as u64 - changed;
            after = page.next;
            if after.is_none() {
                return Ok(result);
            }
            if began.instant.elapsed() >= WITHIN {
                return Ok(Changed { more: true, ..result });
            }
        }
    }

    /// Returns how many jobs were changed, and the first error.
    async fn change_page(
        &self,
        jobs: &[Record],
        change: JobChange,
        done: u64,
        began: Now,
    ) -> (u64, Option<Error>) {
        let changes: Vec<Change> = {
            let state = self.state();
            let numbered = jobs.iter().zip(done..);
            let change = |(record, number): (&Record, u64)| {
                let policy: Arc<Queue> = state.policy(&record.lane.queue);
                Change { id: record.id, to: change.of(record, &policy, number, began.wall), now: began.wall }
            };
            numbered.map(change).collect()
        };
        let changed = join_all(changes.into_iter().map(|change| self.writer.change(change))).await;
        let mut state = self.state();
        let (mut all, mut failure) = (0, None);
        for (record, changed) in jobs.iter().zip(changed) {
            match changed {
                Ok(true) => all += 1,
                Ok(false) => continue,
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            }
            let totals = &mut state.queue(&record.lane.queue).totals;
            match change {
                JobChange::Run => {}
                JobChange::Cancel => totals.cancelled += 1,
                JobChange::Replay { .. } => totals.replayed += 1,
                JobChange::Purge | JobChange::Remove => totals.deleted += 1,
            }
        }
        (all, failure)
    }
}
