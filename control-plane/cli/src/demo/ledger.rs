//! Measurements of the demo, independent of the components that it measures.
//!
//! Every request carries its id through all layers. Each service records each arrival, so attempts are
//! counted where they arrive, not where they are sent. All counts belong to the phase and the second in which
//! the request **started**.
//!
//! Records of single requests are kept for the last [`KEPT`] only; sums per second stay.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The services from the top of the chain to its bottom.
pub(super) const LAYERS: [&str; 4] = ["gateway", "orders", "inventory", "stock"];

/// Single requests kept, far more than can be in flight at once; later arrivals of older ones are not
/// counted.
const KEPT: usize = 1 << 16;

/// Counts requests and their attempts by the second in which they started.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
    ended: Notify,
}

/// The requests that started within one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Second {
    pub(super) started: u64,
    pub(super) succeeded: u64,
    pub(super) ended: u64,
    /// Attempts carrying their ids, by the layer at which they arrived.
    pub(super) arrivals: [u64; LAYERS.len()],
}

/// Sums of one stretch of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) seconds: Vec<Second>,
    /// Start, within the stretch, of the first request that was retried after a failure at the bottom.
    pub(super) first_repeated: Option<Duration>,
    /// Start of the last request that failed at the bottom without a retry.
    pub(super) last_not_repeated: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    stretches: Vec<Stretch>,
    requests: VecDeque<Request>,
    /// The id of the first request kept.
    first_id: u64,
}

#[derive(Debug)]
struct Stretch {
    began: Instant,
    sums: Sums,
}

#[derive(Debug)]
struct Request {
    stretch: usize,
    after: Duration,
    at_bottom: u64,
    failed_at_bottom: u64,
}

impl Ledger {
    /// Begins a new stretch for requests from now on, and returns its number.
    pub(super) fn begin(&self, now: Instant) -> usize {
        let mut state = self.lock();
        state.stretches.push(Stretch { began: now, sums: Sums::default() });
        state.stretches.len() - 1
    }

    /// Records the start of a request; a stretch must have begun.
    pub(super) fn started(&self, now: Instant) -> u64 {
        let mut state = self.lock();
        let stretch = state.stretches.len().checked_sub(1).expect("a stretch begins before the load");
        let after = now.saturating_duration_since(state.stretches[stretch].began);
        let request = Request { stretch, after, at_bottom: 0, failed_at_bottom: 0 };
        state.stretches[stretch].sums.second(after).started += 1;
        state.requests.push_back(request);
        if state.requests.len() > KEPT {
            state.requests.pop_front();
            state.first_id += 1;
        }
        state.first_id + state.requests.len() as u64 - 1
    }

    /// Records the arrival of an attempt at a layer.
    pub(super) fn arrived(&self, layer: usize, id: u64) {
        self.with(id, |request, sums| {
            sums.second(request.after).arrivals[layer] += 1;
            request.at_bottom += u64::from(layer + 1 == LAYERS.len());
        });
    }

    /// Records a failed attempt at the bottom.
    pub(super) fn failed_at_bottom(&self, id: u64) {
        self.with(id, |request, _| request.failed_at_bottom += 1);
    }

    /// Records the end of a request: answered or timed out.
    pub(super) fn ended(&self, id: u64, success: bool) {
        self.with(id, |request, sums| {
            sums.note_repetition(request);
            let second = sums.second(request.after);
            second.ended += 1;
            second.succeeded += u64::from(success);
        });
        self.ended.notify_waiters();
    }

    /// Returns the current sums of a stretch.
    pub(super) fn sums(&self, stretch: usize) -> Sums {
        self.lock().stretches.get(stretch).map(|stretch| stretch.sums.clone()).unwrap_or_default()
    }

    /// Waits until every request that started in this second has ended.
    pub(super) async fn settled(&self, stretch: usize, second: usize) -> Second {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let now = self.one_second(stretch, second);
            if now.ended == now.started {
                return now;
            }
            ended.await;
        }
    }

    fn one_second(&self, stretch: usize, second: usize) -> Second {
        let state = self.lock();
        let seconds = state.stretches.get(stretch).map(|stretch| &stretch.sums.seconds);
        seconds.and_then(|seconds| seconds.get(second)).copied().unwrap_or_default()
    }

    fn with(&self, id: u64, book: impl FnOnce(&mut Request, &mut Sums)) {
        let mut state = self.lock();
        let State { stretches, requests, first_id } = &mut *state;
        if let Some(request) = find(requests, *first_id, id) {
            let sums = &mut stretches[request.stretch].sums;
            book(request, sums);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    fn second(&mut self, after: Duration) -> &mut Second {
        let index = usize::try_from(after.as_secs()).unwrap_or(usize::MAX - 1);
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Second::default());
        }
        &mut self.seconds[index]
    }

    /// Records whether an ended request was retried after its failure at the bottom.
    fn note_repetition(&mut self, request: &Request) {
        if request.failed_at_bottom == 0 {
            return;
        }
        if request.at_bottom > 1 {
            let first = self.first_repeated.get_or_insert(request.after);
            *first = (*first).min(request.after);
        } else {
            self.last_not_repeated = self.last_not_repeated.max(Some(request.after));
        }
    }
}

fn find(requests: &mut VecDeque<Request>, first_id: u64, id: u64) -> Option<&mut Request> {
    let index = usize::try_from(id.checked_sub(first_id)?).ok()?;
    requests.get_mut(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTTOM: usize = LAYERS.len() - 1;

    fn at(origin: Instant, ms: u64) -> Instant {
        origin + Duration::from_millis(ms)
    }

    #[test]
    fn attempts_belong_to_the_second_of_their_request() {
        let ledger = Ledger::default();
        let origin = Instant::now();
        let first = ledger.begin(origin);
        let early = ledger.started(at(origin, 999));
        let late = ledger.started(at(origin, 1000));
        let second = ledger.begin(at(origin, 1500));
        let other = ledger.started(at(origin, 1500));

        for id in [early, late, late, other, other, other] {
            ledger.arrived(BOTTOM, id);
        }
        let arrivals = |stretch| -> Vec<u64> {
            let sums = ledger.sums(stretch);
            sums.seconds.iter().map(|second| second.arrivals[BOTTOM]).collect()
        };
        assert_eq!(arrivals(first), [1, 2]);
        assert_eq!(arrivals(second), [3]);
    }

    #[test]
    fn first_retried_failure_at_the_bottom_is_recorded() {
        let ledger = Ledger::default();
        let origin = Instant::now();
        let stretch = ledger.begin(origin);
        for (ms, attempts, failures) in [(100, 1, 1), (900, 1, 1), (1000, 1, 0), (1200, 2, 1), (3000, 2, 1)] {
            let id = ledger.started(at(origin, ms));
            (0..attempts).for_each(|_| ledger.arrived(BOTTOM, id));
            (0..failures).for_each(|_| ledger.failed_at_bottom(id));
            ledger.ended(id, attempts > failures);
        }
        let sums = ledger.sums(stretch);
        assert_eq!(sums.last_not_repeated, Some(Duration::from_millis(900)));
        assert_eq!(sums.first_repeated, Some(Duration::from_millis(1200)));
        assert_eq!(sums.seconds.iter().map(|second| second.succeeded).sum::<u64>(), 3);
    }

    #[test]
    fn only_the_latest_requests_are_kept_one_by_one() {
        let ledger = Ledger::default();
        let origin = Instant::now();
        let stretch = ledger.begin(origin);
        let first = ledger.started(origin);
        for _ in 0..KEPT {
            ledger.started(origin);
        }
        ledger.arrived(BOTTOM, first);
        ledger.arrived(BOTTOM, first + 1);
        let second = ledger.sums(stretch).seconds[0];
        assert_eq!(second.started, KEPT as u64 + 1);
        assert_eq!(second.arrivals[BOTTOM], 1);
    }

    #[tokio::test]
    async fn a_second_settles_when_its_last_request_ends() {
        let ledger = std::sync::Arc::new(Ledger::default());
        let origin = Instant::now();
        let stretch = ledger.begin(origin);
        let ids = [ledger.started(origin), ledger.started(origin)];
        ledger.ended(ids[0], true);
        let waiting = tokio::spawn({
            let ledger = ledger.clone();
            async move { ledger.settled(stretch, 0).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        ledger.ended(ids[1], false);
        let second = waiting.await.unwrap();
        assert_eq!((second.started, second.ended, second.succeeded), (2, 2, 1));
    }
}
