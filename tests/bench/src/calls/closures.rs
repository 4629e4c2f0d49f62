//! Calls of a closure that succeeds at once: bare, and through the libraries that retry it.

use std::future::{Ready, ready};
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use damper_retry::{ByType, Retry};
use damper_sdk::{Damper, Operation};
use tokio::time::{Sleep, sleep};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::retry::{Policy, Retry as TowerRetry};
use tower::{Service as _, service_fn};

const RULE: &str = r#"
kind: Rule
key: { caller_service: orders, caller_cluster: "*", callee_service: catalog, callee_method: "*" }
policy: { mode: enforce, retry: {} }
"#;

/// What makes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The closure alone.
    Bare,
    /// A handle of `damper-retry` with its default budget.
    Damper,
    /// `backon` with its default backoff. It neither counts nor bounds.
    Backon,
    /// `tower::retry` with its `TpsBudget`.
    Tower,
    /// An operation of `damper-sdk` under an enforced rule with retries.
    Governed,
}

impl Library {
    /// All, the bare one first.
    pub const ALL: [Self; 5] = [Self::Bare, Self::Damper, Self::Backon, Self::Tower, Self::Governed];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Damper => "damper-retry",
            Self::Backon => "backon",
            Self::Tower => "tower::retry",
            Self::Governed => "damper-sdk",
        }
    }
}

/// The handles of the libraries.
#[derive(Clone, Debug)]
pub struct Closures {
    damper: Retry<ByType>,
    tower: Attempts,
    governed: Operation,
}

impl Closures {
    /// Returns handles that all calls share.
    ///
    /// # Errors
    /// The settings are out of range.
    pub fn new() -> Result<Self, damper_retry::Faults> {
        let damper = Retry::named("bench").build()?;
        let governed = Damper::fixed("orders", RULE)?.operation("catalog", "pages/fetch")?;
        Ok(Self { damper, tower: Attempts { left: 2, budget: Arc::default() }, governed })
    }

    /// Makes calls.
    pub fn calls(&self, library: Library, count: usize) {
        for number in 0..count {
            self.call(library, black_box(number));
        }
    }

    fn call(&self, library: Library, number: usize) {
        let cx = &mut Context::from_waker(Waker::noop());
        // Pinned where they are made, as `await` does: a future that is passed on is copied.
        let is_ready = match library {
            Library::Bare => black_box(pin!(fetch(number)).poll(cx)).is_ready(),
            Library::Damper => black_box(pin!(self.damper.call(|_| fetch(number))).poll(cx)).is_ready(),
            Library::Governed => black_box(pin!(self.governed.call(|_| fetch(number))).poll(cx)).is_ready(),
            Library::Backon => {
                let call = (|| fetch(number)).retry(ExponentialBuilder::default());
                black_box(pin!(call.into_future()).poll(cx)).is_ready()
            }
            Library::Tower => {
                let mut service = TowerRetry::new(self.tower.clone(), service_fn(fetch));
                black_box(pin!(service.call(number)).poll(cx)).is_ready()
            }
        };
        assert!(is_ready, "the closure succeeds at once");
    }
}

fn fetch(number: usize) -> Ready<io::Result<usize>> {
    ready(Ok(number))
}

/// Three attempts, within the budget that all calls share.
#[derive(Clone, Debug)]
struct Attempts {
    left: u32,
    budget: Arc<TpsBudget>,
}

impl Policy<usize, usize, io::Error> for Attempts {
    type Future = Sleep;

    fn retry(&mut self, _: &mut usize, result: &mut io::Result<usize>) -> Option<Sleep> {
        if result.is_ok() {
            self.budget.deposit();
            return None;
        }
        if self.left == 0 || !self.budget.withdraw() {
            return None;
        }
        self.left -= 1;
        Some(sleep(Duration::from_millis(25)))
    }

    fn clone_request(&mut self, request: &usize) -> Option<usize> {
        Some(*request)
    }
}
