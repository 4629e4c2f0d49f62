//! Assessment of HTTP responses and errors.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Code, Failure, Pushback, Verdict, http as rules};
use damper_retry::Handlers;
use damper_retry::driver::Assessment;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use super::message::HttpResponse;
use crate::outcome::verdict::{self, Repeat};

/// Outcome of an attempt, with what its assessment needs.
#[derive(Clone, Copy, Debug)]
pub struct Sent<T> {
    pub(super) value: T,
    pub(super) is_idempotent: bool,
    pub(super) early_data: bool,
}

impl Sent<()> {
    pub(super) fn with<T>(self, value: T) -> Sent<T> {
        Sent { value, is_idempotent: self.is_idempotent, early_data: self.early_data }
    }
}

/// Meaning of a vendor's own header for retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryHint {
    /// Nothing: the status decides.
    #[default]
    ByStatus,
    /// The request failed and can be retried, whatever the status. It counts as UNAVAILABLE.
    Retry,
    /// The request must not be retried.
    Never,
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
}

/// Reads the hint of a response.
#[derive(Clone)]
pub(crate) struct HintBy(pub(super) Arc<dyn Fn(ResponseHead<'_>) -> RetryHint + Send + Sync>);

impl fmt::Debug for HintBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HintBy")
    }
}

/// Assesses responses and errors by the rules for HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Assess {
    pub(super) external: bool,
    pub(super) hint: Option<HintBy>,
}

impl<T: HttpResponse, E: Error + 'static> Handlers<Sent<T>, Sent<E>> for Assess {
    fn assess(&self, outcome: Result<&Sent<T>, &Sent<E>>, _: u32) -> Assessment {
        match outcome {
            Ok(sent) => self.of_response(sent),
            Err(Sent { value, is_idempotent, .. }) => {
                let (verdict, repeat) = verdict::of_http_error(value);
                let may_repeat = match repeat {
                    Repeat::Always => true,
                    Repeat::IfIdempotent => *is_idempotent,
                    Repeat::Never => false,
                };
                Assessment::of_verdict(verdict, !may_repeat)
            }
        }
    }
}

impl Assess {
    fn of_response<T: HttpResponse>(
        &self,
        Sent { value, is_idempotent, early_data }: &Sent<T>,
    ) -> Assessment {
        let (status, headers) = (value.status(), value.headers());
        let hint = self
            .hint
            .as_ref()
            .map_or(RetryHint::ByStatus, |HintBy(hint)| hint(ResponseHead { status, headers }));
        let code = match hint {
            RetryHint::Retry => Some(Code::Unavailable),
            RetryHint::ByStatus | RetryHint::Never => rules::code_of(status.as_u16()),
        };
        let Some(code) = code else {
            return Assessment::of_verdict(Verdict::Success, false);
        };
        let pushback = retry_after(headers);
        let spread = pushback.map(|wait| rules::spread(wait, fastrand::u64(..)));
        let no_more_retry = !self.external && headers.contains_key(&crate::headers::NO_MORE_RETRY);
        let failure = Failure { code, no_more_retry, pushback: pushback.map(Pushback::After) };
        let is_early = status == StatusCode::TOO_EARLY && !early_data && hint != RetryHint::Retry;
        let never = !is_idempotent || is_early || hint == RetryHint::Never;
        Assessment::of_verdict(Verdict::Failure(failure), never).spread(spread.unwrap_or_default())
    }
}

/// Returns the wait of `Retry-After`: seconds, or a date relative to that of the response.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let value = text(RETRY_AFTER)?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let now = text(DATE).and_then(date).unwrap_or_else(SystemTime::now);
    Some(date(value)?.duration_since(now).unwrap_or_default())
}
