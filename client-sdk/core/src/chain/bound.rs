//! Worst-case number of requests at the last service of a chain per request at the first.
//!
//! All attempts are made, as if responses are lost; no breaker, budget or no-more-retry flag stops one. Each
//! service makes one call per request. Of the requests at a service, `all` is their number and `first` the
//! number without a flag. With r attempts per call:
//!
//! ```text
//! flag kept     a first attempt becomes r requests, one of them without a flag; a flagged one stays one:
//!               first' = first    all' = all + first x (r - 1)
//! flag ignored  every request becomes r requests; flags stay:
//!               first' = first    all' = all x r
//! flag lost     every request looks like a first attempt to the next service:
//!               first' = all      all' = all x r
//! ```
//!
//! One request at the top is `first = all = 1`. If every hop keeps the flag, hop i carries
//! 1 + (r1 - 1) + ... + (ri - 1); with equal r that is i x r - (i - 1), see [`chain`](crate::chain). If no
//! hop does, it is the product r1 x ... x ri. Both counts only grow from hop to hop, and more at the start
//! never results in less at the end. So the worse of several paths can be taken at each hop.
//!
//! Not counted: transparent resends (once per attempt that the server provably has not processed), and
//! services that make several calls per request.

use crate::policy::Policy;
use crate::rules::explain::Bound;

/// What a service does with the flag of a retry when it makes its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// Calls made to serve a retry have one attempt.
    Kept,
    /// The rule retries them anyway; the flag is passed on.
    Ignored,
    /// Calls are made outside the request's context, or the service has no server layer: the flag is unknown.
    Lost,
}

/// Upper limit for calls from one service to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Attempts per call, including the first.
    pub max_attempts: u32,
    /// What happens to the flag.
    pub flag: Flag,
}

impl Hop {
    /// Returns the hop of calls under a policy tightened by guards. `in_context`: the calls are made within
    /// the context of the request that they serve.
    #[must_use]
    pub fn of(policy: Option<&Policy>, in_context: bool) -> Self {
        let max_attempts = Bound::of(policy).max_attempts;
        let ignores = max_attempts > 1 && policy.is_some_and(|policy| policy.chain.ignore_retry_flag);
        let flag = match (in_context, ignores) {
            (false, _) => Flag::Lost,
            (true, true) => Flag::Ignored,
            (true, false) => Flag::Kept,
        };
        Self { max_attempts, flag }
    }

    /// Returns true if attempts multiply on this hop instead of adding up.
    #[must_use]
    pub fn multiplies(self) -> bool {
        self.flag != Flag::Kept
    }
}

/// Requests on one hop per request at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sends {
    first: u64,
    all: u64,
}

impl Sends {
    /// One request at the top.
    pub const ONE: Self = Self { first: 1, all: 1 };

    /// Returns the number of requests.
    #[must_use]
    pub fn all(self) -> u64 {
        self.all
    }

    /// Returns the number of requests without a flag.
    #[must_use]
    pub fn first(self) -> u64 {
        self.first
    }

    /// Returns the requests on the next hop.
    #[must_use]
    pub fn over(self, hop: Hop) -> Self {
        let Self { first, all } = self;
        let attempts = u64::from(hop.max_attempts);
        match hop.flag {
            Flag::Kept => {
                let repeats = first.saturating_mul(attempts.saturating_sub(1));
                Self { first, all: all.saturating_add(repeats) }
            }
            Flag::Ignored => Self { first, all: all.saturating_mul(attempts) },
            Flag::Lost => Self { first: all, all: all.saturating_mul(attempts) },
        }
    }

    /// Returns the maximum of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), all: self.all.max(other.all) }
    }

    /// Returns true if both counts are at least those of the other.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.first >= other.first && self.all >= other.all
    }
}

/// Requests at the end of a chain per request on a hop: [`Sends`] from the end, so that one walk each way
/// finds the bound of the chains through every hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownstreamGain {
    per_first: u64,
    per_send: u64,
}

impl DownstreamGain {
    /// End of the chain: each request counts once.
    pub const END: Self = Self { per_first: 0, per_send: 1 };

    /// Returns the gain before this hop. `loses`: another path that is combined with it ([`Sends::or`]) loses
    /// the flag, so that all its requests look like first attempts.
    #[must_use]
    pub fn before(self, hop: Hop, loses: bool) -> Self {
        let Self { per_first, per_send } = self;
        let attempts = u64::from(hop.max_attempts);
        let all = per_send.saturating_mul(attempts);
        let (per_first, per_send, of_first) = match hop.flag {
            Flag::Kept => (per_send.saturating_mul(attempts.saturating_sub(1)), per_send, per_first),
            Flag::Ignored => (0, all, per_first),
            Flag::Lost => return Self { per_first: 0, per_send: all.saturating_add(per_first) },
        };
        if loses {
            Self { per_first, per_send: per_send.saturating_add(of_first) }
        } else {
            Self { per_first: per_first.saturating_add(of_first), per_send }
        }
    }

    /// Returns the number of requests at the end.
    #[must_use]
    pub fn of(self, sends: Sends) -> u64 {
        let first = self.per_first.saturating_mul(sends.first);
        first.saturating_add(self.per_send.saturating_mul(sends.all))
    }

    /// Returns true if the gain is at least the other for any requests.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.per_first >= other.per_first && self.per_send >= other.per_send
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Chain, Mode, Retry};

    fn on_last(hops: &[Hop]) -> u64 {
        hops.iter().fold(Sends::ONE, |sends, hop| sends.over(*hop)).all()
    }

    fn hop(max_attempts: u32, flag: Flag) -> Hop {
        Hop { max_attempts, flag }
    }

    /// Passes one request from service to service by the rules of the flag, each attempt one by one.
    fn send_one_by_one(is_repeat: bool, hops: &[Hop], sends: &mut u64) {
        let Some((hop, below)) = hops.split_first() else { return };
        let knows = is_repeat && hop.flag != Flag::Lost;
        let attempts = if knows && hop.flag == Flag::Kept { 1 } else { hop.max_attempts };
        for attempt in 0..attempts {
            if below.is_empty() {
                *sends += 1;
            }
            send_one_by_one(knows || attempt > 0, below, sends);
        }
    }

    fn any_hop() -> impl Strategy<Value = Hop> {
        let flag = prop_oneof![Just(Flag::Kept), Just(Flag::Ignored), Just(Flag::Lost)];
        (1_u32..=4, flag).prop_map(|(max_attempts, flag)| hop(max_attempts, flag))
    }

    proptest! {
        #[test]
        fn formula_equals_counting_attempts_one_by_one(hops in prop::collection::vec(any_hop(), 1..=6)) {
            let mut sends = 0;
            send_one_by_one(false, &hops, &mut sends);
            prop_assert_eq!(on_last(&hops), sends);
        }

        #[test]
        fn gain_from_the_end_equals_sends_from_the_start(
            hops in prop::collection::vec(any_hop(), 1..=8), at: prop::sample::Index,
        ) {
            let (before, behind) = hops.split_at(at.index(hops.len()));
            let gain = behind.iter().rev().fold(DownstreamGain::END, |gain, hop| gain.before(*hop, false));
            let sends = before.iter().fold(Sends::ONE, |sends, hop| sends.over(*hop));
            prop_assert_eq!(gain.of(sends), on_last(&hops));
        }

        #[test]
        fn gain_of_combined_paths_is_that_of_the_worse(
            ways in prop::collection::vec(any_hop(), 1..=3),
            before in prop::collection::vec(any_hop(), 0..=3),
            behind in prop::collection::vec(any_hop(), 0..=3),
        ) {
            let sends = before.iter().fold(Sends::ONE, |sends, hop| sends.over(*hop));
            let together = ways.iter().fold(sends, |worst, hop| worst.or(sends.over(*hop)));
            let end = behind.iter().fold(together, |sends, hop| sends.over(*hop)).all();
            let gain = behind.iter().rev().fold(DownstreamGain::END, |gain, hop| gain.before(*hop, false));
            let loses = ways.iter().any(|hop| hop.flag == Flag::Lost);
            let worst = ways.iter().map(|hop| gain.before(*hop, loses).of(sends)).max().unwrap();
            prop_assert_eq!(worst, end);
        }

        #[test]
        fn more_at_the_start_never_means_less_at_the_end(
            hops in prop::collection::vec(any_hop(), 0..=6),
            before in prop::collection::vec(any_hop(), 0..=3),
        ) {
            let sent = |from: Sends| hops.iter().fold(from, |sends, hop| sends.over(*hop));
            let more = before.iter().fold(Sends::ONE, |sends, hop| sends.over(*hop));
            prop_assert!(sent(more).covers(sent(Sends::ONE)));
            prop_assert!(sent(more).covers(more), "no hop makes fewer of them");
        }

        #[test]
        fn lost_flag_is_no_better_than_ignored_nor_ignored_than_kept(
            hops in prop::collection::vec(any_hop(), 1..=6), at: prop::sample::Index,
        ) {
            let at = at.index(hops.len());
            let with = |flag| {
                let mut hops = hops.clone();
                hops[at].flag = flag;
                on_last(&hops)
            };
            prop_assert!(with(Flag::Kept) <= with(Flag::Ignored) && with(Flag::Ignored) <= with(Flag::Lost));
        }

        #[test]
        fn largest_chain_does_not_overflow(length in 1_usize..200) {
            let ignored = vec![hop(10, Flag::Ignored); length];
            prop_assert_eq!(on_last(&ignored), 10_u64.saturating_pow(u32::try_from(length).unwrap()));
        }
    }

    #[test]
    fn attempts_add_up_with_the_flag_and_multiply_without() {
        use Flag::{Ignored, Kept, Lost};
        let table: [(&[Hop], u64); 7] = [
            (&[hop(3, Kept)], 3),
            (&[hop(3, Kept); 3], 7),
            (&[hop(3, Ignored); 3], 27),
            (&[hop(3, Lost); 3], 27),
            (&[hop(3, Kept), hop(1, Kept), hop(2, Kept)], 4),
            // Below the loss of the flag, retries from above are retried again.
            (&[hop(3, Kept), hop(1, Lost), hop(3, Kept)], 9),
            (&[hop(3, Kept), hop(2, Ignored), hop(3, Kept)], 8),
        ];
        for (hops, sends) in table {
            assert_eq!(on_last(hops), sends, "{hops:?}");
        }
    }

    #[test]
    fn hop_follows_the_policy_in_force() {
        let mut policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
        assert_eq!(Hop::of(Some(&policy), true), hop(3, Flag::Kept));
        assert_eq!(Hop::of(Some(&policy), false), hop(3, Flag::Lost));
        assert_eq!(Hop::of(None, true), hop(1, Flag::Kept));
        policy.chain = Chain { ignore_retry_flag: true, ..Chain::default() };
        assert!(Hop::of(Some(&policy), true).multiplies());
        policy.mode = Mode::Observe;
        assert_eq!(Hop::of(Some(&policy), true), hop(1, Flag::Kept), "nothing is retried");
    }
}
