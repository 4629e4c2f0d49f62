//! Activity of a connection, as its deadlines need it.
//!
//! The socket reports bytes; requests report their begin and end. The task that serves the connection polls
//! the next deadline. No wake-up is needed, so a byte costs one uncontended lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{Limit, Limits};

/// Shared by the socket, the requests and the task of one connection.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    /// Requests whose answers have not ended.
    open: usize,
    /// `None` before the first request.
    http1: Option<bool>,
    /// Start of the time without an open request.
    quiet_since: Instant,
    /// Time of the first byte after that.
    spoke_at: Option<Instant>,
    /// Deadlines of responses that must end in time, by request number; 0 is the first request.
    due: BTreeMap<u64, Instant>,
    begun: u64,
}

/// Next action of a connection's deadlines.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TimeoutAction {
    /// Poll again at this time.
    At(Instant),
    /// This limit is exceeded.
    Over(Limit),
}

impl Activity {
    pub(super) fn new(now: Instant) -> Self {
        let state = ActivityState {
            open: 0,
            http1: None,
            quiet_since: now,
            spoke_at: None,
            due: BTreeMap::new(),
            begun: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Records that bytes arrived.
    pub(super) fn spoke(&self) {
        let mut state = self.state();
        if state.open == 0 && state.spoke_at.is_none() {
            state.spoke_at = Some(Instant::now());
        }
    }

    /// Records a request's head. The request is open until the guard is dropped. `within` bounds the
    /// response, its transfer included; `None`: no limit.
    pub(super) fn begin(&self, http1: bool, within: Option<Duration>) -> OpenRequest {
        let mut state = self.state();
        state.open += 1;
        state.http1 = Some(http1);
        state.spoke_at = None;
        let number = state.begun;
        state.begun += 1;
        if let Some(within) = within {
            state.due.insert(number, Instant::now() + within);
        }
        OpenRequest { activity: self.clone(), number }
    }

    /// Returns the next deadline, or the exceeded one.
    pub(super) fn due(&self, now: Instant, limits: &Limits) -> TimeoutAction {
        let state = self.state();
        if state.open > 0 {
            if state.due.values().any(|at| *at <= now) {
                return TimeoutAction::Over(Limit::UnaryDeadline);
            }
            return TimeoutAction::At(now + limits.request_head_within.min(limits.idle_connection_after));
        }
        let idle = (state.quiet_since + limits.idle_connection_after, Limit::IdleConnection);
        let head = match (state.http1, state.spoke_at) {
            (None, _) => Some(state.quiet_since),
            (Some(true), Some(spoke_at)) => Some(spoke_at),
            // HTTP/2 also sends frames between requests; its heads arrive whole or the connection is idle.
            (Some(true), None) | (Some(false), _) => None,
        };
        let head = head.map(|since| (since + limits.request_head_within, Limit::RequestHead));
        let (at, limit) = head.into_iter().chain([idle]).min_by_key(|(at, _)| *at).unwrap_or(idle);
        if at <= now {
            return TimeoutAction::Over(limit);
        }
        // The next head may begin, and time out, before the idle limit.
        TimeoutAction::At(at.min(now + limits.request_head_within))
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open request.
#[derive(Debug)]
pub(super) struct OpenRequest {
    activity: Activity,
    number: u64,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.due.remove(&self.number);
        state.open -= 1;
        if state.open == 0 {
            state.quiet_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn first_request_has_a_shorter_timeout_than_later_ones() {
        let limits = Limits::default();
        let activity = Activity::new(Instant::now());
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::At(Instant::now() + 10 * S));
        // Bytes that make no request do not help.
        tokio::time::advance(9 * S).await;
        activity.spoke();
        tokio::time::advance(S).await;
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::Over(Limit::RequestHead));
        drop(activity.begin(false, None));
        tokio::time::advance(299 * S).await;
        activity.spoke();
        assert!(matches!(activity.due(Instant::now(), &limits), TimeoutAction::At(_)));
        tokio::time::advance(S).await;
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::Over(Limit::IdleConnection));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_over_http_1_may_not_take_longer_than_the_first() {
        let limits = Limits::default();
        let activity = Activity::new(Instant::now());
        drop(activity.begin(true, None));
        tokio::time::advance(100 * S).await;
        activity.spoke();
        tokio::time::advance(9 * S).await;
        activity.spoke();
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::At(Instant::now() + S));
        tokio::time::advance(S).await;
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::Over(Limit::RequestHead));
    }

    #[tokio::test(start_paused = true)]
    async fn unary_request_keeps_its_connection_within_its_timeout() {
        let limits = Limits::default();
        let activity = Activity::new(Instant::now());
        let _long = activity.begin(false, None);
        drop(activity.begin(false, Some(S)));
        let _short = activity.begin(false, Some(60 * S));
        tokio::time::advance(59 * S).await;
        assert!(matches!(activity.due(Instant::now(), &limits), TimeoutAction::At(_)));
        tokio::time::advance(S).await;
        assert_eq!(activity.due(Instant::now(), &limits), TimeoutAction::Over(Limit::UnaryDeadline));
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_stream_keeps_its_connection_for_ever() {
        let limits = Limits::default();
        let activity = Activity::new(Instant::now());
        let (first, second) = (activity.begin(false, None), activity.begin(false, None));
        drop(first);
        tokio::time::advance(10_000 * S).await;
        assert!(matches!(activity.due(Instant::now(), &limits), TimeoutAction::At(_)));
        drop(second);
        assert!(
            matches!(activity.due(Instant::now(), &limits), TimeoutAction::At(_)),
            "the time counts from its end"
        );
    }
}
