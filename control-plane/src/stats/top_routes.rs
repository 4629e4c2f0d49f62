//! The busiest routes and served methods, listed one by one up to a limit, and the sum of the others.
//!
//! Sorted by total calls, because that order changes least. The sum of the others grows by the increase of
//! each of them while it is not listed, so it never falls: a route that moves from one to the other keeps
//! both rates correct.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::stats::counters;
use crate::stats::counters::SparseCounters;
use crate::stats::served::{Method, ServedCounters};
use crate::stats::{Route, RouteCounters, Stats};

/// Counts that only grow.
pub(crate) trait Counts: Clone + Default {
    /// The sort key.
    fn calls(&self) -> u64;
    /// Returns the increase since `before`; all of it after a restart.
    fn on_top_of(&self, before: &Self) -> Self;
    fn add(&mut self, more: &Self);
}

/// The last listed counts, and the sum of the others.
#[derive(Default)]
pub(crate) struct TopRoutes {
    routes: Rest<Route, SparseCounters>,
    served: Rest<Method, ServedCounters>,
}

/// The listed counts, and the sum of the others if there are any.
pub(crate) struct TopWithRest<T, K> {
    pub(crate) each: Vec<T>,
    pub(crate) others: Option<K>,
}

struct Rest<K, C> {
    last: HashMap<K, C>,
    sum: Option<C>,
}

impl<K, C> Default for Rest<K, C> {
    fn default() -> Self {
        Self { last: HashMap::new(), sum: None }
    }
}

impl<K: Clone + Eq + Hash + Ord, C: Counts> Rest<K, C> {
    /// Lists the busiest; adds the others to the sum.
    fn split(&mut self, mut all: Vec<(K, C)>, most: usize) -> TopWithRest<(K, C), C> {
        all.sort_by(|(a, x), (b, y)| (Reverse(x.calls()), a).cmp(&(Reverse(y.calls()), b)));
        let others = all.split_off(most.min(all.len()));
        for (key, counts) in &others {
            let sum = self.sum.get_or_insert_default();
            match self.last.get(key) {
                Some(before) => sum.add(&counts.on_top_of(before)),
                None => sum.add(counts),
            }
        }
        self.last = all.iter().chain(&others).cloned().collect();
        TopWithRest { each: all, others: self.sum.clone() }
    }
}

impl TopRoutes {
    /// Returns the routes with the most calls, and the sum of the others, which never falls.
    pub(crate) fn routes(&mut self, stats: &Stats, most: usize) -> TopWithRest<RouteCounters, RouteCounters> {
        let all =
            stats.counted().into_iter().map(|RouteCounters { route, counts }| (route, counts)).collect();
        let TopWithRest { each, others } = self.routes.split(all, most);
        let counted = |(route, counts)| RouteCounters { route, counts };
        let others = others.map(|counts| RouteCounters { route: Route::others(), counts });
        TopWithRest { each: each.into_iter().map(counted).collect(), others }
    }

    /// Returns the served methods with the most requests, and the sum of the others, which never falls.
    pub(crate) fn served(
        &mut self,
        stats: &Stats,
        most: usize,
    ) -> TopWithRest<(Method, ServedCounters), ServedCounters> {
        let all = stats.served().into_iter().map(|(service, method, served)| ((service, method), served));
        self.served.split(all.collect(), most)
    }
}

impl<T, K> TopWithRest<T, K> {
    /// Returns the names of the listed ones.
    pub(crate) fn names<'a, N: Eq + Hash>(&'a self, name: impl Fn(&'a T) -> N) -> HashSet<N> {
        self.each.iter().map(name).collect()
    }
}

impl Counts for SparseCounters {
    fn calls(&self) -> u64 {
        self.count(counters::CALLS)
    }

    fn on_top_of(&self, before: &Self) -> Self {
        if self.covers(before) { self.since(before) } else { self.clone() }
    }

    fn add(&mut self, more: &Self) {
        self.add_all(more);
    }
}

impl Counts for ServedCounters {
    fn calls(&self) -> u64 {
        let Self { first_sends, damper_repeats, grpc_repeats, envoy_repeats, .. } = self;
        [damper_repeats, grpc_repeats, envoy_repeats]
            .into_iter()
            .fold(*first_sends, |all, n| all.saturating_add(*n))
    }

    fn on_top_of(&self, before: &Self) -> Self {
        self.less(*before).unwrap_or(*self)
    }

    fn add(&mut self, more: &Self) {
        *self = self.plus(*more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(calls: u64) -> SparseCounters {
        let mut tally = SparseCounters::default();
        tally.add(counters::CALLS, calls);
        tally
    }

    #[test]
    fn what_is_told_and_what_is_not_grow_as_all_of_it_does() {
        let mut rest = Rest::<&str, SparseCounters>::default();
        let mut split = |all: &[(&'static str, u64)]| {
            let told = rest.split(all.iter().map(|(key, calls)| (*key, tally(*calls))).collect(), 2);
            let each: Vec<_> = told.each.iter().map(|(key, counts)| (*key, counts.calls())).collect();
            (each, told.others.map(|counts| counts.calls()))
        };
        assert_eq!(split(&[("a", 5), ("b", 9)]), (vec![("b", 9), ("a", 5)], None));
        assert_eq!(split(&[("a", 5), ("b", 9), ("c", 3)]), (vec![("b", 9), ("a", 5)], Some(3)));
        // c overtakes a: the total of a was listed already, and its later calls are added to the sum.
        assert_eq!(split(&[("a", 6), ("b", 9), ("c", 7)]), (vec![("b", 9), ("c", 7)], Some(4)));
        assert_eq!(split(&[("a", 6), ("b", 9), ("c", 8)]), (vec![("b", 9), ("c", 8)], Some(4)));
        // Forgotten, and known again.
        assert_eq!(split(&[("b", 9), ("c", 8)]), (vec![("b", 9), ("c", 8)], Some(4)));
        assert_eq!(split(&[("a", 2), ("b", 9), ("c", 8)]), (vec![("b", 9), ("c", 8)], Some(6)));
        assert_eq!(split(&[("a", 1), ("b", 9), ("c", 8)]), (vec![("b", 9), ("c", 8)], Some(7)));
    }
}
