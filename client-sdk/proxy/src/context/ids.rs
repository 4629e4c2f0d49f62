//! Ids that a service may copy from a request to its calls even without OpenTelemetry.
//!
//! All forms of one trace id are equal. A malformed id is none.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::{HeaderMap, HeaderValue};
use tonic::metadata::MetadataMap;

/// Above the 128 bits of a trace id would be no room: an id of a request has this bit and 64 of its hash.
const OF_REQUEST: u128 = 1 << 127;
const MAX_REQUEST_ID: usize = 256;
const GRPC_TRACE: &str = "grpc-trace-bin";

/// The ids of a request or call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    trace: Option<u128>,
    request: Option<u128>,
}

impl Ids {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let trace = text("traceparent")
            .and_then(|value| hex(value.split('-').nth(1)?))
            .or_else(|| hex(text("b3")?.split('-').next()?))
            .or_else(|| hex(text("x-b3-traceid")?))
            .or_else(|| of_grpc(headers.get(GRPC_TRACE)?));
        let request = text("x-request-id").filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID);
        Self { trace, request: request.map(hashed) }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = u128> + use<> {
        self.trace.into_iter().chain(self.request)
    }
}

/// Reads 64 or 128 bits that are not all zero.
fn hex(text: &str) -> Option<u128> {
    let is_id = matches!(text.len(), 16 | 32) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| u128::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)
}

/// Reads the binary form: a version, a field number, 16 bytes of the trace id.
fn of_grpc(value: &HeaderValue) -> Option<u128> {
    let mut headers = HeaderMap::new();
    headers.insert(GRPC_TRACE, value.clone());
    let bytes = MetadataMap::from_headers(headers).get_bin(GRPC_TRACE)?.to_bytes().ok()?;
    let id = bytes.strip_prefix(&[0, 0])?.first_chunk::<16>()?;
    Some(u128::from_be_bytes(*id)).filter(|id| *id != 0)
}

fn hashed(id: &str) -> u128 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    OF_REQUEST | u128::from(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn of(name: &'static str, value: &str) -> Vec<u128> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Ids::of(&headers).each().collect()
    }

    #[test]
    fn all_forms_of_a_trace_id_are_equal() {
        let id = u128::from_str_radix(TRACE, 16).unwrap();
        let mut binary = vec![0, 0];
        binary.extend_from_slice(&id.to_be_bytes());
        let mut map = MetadataMap::new();
        map.insert_bin(GRPC_TRACE, tonic::metadata::MetadataValue::from_bytes(&binary));
        let binary = map.into_headers()[GRPC_TRACE].to_str().unwrap().to_owned();
        for (name, value) in [
            ("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01")),
            ("b3", format!("{TRACE}-00f067aa0ba902b7-1")),
            ("x-b3-traceid", TRACE.to_uppercase()),
            (GRPC_TRACE, binary),
        ] {
            assert_eq!(of(name, &value), [id], "{name}");
        }
    }

    #[test]
    fn malformed_ids_are_none() {
        for (name, value) in [
            ("traceparent", "00-0-1-01"),
            ("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
            ("b3", "0"),
            ("x-b3-traceid", "+bf92f3577b34da6a3ce929d0e0e4736"),
            (GRPC_TRACE, "AAA"),
            ("x-request-id", ""),
        ] {
            assert_eq!(of(name, value), [0; 0], "{name}: {value}");
        }
    }

    #[test]
    fn request_id_is_an_id_next_to_that_of_the_trace() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "a".parse().unwrap());
        headers.insert("x-b3-traceid", TRACE.parse().unwrap());
        assert_eq!(Ids::of(&headers).each().count(), 2);
        assert_ne!(of("x-request-id", "a"), of("x-request-id", "b"));
    }
}
