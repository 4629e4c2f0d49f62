//! The connection that all submissions of a process share.
//!
//! It is opened by the first submission, in a task of its own: a submission whose time is over does not stop
//! it, and all that wait get the same result. A request that fails for a reason of the connection or the
//! server drops it, so that the next one goes to another replica.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::dial::{Dial, Line, LineEnd, Missed};

/// A shared connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Locked by the task that connects.
    dial: tokio::sync::Mutex<Box<dyn Dial>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    line: LineState,
    /// Number of connections so far: an error of an earlier one does not drop the present one.
    number: u64,
}

#[derive(Debug)]
enum LineState {
    Closed,
    /// The receiver gets the problem. The sender is dropped after it, after success, and with the runtime.
    Opening(watch::Receiver<Option<Missed>>),
    Open {
        line: Line,
        since: Instant,
    },
}

impl Link {
    pub(super) fn new(dial: Box<dyn Dial>) -> Self {
        Self { dial: dial.into(), state: Mutex::new(State { line: LineState::Closed, number: 0 }) }
    }

    /// Returns the connection with its number; opens it if there is none.
    ///
    /// # Errors
    /// No replica accepts a connection.
    pub(super) async fn line(self: &Arc<Self>) -> Result<(Line, u64), Missed> {
        loop {
            let mut opening = match self.open() {
                Ok(open) => return Ok(open),
                Err(opening) => opening,
            };
            if let Ok(missed) = opening.wait_for(Option::is_some).await
                && let Some(missed) = missed.clone()
            {
                return Err(missed);
            }
        }
    }

    /// Drops the connection with this number.
    pub(super) fn drop_line(&self, number: u64) {
        let mut state = self.state();
        if state.number != number {
            return;
        }
        if let LineState::Open { since, .. } = state.line {
            state.line = LineState::Closed;
            // Nothing connects while a connection is open. Submissions have waits of their own.
            if let Ok(mut dial) = self.dial.try_lock() {
                dial.wait_after(LineEnd::Lasted(since.elapsed()));
            }
        }
    }

    /// Returns the connection, or begins to open one.
    fn open(self: &Arc<Self>) -> Result<(Line, u64), watch::Receiver<Option<Missed>>> {
        let mut state = self.state();
        match &state.line {
            LineState::Open { line, .. } => return Ok((line.clone(), state.number)),
            LineState::Opening(opening) if opening.has_changed().is_ok() => return Err(opening.clone()),
            LineState::Opening(_) | LineState::Closed => {}
        }
        let (sender, opening) = watch::channel(None);
        state.line = LineState::Opening(opening.clone());
        let link = Arc::clone(self);
        tokio::spawn(async move {
            let connected = link.dial.lock().await.connect().await;
            link.opened(connected, &sender);
        });
        Err(opening)
    }

    fn opened(&self, connected: Result<Line, Missed>, waiting: &watch::Sender<Option<Missed>>) {
        let mut state = self.state();
        match connected {
            Ok(line) => {
                state.number += 1;
                state.line = LineState::Open { line, since: Instant::now() };
            }
            Err(missed) => {
                state.line = LineState::Closed;
                waiting.send_replace(Some(missed));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
