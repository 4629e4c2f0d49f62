//! The retry flag as a member of W3C baggage, for hops that only pass on OpenTelemetry's baggage.
//!
//! ```text
//! baggage: tenant=7, damper.retry=1;until=1767225600000
//! ```
//!
//! Baggage may travel further than its request, for example into a queue or a later job. So the member has an
//! expiry, the deadline of the retried call, and is ignored [`GRACE_MS`] later, which allows for different
//! clocks. All other members, their order and their properties are unchanged. Malformed members are ignored.
//!
//! Source: W3C Baggage (members separated by commas, properties by semicolons, with optional blanks).
//! Damper's values need no percent-encoding, so none is decoded.

use super::number;

/// The header; a request may have several.
pub const BAGGAGE: &str = "baggage";
/// Key of the member.
const KEY: &[u8] = b"damper.retry";
/// Property with the expiry of the member, in milliseconds since 1970.
const UNTIL: &[u8] = b"until";
/// Time for which an expired member is still valid.
pub const GRACE_MS: u64 = 60_000;

/// The member, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baggage {
    retry: u32,
    until_unix_ms: u64,
}

impl Baggage {
    /// Reads the member from the baggage headers; of several the one that expires last. `None` if there is no
    /// well-formed one.
    #[must_use]
    pub fn read<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let members = values.into_iter().flat_map(members).filter(|member| is_ours(member));
        members.filter_map(parse).max_by_key(|ours| ours.until_unix_ms)
    }

    /// Returns true if the baggage headers contain the member, well formed or not.
    #[must_use]
    pub fn is_in<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> bool {
        values.into_iter().flat_map(members).any(is_ours)
    }

    /// Returns the member if it is valid at this time (milliseconds since 1970).
    #[must_use]
    pub fn holding_at(self, unix_ms: u64) -> Option<Self> {
        Some(self).filter(|ours| unix_ms <= ours.until_unix_ms.saturating_add(GRACE_MS))
    }

    /// Returns the number of attempts before the request.
    #[must_use]
    pub(super) fn retry(self) -> u32 {
        self.retry
    }
}

/// Returns a baggage value that begins with the member and has no other copy of it.
#[must_use]
pub fn baggage_with(existing: &[u8], retry: u32, until_unix_ms: u64) -> Vec<u8> {
    let ours = format!("damper.retry={retry};until={until_unix_ms}");
    let mut value = ours.into_bytes();
    let others = baggage_without(existing);
    let others = others.as_deref().unwrap_or(existing.trim_ascii());
    if !others.is_empty() {
        value.push(b',');
        value.extend_from_slice(others);
    }
    value
}

/// Returns a baggage value without the member, empty if nothing is left; `None` if there was no member.
#[must_use]
pub fn baggage_without(existing: &[u8]) -> Option<Vec<u8>> {
    if !members(existing).any(is_ours) {
        return None;
    }
    let others: Vec<_> = members(existing).filter(|member| !is_ours(member)).collect();
    Some(others.join(&b',').trim_ascii().to_vec())
}

fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',')
}

fn is_ours(member: &[u8]) -> bool {
    let key = member.split(|byte| matches!(byte, b'=' | b';')).next();
    key.is_some_and(|key| is_named(key, KEY))
}

/// Returns true if the name of a member is this one, percent-encoded or not: the propagators of some
/// languages decode names.
#[must_use]
pub fn is_named(member: &[u8], name: &[u8]) -> bool {
    let mut rest = member.trim_ascii();
    for expected in name {
        let (byte, after) = match rest {
            [b'%', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => return false,
            },
            [byte, after @ ..] => (*byte, after),
            [] => return false,
        };
        if byte != *expected {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn parse(member: &[u8]) -> Option<Baggage> {
    let mut parts = member.split(|byte| *byte == b';').map(pair);
    let (_, retry) = parts.next()??;
    let retry = number::<u32>(retry)?.max(1);
    let mut properties = parts.flatten().filter(|(key, _)| *key == UNTIL);
    let until_unix_ms = number(properties.next()?.1)?;
    Some(Baggage { retry, until_unix_ms })
}

fn pair(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = part.iter().position(|byte| *byte == b'=')?;
    let (key, value) = part.split_at_checked(equals)?;
    Some((key.trim_ascii(), value.get(1..)?.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(values: &[&str]) -> Option<(u32, u64)> {
        let ours = Baggage::read(values.iter().map(|value| value.as_bytes()))?;
        Some((ours.retry, ours.until_unix_ms))
    }

    #[test]
    fn own_member_is_found_among_others_in_any_header() {
        let check = |values: &[&str], expected| assert_eq!(read(values), expected, "{values:?}");
        check(&["damper.retry=2;until=99"], Some((2, 99)));
        check(&["a=1, damper.retry=2 ; until=99 ; x, b=2;p=3"], Some((2, 99)));
        check(&["a=1\t,\tdamper.retry\t=\t2\t;\tx=y;until =\t99"], Some((2, 99)));
        check(&["a=1", "b=2", "c=3,damper.retry=7;until=5"], Some((7, 5)));
        check(&["damper.retry=0;until=5"], Some((1, 5)));
        check(&["damper%2Eretry=4;until=5"], Some((4, 5)));
        check(
            &["%64amper%2eretr%79=4;until=5", "damper%2=4;until=9", "damper%2Gretry=4;until=9"],
            Some((4, 5)),
        );
        check(&["damper.retry=1;until=5", "damper.retry=2;until=9,damper.retry=3;until=7"], Some((2, 9)));
        check(&["damper.retry=x;until=9, damper.retry=3;until=7"], Some((3, 7)));
    }

    #[test]
    fn malformed_members_are_ignored() {
        for value in [
            "",
            ",,,",
            "damper.retry",
            "damper.retry=",
            "damper.retry=2",
            "damper.retry=2;until",
            "damper.retry=2;until=",
            "damper.retry=2;until=soon",
            "damper.retry=2;until=-5",
            "damper.retry=2;until=99999999999999999999",
            "damper.retry=4294967296;until=5",
            "damper.retry=+2;until=5",
            "Damper.Retry=2;until=5",
            "damper.retry.x=2;until=5",
            "xdamper.retry=2;until=5",
            "a=damper.retry=2;until=5",
            "a=1;damper.retry=2;until=5",
            "damper.retry;x=2;until=5",
        ] {
            assert_eq!(read(&[value]), None, "{value}");
        }
    }

    #[test]
    fn member_is_valid_until_a_minute_after_its_end() {
        let check = |until, now, expected| {
            let ours = Baggage { retry: 1, until_unix_ms: until };
            assert_eq!(ours.holding_at(now).is_some(), expected, "{until} {now}");
        };
        check(1_000, 0, true);
        check(1_000, 61_000, true);
        check(1_000, 61_001, false);
        check(0, 60_000, true);
        check(u64::MAX, u64::MAX, true);
    }

    #[test]
    fn own_member_is_put_first_and_replaces_earlier_ones() {
        let check = |existing: &str, expected: &str| {
            let value = baggage_with(existing.as_bytes(), 2, 99);
            assert_eq!(String::from_utf8(value).unwrap(), expected);
        };
        check("", "damper.retry=2;until=99");
        check("  ", "damper.retry=2;until=99");
        check("a=1;p, b=2", "damper.retry=2;until=99,a=1;p, b=2");
        check("a=1, damper.retry=1;until=5 ,b=2", "damper.retry=2;until=99,a=1,b=2");
        check("damper.retry=x", "damper.retry=2;until=99");
    }

    #[test]
    fn only_the_own_member_is_removed() {
        let check = |existing: &str, expected: Option<&str>| {
            let rest = baggage_without(existing.as_bytes());
            assert_eq!(rest.map(|rest| String::from_utf8(rest).unwrap()).as_deref(), expected);
        };
        check("", None);
        check("a=1;damper.retry=2", None);
        check("damper.retry=2;until=5", Some(""));
        check("damper.retry", Some(""));
        check("damper.retry=2;until=5, a=1 ; p=2,b=%20", Some("a=1 ; p=2,b=%20"));
        check("a=1 ,damper.retry=x,b=2,damper.retry=3", Some("a=1 ,b=2"));
    }

    /// Pieces of hostile headers.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"damper.retry".to_vec()),
            Just(b"until=".to_vec()),
            Just(b"=".to_vec()),
            Just(b";".to_vec()),
            Just(b",".to_vec()),
            Just(b" ".to_vec()),
            Just(b"18446744073709551615".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn written_member_is_read_and_removed(existing in value(), retry in 1_u32.., until: u64) {
            let with = baggage_with(&existing, retry, until);
            prop_assert_eq!(Baggage::read([&*with]), Some(Baggage { retry, until_unix_ms: until }));
            let rest = baggage_without(&with).expect("ours is there");
            prop_assert_eq!(Baggage::read([&*rest]), None);
            prop_assert_eq!(baggage_without(&rest), None);
            let others = |value: &[u8]| {
                let others = members(value).filter(|member| !is_ours(member));
                others.map(|member| member.trim_ascii().to_vec()).filter(|m| !m.is_empty()).collect::<Vec<_>>()
            };
            prop_assert_eq!(others(&rest), others(&existing));
        }
    }
}
