//! The handle: decorates calls, any number at a time.

pub(crate) mod builder;
pub(crate) mod future;
pub(crate) mod once;
mod one_at_a_time;
pub(crate) mod session;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use damper_core::{CallOptions, Faults};
use tokio::sync::broadcast;

use self::builder::{Builder, Settings};
use self::future::Calling;
use crate::attempt::Attempt;
use crate::error::{Error, NotAnswered};
use crate::events::{EVENTS, Event, EventKind, Stats};
use crate::handlers::{BoxHandlers, ByType, Handlers};
use crate::source::{Local, Source};

/// Retries calls. All calls of a handle and of its clones share gates and statistics.
#[derive(Debug)]
pub struct Retry<P = ByType, S = Local> {
    shared: Arc<Shared<S>>,
    handlers: P,
    options: CallOptions,
}

/// What the clones of a handle share.
#[derive(Debug)]
struct Shared<S> {
    name: Arc<str>,
    tags: Arc<[(String, String)]>,
    fails_on_value: AtomicBool,
    settings: std::sync::Mutex<Settings>,
    /// Made for the first receiver: the sender has a lock, which calls must not take, and a buffer.
    events: OnceLock<broadcast::Sender<Event>>,
    source: S,
}

/// A handle whose type can be named; see [`Retry::boxed`].
pub type BoxRetry<T, E> = Retry<BoxHandlers<T, E>>;

impl<P: Clone, S> Clone for Retry<P, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), handlers: self.handlers.clone(), options: self.options }
    }
}

impl Retry {
    /// Returns a builder. The name is for logs, events and statistics.
    pub fn named(name: impl Into<Arc<str>>) -> Builder {
        Builder::new(name.into())
    }
}

impl<P> Retry<P> {
    /// Changes the settings while calls are made. Gates and statistics keep their state, name and tags stay.
    /// Calls in flight continue with the settings that they began with.
    ///
    /// # Errors
    /// One fault per setting out of range; then nothing changes.
    pub fn update(&self, change: impl FnOnce(Builder) -> Builder) -> Result<(), Faults> {
        let mut current = self.shared.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let settings = change(Builder::of(Arc::clone(&self.shared.name), current.clone())).into_settings();
        let source = &self.shared.source;
        source.replace(settings.config(Some(&source.config().route))?);
        self.shared.fails_on_value.store(settings.fails_on_value, Ordering::Relaxed);
        *current = settings;
        Ok(())
    }

    /// Returns the counts of calls since the handle was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared.source.config().route.state().counters)
    }
}

impl<P, S: Source> Retry<P, S> {
    /// Returns a handle for routes from another source than its own settings.
    pub fn from_source(name: impl Into<Arc<str>>, source: S, handlers: P) -> Self {
        Self::new(name.into(), Settings::default(), source, handlers)
    }

    pub(crate) fn new(name: Arc<str>, settings: Settings, source: S, handlers: P) -> Self {
        let shared = Shared {
            name,
            tags: settings.tags.as_slice().into(),
            fails_on_value: AtomicBool::new(settings.fails_on_value),
            settings: std::sync::Mutex::new(settings),
            events: OnceLock::new(),
            source,
        };
        Self { shared: Arc::new(shared), handlers, options: CallOptions::new() }
    }

    /// Returns the handle with options for its calls. They replace earlier ones; breaker, budget and
    /// statistics are shared.
    #[must_use]
    pub fn with_options(&self, options: CallOptions) -> Self
    where
        P: Clone,
    {
        Self { options, ..self.clone() }
    }

    /// Returns the same handle with a type that can be named, for a field of a struct.
    #[must_use]
    pub fn boxed<T, E>(self) -> Retry<BoxHandlers<T, E>, S>
    where
        P: Handlers<T, E> + Send + Sync + 'static,
    {
        self.map_handlers(|handlers| Arc::new(handlers) as BoxHandlers<T, E>)
    }

    /// Makes a call: runs the body until an attempt succeeds or no further one is made.
    ///
    /// The body makes a future per attempt: `async |attempt| ...`, `|attempt| async move { ... }`, or a
    /// function. For one that changes what it captures see [`call_mut`](Self::call_mut).
    ///
    /// # Errors
    /// The last attempt's error, or why there is none.
    pub fn call<T, E, B, Fut>(&self, body: B) -> Calling<&Self, S, B, T, E>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Calling::new(self, body, false, true)
    }

    /// As [`call`](Self::call), for settings that hedge: several attempts may run at once.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_hedged<T, E, B, Fut>(&self, body: B) -> Calling<&Self, S, B, T, E>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Calling::new(self, body, true, true)
    }

    /// As [`call`](Self::call); an error takes the place of a missing answer, so that the result has the
    /// body's error type.
    ///
    /// # Errors
    /// The last attempt's error, or the one made from the reason.
    pub async fn call_or<T, E, B, Fut>(
        &self,
        body: B,
        not_answered: impl FnOnce(NotAnswered) -> E,
    ) -> Result<T, E>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.call(body).await.map_err(|error| error.into_last(not_answered))
    }

    /// As [`call`](Self::call), cancelled when `stop` is ready: the running attempt is dropped.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`Reason::Cancelled`](crate::Reason::Cancelled).
    pub async fn call_until<T, E, B, Fut>(
        &self,
        stop: impl Future<Output = ()>,
        body: B,
    ) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut stop = pin!(stop);
        let mut call = pin!(self.call(body));
        std::future::poll_fn(|cx| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Error::NotAnswered(call.as_mut().cancel())));
            }
            call.as_mut().poll(cx)
        })
        .await
    }

    /// Returns the events of all calls from now on. A receiver that falls behind by 256 events loses the
    /// oldest.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.get_or_init(|| broadcast::Sender::new(EVENTS)).subscribe()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the tags.
    #[must_use]
    pub fn tags(&self) -> &[(String, String)] {
        &self.shared.tags
    }

    pub(crate) fn map_handlers<N>(self, map: impl FnOnce(P) -> N) -> Retry<N, S> {
        Retry { shared: self.shared, handlers: map(self.handlers), options: self.options }
    }

    /// Returns the source of the routes.
    #[doc(hidden)]
    pub fn source(&self) -> &S {
        &self.shared.source
    }

    pub(crate) fn options(&self) -> &CallOptions {
        &self.options
    }

    pub(crate) fn handlers(&self) -> &P {
        &self.handlers
    }

    pub(crate) fn fails_on_value(&self) -> bool {
        self.shared.fails_on_value.load(Ordering::Relaxed)
    }

    pub(crate) fn emit(&self, elapsed: impl FnOnce() -> Duration, kind: EventKind) {
        if let Some(events) = self.shared.events.get() {
            let (name, tags) = (Arc::clone(&self.shared.name), Arc::clone(&self.shared.tags));
            // There may be no receiver any more.
            _ = events.send(Event { name, tags, elapsed: elapsed(), kind });
        }
    }
}
