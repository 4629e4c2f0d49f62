//! gRPC's `retryThrottling` (gRFC A6), as in grpc-go: a failure with a retryable code takes a token,
//! including that of the last attempt; a success returns `token_ratio` tokens. Retries are allowed above half
//! of the tokens.
//!
//! In gRPC one bucket serves all methods of a server name; here each hop has its own. Pushback is not
//! modelled.

use crate::scenario::PeerThrottling;

/// Parts of a token.
const TOKEN: u64 = 10_000;

/// Bucket of one process on one route.
#[derive(Debug)]
pub(super) struct Throttling {
    max: u64,
    ratio: u64,
    tokens: u64,
}

impl Throttling {
    pub(super) fn new(throttling: PeerThrottling) -> Self {
        let max = u64::from(throttling.max_tokens) * TOKEN;
        Self { max, ratio: u64::from(throttling.token_ratio.bp()), tokens: max }
    }

    pub(super) fn succeeded(&mut self) {
        self.tokens = (self.tokens + self.ratio).min(self.max);
    }

    pub(super) fn failed(&mut self) {
        self.tokens = self.tokens.saturating_sub(TOKEN);
    }

    pub(super) fn admits(&self) -> bool {
        2 * self.tokens > self.max
    }
}

#[cfg(test)]
mod tests {
    use damper_core::Ratio;

    use super::*;

    fn throttling(max_tokens: u32) -> Throttling {
        Throttling::new(PeerThrottling { max_tokens, token_ratio: Ratio::from_bp(1_000) })
    }

    fn admitted(throttling: &mut Throttling, failures: usize) -> usize {
        (0..failures)
            .filter(|_| {
                throttling.failed();
                throttling.admits()
            })
            .count()
    }

    #[test]
    fn retries_stop_when_half_of_the_tokens_are_gone() {
        assert_eq!([1, 2, 3, 10, 1_000].map(|max| admitted(&mut throttling(max), 2_000)), [0, 0, 1, 4, 499]);
    }

    #[test]
    fn ten_successes_pay_for_a_failure_up_to_the_maximum() {
        let mut throttling = throttling(10);
        assert_eq!(admitted(&mut throttling, 5), 4);
        (0..10).for_each(|_| throttling.succeeded());
        assert!(throttling.admits());
        assert_eq!(admitted(&mut throttling, 5), 0);
        (0..1_000).for_each(|_| throttling.succeeded());
        assert_eq!(admitted(&mut throttling, 2_000), 4);
    }
}
