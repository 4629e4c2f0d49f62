//! Stateful retry: the attempts of one key, such as a message of a queue, over several calls.
//!
//! Each call makes one attempt and returns its error at once, so that the queue's transaction rolls back.
//! The store counts the attempts of each key, also those that were dropped or panicked. When none is left,
//! the next call with the key does not run its body: it returns the fate, for a recovery such as a
//! dead-letter queue. What depends on the moment or on one delivery never ends a key: a gate, a deadline, a
//! pushback, a flag of the chain, the absence of a rule.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use damper_core::{Earlier, Ending, Fate, Time};

use crate::attempt::Attempt;
use crate::error::{Error, NotAnswered, Reason};
use crate::handle::Retry;
use crate::handle::future::{Calling, LeavesRetry};
use crate::handlers::{BoxHandlers, ByType, Handlers};
use crate::source::{Local, Source};

/// Makes one attempt per call, and counts the attempts of each key.
pub struct Stateful<K, E, P = ByType, S = Local> {
    retry: Retry<P, S>,
    capacity: usize,
    keep: Duration,
    leaves: LeavesRetry<E>,
    keys: Mutex<HashMap<K, KeyState>>,
}

/// A stateful retry with predicates whose type can be named: of a handle after
/// [`boxed`](crate::Retry::boxed).
pub type BoxStateful<K, T, E> = Stateful<K, E, BoxHandlers<T, E>>;

/// The calls of a key so far.
#[derive(Clone, Copy, Debug)]
struct KeyState {
    attempts: u32,
    began: Time,
    last: Time,
    /// A gate blocked the retry of the last attempt.
    blocked: bool,
    /// Set when no attempt is left.
    ended: Option<Ending>,
}

impl<P, S: Source> Retry<P, S> {
    /// Returns a stateful retry that keeps at most `capacity` keys, each for `keep` after its last attempt
    /// began or ended. A full store accepts no new key and drops none.
    pub fn stateful<K: Eq + Hash, E>(self, capacity: usize, keep: Duration) -> Stateful<K, E, P, S> {
        let (leaves, keys): (LeavesRetry<E>, _) = (Arc::new(|_| true), Mutex::default());
        Stateful { retry: self, capacity, keep, leaves, keys }
    }
}

impl<K: Eq + Hash + Clone, E, P, S: Source> Stateful<K, E, P, S> {
    /// Returns at once only errors for which the predicate returns true. The call retries others itself, with
    /// the waits of the handle. Default: all errors are returned at once.
    #[must_use]
    pub fn rollback_if(self, predicate: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        Self { leaves: Arc::new(predicate), ..self }
    }

    /// Makes the next attempt of a key.
    ///
    /// # Errors
    /// The attempt's error; with the fate `retry` if an attempt is left. Without running the body:
    /// [`Reason::KeyEnded`] if no attempt is left, once, and then the key is forgotten (see
    /// [`Error::is_recovery`]); the fate of a gate that blocks the attempt; [`Reason::StoreFull`].
    pub async fn call<T, B, Fut>(&self, key: K, body: B) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let earlier = self.begin(&key).map_err(Error::NotAnswered)?;
        let call = Calling::new(&self.retry, body, false, true);
        let result = call.continuing(earlier, Arc::clone(&self.leaves)).await;
        self.note(&key, earlier.attempts, result)
    }

    /// As [`call`](Self::call), as if the key were new: for a key that may be used again.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_fresh<T, B, Fut>(&self, key: K, body: B) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
        B: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.keys().remove(&key);
        self.call(key, body).await
    }

    /// Returns the number of keys that the store holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys().len()
    }

    /// Returns true if the store holds no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Returns the earlier calls of a key and counts an attempt, or takes a place for a new key.
    fn begin(&self, key: &K) -> Result<Earlier, NotAnswered> {
        let now = self.retry.source().clock().now();
        let mut keys = self.keys();
        if keys.len() >= self.capacity && !keys.contains_key(key) {
            keys.retain(|_, state| now.since(state.last) < self.keep);
            if keys.len() >= self.capacity {
                let reason = Reason::StoreFull;
                return Err(NotAnswered { reason, attempts: 0, elapsed: Duration::ZERO });
            }
        }
        let new = KeyState { attempts: 1, began: now, last: now, blocked: false, ended: None };
        match keys.entry(key.clone()) {
            Entry::Occupied(mut held) if now.since(held.get().last) < self.keep => {
                let KeyState { attempts, began, blocked, ended, .. } = *held.get();
                let elapsed = now.since(began);
                let Some(ending) = ended else {
                    let state = held.get_mut();
                    (state.attempts, state.last) = (attempts.saturating_add(1), now);
                    return Ok(Earlier { attempts, elapsed, blocked });
                };
                held.remove();
                Err(NotAnswered { reason: Reason::KeyEnded(ending), attempts, elapsed })
            }
            Entry::Occupied(mut expired) => {
                expired.insert(new);
                Ok(Earlier::default())
            }
            Entry::Vacant(place) => {
                place.insert(new);
                Ok(Earlier::default())
            }
        }
    }

    /// Keeps the key if its call failed and may go on, or must go to recovery; forgets it otherwise.
    fn note<T>(&self, key: &K, earlier: u32, result: Result<T, Error<E>>) -> Result<T, Error<E>> {
        let mut keys = self.keys();
        let error = match result {
            Ok(value) => {
                keys.remove(key);
                return Ok(value);
            }
            Err(error) => error,
        };
        let made = error.attempts().saturating_sub(earlier);
        let ended = error.ending().filter(|ending| ends_key(*ending));
        if let Some(state) = keys.get_mut(key) {
            // One was counted when the call began.
            state.attempts = state.attempts.saturating_add(made).saturating_sub(1);
            state.last = self.retry.source().clock().now();
            state.blocked = error.fate().is_some_and(is_blocked);
            state.ended = ended;
        }
        match (error, ended) {
            // No attempt was left when the call began: it is the recovery.
            (Error::NotAnswered(not_answered), Some(ending)) if made == 0 => {
                keys.remove(key);
                Err(Error::NotAnswered(NotAnswered { reason: Reason::KeyEnded(ending), ..not_answered }))
            }
            (error, _) => Err(error),
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<K, KeyState>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if no later call with the key makes an attempt. Others depend on the moment, or on one
/// delivery; in observe mode and without a rule nothing is limited.
fn ends_key(ending: Ending) -> bool {
    use Fate::{AttemptsExhausted, MaxDuration, NotRetryable};
    !ending.would && matches!(ending.fate, AttemptsExhausted | MaxDuration | NotRetryable)
}

/// Returns true if a gate ended the call, which may open again.
fn is_blocked(fate: Fate) -> bool {
    use Fate::{Budget, CircuitOpen, Killed, RetryBreaker, StopWhen};
    matches!(fate, RetryBreaker | Budget | StopWhen | CircuitOpen | Killed)
}

impl<K, E, P, S> fmt::Debug for Stateful<K, E, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stateful").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}
