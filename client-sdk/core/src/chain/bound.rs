//! How often the last service of a chain can be sent what its first was asked for once.
//!
//! Counted is the worst case: every attempt is made, as when answers are lost, and no breaker, budget or flag from
//! below stops one. Each service makes one call per request that it serves. Of the requests that arrive at a
//! service let `all` be how many there are and `first` how many of them carry no flag. With r attempts per call:
//!
//! ```text
//! flag kept     a first send is sent r times, of which one is a first send; a flagged one once:
//!               first' = first    all' = all + first x (r - 1)
//! flag ignored  every request is sent r times; what was flagged stays so:
//!               first' = first    all' = all x r
//! flag lost     every request looks like a first send to those who call on its behalf:
//!               first' = all      all' = all x r
//! ```
//!
//! One request at the top is `first = all = 1`. Where every hop keeps the flag hop i carries
//! 1 + (r1 - 1) + ... + (ri - 1); with equal r that is i x r - (i - 1), see [`chain`](crate::chain). Where none
//! does it is the product r1 x ... x ri. Both counts only grow from hop to hop, and more at the start never means
//! less at the end; so the worse of several ways can be taken at each hop.
//!
//! Not counted: transparent resends (once per attempt that the server has provably not seen), and services that
//! make several calls for one request.

use crate::policy::Policy;
use crate::rules::explain::Bound;

/// What becomes of the flag of a repeat where a service makes its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// Calls made in serving a repeat are sent once.
    Kept,
    /// The rule repeats them all the same; the flag is passed on.
    Ignored,
    /// Calls are made outside the request's context, or the service has no server layer: nobody knows of a flag.
    Lost,
}

/// What calls from one service to the next come to at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Attempts per call, the first send included.
    pub max_attempts: u32,
    /// What becomes of the flag.
    pub flag: Flag,
}

impl Hop {
    /// The hop of calls under a policy as the guards leave it; `in_context` says whether they are made within the
    /// context of the request that they serve.
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

    /// True if attempts multiply here instead of adding up.
    #[must_use]
    pub fn multiplies(self) -> bool {
        self.flag != Flag::Kept
    }
}

/// The requests on one hop for one at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sends {
    first: u64,
    all: u64,
}

impl Sends {
    /// The one request at the top.
    pub const ONE: Self = Self { first: 1, all: 1 };

    /// How many there are.
    #[must_use]
    pub fn all(self) -> u64 {
        self.all
    }

    /// How many of them carry no flag.
    #[must_use]
    pub fn first(self) -> u64 {
        self.first
    }

    /// Those on the next hop.
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

    /// At least as many as either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), all: self.all.max(other.all) }
    }

    /// True if there are at least as many of each as in the other.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.first >= other.first && self.all >= other.all
    }
}

/// What a request on a hop comes to at the end of the rest of the chain: [`Sends`] read from the end, so that one
/// walk each way tells how bad the chains through every hop are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownstreamGain {
    per_first: u64,
    per_send: u64,
}

impl DownstreamGain {
    /// Nothing follows: each send counts once.
    pub const END: Self = Self { per_first: 0, per_send: 1 };

    /// What requests come to that are made over this hop before; `loses` says that another way which is taken
    /// together with it ([`Sends::or`]) loses the flag, so that all of them look like first sends.
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

    /// What so many requests come to at the end.
    #[must_use]
    pub fn of(self, sends: Sends) -> u64 {
        let first = self.per_first.saturating_mul(sends.first);
        first.saturating_add(self.per_send.saturating_mul(sends.all))
    }

    /// True if any requests come to at least as many as with the other.
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

    /// One request handed from service to service by the rules of the flag, each send one by one.
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
        fn the_formula_is_what_sending_one_by_one_comes_to(hops in prop::collection::vec(any_hop(), 1..=6)) {
            let mut sends = 0;
            send_one_by_one(false, &hops, &mut sends);
            prop_assert_eq!(on_last(&hops), sends);
        }

        #[test]
        fn gain_read_from_the_end_is_what_sends_come_to_from_the_start(
            hops in prop::collection::vec(any_hop(), 1..=8), at: prop::sample::Index,
        ) {
            let (before, behind) = hops.split_at(at.index(hops.len()));
            let gain = behind.iter().rev().fold(DownstreamGain::END, |gain, hop| gain.before(*hop, false));
            let sends = before.iter().fold(Sends::ONE, |sends, hop| sends.over(*hop));
            prop_assert_eq!(gain.of(sends), on_last(&hops));
        }

        #[test]
        fn gain_over_ways_that_are_taken_together_is_that_of_the_worse(
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
        fn a_flag_that_is_lost_is_never_better_than_one_ignored_nor_that_than_one_kept(
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
        fn the_largest_chain_does_not_overflow(length in 1_usize..200) {
            let ignored = vec![hop(10, Flag::Ignored); length];
            prop_assert_eq!(on_last(&ignored), 10_u64.saturating_pow(u32::try_from(length).unwrap()));
        }
    }

    #[test]
    fn attempts_add_up_where_the_flag_is_kept_and_multiply_where_it_is_not() {
        use Flag::{Ignored, Kept, Lost};
        let table: [(&[Hop], u64); 7] = [
            (&[hop(3, Kept)], 3),
            (&[hop(3, Kept); 3], 7),
            (&[hop(3, Ignored); 3], 27),
            (&[hop(3, Lost); 3], 27),
            (&[hop(3, Kept), hop(1, Kept), hop(2, Kept)], 4),
            // What was repeated above is repeated again as if nobody had, below where the flag got lost.
            (&[hop(3, Kept), hop(1, Lost), hop(3, Kept)], 9),
            (&[hop(3, Kept), hop(2, Ignored), hop(3, Kept)], 8),
        ];
        for (hops, sends) in table {
            assert_eq!(on_last(hops), sends, "{hops:?}");
        }
    }

    #[test]
    fn hop_is_as_the_policy_in_force_says() {
        let mut policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
        assert_eq!(Hop::of(Some(&policy), true), hop(3, Flag::Kept));
        assert_eq!(Hop::of(Some(&policy), false), hop(3, Flag::Lost));
        assert_eq!(Hop::of(None, true), hop(1, Flag::Kept));
        policy.chain = Chain { ignore_retry_flag: true, ..Chain::default() };
        assert!(Hop::of(Some(&policy), true).multiplies());
        policy.mode = Mode::Observe;
        assert_eq!(Hop::of(Some(&policy), true), hop(1, Flag::Kept), "nothing is repeated");
    }
}
