//! Any `tracestate` and `baggage` of a request: the proxy takes its members off, and adds a key.
//!
//! Checked, by a second reading of the lists: nothing panics. No member of ours stays, and the first of ours
//! with a key counts. Members of others keep their bytes and their order, all other headers are unchanged. A
//! key is added as the first member if and only if the limits allow it, and is found again.

use arbitrary::{Arbitrary as _, Result, Unstructured};
use damper_proxy::fuzzing::{put_key, take_keys};
use http::{HeaderMap, HeaderValue};

const PARENT: &str = "traceparent";
const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
const MAX_HEAD: usize = 8 << 10;
/// What HPACK counts for each field.
const FIELD: usize = 32;
/// Pieces of lists, so that bytes alone need not find them.
const PIECES: [&str; 20] = [
    ",",
    ";",
    "=",
    " ",
    "\t",
    "damper",
    "damper.ctx",
    "damper=",
    "damper.ctx=",
    "%64amper=",
    "damper%2ectx=",
    "%6",
    "0123456789abc",
    "fvvvvvvvvvvvv",
    "gvvvvvvvvvvvv",
    "vendor=1",
    "damper.retry=1",
    ";p=1",
    "DAMPER=",
    "\u{e4}",
];

/// A header, our member in it and its limits.
struct List {
    header: &'static str,
    member: &'static [u8],
    max_members: usize,
    max_bytes: usize,
}

const LISTS: [List; 2] = [
    List { header: "tracestate", member: b"damper", max_members: 32, max_bytes: 512 },
    List { header: "baggage", member: b"damper.ctx", max_members: 64, max_bytes: 8_192 },
];

/// Runs one case.
pub fn run(data: &[u8]) {
    // Bytes that are too few for a case are none.
    let _ = case(&mut Unstructured::new(data));
}

fn case(u: &mut Unstructured<'_>) -> Result<()> {
    let key = u64::arbitrary(u)?;
    let before = headers(u)?;
    let mut headers = before.clone();
    let found = take_keys(&mut headers);
    for (list, found) in LISTS.iter().zip(found) {
        let ours: Vec<_> = list.members(&before).into_iter().filter(|member| list.is_ours(member)).collect();
        assert_eq!(found, ours.iter().find_map(|member| key_of(member)), "{before:?}");
        assert_eq!(list.members(&headers), list.others(&before), "{before:?}");
        if ours.is_empty() {
            assert!(before.get_all(list.header).iter().eq(headers.get_all(list.header)), "{before:?}");
        }
    }
    assert_eq!(rest(&before), rest(&headers));
    check_put(&headers, key);
    // The proxy takes members of ours off first. Without that this must not panic.
    put_key(&mut before.clone(), key);
    Ok(())
}

/// Adds a key to headers without one.
fn check_put(before: &HeaderMap, key: u64) {
    let mut headers = before.clone();
    let is_put = put_key(&mut headers, key);
    let mut expected = before.clone();
    let added = LISTS.map(|list| list.add(&mut expected, key));
    assert_eq!(headers, expected);
    assert_eq!(is_put, added.contains(&true), "{before:?}");
    assert!(!is_put || size(&headers) <= MAX_HEAD, "{headers:?}");
    let found = take_keys(&mut headers);
    assert_eq!(found, added.map(|added| added.then_some(key)), "{before:?}");
    for list in LISTS {
        assert_eq!(list.members(&headers), list.members(before));
    }
    assert_eq!(rest(before), rest(&headers));
}

impl List {
    fn members(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        let values = headers.get_all(self.header).iter();
        let members = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        members.map(|member| member.trim_ascii().to_vec()).filter(|member| !member.is_empty()).collect()
    }

    fn others(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        self.members(headers).into_iter().filter(|member| !self.is_ours(member)).collect()
    }

    fn is_ours(&self, member: &[u8]) -> bool {
        let end = member.iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(member.len());
        decoded(member[..end].trim_ascii()) == self.member
    }

    /// Adds the key if that is allowed.
    fn add(&self, headers: &mut HeaderMap, key: u64) -> bool {
        let mut members = self.members(headers);
        let ours = [self.member, b"=", &shown(key)].concat();
        // What the proxy counts: a field of its own, however much room the joined fields leave.
        let head = size(headers) + ours.len() + 1 + self.header.len() + FIELD;
        members.insert(0, ours);
        let value = members.join(&b',');
        let is_traced = self.header == "baggage" || headers.contains_key(PARENT);
        if !is_traced || members.len() > self.max_members || value.len() > self.max_bytes || head > MAX_HEAD {
            return false;
        }
        headers.insert(self.header, HeaderValue::from_bytes(&value).expect("its parts are values"));
        true
    }
}

/// Returns the headers that the proxy must not touch.
fn rest(headers: &HeaderMap) -> HeaderMap {
    let mut rest = headers.clone();
    LISTS.iter().for_each(|list| _ = rest.remove(list.header));
    rest
}

fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum()
}

/// Decodes a name; an escape that is none stays.
fn decoded(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = name;
    while let [byte, after @ ..] = rest {
        let escape = match rest {
            [b'%', digits @ ..] => digits.first_chunk::<2>().and_then(|digits| {
                let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
                u8::from_str_radix(digits, 16).ok()
            }),
            _ => None,
        };
        decoded.push(escape.unwrap_or(*byte));
        rest = if escape.is_some() { &rest[3..] } else { after };
    }
    decoded
}

fn shown(key: u64) -> [u8; 13] {
    std::array::from_fn(|place| DIGITS[(key >> (60 - 5 * place) & 31) as usize])
}

/// Reads the key of a member of ours.
fn key_of(member: &[u8]) -> Option<u64> {
    let value = member.iter().position(|byte| *byte == b'=').map(|at| &member[at + 1..])?;
    let value = value.split(|byte| *byte == b';').next()?.trim_ascii();
    let text = std::str::from_utf8(value).ok().filter(|_| value.iter().all(|byte| DIGITS.contains(byte)))?;
    (text.len() == 13).then(|| u64::from_str_radix(text, 32).ok()).flatten()
}

fn headers(u: &mut Unstructured<'_>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if u.arbitrary()? {
        headers.insert(
            PARENT,
            HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        );
    }
    for _ in 0..u.int_in_range(0..=4)? {
        let name = *u.choose(&["tracestate", "baggage", "x-app"])?;
        // What HTTP does not allow in a value does not arrive.
        if let Ok(value) = HeaderValue::from_bytes(&value(u)?) {
            headers.append(name, value);
        }
    }
    if u.ratio(1, 4)? {
        let big = "v".repeat(u.int_in_range(7_500..=8_200)?);
        headers.insert("x-big", HeaderValue::try_from(big).expect("letters"));
    }
    Ok(headers)
}

fn value(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    for _ in 0..u.int_in_range(0..=12)? {
        match u.int_in_range(0..=9)? {
            0 => value.push(u8::arbitrary(u)?),
            // Near the limits of members and bytes.
            1 => (0..u.int_in_range(0..=66)?).for_each(|_| value.extend(b",k=1")),
            2 => value.extend(b"v".repeat(u.int_in_range(0..=8_200)?)),
            _ => value.extend(u.choose(&PIECES)?.as_bytes()),
        }
    }
    Ok(value)
}
