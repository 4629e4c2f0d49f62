//! What the body of an attempt knows, and what it can ask for.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use damper_core::Code;
use pin_project_lite::pin_project;
use tokio::time::Instant;

/// An attempt, as its body sees it.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub(crate) number: u32,
    pub(crate) elapsed: Duration,
    pub(crate) deadline: Option<Instant>,
    pub(crate) last_code: Option<Code>,
    pub(crate) is_hedge: bool,
    pub(crate) flag: Option<u32>,
}

impl Attempt {
    /// Returns 1 for the first attempt, 2 for the first retry or hedge, and so on.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// Returns true unless it is the first attempt.
    #[must_use]
    pub fn is_retry(self) -> bool {
        self.number > 1
    }

    /// Returns true if an earlier attempt is still in flight.
    #[must_use]
    pub fn is_hedge(self) -> bool {
        self.is_hedge
    }

    /// Returns the time from the start of the call to the start of this attempt.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.elapsed
    }

    /// Returns when the attempt is cut; `None` without a limit.
    #[must_use]
    pub fn deadline(self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the code of the last failed attempt.
    #[must_use]
    pub fn last_code(self) -> Option<Code> {
        self.last_code
    }

    /// Returns the value of the header `damper-retry` for a request of this attempt: the number of attempts
    /// before it, here and above. `None`: no such header.
    #[must_use]
    pub fn retry_flag(self) -> Option<u32> {
        self.flag
    }

    /// Ends the call if this attempt fails: no retry follows. Works within the body, not in a task that it
    /// spawns.
    pub fn exhaust(self) {
        raise(|signals| signals.exhausted = true);
    }

    /// Reports progress, for example an item of a stream: if the attempt fails later, attempts and waits are
    /// counted from one again. Works within the body, not in a task that it spawns.
    pub fn progress(self) {
        raise(|signals| signals.progressed = true);
    }
}

/// Requests of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signals {
    pub(crate) exhausted: bool,
    pub(crate) progressed: bool,
}

thread_local! {
    /// Requests of the attempt that this thread runs. An attempt is polled on one thread at a time, so that a
    /// body reaches them without a reference that would have to outlive it.
    static RAISED: Cell<Signals> = const { Cell::new(Signals { exhausted: false, progressed: false }) };
}

fn raise(set: impl FnOnce(&mut Signals)) {
    let mut signals = RAISED.get();
    set(&mut signals);
    RAISED.set(signals);
}

/// Runs a part of an attempt and adds what it asked for.
pub(crate) fn collect<T>(signals: &mut Signals, run: impl FnOnce() -> T) -> T {
    /// Restores the requests of an outer attempt, also if the body panics.
    struct Outer(Signals);
    impl Drop for Outer {
        fn drop(&mut self) {
            RAISED.set(self.0);
        }
    }
    let _outer = Outer(RAISED.replace(*signals));
    let value = run();
    *signals = RAISED.get();
    value
}

pin_project! {
    /// The future of an attempt with its requests.
    pub(crate) struct Running<F> {
        #[pin]
        body: F,
        number: u32,
        signals: Signals,
    }
}

impl<F: Future> Running<F> {
    pub(crate) fn new(number: u32, start: impl FnOnce() -> F) -> Self {
        let mut signals = Signals::default();
        let body = collect(&mut signals, start);
        Self { body, number, signals }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn signals(&self) -> Signals {
        self.signals
    }

    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        collect(this.signals, || this.body.poll(cx))
    }
}
