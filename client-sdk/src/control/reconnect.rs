//! Which replica next, and when.
//!
//! Replicas are tried in an order shuffled once, so that clients spread; after a failure comes the next one.
//! All of them are tried without a wait in between, then the wait grows: uniform in [0, d], d = 0.5 s doubling
//! to 30 s ("full jitter", M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog). A stream that
//! worked for a while resets d, one that broke at once does not: a replica that accepts and drops is no
//! reason to hammer it.

use std::time::Duration;

use tonic::transport::Uri;

const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// A stream that brought rules and lasted this long worked.
const HEALTHY: Duration = Duration::from_secs(10);

/// The replicas in their order.
#[derive(Debug)]
pub(super) struct Replicas {
    order: Vec<Uri>,
    next: usize,
    /// How many of this round could not be reached.
    missed: usize,
    waits: Waits,
}

/// Growing waits.
#[derive(Debug)]
pub(super) struct Waits {
    ceiling: Duration,
}

impl Replicas {
    pub(super) fn shuffled(mut order: Vec<Uri>) -> Self {
        fastrand::shuffle(&mut order);
        Self { order, next: 0, missed: 0, waits: Waits::new() }
    }

    /// The one to try now; the next call names the one after it.
    pub(super) fn next(&mut self) -> Option<Uri> {
        let uri = self.order.get(self.next).cloned();
        self.next = (self.next + 1) % self.order.len().max(1);
        uri
    }

    /// The wait after one that could not be reached: none while the round is not over.
    pub(super) fn after_miss(&mut self) -> Duration {
        self.missed += 1;
        if self.missed < self.order.len() {
            return Duration::ZERO;
        }
        self.missed = 0;
        self.waits.next()
    }

    /// The wait after a stream that lasted this long, and that brought rules or did not.
    pub(super) fn after_stream(&mut self, lasted: Duration, brought_rules: bool) -> Duration {
        self.missed = 0;
        if brought_rules && lasted >= HEALTHY {
            self.waits = Waits::new();
        }
        self.waits.next()
    }
}

impl Waits {
    pub(super) fn new() -> Self {
        Self { ceiling: SHORTEST }
    }

    pub(super) fn next(&mut self) -> Duration {
        let wait = self.ceiling.mul_f64(fastrand::f64());
        self.ceiling = (self.ceiling * 2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Replicas {
        let uris = ["http://a:1", "http://b:1", "http://c:1"];
        Replicas::shuffled(uris.iter().map(|uri| uri.parse().unwrap()).collect())
    }

    #[test]
    fn every_replica_gets_its_turn_before_one_gets_another() {
        let mut replicas = three();
        let first: Vec<_> = (0..3).map(|_| replicas.next().unwrap()).collect();
        let again: Vec<_> = (0..3).map(|_| replicas.next().unwrap()).collect();
        assert_eq!(first, again);
        let mut sorted: Vec<_> = first.iter().map(Uri::to_string).collect();
        sorted.sort();
        assert_eq!(sorted, ["http://a:1/", "http://b:1/", "http://c:1/"]);
    }

    #[test]
    fn a_round_of_misses_waits_once_at_its_end() {
        let mut replicas = three();
        for round in 0..20 {
            assert_eq!(replicas.after_miss(), Duration::ZERO);
            assert_eq!(replicas.after_miss(), Duration::ZERO);
            let ceiling = (SHORTEST * 2_u32.pow(round.min(10))).min(LONGEST);
            let wait = replicas.after_miss();
            assert!(wait <= ceiling, "round {round}: {wait:?}");
        }
    }

    #[test]
    fn waits_grow_up_to_the_longest_and_use_their_whole_range() {
        let most = |round: usize| {
            let draws = (0..300).map(|_| {
                let mut waits = Waits::new();
                for _ in 0..round {
                    waits.next();
                }
                waits.next()
            });
            draws.max().unwrap()
        };
        assert!((SHORTEST.mul_f64(0.9)..=SHORTEST).contains(&most(0)));
        assert!((SHORTEST.mul_f64(1.8)..=SHORTEST * 2).contains(&most(1)));
        assert!((LONGEST.mul_f64(0.9)..=LONGEST).contains(&most(40)));
    }

    #[test]
    fn only_a_stream_that_worked_for_a_while_resets_the_waits() {
        let mut replicas = three();
        for _ in 0..10 {
            replicas.after_stream(Duration::from_secs(1), true);
            replicas.after_stream(HEALTHY, false);
        }
        assert_eq!(replicas.waits.ceiling, LONGEST);
        assert!(replicas.after_stream(HEALTHY, true) <= SHORTEST);
    }
}
