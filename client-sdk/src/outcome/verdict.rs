//! Reads the outcome of an attempt from the response or the error's source chain.
//!
//! Errors are classified by downcasting the transport's types, not by tonic's status: tonic maps a refused
//! stream, a lost connection and a timer to a few codes that the engine must distinguish.

use std::error::Error;

use damper_core::classify::{StatusFields, TransportFault};
use damper_core::{Code, Failure, Verdict};
use http::{HeaderMap, Response};
use tower::{buffer, load_shed, timeout};

use crate::headers;

/// Error type of tower services.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Returns the verdict of response headers; `None` if the response has only begun.
pub(crate) fn of_response<B>(response: &Response<B>, external: bool) -> Option<Verdict> {
    let fields = fields(response.headers(), external);
    fields.verdict_of_headers(response.status().as_u16())
}

/// Returns the verdict of trailers, or of a response that ended without.
pub(crate) fn of_trailers(trailers: Option<&HeaderMap>, external: bool) -> Verdict {
    let fields = trailers.map_or_else(StatusFields::default, |trailers| fields(trailers, external));
    fields.verdict_of_trailers()
}

/// Returns the verdict of an error in place of a response or within it.
pub(crate) fn of_error(error: &(dyn Error + 'static)) -> Verdict {
    let mut status = None;
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(fault) = transport_fault(error) {
            return fault.verdict();
        }
        status = status.or_else(|| error.downcast_ref::<tonic::Status>());
        link = error.source();
    }
    match status {
        // Not from the transport: made by a service within the process.
        Some(status) => Verdict::Failure(Failure::new(code_of(status))),
        None => TransportFault::Lost.verdict(),
    }
}

/// If a request can be sent again after an error.
#[cfg(feature = "http")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Yes: the callee has not received it.
    Always,
    /// The callee may have processed it.
    IfIdempotent,
    /// No: the error is of this process, and happens again.
    Never,
}

/// Returns the verdict of an HTTP client's error, and if the request can be sent again.
#[cfg(feature = "http")]
pub(crate) fn of_http_error(error: &(dyn Error + 'static)) -> (Verdict, Repeat) {
    let mut link = Some(error);
    while let Some(error) = link {
        let client = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if client.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return (TransportFault::NotConnected.verdict(), Repeat::Always);
        }
        #[cfg(feature = "reqwest")]
        if let Some(outcome) = error.downcast_ref().and_then(of_reqwest) {
            return outcome;
        }
        link = error.source();
    }
    let verdict = of_error(error);
    let is_unseen = matches!(verdict, Verdict::Unsent | Verdict::Unprocessed | Verdict::Local);
    (verdict, if is_unseen { Repeat::Always } else { Repeat::IfIdempotent })
}

/// Returns the outcome of the errors that only reqwest knows: their sources have private types.
#[cfg(feature = "reqwest")]
fn of_reqwest(error: &reqwest::Error) -> Option<(Verdict, Repeat)> {
    if error.is_connect() {
        return Some((TransportFault::NotConnected.verdict(), Repeat::Always));
    }
    if error.is_timeout() {
        return Some((Verdict::TimedOut, Repeat::IfIdempotent));
    }
    let is_local = error.is_builder() || error.is_redirect() || error.is_decode();
    is_local.then_some((Verdict::Local, Repeat::Never))
}

/// Returns true if there was no connection.
#[cfg(feature = "queue")]
pub(crate) fn is_not_connected(error: &(dyn Error + 'static)) -> bool {
    let mut link = Some(error);
    while let Some(error) = link {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        link = error.source();
    }
    false
}

/// Returns true if a single stream failed rather than the whole connection.
pub(crate) fn is_of_stream(error: &(dyn Error + 'static)) -> bool {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_reset();
        }
        link = error.source();
    }
    false
}

/// Returns the fields without the flag and its pushback if the callee is external.
fn fields(headers: &HeaderMap, external: bool) -> StatusFields<'_> {
    let fields = headers::status_fields(headers);
    if !external || !fields.no_more_retry {
        return fields;
    }
    StatusFields { no_more_retry: false, pushback: None, ..fields }
}

fn transport_fault(error: &(dyn Error + 'static)) -> Option<TransportFault> {
    let is_timer = error.is::<tonic::TimeoutExpired>()
        || error.is::<timeout::error::Elapsed>()
        || error.is::<tokio::time::error::Elapsed>();
    if is_timer {
        return Some(TransportFault::TimedOut);
    }
    if error.is::<load_shed::error::Overloaded>() || error.is::<buffer::error::Closed>() {
        return Some(TransportFault::Local);
    }
    if error.is::<tonic::ConnectError>() {
        return Some(TransportFault::NotConnected);
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        // hyper cancels requests that it has not begun to write. Other errors have a more specific source.
        return error.is_canceled().then_some(TransportFault::Unsent);
    }
    let error = error.downcast_ref::<h2::Error>()?;
    match error.reason() {
        // A GOAWAY only ends streams beyond the last one that the peer will process.
        Some(_) if error.is_go_away() && error.is_remote() => Some(TransportFault::Unprocessed),
        Some(reason) if !error.is_go_away() => Some(TransportFault::Reset(reason.into())),
        _ => Some(TransportFault::Lost),
    }
}

/// Returns the code of a status.
pub(crate) fn code_of(status: &tonic::Status) -> Code {
    u32::try_from(i32::from(status.code())).ok().and_then(Code::from_number).unwrap_or(Code::Unknown)
}
