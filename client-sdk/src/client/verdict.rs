//! What came of one attempt, read from the answer or from the error's source chain as they came.
//!
//! Errors are told apart by downcasting what the transport says, not by a status that somebody made of it:
//! tonic calls a refused stream, a lost connection and a timer all by a few codes, the engine must not.

use std::error::Error;

use damper_core::classify::{StatusFields, TransportFault};
use damper_core::{Code, Failure, Verdict};
use http::{HeaderMap, Response};
use tower::{buffer, load_shed, timeout};

use crate::headers;

/// An error as tower services have them.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The verdict of an answer's headers; none if the answer has only begun.
pub(crate) fn of_response<B>(response: &Response<B>, external: bool) -> Option<Verdict> {
    let fields = fields(response.headers(), external);
    fields.verdict_of_headers(response.status().as_u16())
}

/// The verdict of an answer's trailers; none = it ended without.
pub(crate) fn of_trailers(trailers: Option<&HeaderMap>, external: bool) -> Verdict {
    let fields = trailers.map_or_else(StatusFields::default, |trailers| fields(trailers, external));
    fields.verdict_of_trailers()
}

/// The verdict of an error in place of an answer, or in the middle of it.
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
        // Not of the transport: some service in the process made it.
        Some(status) => Verdict::Failure(Failure::new(code_of(status))),
        None => TransportFault::Lost.verdict(),
    }
}

/// Whether one request failed, and not the connection with all requests on it.
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

/// What a client that ignores the flag sees: neither the flag nor the stop that translates it.
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
        // hyper cancels what it had not begun to write. Other errors have a cause that says more.
        return error.is_canceled().then_some(TransportFault::Unsent);
    }
    let error = error.downcast_ref::<h2::Error>()?;
    match error.reason() {
        // A GOAWAY ends only streams beyond the last one that the peer will process.
        Some(_) if error.is_go_away() && error.is_remote() => Some(TransportFault::Unprocessed),
        Some(reason) if !error.is_go_away() => Some(TransportFault::Reset(reason.into())),
        _ => Some(TransportFault::Lost),
    }
}

fn code_of(status: &tonic::Status) -> Code {
    u32::try_from(i32::from(status.code())).ok().and_then(Code::from_number).unwrap_or(Code::Unknown)
}
