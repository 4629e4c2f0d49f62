//! Report of a call for the application.
//!
//! A failed gRPC call has it as a header of its status, which tonic keeps as metadata, also through `?`. The
//! header stays in the process: the client layer removes the one of a callee, and the server layer its own.

use std::fmt::Write as _;
use std::time::Duration;

use damper_core::{Code, Ending, Finish};
use http::{HeaderMap, HeaderValue};
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::context::Context;
use crate::headers;
use crate::outcome::BoxError;

/// How a call ended, for its application.
///
/// A failed call: see [`fate`]. A response whose end was known when it began, for example a held one
/// (`hold_unary`), has it in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReport {
    /// Fate of the call.
    pub ending: Ending,
    /// Attempts sent.
    pub attempts: u32,
    /// Time from the start of the call to its end.
    pub elapsed: Duration,
    /// Layers above must not retry the call.
    is_final: bool,
}

/// Returns how the call with this status ended. `None` if no rule in `enforce` applied to it, or if the
/// status is not from a call through the client layer.
#[must_use]
pub fn fate(status: &Status) -> Option<CallReport> {
    CallReport::read(status.metadata().get(headers::FATE.as_str())?.as_bytes())
}

impl CallReport {
    pub(crate) fn new(finish: &Finish, attempts: u32, elapsed: Duration) -> Self {
        Self { ending: finish.ending, attempts, elapsed, is_final: finish.marks_context }
    }

    /// Returns the report of a call that layers above must not retry.
    #[cfg(feature = "queue")]
    pub(crate) fn as_final(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// Returns true if layers above must not retry the call.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Adds the report to the headers or trailers of a failed call.
    pub(crate) fn add_to(&self, fields: &mut HeaderMap) {
        if !self.ending.fate.is_ok() {
            let value = HeaderValue::try_from(self.text()).expect("names and digits are a header value");
            fields.insert(&headers::FATE, value);
        }
    }

    /// Adds the report to the error of a failed call, if tonic would make a status of it. The error is then
    /// the source of that status. Other errors stay as they are.
    fn in_error(&self, error: BoxError) -> BoxError {
        let mut status = match Status::try_from_error(error) {
            Ok(status) => status,
            Err(other) => return other,
        };
        let value = MetadataValue::try_from(self.text()).expect("names and digits are a header value");
        status.metadata_mut().insert(headers::FATE.as_str(), value);
        status.into()
    }

    /// `attempts_exhausted;attempts=3;us=35000;final`
    fn text(&self) -> String {
        let Self { ending, attempts, elapsed, is_final } = self;
        let mut text = format!("{ending};attempts={attempts};us={}", elapsed.as_micros());
        if *is_final {
            write!(text, ";{FINAL}").expect("a string takes all");
        }
        text
    }

    /// Reads a header.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.split(';');
        let ending = Ending::from_name(parts.next()?)?;
        let attempts = parts.next()?.strip_prefix("attempts=")?.parse().ok()?;
        let elapsed = Duration::from_micros(parts.next()?.strip_prefix("us=")?.parse().ok()?);
        Some(Self { ending, attempts, elapsed, is_final: parts.next() == Some(FINAL) })
    }
}

/// Returns true if an error response with these headers or trailers must ask layers above not to retry: if it
/// is the failure of a call that must not be retried, or if its origin is unknown and such a call marked the
/// context. Removes the report of the call.
pub(crate) fn take_no_more_retry(fields: &mut HeaderMap, code: Code, context: &Context) -> bool {
    let call = fields.remove(&headers::FATE).and_then(|value| CallReport::read(value.as_bytes()));
    let chain = context.chain();
    call.map_or_else(|| chain.no_more_retry(code), |call| chain.no_more_retry_of_call(call.is_final()))
}

/// Adds the report of the call to its error.
pub(crate) fn in_error(report: Option<CallReport>, error: BoxError) -> BoxError {
    match report {
        Some(report) => report.in_error(error),
        None => error,
    }
}

/// Adds the id of a job to the error of the call that has become it. The error is the source of the status
/// that tonic would make of it.
#[cfg(feature = "queue")]
pub(crate) fn with_job(error: BoxError, job: &HeaderValue) -> BoxError {
    let mut status = Status::from_error(error);
    if let Ok(job) = MetadataValue::try_from(job.as_bytes()) {
        status.metadata_mut().insert(headers::JOB.as_str(), job);
    }
    status.into()
}

const FINAL: &str = "final";

#[cfg(test)]
mod tests {
    use damper_core::Answer;

    use super::*;

    #[test]
    fn report_is_read_as_it_was_written() {
        for ending in Ending::all() {
            for marks_context in [false, true] {
                let finish = Finish { ending, answer: Answer::TimedOut, marks_context };
                let report = CallReport::new(&finish, 3, Duration::from_micros(35_001));
                assert_eq!(CallReport::read(report.text().as_bytes()), Some(report));
            }
        }
    }

    #[test]
    fn other_values_are_no_report() {
        for value in
            ["", "ok", "exhausted;attempts=3;us=1", "ok;attempts=-1;us=1", "ok;attempts=1;us=", "\u{e9}"]
        {
            assert_eq!(CallReport::read(value.as_bytes()), None, "{value}");
        }
        assert_eq!(CallReport::read(b"\xff"), None);
    }
}
