//! Header fields of the fuzzer's choice: those that mean something to Damper or gRPC with values that are near
//! to meaningful ones, and any others that HTTP allows.

use arbitrary::{Result, Unstructured};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Names of answers' fields.
const ANSWER: [&str; 12] = [
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "grpc-retry-pushback-ms",
    "damper-no-more-retry",
    "x-envoy-ratelimited",
    "damper-retry",
    "content-type",
    "grpc-encoding",
    "x-app",
    "x-app-bin",
    "content-length",
];
/// Names of requests' fields.
const REQUEST: [&str; 14] = [
    "damper-retry",
    "grpc-previous-rpc-attempts",
    "x-envoy-attempt-count",
    "baggage",
    "grpc-timeout",
    "damper-call",
    "x-envoy-max-retries",
    "x-envoy-ratelimited",
    "damper-no-more-retry",
    "grpc-retry-pushback-ms",
    "content-type",
    "te",
    "x-app",
    "x-app-bin",
];
const VALUES: [&str; 34] = [
    "0",
    "1",
    "2",
    "4",
    "8",
    "13",
    "14",
    "16",
    "17",
    "-1",
    "5",
    "250",
    "60000",
    "60001",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "",
    " 1",
    "+1",
    "1.5",
    "0x1",
    "50m",
    "1u",
    "0n",
    "99999999H",
    "100000000S",
    "damper.retry=1;until=99999999999999",
    "a=1, damper.retry=2;until=99999999999999 ,b=2;p",
    "damper.retry",
    "application/grpc+proto",
    "CAESBWhlbGxv",
];

/// Fields of an answer's headers or trailers.
pub(crate) fn of_answer(u: &mut Unstructured<'_>, most: usize) -> Result<HeaderMap> {
    any(u, &ANSWER, most)
}

/// Fields of a request.
pub(crate) fn of_request(u: &mut Unstructured<'_>, most: usize) -> Result<HeaderMap> {
    any(u, &REQUEST, most)
}

fn any(u: &mut Unstructured<'_>, known: &[&'static str], most: usize) -> Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    for _ in 0..u.int_in_range(0..=most)? {
        let name = match u.ratio(1, 8)? {
            true => HeaderName::from_bytes(short(u)?).unwrap_or(HeaderName::from_static("x-other")),
            false => HeaderName::from_static(u.choose(known)?),
        };
        fields.append(name, value(u)?);
    }
    Ok(fields)
}

fn value(u: &mut Unstructured<'_>) -> Result<HeaderValue> {
    if u.ratio(3, 4)? {
        return Ok(HeaderValue::from_static(u.choose(&VALUES)?));
    }
    // Whatever HTTP allows, bytes above ASCII among it.
    Ok(HeaderValue::from_bytes(short(u)?).unwrap_or(HeaderValue::from_static("\t")))
}

fn short<'a>(u: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let length = u.int_in_range(0..=24)?.min(u.len());
    u.bytes(length)
}

/// All fields but these names, in an order that two maps can be compared by.
pub(crate) fn without(fields: &HeaderMap, names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let rest = fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
    let mut rest: Vec<_> = rest.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    // By name only: the order of one name's values means something.
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    rest
}
