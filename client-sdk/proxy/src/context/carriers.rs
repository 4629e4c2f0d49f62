//! The key of a request in the headers that OpenTelemetry copies from a request to its calls.
//!
//! ```text
//! tracestate: damper=0123456789abc,vendor=x          only where there is a traceparent
//! baggage: damper.ctx=0123456789abc,tenant=7
//! ```
//!
//! All else in them is unchanged. A carrier that would exceed the limits of its specification is left alone:
//! OpenTelemetry for Go drops a `tracestate` of more than 32 members as a whole. No `traceparent` is ever
//! made: one that is not sampled would switch off sampling in services that begin traces.

use damper_sdk::is_named;
use http::{HeaderMap, HeaderName, HeaderValue};

static TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
static BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const TRACE_PARENT: &str = "traceparent";

/// A header and our member in it.
struct Carrier {
    header: &'static HeaderName,
    member: &'static str,
    max_members: usize,
    max_bytes: usize,
}

const IN_TRACE_STATE: Carrier =
    Carrier { header: &TRACE_STATE, member: "damper", max_members: 32, max_bytes: 512 };
const IN_BAGGAGE: Carrier =
    Carrier { header: &BAGGAGE, member: "damper.ctx", max_members: 64, max_bytes: 8_192 };

/// Limit of the head of a request with our members: Java's and C++'s default.
const MAX_HEAD: usize = 8 << 10;
/// What HPACK counts for each field in addition to its name and value.
const FIELD: usize = 32;

/// Characters of a key: 64 bits in base 32.
const KEY_CHARS: usize = 13;
const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// Keys found in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) in_trace_state: Option<u64>,
    pub(crate) in_baggage: Option<u64>,
}

/// Removes our members and returns their keys.
pub(crate) fn take(headers: &mut HeaderMap) -> Keys {
    Keys { in_trace_state: IN_TRACE_STATE.take(headers), in_baggage: IN_BAGGAGE.take(headers) }
}

/// Adds the key where there is room. Returns false if there is none at all.
pub(crate) fn put(headers: &mut HeaderMap, key: u64) -> bool {
    let traced = headers.contains_key(TRACE_PARENT) && IN_TRACE_STATE.put(headers, key);
    let carried = IN_BAGGAGE.put(headers, key);
    traced || carried
}

impl Carrier {
    fn take(&self, headers: &mut HeaderMap) -> Option<u64> {
        let values: Vec<_> = headers.get_all(self.header).iter().cloned().collect();
        let is_ours = |member: &&[u8]| self.value(member).is_some();
        if !values.iter().any(|value| members(value).any(|member| is_ours(&member))) {
            return None;
        }
        headers.remove(self.header);
        let mut key = None;
        for value in values {
            key = key.or_else(|| members(&value).find_map(|member| read(self.value(member)?)));
            let others: Vec<_> = members(&value).filter(|member| !is_ours(member)).collect();
            let others = HeaderValue::from_bytes(&others.join(&b','));
            if let Some(others) = others.ok().filter(|others| !others.is_empty()) {
                headers.append(self.header, others);
            }
        }
        key
    }

    /// Adds our member as the first, all in one header: some propagators read only one.
    fn put(&self, headers: &mut HeaderMap, key: u64) -> bool {
        let mut value = format!("{}={}", self.member, shown(key)).into_bytes();
        let mut count = 1;
        for member in headers.get_all(self.header).iter().flat_map(members) {
            value.push(b',');
            value.extend_from_slice(member);
            count += 1;
        }
        let added = self.member.len() + KEY_CHARS + self.header.as_str().len() + FIELD + 2;
        if count > self.max_members || value.len() > self.max_bytes || size(headers) + added > MAX_HEAD {
            return false;
        }
        HeaderValue::from_bytes(&value).map(|value| headers.insert(self.header, value)).is_ok()
    }

    /// Returns the value of a member if it is ours.
    fn value<'a>(&self, member: &'a [u8]) -> Option<&'a [u8]> {
        let mut parts = member.splitn(2, |byte| *byte == b'=');
        let name = parts.next()?.trim_ascii();
        let name = name.split(|byte| *byte == b';').next()?.trim_ascii();
        is_named(name, self.member.as_bytes()).then(|| parts.next().unwrap_or_default())
    }
}

/// Returns the members of a list, without empty ones.
fn members(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let members = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// Returns the size of a head as HPACK counts it.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum()
}

fn shown(key: u64) -> String {
    let digit = |place: usize| {
        let bits = key >> (5 * (KEY_CHARS - 1 - place)) & 31;
        char::from(DIGITS[usize::try_from(bits).unwrap_or_default()])
    };
    (0..KEY_CHARS).map(digit).collect()
}

/// Reads a key, without the properties that a baggage member may have.
fn read(value: &[u8]) -> Option<u64> {
    let value = value.split(|byte| *byte == b';').next()?.trim_ascii();
    if value.len() != KEY_CHARS {
        return None;
    }
    let mut key = 0_u64;
    for byte in value {
        let digit = DIGITS.iter().position(|digit| digit == byte)?;
        key = key.checked_mul(32)? | u64::try_from(digit).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 0xfedc_ba98_7654_3210;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn all(headers: &HeaderMap, name: &str) -> Vec<String> {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn key_is_read_as_it_was_written() {
        for key in [0, 1, 31, 32, KEY, u64::MAX] {
            assert_eq!(shown(key).len(), KEY_CHARS);
            assert_eq!(read(shown(key).as_bytes()), Some(key));
            assert_eq!(read(format!(" {} ; p=1", shown(key)).as_bytes()), Some(key));
        }
        for text in ["", "0", "zzzzzzzzzzzzz", "vvvvvvvvvvvvv", "00000000000000", "FVQ3000000000"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn key_is_the_first_member_and_nothing_else_changes() {
        let parent = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut request =
            headers(&[parent, ("tracestate", "a=1 ,b=2"), ("tracestate", "c=3"), ("baggage", "d=4;p=5")]);
        assert!(put(&mut request, KEY));
        let key = shown(KEY);
        assert_eq!(all(&request, "tracestate"), [format!("damper={key},a=1,b=2,c=3")]);
        assert_eq!(all(&request, "baggage"), [format!("damper.ctx={key},d=4;p=5")]);
        let keys = take(&mut request);
        assert_eq!(keys, Keys { in_trace_state: Some(KEY), in_baggage: Some(KEY) });
        assert_eq!(all(&request, "tracestate"), ["a=1,b=2,c=3"]);
        assert_eq!(all(&request, "baggage"), ["d=4;p=5"]);
    }

    #[test]
    fn trace_state_is_left_alone_without_a_trace() {
        let mut request = headers(&[]);
        assert!(put(&mut request, KEY));
        assert!(!request.contains_key("tracestate") && !request.contains_key("traceparent"));
        assert_eq!(take(&mut request), Keys { in_trace_state: None, in_baggage: Some(KEY) });
        assert!(request.is_empty());
    }

    #[test]
    fn carriers_at_their_limits_are_left_alone() {
        let parent = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let list = |count: usize| (0..count).map(|i| format!("k{i}=1")).collect::<Vec<_>>().join(",");
        let long = |bytes: usize| format!("k={}", "v".repeat(bytes - 2));
        let ours = "damper=".len() + KEY_CHARS + 1;
        let check = |state: String, baggage: String, expected: (bool, bool)| {
            let mut request = headers(&[parent, ("tracestate", &state), ("baggage", &baggage)]);
            assert_eq!(put(&mut request, KEY), expected.0 || expected.1);
            let keys = take(&mut request);
            assert_eq!((keys.in_trace_state.is_some(), keys.in_baggage.is_some()), expected);
            assert_eq!((all(&request, "tracestate"), all(&request, "baggage")), (vec![state], vec![baggage]));
        };
        check(list(31), list(63), (true, true));
        check(list(32), list(64), (false, false));
        check(long(512 - ours), list(1), (true, true));
        check(long(513 - ours), list(1), (false, true));
        check(list(1), long(8_192), (false, false));
    }

    #[test]
    fn head_that_would_grow_too_large_gets_no_key() {
        let mut request = headers(&[("x-big", &"v".repeat(MAX_HEAD - 100))]);
        assert!(!put(&mut request, KEY));
        assert_eq!(request.len(), 1);
    }

    #[test]
    fn foreign_members_with_similar_names_stay() {
        let fields = [("tracestate", "damper2=1,xdamper=2"), ("baggage", "damper.ctx2=1,damper.retry=1")];
        let mut request = headers(&fields);
        assert_eq!(take(&mut request), Keys::default());
        assert_eq!(all(&request, "tracestate"), [fields[0].1]);
        assert_eq!(all(&request, "baggage"), [fields[1].1]);
        let mut junk = headers(&[("tracestate", "damper=junk,a=1"), ("baggage", "damper.ctx")]);
        assert_eq!(take(&mut junk), Keys::default());
        assert_eq!((all(&junk, "tracestate"), all(&junk, "baggage")), (vec!["a=1".to_owned()], vec![]));
    }
}
