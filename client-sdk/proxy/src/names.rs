//! The names that calls by CONNECT found without being listed, and what was opened for each.
//!
//! A name takes a place while a tunnel to it is open, and its channel opens with the first request. Names
//! that stay unused make room: with a channel after some minutes, without one at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Limit of names at one time.
pub(crate) const MAX_NAMES: usize = 1_000;
/// Time for which an unused name keeps its channel.
const KEPT: Duration = Duration::from_secs(300);
/// Interval in which unused names are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Names, each with what is opened for it.
#[derive(Debug)]
pub(crate) struct Names<T> {
    limit: usize,
    known: Mutex<HashMap<String, Arc<Name<T>>>>,
}

#[derive(Debug)]
struct Name<T> {
    opened: OnceLock<T>,
    used: Mutex<Instant>,
}

/// A name that a tunnel uses.
#[derive(Debug)]
pub(crate) struct Used<T>(Arc<Name<T>>);

impl<T> Names<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, known: Mutex::default() }
    }

    /// Returns the place of a name; `None` if all places are taken by names that are used.
    pub(crate) fn enter(&self, name: &str) -> Option<Used<T>> {
        let mut known = lock(&self.known);
        if let Some(found) = known.get(name) {
            return Some(Used(Arc::clone(found)));
        }
        if known.len() >= self.limit {
            forget(&mut known);
        }
        if known.len() >= self.limit {
            return None;
        }
        let new = Arc::new(Name { opened: OnceLock::new(), used: Mutex::new(Instant::now()) });
        known.insert(name.to_owned(), Arc::clone(&new));
        Some(Used(new))
    }

    /// Forgets names that stay unused, without an end.
    pub(crate) async fn tidy(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            forget(&mut lock(&self.known));
        }
    }

    /// Returns the number of names for which something is open.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> usize {
        lock(&self.known).values().filter(|name| name.opened.get().is_some()).count()
    }
}

impl<T> Used<T> {
    /// Returns what is open for the name, and opens it at the first time.
    pub(crate) fn open(&self, open: impl FnOnce() -> T) -> &T {
        self.0.opened.get_or_init(open)
    }
}

impl<T> Drop for Used<T> {
    fn drop(&mut self) {
        *lock(&self.0.used) = Instant::now();
    }
}

/// Forgets the names that no tunnel uses. Only the table and tunnels have handles, and a tunnel gets its
/// handle under the lock of the table.
fn forget<T>(known: &mut HashMap<String, Arc<Name<T>>>) {
    known.retain(|_, name| {
        let is_used = Arc::strong_count(name) > 1;
        is_used || (name.opened.get().is_some() && lock(&name.used).elapsed() < KEPT)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> (Names<u32>, Vec<Used<u32>>) {
        let names = Names::new(MAX_NAMES);
        let used = (0..MAX_NAMES).map(|index| names.enter(&format!("s{index}:1")).expect("there is room"));
        let used = used.collect();
        (names, used)
    }

    #[tokio::test(start_paused = true)]
    async fn used_names_take_all_places() {
        let (names, mut used) = full();
        tokio::time::advance(2 * KEPT).await;
        assert!(names.enter("more:1").is_none());
        assert!(names.enter("s7:1").is_some(), "a known name needs no further place");
        used.pop();
        assert!(names.enter("more:1").is_some(), "a name without a channel leaves at once");
        assert_eq!(names.opened(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn channels_of_unused_names_close_after_minutes() {
        let (names, used) = full();
        for (index, name) in (0..).zip(&used) {
            assert_eq!(*name.open(|| index), index);
            assert_eq!(*name.open(|| unreachable!("it is open")), index);
        }
        tokio::time::advance(2 * KEPT).await;
        drop(used);
        assert!(names.enter("more:1").is_none(), "they were in use until now");
        tokio::time::advance(KEPT).await;
        assert_eq!(names.opened(), MAX_NAMES);
        assert!(names.enter("more:1").is_some());
        assert_eq!(names.opened(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_names_are_forgotten_without_further_ones() {
        let names = Names::new(MAX_NAMES);
        let (stays, goes) = (names.enter("stays:1").unwrap(), names.enter("goes:1").unwrap());
        stays.open(|| 1);
        goes.open(|| 2);
        drop(goes);
        let tidied = tokio::time::timeout(KEPT + 2 * LOOK_EVERY, names.tidy()).await;
        assert!(tidied.is_err(), "it has no end");
        assert_eq!(names.opened(), 1);
    }
}
