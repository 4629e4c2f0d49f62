//! `retry(body)`: a call without a handle.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use crate::attempt::Attempt;
use crate::handle::Retry;
use crate::handle::builder::Settings;
use crate::handle::future::{Body, Calling};
use crate::handlers::{ByType, Extend, Handlers, NeverIf, RetryAll, RetryIf, With};
use crate::source::Local;

/// Makes a call with the default settings: 3 attempts, waits that grow from 25 ms to 250 ms with full jitter.
///
/// Such calls share nothing and no gate bounds them: use a [`Retry`] for calls that are made often. The value
/// has three methods, `retry_all`, `retry_if` and `never_if`; waits, limits and all others are settings of
/// [`Retry::named`].
///
/// ```
/// # use std::io;
/// # async fn fetch() -> io::Result<String> { Ok(String::new()) }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let page = damper_retry::retry(async |_| fetch().await).retry_all().await?;
/// # Ok::<_, damper_retry::Error<io::Error>>(())
/// # }).unwrap();
/// ```
pub fn retry<B: FnMut(Attempt) -> Fut, Fut>(body: B) -> Once<B> {
    Once { body, handlers: ByType }
}

/// A call without a handle; await it.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing unless awaited"]
pub struct Once<B, P = ByType> {
    body: B,
    handlers: P,
}

impl<B, P: Extend> Once<B, P> {
    /// Retries every error.
    pub fn retry_all(self) -> Once<B, With<P::Base, RetryAll>> {
        Once { body: self.body, handlers: With { inner: self.handlers.base(), part: RetryAll } }
    }

    /// Retries errors for which the predicate returns true. Several predicates are or-ed.
    pub fn retry_if<E, F: Fn(&E) -> bool>(self, predicate: F) -> Once<B, With<P::Base, RetryIf<F>>> {
        Once { body: self.body, handlers: With { inner: self.handlers.base(), part: RetryIf(predicate) } }
    }

    /// Never retries errors for which the predicate returns true.
    pub fn never_if<E, F: Fn(&E) -> bool>(self, predicate: F) -> Once<B, With<P, NeverIf<F>>> {
        Once { body: self.body, handlers: With { inner: self.handlers, part: NeverIf(predicate) } }
    }
}

impl<B, P, T, E, Fut> IntoFuture for Once<B, P>
where
    B: Body<Future = Fut>,
    Fut: Future<Output = Result<T, E>>,
    P: Handlers<T, E>,
{
    type Output = Result<T, crate::Error<E>>;
    type IntoFuture = Calling<Own<P>, Local, B, T, E>;

    fn into_future(self) -> Self::IntoFuture {
        static SHARED: LazyLock<Retry> = LazyLock::new(|| {
            let settings = Settings::without_gates();
            let source = Local::new(settings.config(None).expect("the default settings are valid"));
            Retry::new(Arc::from("retry"), settings, source, ByType)
        });
        let handle = Own(SHARED.clone().map_handlers(|_| self.handlers));
        Calling::new(handle, self.body, false, true)
    }
}

/// A handle owned by its only call.
#[derive(Debug)]
pub struct Own<P>(Retry<P>);

impl<P> Deref for Own<P> {
    type Target = Retry<P>;

    fn deref(&self) -> &Retry<P> {
        &self.0
    }
}
