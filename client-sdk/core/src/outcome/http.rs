//! HTTP calls: the code of a response, methods that may be repeated, and `Retry-After`.

use std::time::Duration;

use super::code::Code;
use crate::random::uniform;
use crate::time::micros;

/// Longest random part that is added to a wait of `Retry-After`.
const MAX_SPREAD: Duration = Duration::from_secs(1);

/// Returns the code of an HTTP response; `None` if it counts as a success.
#[must_use]
pub const fn code_of(status: u16) -> Option<Code> {
    match status {
        408 | 425 | 429 | 502 | 503 | 504 => Some(Code::Unavailable),
        500 => Some(Code::Internal),
        501 => Some(Code::Unimplemented),
        505.. => Some(Code::Unknown),
        _ => None,
    }
}

/// Returns true if a request with this method may be sent again (RFC 9110, 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// Returns the random time that is added to the wait of a `Retry-After`: up to its own length, at most a
/// second, so that clients rejected together do not return together. `random` is uniform over all of `u64`.
#[must_use]
pub fn spread(retry_after: Duration, random: u64) -> Duration {
    let most = micros(retry_after.min(MAX_SPREAD));
    Duration::from_micros(uniform(0, most, random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signs_of_trouble_are_failures() {
        for status in [408, 425, 429, 502, 503, 504] {
            assert_eq!(code_of(status), Some(Code::Unavailable), "{status}");
        }
        for status in [100, 200, 301, 400, 401, 403, 404, 409, 422, 499] {
            assert_eq!(code_of(status), None, "{status}");
        }
        assert_eq!((code_of(500), code_of(507)), (Some(Code::Internal), Some(Code::Unknown)));
    }

    #[test]
    fn wait_is_spread_by_its_own_length_and_at_most_a_second() {
        let (short, long) = (Duration::from_millis(200), Duration::from_secs(30));
        assert_eq!((spread(short, 0), spread(short, u64::MAX)), (Duration::ZERO, short));
        assert_eq!((spread(long, 0), spread(long, u64::MAX)), (Duration::ZERO, MAX_SPREAD));
        assert_eq!(spread(Duration::ZERO, u64::MAX), Duration::ZERO);
    }
}
