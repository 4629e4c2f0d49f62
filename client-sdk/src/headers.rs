//! The headers that this crate reads and writes, by the names that `damper-core` gives them.

use damper_core::classify::{self, StatusFields};
use damper_core::{chain, deadline};
use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) static RETRY: HeaderName = HeaderName::from_static(chain::RETRY);
pub(crate) static PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static(chain::PREVIOUS_ATTEMPTS);
pub(crate) static ENVOY_ATTEMPT_COUNT: HeaderName = HeaderName::from_static(chain::ENVOY_ATTEMPT_COUNT);
pub(crate) static NO_MORE_RETRY: HeaderName = HeaderName::from_static(chain::NO_MORE_RETRY);
pub(crate) static PUSHBACK: HeaderName = HeaderName::from_static(chain::PUSHBACK);
pub(crate) static ENVOY_RATE_LIMITED: HeaderName = HeaderName::from_static(chain::ENVOY_RATE_LIMITED);
pub(crate) static TIMEOUT: HeaderName = HeaderName::from_static(deadline::HEADER);
pub(crate) static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// A header's first value as it arrived.
pub(crate) fn bytes<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    headers.get(name).map(HeaderValue::as_bytes)
}

/// The fields of headers or trailers that carry a status.
pub(crate) fn status_fields(headers: &HeaderMap) -> StatusFields<'_> {
    let grpc_status = bytes(headers, &GRPC_STATUS);
    if !speak_to_this_hop(headers) {
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

/// Takes off what an answer said about retries to this hop only.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !speak_to_this_hop(headers) {
        return;
    }
    for name in [&NO_MORE_RETRY, &PUSHBACK, &ENVOY_RATE_LIMITED] {
        headers.remove(name);
    }
}

/// Almost no answer does, and looking through its few names is quicker than looking for three of them.
fn speak_to_this_hop(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| classify::is_hop_by_hop(name.as_str()))
}
