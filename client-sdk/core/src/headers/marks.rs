//! Marks of retried requests, and which client retried.

use super::{Baggage, number};

/// Headers that may mark a request as a retry, as received.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatMarks<'a> {
    /// [`RETRY`](super::RETRY)
    pub retry: Option<&'a [u8]>,
    /// The flag in [`BAGGAGE`](super::BAGGAGE), if it has not expired.
    pub baggage: Option<Baggage>,
    /// [`PREVIOUS_ATTEMPTS`](super::PREVIOUS_ATTEMPTS)
    pub previous_attempts: Option<&'a [u8]>,
    /// [`ENVOY_ATTEMPT_COUNT`](super::ENVOY_ATTEMPT_COUNT)
    pub envoy_attempt_count: Option<&'a [u8]>,
}

/// The client that retried a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeater {
    /// A client layer of Damper.
    Damper,
    /// The gRPC client itself.
    Grpc,
    /// An Envoy proxy.
    Envoy,
}

impl Repeater {
    /// All repeaters.
    pub const ALL: [Self; 3] = [Self::Damper, Self::Grpc, Self::Envoy];
}

impl RepeatMarks<'_> {
    /// Returns the flag of a retry: the number of attempts before it.
    ///
    /// A `damper-retry` that is not a number marks a retry too.
    #[must_use]
    pub fn flag(&self) -> Option<u32> {
        if let Some(value) = self.retry {
            return Some(number(value).unwrap_or(1).max(1));
        }
        let baggage = self.baggage.map(Baggage::retry);
        baggage.or(self.previous()).or(self.envoy())
    }

    /// Returns the client that retried this request on this hop; `None` for a first attempt.
    ///
    /// Damper's client layer marks its retries also as gRPC does. `damper-retry` alone was only passed on:
    /// the retry was made further up.
    #[must_use]
    pub fn repeated_by(&self) -> Option<Repeater> {
        match (self.previous(), self.envoy()) {
            (Some(_), _) if self.retry.is_some() => Some(Repeater::Damper),
            (Some(_), _) => Some(Repeater::Grpc),
            (None, Some(_)) => Some(Repeater::Envoy),
            (None, None) => None,
        }
    }

    /// Returns the earlier attempts on this hop, if any.
    fn previous(&self) -> Option<u32> {
        self.previous_attempts.and_then(number).filter(|previous| *previous >= 1)
    }

    /// Returns the earlier attempts by Envoy, if any.
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
    fn any_of_the_three_marks_makes_a_request_a_retry() {
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
    fn header_takes_precedence_over_baggage() {
        let baggage = Baggage::read([&b"damper.retry=4;until=9"[..]]);
        assert_eq!(RepeatMarks { baggage, ..RepeatMarks::default() }.flag(), Some(4));
        assert_eq!(RepeatMarks { baggage, ..marks(Some("2"), None, None) }.flag(), Some(2));
        assert_eq!(RepeatMarks { baggage, ..marks(None, Some("1"), Some("9")) }.flag(), Some(4));
    }

    #[test]
    fn retry_differs_from_a_flag_that_was_passed_on() {
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
