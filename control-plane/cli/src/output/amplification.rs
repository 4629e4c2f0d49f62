//! Texts of bounds on attempts, and of their change by a write.

use damper_proto::{convert, v1};

use crate::error::print_message;
use crate::output::printable;

/// Prints the change of the bounds by a write.
pub(crate) fn tell(before: Option<&v1::Amplification>, after: Option<&v1::Amplification>) {
    if let (Some(before), Some(after)) = (before, after) {
        lines(before, after).into_iter().for_each(print_message);
    }
}

/// Returns one line for the hop and one for the chain.
pub(crate) fn lines(before: &v1::Amplification, after: &v1::Amplification) -> Vec<String> {
    let hop = before.bound.as_ref().zip(after.bound.as_ref()).filter(|(was, is)| was != is);
    let hop = hop.map(|(was, is)| {
        let [is_now, it_was] = [is, was].map(bound_text);
        format!("{} on this hop: {is_now} (was: {it_was})", direction(order(is) > order(was)))
    });
    let chain = before.chain.as_ref().zip(after.chain.as_ref()).filter(|(was, is)| was.sends != is.sends);
    let chain = chain.map(|(was, is)| {
        let [is_now, it_was] = [is, was].map(chain_text);
        let it_was = if path(was) == path(is) { attempts_text(was.sends) } else { it_was };
        format!("{} along the worst chain: {is_now} (was: {it_was})", direction(is.sends > was.sends))
    });
    hop.into_iter().chain(chain).collect()
}

fn direction(is_up: bool) -> &'static str {
    if is_up { "more" } else { "less" }
}

/// Order of two bounds: attempts, then the sustained rate, then the free retries.
fn order(bound: &v1::Bound) -> (u32, f64, u32) {
    let v1::Bound { max_attempts, steady_attempts_per_call: steady, free_retries_per_window: free, .. } =
        *bound;
    // 0 = no sustained bound below the attempts of a call.
    (max_attempts, if steady > 0.0 { steady } else { max_attempts.into() }, free)
}

fn path(bound: &v1::ChainBound) -> Vec<(&str, &str)> {
    bound.hops.iter().map(|hop| (&*hop.caller_service, &*hop.callee_service)).collect()
}

/// Returns the whole chain in one line.
pub(crate) fn chain_text(bound: &v1::ChainBound) -> String {
    let first = bound.hops.first().map_or("", |hop| &hop.caller_service);
    let services: String = bound.hops.iter().map(|hop| format!(" -> {}", hop.callee_service)).collect();
    let circle = if bound.has_circle { " (the calls form a cycle, which is counted once)" } else { "" };
    let sends = attempts_text(bound.sends);
    printable(&format!("{first}{services}: at most {sends} on the last hop per request to {first}{circle}"))
}

/// Returns a line for each hop.
pub(crate) fn hop_lines(bound: &v1::ChainBound) -> Vec<String> {
    let line = |hop: &v1::Hop| {
        let v1::Hop { caller_service, callee_service, max_attempts, sends, multiplies } = hop;
        let attempts =
            if *max_attempts == 1 { "1 attempt".to_owned() } else { format!("{max_attempts} attempts") };
        let how = if *multiplies { "; attempts multiply here" } else { "" };
        printable(&format!(
            "{caller_service} -> {callee_service}: {attempts} per call, at most {sends} per request{how}",
        ))
    };
    bound.hops.iter().map(line).collect()
}

/// Returns a number of attempts.
pub(crate) fn attempts_text(sends: u64) -> String {
    if sends == 1 { "1 attempt".to_owned() } else { format!("{sends} attempts") }
}

/// Returns the bound of one hop.
pub(crate) fn bound_text(bound: &v1::Bound) -> String {
    let v1::Bound { max_attempts, steady_attempts_per_call: steady, free_retries_per_window, window } =
        *bound;
    if max_attempts == 1 {
        return "1 attempt per call".to_owned();
    }
    let most = format!("at most {max_attempts} attempts per call");
    if steady == 0.0 {
        return format!("{most}, also while all of them fail (no retry breaker)");
    }
    let window = window.and_then(convert::length);
    let free = match (free_retries_per_window, window) {
        (0, _) | (_, None) => String::new(),
        (1, Some(window)) => format!(", plus 1 retry per {} s in each process", window.as_secs_f64()),
        (n, Some(window)) => format!(", plus {n} retries per {} s in each process", window.as_secs_f64()),
    };
    format!("{most}; {steady} per call on average while retries fail{free}")
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
    fn changed_bounds_show_old_and_new() {
        let (less, more) = (amplification(1, 1.0, 3), amplification(2, 1.1, 4));
        assert_eq!(
            lines(&less, &more),
            [
                "more on this hop: at most 2 attempts per call; 1.1 per call on average \
                 while retries fail (was: 1 attempt per call)",
                "more along the worst chain: shop -> cart -> stock: at most 4 attempts on the last hop per \
                 request to shop (was: 3 attempts)",
            ]
        );
        assert!(lines(&more, &less).iter().all(|line| line.starts_with("less ")));
        let unbounded = amplification(2, 0.0, 4);
        assert!(lines(&more, &unbounded)[0].starts_with("more on this hop"), "no breaker bounds it any more");
    }

    #[test]
    fn unchanged_bounds_are_omitted() {
        let same = amplification(2, 1.1, 4);
        assert!(lines(&same, &same).is_empty());
        assert!(lines(&v1::Amplification::default(), &same).is_empty());
    }

    fn hop(caller: &str, callee: &str, max_attempts: u32, sends: u64, multiplies: bool) -> v1::Hop {
        let (caller_service, callee_service) = (caller.to_owned(), callee.to_owned());
        v1::Hop { caller_service, callee_service, max_attempts, sends, multiplies }
    }

    #[test]
    fn chain_is_shown_as_a_whole_and_by_hop() {
        let hops = vec![hop("shop", "orders", 1, 1, false), hop("orders", "stock", 3, 3, true)];
        let bound = v1::ChainBound { hops, sends: 3, has_circle: false };
        let whole = "shop -> orders -> stock: at most 3 attempts on the last hop per request to shop";
        assert_eq!(chain_text(&bound), whole);
        assert_eq!(
            hop_lines(&bound),
            [
                "shop -> orders: 1 attempt per call, at most 1 per request",
                "orders -> stock: 3 attempts per call, at most 3 per request; attempts multiply here"
            ]
        );
        assert!(chain_text(&v1::ChainBound { has_circle: true, ..bound }).contains("cycle"));
    }

    #[test]
    fn bound_is_shown_as_text() {
        let bound = |max_attempts, steady_attempts_per_call, free_retries_per_window, window: Option<i64>| {
            let window = window.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
            bound_text(&v1::Bound { max_attempts, steady_attempts_per_call, free_retries_per_window, window })
        };
        assert_eq!(bound(1, 1.0, 0, None), "1 attempt per call");
        let long_run = "at most 3 attempts per call; 1.1 per call on average while retries fail";
        assert_eq!(
            bound(3, 1.1, 3, Some(10)),
            format!("{long_run}, plus 3 retries per 10 s in each process")
        );
        assert_eq!(bound(3, 1.1, 1, Some(10)), format!("{long_run}, plus 1 retry per 10 s in each process"));
        assert_eq!(bound(3, 1.1, 0, Some(10)), long_run);
        let unbounded = "at most 3 attempts per call, also while all of them fail (no retry breaker)";
        assert_eq!(bound(3, 0.0, 0, None), unbounded);
    }
}
