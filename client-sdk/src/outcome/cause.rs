//! Describes why an attempt failed, without any text from the peer.
//!
//! Operators of the whole fleet read the description. It therefore never contains the peer's message, the
//! debug data of a GOAWAY (which `h2` prints) or names from a certificate. Only errors whose texts come from
//! the transport or the operating system contribute.

use std::borrow::Cow;
use std::error::Error;
use std::io;

use damper_core::failed_call::MAX_DETAIL_BYTES;
use damper_core::{Code, CodeSet, Failure, Verdict};
use http::{HeaderMap, StatusCode};

use crate::headers;

/// Detail of an attempt that timed out.
pub(crate) const OVER: &str = "no answer within its time limit";

/// Where the outcome of an attempt was read.
#[derive(Clone, Copy)]
pub(crate) enum Cause<'a> {
    /// Headers of a response without a body.
    Headers(StatusCode, &'a HeaderMap),
    /// Trailers; the code names their status.
    Trailers,
    /// A response that ended without trailers.
    Bare,
    /// An error in place of a response, or within it.
    Error(&'a (dyn Error + 'static)),
    /// The time limit of the attempt passed.
    Over,
}

/// Codes into which tonic may turn a transport error. They may differ from the code that was counted.
const OF_TRANSPORT: CodeSet =
    CodeSet::of(&[Code::Cancelled, Code::Unknown, Code::Internal, Code::Unavailable]);

/// Returns the codes that the application may see for an attempt counted with `code`.
pub(crate) fn seen_as(code: Code, is_error: bool) -> CodeSet {
    let code = CodeSet::of(&[code]);
    if is_error { code.union(OF_TRANSPORT) } else { code }
}

/// Describes a failed attempt in at most [`MAX_DETAIL_BYTES`].
pub(crate) fn detail(verdict: &Verdict, cause: Cause<'_>) -> Cow<'static, str> {
    let words = match cause {
        Cause::Headers(http, headers) if !headers.contains_key(&headers::GRPC_STATUS) => {
            format!("HTTP status {} without a gRPC status", http.as_u16()).into()
        }
        Cause::Headers(..) | Cause::Trailers => Cow::Borrowed(""),
        Cause::Bare => Cow::Borrowed("the response ended without a status"),
        Cause::Error(error) => Cow::Owned(of_error(error)),
        Cause::Over => Cow::Borrowed(OVER),
    };
    let more = match verdict {
        Verdict::Unprocessed => "the server did not process the request",
        Verdict::Unsent => "the request was not sent",
        Verdict::Local => "rejected within the process",
        Verdict::TimedOut => "ended by a timer of the client",
        Verdict::Failure(Failure { no_more_retry: true, .. }) => {
            "a downstream service asked for no more retries"
        }
        Verdict::Failure(Failure { pushback: Some(_), .. }) => "the server sent a retry pushback",
        Verdict::Failure(_) | Verdict::Success => "",
    };
    match (words.is_empty(), more.is_empty()) {
        (_, true) => bounded(words),
        (true, false) => Cow::Borrowed(more),
        (false, false) => bounded(Cow::Owned(format!("{words}; {more}"))),
    }
}

fn of_error(error: &(dyn Error + 'static)) -> String {
    let mut words = String::new();
    let mut link = Some(error);
    while let Some(error) = link.filter(|_| words.len() < MAX_DETAIL_BYTES) {
        // Some errors repeat the text of their source.
        if let Some(text) = of_link(error).filter(|text| !words.ends_with(&**text)) {
            words.push_str(if words.is_empty() { "" } else { ": " });
            words.push_str(&text);
        }
        link = error.source();
    }
    if words.is_empty() { "error within the process".to_owned() } else { words }
}

/// Describes one error of a chain; `None` if its text may come from the peer.
fn of_link(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    if error.is::<tonic::ConnectError>() {
        return Some("not connected".into());
    }
    if error.is::<tonic::TimeoutExpired>() {
        return Some("time limit of the transport exceeded".into());
    }
    if let Some(error) = error.downcast_ref::<h2::Error>() {
        return Some(of_http2(error));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(of_io(error));
    }
    // hyper describes its errors by constants.
    error.downcast_ref::<hyper::Error>().map(|error| error.to_string().into())
}

fn of_http2(error: &h2::Error) -> Cow<'static, str> {
    if let Some(error) = error.get_io() {
        return of_io(error);
    }
    let by = if error.is_remote() { "the peer" } else { "this process" };
    match (error.reason(), error.is_go_away()) {
        (Some(reason), true) => format!("connection closed by {by}, {reason:?}").into(),
        (Some(reason), false) => format!("stream reset by {by}, {reason:?}").into(),
        (None, _) => "HTTP/2 error".into(),
    }
}

/// Describes an I/O error. A wrapped error may quote a certificate: only its kind is shown.
fn of_io(error: &io::Error) -> Cow<'static, str> {
    const NOT_FOUND: &str = "failed to lookup address information";
    if error.raw_os_error().is_some() {
        return error.to_string().into();
    }
    if error.to_string().starts_with(NOT_FOUND) {
        return "host name not found".into();
    }
    match error.kind() {
        io::ErrorKind::InvalidData => "invalid data, for example from a failed TLS handshake".into(),
        kind => kind.to_string().into(),
    }
}

fn bounded(words: Cow<'static, str>) -> Cow<'static, str> {
    if words.len() <= MAX_DETAIL_BYTES {
        return words;
    }
    let end = words.floor_char_boundary(MAX_DETAIL_BYTES);
    words.get(..end).unwrap_or_default().to_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with this text and source.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Chained(&'static str, #[source] Box<dyn Error + Send + Sync>);

    fn described(error: impl Into<Box<dyn Error + Send + Sync>>) -> Cow<'static, str> {
        let failure = Verdict::Failure(Failure::new(damper_core::Code::Unavailable));
        detail(&failure, Cause::Error(&*error.into()))
    }

    #[test]
    fn only_texts_of_the_transport_and_the_system_are_shown() {
        let refused = || io::Error::from_raw_os_error(111);
        let secret = "card 4711";
        let table: [(Box<dyn Error + Send + Sync>, &str); 7] = [
            (Box::new(Chained(secret, Box::new(refused()))), &refused().to_string()),
            (Box::new(io::Error::other(secret)), "other error"),
            (
                Box::new(io::Error::new(io::ErrorKind::InvalidData, secret)),
                "invalid data, for example from a failed TLS handshake",
            ),
            (
                Box::new(h2::Error::from(h2::Reason::REFUSED_STREAM)),
                "stream reset by this process, REFUSED_STREAM",
            ),
            (Box::new(tonic::Status::internal(secret)), "error within the process"),
            (secret.into(), "error within the process"),
            (Box::new(Chained(secret, secret.into())), "error within the process"),
        ];
        for (error, expected) in table {
            assert_eq!(described(error), expected);
        }
    }

    #[test]
    fn a_detail_of_a_long_chain_is_bounded() {
        let mut error: Box<dyn Error + Send + Sync> = "the end".into();
        for number in 0..1000 {
            // Two kinds in turn: a repeated text is left out.
            let kind = [io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionAborted][number % 2];
            error = Box::new(io::Error::new(kind, Chained("", error)));
        }
        assert_eq!(described(error).len(), MAX_DETAIL_BYTES);
    }
}
