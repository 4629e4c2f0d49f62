//! Headers that this crate reads and writes, with the names from `damper-core`.

use std::time::Duration;

use damper_core::chain::{self, Baggage, RepeatMarks};
use damper_core::classify::{self, StatusFields};
use damper_core::deadline;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::MetadataMap;

use crate::background::clock;

pub(crate) static RETRY: HeaderName = HeaderName::from_static(chain::RETRY);
pub(crate) static BAGGAGE: HeaderName = HeaderName::from_static(chain::BAGGAGE);
pub(crate) static PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static(chain::PREVIOUS_ATTEMPTS);
pub(crate) static ENVOY_ATTEMPT_COUNT: HeaderName = HeaderName::from_static(chain::ENVOY_ATTEMPT_COUNT);
pub(crate) static NO_MORE_RETRY: HeaderName = HeaderName::from_static(chain::NO_MORE_RETRY);
pub(crate) static FATE: HeaderName = HeaderName::from_static(chain::FATE);
pub(crate) static PUSHBACK: HeaderName = HeaderName::from_static(chain::PUSHBACK);
pub(crate) static ENVOY_RATE_LIMITED: HeaderName = HeaderName::from_static(chain::ENVOY_RATE_LIMITED);
pub(crate) static CALL_ID: HeaderName = HeaderName::from_static(chain::CALL_ID);
pub(crate) static JOB: HeaderName = HeaderName::from_static(chain::JOB);
pub(crate) static TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) static TIMEOUT: HeaderName = HeaderName::from_static(deadline::HEADER);
#[cfg(feature = "http")]
pub(crate) static HTTP_TIMEOUT: HeaderName = HeaderName::from_static(chain::HTTP_TIMEOUT);
pub(crate) static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(crate) static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Up to this number of names, a scan is faster than hashing.
const FEW: usize = 8;

/// Returns true for a request of gRPC by its content type.
pub fn has_grpc_type(headers: &HeaderMap) -> bool {
    bytes(headers, &CONTENT_TYPE).is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// Returns the first value of a header.
pub(crate) fn bytes<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let value = if headers.keys_len() <= FEW {
        headers.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    } else {
        headers.get(name)
    };
    value.map(HeaderValue::as_bytes)
}

/// Returns the first values of several headers, which are usually absent.
pub(crate) fn each<'a, const N: usize>(
    headers: &'a HeaderMap,
    names: [&HeaderName; N],
) -> [Option<&'a [u8]>; N] {
    let is_sought = |other: &HeaderName| names.contains(&other);
    if headers.keys_len() <= FEW && !headers.keys().any(is_sought) {
        return [None; N];
    }
    names.map(|name| bytes(headers, name))
}

/// Returns the fields that may mark a request as a retry.
pub(crate) fn marks(headers: &HeaderMap) -> RepeatMarks<'_> {
    let baggage = Baggage::read(headers.get_all(&BAGGAGE).iter().map(HeaderValue::as_bytes));
    RepeatMarks {
        retry: bytes(headers, &RETRY),
        // The wall clock is read only if baggage has the flag.
        baggage: baggage.and_then(|baggage| baggage.holding_at(clock::unix_ms())),
        previous_attempts: bytes(headers, &PREVIOUS_ATTEMPTS),
        envoy_attempt_count: bytes(headers, &ENVOY_ATTEMPT_COUNT),
    }
}

/// Returns the flag of the request being served that a handler has copied to a call.
pub(crate) fn copied_flag(headers: &HeaderMap) -> Option<u32> {
    RepeatMarks { previous_attempts: None, envoy_attempt_count: None, ..marks(headers) }.flag()
}

/// Removes all fields that may mark a request as a retry, and the ids of call and job by which handlers
/// detect retries: an id from an untrusted client could be that of another call.
pub(crate) fn drop_marks(headers: &mut HeaderMap) {
    headers.remove(&CALL_ID);
    headers.remove(&JOB);
    drop_repeat_marks(headers);
}

/// Removes all fields that may mark a request as a retry.
pub(crate) fn drop_repeat_marks(headers: &mut HeaderMap) {
    for name in [&RETRY, &PREVIOUS_ATTEMPTS, &ENVOY_ATTEMPT_COUNT] {
        headers.remove(name);
    }
    drop_baggage(headers);
}

/// Removes Damper's member from a request's baggage.
pub(crate) fn drop_baggage(headers: &mut HeaderMap) {
    let values = headers.get_all(&BAGGAGE).iter().map(HeaderValue::as_bytes);
    if Baggage::is_in(values) {
        let rest = baggage_without(headers);
        replace_baggage(headers, rest);
    }
}

/// Puts the flag into a request's baggage, replacing a previous one. It is valid for the time left of the
/// call; without a deadline, for the grace period of the receiver.
pub(crate) fn put_baggage(headers: &mut HeaderMap, retry: u32, time_left: Option<Duration>) {
    let left_ms = time_left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let until = clock::unix_ms().saturating_add(left_ms);
    let mut values = baggage_without(headers);
    let first = if values.is_empty() { Vec::new() } else { values.remove(0).as_bytes().to_vec() };
    if let Ok(value) = HeaderValue::from_bytes(&chain::baggage_with(&first, retry, until)) {
        values.insert(0, value);
    }
    replace_baggage(headers, values);
}

/// Returns the values of the baggage headers without Damper's member, in order and without empty ones.
fn baggage_without(headers: &HeaderMap) -> Vec<HeaderValue> {
    let without = |value: &HeaderValue| match chain::baggage_without(value.as_bytes()) {
        None => Some(value.clone()),
        // The rest of a header value is a valid one.
        Some(rest) => HeaderValue::from_bytes(&rest).ok().filter(|rest| !rest.is_empty()),
    };
    headers.get_all(&BAGGAGE).iter().filter_map(without).collect()
}

fn replace_baggage(headers: &mut HeaderMap, values: Vec<HeaderValue>) {
    headers.remove(&BAGGAGE);
    for value in values {
        headers.append(&BAGGAGE, value);
    }
}

/// Returns the status fields of headers or trailers.
pub(crate) fn status_fields(headers: &HeaderMap) -> StatusFields<'_> {
    let grpc_status = bytes(headers, &GRPC_STATUS);
    // Few responses have them, and one scan is faster than three lookups.
    if !headers.keys().any(|name| classify::is_hop_by_hop(name.as_str())) {
        return StatusFields { grpc_status, ..StatusFields::default() };
    }
    let mut pushbacks = headers.get_all(&PUSHBACK).iter();
    StatusFields {
        grpc_status,
        no_more_retry: headers.contains_key(&NO_MORE_RETRY),
        pushback: pushbacks.next().map(HeaderValue::as_bytes),
        pushback_repeated: pushbacks.next().is_some(),
    }
}

/// Adds a random id that all attempts of a call carry. An id of the application stays.
pub(crate) fn put_call_id(headers: &mut HeaderMap) {
    if headers.contains_key(&CALL_ID) {
        return;
    }
    // Two calls with the same id could make a handler drop one of them, so a generator with 64 bits is not
    // enough.
    let mut bits = [0; 16];
    let drawn = getrandom::fill(&mut bits);
    let bits = drawn.map_or_else(|_| fastrand::u128(..), |()| u128::from_ne_bytes(bits));
    let id = format!("{bits:032x}");
    let id = HeaderValue::try_from(id).expect("hexadecimal digits are a header value");
    headers.insert(&CALL_ID, id);
}

/// Removes retry fields that are meant for this hop only, report and job of a call of another process, and
/// status details that are not base64: tonic panics on those, and no peer may cause that.
pub(crate) fn clean(headers: &mut HeaderMap) {
    let is_removed =
        |name: &HeaderName| classify::is_hop_by_hop(name.as_str()) || [&DETAILS, &FATE, &JOB].contains(&name);
    if !headers.keys().any(is_removed) {
        return;
    }
    for name in [&NO_MORE_RETRY, &PUSHBACK, &ENVOY_RATE_LIMITED, &FATE, &JOB] {
        headers.remove(name);
    }
    if !are_details_readable(headers) {
        headers.remove(&DETAILS);
    }
}

/// Returns true if tonic can decode all of them.
fn are_details_readable(headers: &HeaderMap) -> bool {
    let mut details = HeaderMap::new();
    for value in headers.get_all(&DETAILS) {
        details.append(&DETAILS, value.clone());
    }
    let details = MetadataMap::from_headers(details);
    details.get_all_bin(DETAILS.as_str()).iter().all(|value| value.to_bytes().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_baggage(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-app", HeaderValue::from_static("a"));
        for value in values {
            headers.append(&BAGGAGE, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn baggage(headers: &HeaderMap) -> Vec<&str> {
        assert_eq!(headers.get("x-app").unwrap(), "a");
        headers.get_all(&BAGGAGE).iter().map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn only_the_own_baggage_member_is_removed() {
        let check = |before: &[&str], after: &[&str]| {
            let mut headers = with_baggage(before);
            drop_baggage(&mut headers);
            assert_eq!(baggage(&headers), after);
            assert_eq!(marks(&headers).flag(), None);
        };
        check(&[], &[]);
        check(&["a=1", "b=2"], &["a=1", "b=2"]);
        check(&["damper.retry=1;until=9999999999999"], &[]);
        check(&["a=1", "b=2 , damper.retry=1;until=9999999999999", "c=3"], &["a=1", "b=2", "c=3"]);
        check(&["damper.retry", "damper.retry=2", "c=3"], &["c=3"]);
    }

    #[test]
    fn an_added_member_is_unique_and_marks_the_request() {
        for before in [&[][..], &["a=1"], &["a=1", "damper.retry=9;until=9999999999999", "c=3"]] {
            let mut headers = with_baggage(before);
            put_baggage(&mut headers, 2, Some(Duration::from_secs(5)));
            assert_eq!(marks(&headers).flag(), Some(2));
            let others: Vec<_> =
                before.iter().filter(|value| !value.starts_with("damper")).copied().collect();
            let after = baggage(&headers).join(",");
            let (ours, rest) = after.split_once(',').unwrap_or((&after, ""));
            assert!(ours.starts_with("damper.retry=2;until="), "{after}");
            assert_eq!(rest, others.join(","));
        }
    }

    #[test]
    fn the_member_is_valid_for_the_call_and_a_grace_period() {
        let flag = |until: u64| marks(&with_baggage(&[&format!("damper.retry=3;until={until}")])).flag();
        let now = clock::unix_ms();
        assert_eq!(flag(now + 5_000), Some(3));
        assert_eq!(flag(now - chain::GRACE_MS + 30_000), Some(3));
        assert_eq!(flag(now - chain::GRACE_MS - 1), None);
        for time_left in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            let mut headers = with_baggage(&[]);
            put_baggage(&mut headers, 1, time_left);
            assert_eq!(marks(&headers).flag(), Some(1), "{time_left:?}");
        }
    }
}
