//! Assessment of HTTP responses and errors.

use std::error::Error;
use std::time::{Duration, SystemTime};

use damper_core::{Failure, Pushback, Verdict, http as rules};
use damper_retry::Handlers;
use damper_retry::driver::Assessment;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use super::message::HttpResponse;
use crate::headers;
use crate::outcome::verdict;

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

/// Assesses responses and errors by the rules for HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assess {
    pub(super) external: bool,
}

impl<T: HttpResponse, E: Error + 'static> Handlers<Sent<T>, Sent<E>> for Assess {
    fn assess(&self, outcome: Result<&Sent<T>, &Sent<E>>, _: u32) -> Assessment {
        match outcome {
            Ok(Sent { value, is_idempotent, early_data }) => {
                let (status, fields) = (value.status(), value.headers());
                let Some(code) = rules::code_of(status.as_u16()) else {
                    return Assessment::of_verdict(Verdict::Success, false);
                };
                let pushback = retry_after(fields);
                let spread = pushback.map(|wait| rules::spread(wait, fastrand::u64(..)));
                let no_more_retry = !self.external && fields.contains_key(&headers::NO_MORE_RETRY);
                let failure = Failure { code, no_more_retry, pushback: pushback.map(Pushback::After) };
                let never = !is_idempotent || status == StatusCode::TOO_EARLY && !early_data;
                let assessment = Assessment::of_verdict(Verdict::Failure(failure), never);
                assessment.spread(spread.unwrap_or_default())
            }
            Err(Sent { value, is_idempotent, .. }) => {
                let (verdict, was_sent) = verdict::of_http_error(value);
                Assessment::of_verdict(verdict, was_sent && !is_idempotent)
            }
        }
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
