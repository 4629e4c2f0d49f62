//! Responses in place of a peer that did not respond.
//!
//! A gRPC caller gets a status. The reset of a stream is passed on with its code, except in two cases, in
//! which a status shows more: REFUSED_STREAM, after which a gRPC client would send the request once more, and
//! the end of a call that must not be repeated.

use std::error::Error;

use damper_sdk::BoxError;
use http::{HeaderMap, Response, StatusCode};
use tonic::{ConnectError, Status, TimeoutExpired};

/// A stream that must be reset. The code is that of the HTTP/2 error among its sources.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Reset(#[source] BoxError);

impl Reset {
    pub(crate) fn of(error: BoxError) -> Self {
        Self(error)
    }
}

/// Returns the response to a request that failed with this error.
///
/// # Errors
/// The error itself, where the stream must be reset.
pub(crate) fn response(error: BoxError, is_grpc: bool) -> Result<Response<()>, Reset> {
    if is_grpc {
        return Ok(status(error)?.into_http());
    }
    if reset(&*error).is_some() {
        return Err(Reset(error));
    }
    let mut response = Response::new(());
    *response.status_mut() = if find::<TimeoutExpired>(&*error).is_some() {
        StatusCode::GATEWAY_TIMEOUT
    } else if find::<ConnectError>(&*error).is_some() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::BAD_GATEWAY
    };
    Ok(response)
}

/// Returns the trailers of a response that broke off with this error.
///
/// # Errors
/// The error itself, where the stream must be reset.
pub(crate) fn trailers(error: BoxError) -> Result<HeaderMap, Reset> {
    let mut trailers = HeaderMap::new();
    let added = status(error)?.add_header(&mut trailers);
    debug_assert!(added.is_ok(), "the messages are made here");
    Ok(trailers)
}

fn status(error: BoxError) -> Result<Status, Reset> {
    let reported = find::<Status>(&*error).cloned();
    let is_final = reported.as_ref().and_then(damper_sdk::fate).is_some_and(|call| call.is_final());
    let mut status = match reset(&*error) {
        Some(reason) if reason != h2::Reason::REFUSED_STREAM && !is_final => return Err(Reset(error)),
        Some(_) => {
            let code = Status::from_error(error).code();
            Status::new(code, "damper proxy: stream reset by the peer")
        }
        None if find::<TimeoutExpired>(&*error).is_some() => {
            Status::deadline_exceeded("damper proxy: time limit exceeded")
        }
        None => Status::unavailable(match find::<ConnectError>(&*error) {
            Some(error) => format!("damper proxy: not sent: {error}"),
            None => "damper proxy: connection lost".to_owned(),
        }),
    };
    if let Some(reported) = reported {
        *status.metadata_mut() = reported.metadata().clone();
    }
    Ok(status)
}

/// Returns the code with which the peer has reset the stream.
pub(crate) fn reset(error: &(dyn Error + 'static)) -> Option<h2::Reason> {
    find::<h2::Error>(error).filter(|error| error.is_reset()).and_then(h2::Error::reason)
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        link = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_request_gets_a_status_for_each_failed_connection() {
        let status = |error| Status::from_header_map(response(error, true).unwrap().headers()).unwrap();
        assert_eq!(status(ConnectError("no".into()).into()).code(), tonic::Code::Unavailable);
        assert_eq!(status(TimeoutExpired(()).into()).code(), tonic::Code::DeadlineExceeded);
        assert_eq!(status("broken".into()).code(), tonic::Code::Unavailable);
    }

    #[test]
    fn request_that_is_not_grpc_gets_a_status_of_http() {
        let status = |error| response(error, false).unwrap().status();
        assert_eq!(status(ConnectError("no".into()).into()), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(TimeoutExpired(()).into()), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(status("broken".into()), StatusCode::BAD_GATEWAY);
    }
}
