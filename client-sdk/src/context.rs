//! Context of a request being served: the chain's flags and the deadline, shared by the calls made in serving
//! it.
//!
//! The server layer creates a context per request, runs the handler in it and adds it to the request's
//! extensions. Client layers find it there or in the task. A spawned task or thread starts without one:
//! [`spawn`], [`spawn_blocking`], [`Context::scope`] and [`Context::sync_scope`] carry it over.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use damper_core::{CodeSet, Finish, Route, Time, chain};
use http::HeaderMap;
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tokio::task::futures::TaskLocalFuture;
use tokio::time::Instant;

use crate::background::clock::Clock;
use crate::headers;

tokio::task_local! {
    static CURRENT: Slot;
}

/// The context of the running code.
#[derive(Debug)]
enum Slot {
    Made(Context),
    /// Made when the code asks for it.
    Planned(Plan, Clock, OnceLock<Context>),
}

/// Flag and deadline of a context that is not made yet.
type Plan = (Option<u32>, Option<Time>);

impl Slot {
    fn get(&self) -> Context {
        let context = match self {
            Self::Made(context) => context,
            Self::Planned((flag, deadline), clock, made) => {
                made.get_or_init(|| Context::new(*flag, *deadline, *clock))
            }
        };
        context.clone()
    }
}

/// Context of a request being served. Clones share it.
///
/// ```
/// async fn handler() {
///     if let Some(context) = damper_sdk::Context::current() {
///         println!("retry: {}, time left: {:?}", context.is_retry(), context.time_left());
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

    /// Returns the context of a request of which only the flag is known: the retry flag that a handler has
    /// copied to a call, in `damper-retry` or in the baggage. `None` without one.
    ///
    /// For a proxy, which puts it into the extensions of the call. What is recorded in it stops no
    /// layer above.
    #[must_use]
    pub fn of_flag(call: &HeaderMap) -> Option<Self> {
        headers::copied_flag(call).map(|flag| Self::new(Some(flag), None, Clock::new()))
    }

    /// Returns the context of a retry of which nothing else is known. See [`of_flag`](Self::of_flag).
    #[must_use]
    pub fn of_retry() -> Self {
        Self::new(Some(1), None, Clock::new())
    }

    /// Returns the context of the request that this task serves; `None` outside the server layer.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Slot::get).ok()
    }

    /// Returns true if the request is a retry sent by a service upstream.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.0.chain.flag().is_some()
    }

    /// Returns the deadline of the request; `None` if the caller set none.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.clock.instant(self.0.chain.deadline()?)
    }

    /// Returns the time left until the deadline; `None` if the caller set none.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        Some(self.0.chain.deadline()?.since(self.0.clock.now()))
    }

    /// Runs a future in this context.
    ///
    /// ```
    /// # async fn work() {}
    /// # fn handler() {
    /// # let Some(context) = damper_sdk::Context::current() else { return };
    /// tokio::spawn(context.scope(work()));
    /// # }
    /// ```
    pub fn scope<F: Future>(self, future: F) -> Scope<F> {
        Scope { inner: CURRENT.scope(Slot::Made(self), future) }
    }

    /// Runs blocking code in this context, for a thread of the application. See also [`spawn_blocking`].
    pub fn sync_scope<T>(&self, f: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(Slot::Made(self.clone()), f)
    }

    pub(crate) fn chain(&self) -> &chain::RequestContext {
        &self.0.chain
    }

    /// Asks upstream services not to retry the request, whatever error the response has.
    pub fn mark_final(&self) {
        self.0.chain.mark_final();
    }

    /// Declares the failed calls of this request so far irrelevant to its response, so that an error response
    /// does not ask upstream services to stop retrying. A response code that none of those calls failed with
    /// has no effect anyway, except UNAVAILABLE and DEADLINE_EXCEEDED, which may stand for any failure.
    pub fn forget_failures(&self) {
        self.0.chain.forget_failures();
    }

    /// Returns the deadline and flag that calls made in serving the request inherit, by their own clock: the
    /// context may belong to another runtime, with another origin.
    pub(crate) fn inherited(context: Option<&Self>, clock: Clock) -> (Option<Time>, Option<u32>) {
        let deadline = context.and_then(Self::deadline).map(|at| clock.time(at));
        (deadline, context.and_then(|context| context.chain().flag()))
    }

    /// Records the end of a call made in serving the request, with the codes that its caller may see.
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

pin_project! {
    /// A future that runs in a [`Context`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Scope<F> {
        #[pin]
        inner: TaskLocalFuture<Slot, F>,
    }
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<F::Output> {
        self.project().inner.poll(cx)
    }
}

/// The context of code that rarely asks for it: making one allocates.
#[derive(Debug)]
pub(crate) struct LazyContext {
    plan: Plan,
    made: Option<Context>,
}

impl LazyContext {
    pub(crate) fn new(flag: Option<u32>, deadline: Option<Time>) -> Self {
        Self { plan: (flag, deadline), made: None }
    }

    /// Returns the context if code has asked for it.
    pub(crate) fn made(&self) -> Option<&Context> {
        self.made.as_ref()
    }

    /// Runs code in the context; `clock`: that of the deadline.
    pub(crate) fn sync_scope<T>(&mut self, clock: Clock, f: impl FnOnce() -> T) -> T {
        if let Some(context) = &self.made {
            return context.sync_scope(f);
        }
        let made_by = |slot: &Slot| match slot {
            Slot::Planned(_, _, made) => made.get().cloned(),
            Slot::Made(_) => None,
        };
        let (value, made) = CURRENT.sync_scope(Slot::Planned(self.plan, clock, OnceLock::new()), || {
            let value = f();
            (value, CURRENT.with(made_by))
        });
        self.made = made;
        value
    }
}

/// Spawns a task in the current context, if there is one.
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

/// Runs blocking code on a thread of tokio's pool, in the current context if there is one.
///
/// ```
/// # use std::io;
/// # fn insert() -> io::Result<u64> { Ok(1) }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # let damper = damper_sdk::Damper::off();
/// let orders_insert = damper.operation("billing-db", "orders/insert")?;
/// let task = damper_sdk::spawn_blocking(move || orders_insert.call_blocking(|_| insert()));
/// assert_eq!(task.await??, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    match Context::current() {
        Some(context) => tokio::task::spawn_blocking(move || context.sync_scope(f)),
        None => tokio::task::spawn_blocking(f),
    }
}
