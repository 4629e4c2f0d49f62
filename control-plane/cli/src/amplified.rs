//! What a write of a rule does to what repeating can add, in words; nothing of what stays as it is.

use damper_proto::v1;

use crate::commands::{chain, explain};
use crate::output::message;

/// Tells what a write raises or lowers.
pub(crate) fn tell(before: Option<&v1::Amplification>, after: Option<&v1::Amplification>) {
    if let (Some(before), Some(after)) = (before, after) {
        lines(before, after).into_iter().for_each(message);
    }
}

/// One line for the hop and one for the chain.
pub(crate) fn lines(before: &v1::Amplification, after: &v1::Amplification) -> Vec<String> {
    let hop = before.bound.as_ref().zip(after.bound.as_ref()).filter(|(was, is)| was != is);
    let hop = hop.map(|(was, is)| {
        let [is_now, it_was] = [is, was].map(explain::bound_in_words);
        format!("{} on this hop: {is_now} (was: {it_was})", direction(order(is) > order(was)))
    });
    let chain = before.chain.as_ref().zip(after.chain.as_ref()).filter(|(was, is)| was.sends != is.sends);
    let chain = chain.map(|(was, is)| {
        let [is_now, it_was] = [is, was].map(chain::in_words);
        let it_was = if path(was) == path(is) { chain::times(was.sends) } else { it_was };
        format!("{} along the worst chain: {is_now} (was: {it_was})", direction(is.sends > was.sends))
    });
    hop.into_iter().chain(chain).collect()
}

fn direction(is_up: bool) -> &'static str {
    if is_up { "more" } else { "less" }
}

/// Which of two bounds lets more through: attempts, then the long run, then what is free.
fn order(bound: &v1::Bound) -> (u32, f64, u32) {
    let v1::Bound { max_attempts, steady_attempts_per_call: steady, free_retries_per_window: free, .. } =
        *bound;
    // 0 = not bounded below the attempts of a call.
    (max_attempts, if steady > 0.0 { steady } else { max_attempts.into() }, free)
}

fn path(bound: &v1::ChainBound) -> Vec<(&str, &str)> {
    bound.hops.iter().map(|hop| (&*hop.caller_service, &*hop.callee_service)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amplification(max_attempts: u32, steady: f64, sends: u64) -> v1::Amplification {
        let hop = |caller: &str, callee: &str| v1::Hop {
            caller_service: caller.to_owned(),
            callee_service: callee.to_owned(),
            ..Default::default()
        };
        let bound = v1::Bound { max_attempts, steady_attempts_per_call: steady, ..Default::default() };
        let hops = vec![hop("shop", "cart"), hop("cart", "stock")];
        let chain = v1::ChainBound { hops, sends, has_circle: false };
        v1::Amplification { bound: Some(bound), chain: Some(chain) }
    }

    #[test]
    fn what_is_raised_and_lowered_is_told_with_what_it_was() {
        let (less, more) = (amplification(1, 1.0, 3), amplification(2, 1.1, 4));
        assert_eq!(
            lines(&less, &more),
            [
                "more on this hop: at most 2 attempts per call; while retries fail 1.1 per call in \
                 the long run \
                 (was: 1 attempt per call)",
                "more along the worst chain: shop -> cart -> stock: at most 4 sends on the last hop for one \
                 request at shop (was: 3 sends)",
            ]
        );
        assert!(lines(&more, &less).iter().all(|line| line.starts_with("less ")));
        let unbounded = amplification(2, 0.0, 4);
        assert!(lines(&more, &unbounded)[0].starts_with("more on this hop"), "no breaker bounds it any more");
    }

    #[test]
    fn what_stays_is_not_told() {
        let same = amplification(2, 1.1, 4);
        assert!(lines(&same, &same).is_empty());
        assert!(lines(&v1::Amplification::default(), &same).is_empty());
    }
}
