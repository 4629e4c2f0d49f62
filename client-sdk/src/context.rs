//! What the calls made in serving one request share: the chain's flags and the deadline.
//!
//! The server layer makes a context for each request, runs the handler inside it and puts it into the
//! request's extensions. Client layers find it there or in the task. A spawned task starts without one:
//! [`spawn`] and [`Context::scope`] carry it over.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{CodeSet, Finish, Route, Time, chain};
use tokio::task::JoinHandle;
use tokio::task::futures::TaskLocalFuture;
use tokio::time::Instant;

use crate::clock::Clock;

tokio::task_local! {
    static CURRENT: Context;
}

/// The context of a request that is being served. Clones are the same context.
///
/// ```
/// async fn handler() {
///     if let Some(context) = damper_sdk::Context::current() {
///         println!("repeated: {}, time left: {:?}", context.is_retry(), context.time_left());
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    chain: chain::RequestContext,
    clock: Clock,
}

impl Context {
    pub(crate) fn new(flag: Option<u32>, deadline: Option<Time>, clock: Clock) -> Self {
        Self(Arc::new(Inner { chain: chain::RequestContext::new(flag, deadline), clock }))
    }

    /// The context of the request that this task is serving; none outside the server layer.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// True if the request is a repeat: a layer above had sent it before.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.0.chain.flag().is_some()
    }

    /// Until when the request must be answered; none if the caller did not say.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.clock.instant(self.0.chain.deadline()?)
    }

    /// How long the caller still waits; none if it did not say.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        Some(self.0.chain.deadline()?.since(self.0.clock.now()))
    }

    /// Runs a future inside this context.
    ///
    /// ```
    /// # async fn work() {}
    /// # fn handler() {
    /// # let Some(context) = damper_sdk::Context::current() else { return };
    /// tokio::spawn(context.scope(work()));
    /// # }
    /// ```
    pub fn scope<F: Future>(self, future: F) -> Scope<F> {
        CURRENT.scope(self, future)
    }

    pub(crate) fn sync_scope<T>(&self, f: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), f)
    }

    pub(crate) fn chain(&self) -> &chain::RequestContext {
        &self.0.chain
    }

    /// The request must not be repeated by the layers above, whatever error it is answered with.
    pub fn mark_final(&self) {
        self.0.chain.mark_final();
    }

    /// The calls of this request that failed so far have nothing to do with its answer, so an error does not tell the
    /// layers above to stop. An error with a code that none of them failed with does not do so anyway, but for
    /// UNAVAILABLE and DEADLINE_EXCEEDED, which may be made of any failure.
    pub fn forget_failures(&self) {
        self.0.chain.forget_failures();
    }

    /// A call that was made in serving the request ended so, with one of these codes as its caller sees it.
    pub(crate) fn call_ended(&self, route: &Route, finish: &Finish, codes: CodeSet) {
        if finish.marks_context {
            self.0.chain.mark_no_more_retry(codes);
        }
        if finish.ending.fate.is_final_failure() {
            self.0.chain.note_failed(route.id());
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("is_retry", &self.is_retry())
            .field("time_left", &self.time_left())
            .finish_non_exhaustive()
    }
}

/// A future that runs inside a [`Context`].
pub type Scope<F> = TaskLocalFuture<Context, F>;

/// Spawns a task that goes on in the present context, if there is one.
///
/// ```
/// # async fn work() -> u32 { 7 }
/// # async fn handler() {
/// let task = damper_sdk::spawn(work());
/// assert_eq!(task.await.ok(), Some(7));
/// # }
/// ```
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Context::current() {
        Some(context) => tokio::spawn(context.scope(future)),
        None => tokio::spawn(future),
    }
}
