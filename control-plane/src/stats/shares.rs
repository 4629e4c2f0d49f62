//! Fair shares of a resource among services.
//!
//! A service may take no more than it leaves to the others: alone half of it, the next one half of the rest,
//! and so on. So each service leaves room for the next, and n services with equal needs have n / (n + 1) of
//! it.

use std::collections::HashMap;
use std::sync::Arc;

/// The amount taken, by service.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    all: usize,
    of: HashMap<Arc<str>, usize>,
}

impl Shares {
    /// Returns how much more a service may take if this much is left.
    pub(crate) fn room(&self, service: &str, most: usize) -> usize {
        let own = self.of.get(service).copied().unwrap_or_default();
        most.saturating_sub(self.all).saturating_sub(own) / 2
    }

    pub(crate) fn take(&mut self, service: &Arc<str>, n: usize) {
        if n > 0 {
            self.all += n;
            *self.of.entry(service.clone()).or_default() += n;
        }
    }

    pub(crate) fn give_back(&mut self, service: &str, n: usize) {
        self.all = self.all.saturating_sub(n);
        if let Some(own) = self.of.get_mut(service) {
            *own = own.saturating_sub(n);
            if *own == 0 {
                self.of.remove(service);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// The amount taken by all services.
    pub(crate) fn of<'a>(taken: impl Iterator<Item = (&'a Arc<str>, usize)>) -> Self {
        let mut shares = Self::default();
        taken.for_each(|(service, n)| shares.take(service, n));
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_takes_no_more_than_it_leaves() {
        let mut shares = Shares::default();
        let mut take_all = |name: &str| {
            let service = Arc::from(name);
            while shares.room(name, 1000) > 0 {
                shares.take(&service, 1);
            }
            shares.of[name]
        };
        assert_eq!(["a", "b", "c", "a"].map(&mut take_all), [500, 250, 125, 500]);
        shares.give_back("a", 500);
        assert_eq!((shares.all(), shares.room("a", 1000)), (375, 312));
        shares.give_back("b", 250);
        shares.give_back("c", 125);
        assert!(shares.of.is_empty());
    }
}
