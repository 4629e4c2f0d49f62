//! The marks by which a request is known as a repeat, and who repeated it.

use super::{Baggage, number};

/// The headers of a request that may mark it as a repeat, as they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatMarks<'a> {
    /// [`RETRY`](super::RETRY)
    pub retry: Option<&'a [u8]>,
    /// The same in [`BAGGAGE`](super::BAGGAGE), if it still holds.
    pub baggage: Option<Baggage>,
    /// [`PREVIOUS_ATTEMPTS`](super::PREVIOUS_ATTEMPTS)
    pub previous_attempts: Option<&'a [u8]>,
    /// [`ENVOY_ATTEMPT_COUNT`](super::ENVOY_ATTEMPT_COUNT)
    pub envoy_attempt_count: Option<&'a [u8]>,
}

/// Who sent a request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeater {
    /// A client layer of Damper's.
    Damper,
    /// A gRPC client by itself.
    Grpc,
    /// An Envoy between.
    Envoy,
}

impl Repeater {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Damper, Self::Grpc, Self::Envoy];
}

impl RepeatMarks<'_> {
    /// The flag this request carries, if it is a repeat: how many sends came before.
    ///
    /// A `damper-retry` that is no number still says that the request is a repeat.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        if let Some(value) = self.retry {
            return Some(number(value).unwrap_or(1).max(1));
        }
        let baggage = self.baggage.map(Baggage::retry);
        baggage.or(self.previous()).or(self.envoy())
    }

    /// Who sent this request again, on the hop that it arrived by; none if that is its first send there.
    ///
    /// Our client layer marks its repeats both as ours and as gRPC does. `damper-retry` alone was merely
    /// passed on: the repeat was made further up.
    #[must_use]
    pub fn repeated_by(&self) -> Option<Repeater> {
        match (self.previous(), self.envoy()) {
            (Some(_), _) if self.retry.is_some() => Some(Repeater::Damper),
            (Some(_), _) => Some(Repeater::Grpc),
            (None, Some(_)) => Some(Repeater::Envoy),
            (None, None) => None,
        }
    }

    /// Attempts on this hop before this one, if there were any.
    fn previous(&self) -> Option<u32> {
        self.previous_attempts.and_then(number).filter(|previous| *previous >= 1)
    }

    /// Sends by an Envoy before this one, if there were any.
    fn envoy(&self) -> Option<u32> {
        let count = self.envoy_attempt_count.and_then(number::<u32>).filter(|count| *count > 1);
        count.map(|count| count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks<'a>(
        retry: Option<&'a str>,
        previous: Option<&'a str>,
        envoy: Option<&'a str>,
    ) -> RepeatMarks<'a> {
        RepeatMarks {
            retry: retry.map(str::as_bytes),
            baggage: None,
            previous_attempts: previous.map(str::as_bytes),
            envoy_attempt_count: envoy.map(str::as_bytes),
        }
    }

    #[test]
    fn any_of_the_three_marks_makes_a_request_a_repeat() {
        let check = |retry: Option<&str>, previous: Option<&str>, envoy: Option<&str>, expected| {
            assert_eq!(marks(retry, previous, envoy).flag(), expected, "{retry:?} {previous:?} {envoy:?}");
        };
        check(None, None, None, None);
        check(Some("2"), None, None, Some(2));
        check(Some("0"), None, None, Some(1));
        check(Some("x"), None, None, Some(1));
        check(None, Some("0"), None, None);
        check(None, Some("1"), None, Some(1));
        check(None, Some("-1"), None, None);
        check(None, Some("+1"), None, None);
        check(None, None, Some("1"), None);
        check(None, None, Some("3"), Some(2));
        check(None, Some("junk"), Some("2"), Some(1));
        check(Some("5"), Some("1"), Some("9"), Some(5));
    }

    #[test]
    fn baggage_marks_a_request_as_the_header_does_but_the_header_goes_first() {
        let baggage = Baggage::read([&b"damper.retry=4;until=9"[..]]);
        assert_eq!(RepeatMarks { baggage, ..RepeatMarks::default() }.flag(), Some(4));
        assert_eq!(RepeatMarks { baggage, ..marks(Some("2"), None, None) }.flag(), Some(2));
        assert_eq!(RepeatMarks { baggage, ..marks(None, Some("1"), Some("9")) }.flag(), Some(4));
    }

    #[test]
    fn a_repeat_is_told_from_a_flag_that_was_merely_passed_on() {
        let check = |retry: Option<&str>, previous: Option<&str>, envoy: Option<&str>, expected| {
            let marks = marks(retry, previous, envoy);
            assert_eq!(marks.repeated_by(), expected, "{retry:?} {previous:?} {envoy:?}");
            assert!(expected.is_none() || marks.flag().is_some());
        };
        check(None, None, None, None);
        check(Some("2"), None, None, None);
        check(Some("2"), Some("0"), Some("1"), None);
        check(Some("2"), Some("1"), None, Some(Repeater::Damper));
        check(Some("2"), Some("1"), Some("2"), Some(Repeater::Damper));
        check(None, Some("1"), None, Some(Repeater::Grpc));
        check(None, Some("1"), Some("2"), Some(Repeater::Grpc));
        check(None, None, Some("2"), Some(Repeater::Envoy));
        check(Some("2"), None, Some("2"), Some(Repeater::Envoy));
        check(None, Some("junk"), Some("junk"), None);
        let baggage = Baggage::read([&b"damper.retry=4;until=9"[..]]);
        assert_eq!(RepeatMarks { baggage, ..RepeatMarks::default() }.repeated_by(), None);
    }
}
