//! Why an attempt failed, in words of this process.
//!
//! Operators of the whole fleet read them, so no word of the peer is among them: not its message, nor the debug data
//! of a GOAWAY (which `h2` prints), nor the names in a certificate. Of an error's source chain only those links speak
//! whose words are known to be the transport's or the system's own.

use std::borrow::Cow;
use std::error::Error;
use std::io;

use damper_core::failed_call::MAX_DETAIL_BYTES;
use damper_core::{Code, CodeSet, Failure, Verdict};
use http::{HeaderMap, StatusCode};

use crate::headers;

/// Its time was over.
pub(super) const OVER: &str = "no answer within its time limit";

/// What an attempt came to.
#[derive(Clone, Copy)]
pub(super) enum Cause<'a> {
    /// The headers of an answer that was nothing else.
    Headers(StatusCode, &'a HeaderMap),
    /// An answer's trailers, whose status the code names.
    Trailers,
    /// An answer that ended without trailers.
    Bare,
    /// An error in place of an answer, or in the middle of it.
    Error(&'a (dyn Error + 'static)),
    /// It was cut.
    Over,
}

/// What tonic may make of an error of the transport: its own code, not the one that it is judged by.
const OF_TRANSPORT: CodeSet =
    CodeSet::of(&[Code::Cancelled, Code::Unknown, Code::Internal, Code::Unavailable]);

/// The codes that an application may see where an attempt was counted with this one.
pub(super) fn seen_as(code: Code, is_error: bool) -> CodeSet {
    let code = CodeSet::of(&[code]);
    if is_error { code.union(OF_TRANSPORT) } else { code }
}

/// What is told of an attempt that failed, in at most [`MAX_DETAIL_BYTES`].
pub(super) fn detail(verdict: &Verdict, cause: Cause<'_>) -> Cow<'static, str> {
    let words = match cause {
        Cause::Headers(http, headers) if !headers.contains_key(&headers::GRPC_STATUS) => {
            format!("HTTP status {} without a gRPC status", http.as_u16()).into()
        }
        Cause::Headers(..) | Cause::Trailers => Cow::Borrowed(""),
        Cause::Bare => Cow::Borrowed("the answer ended without a status"),
        Cause::Error(error) => Cow::Owned(of_error(error)),
        Cause::Over => Cow::Borrowed(OVER),
    };
    let more = match verdict {
        Verdict::Unprocessed => "the server has not seen the request",
        Verdict::Unsent => "the request was not sent",
        Verdict::Local => "the process itself refused it",
        Verdict::TimedOut => "a timer of the client ended it",
        Verdict::Failure(Failure { no_more_retry: true, .. }) => "a hop below had given up",
        Verdict::Failure(Failure { pushback: Some(_), .. }) => "the server said when to retry, or not to",
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
        // Some are wrapped in one that says the same.
        if let Some(said) = of_link(error).filter(|said| !words.ends_with(&**said)) {
            words.push_str(if words.is_empty() { "" } else { ": " });
            words.push_str(&said);
        }
        link = error.source();
    }
    if words.is_empty() { "an error within the process".to_owned() } else { words }
}

/// What one error of a chain says; none if its words may be anybody's.
fn of_link(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    if error.is::<tonic::ConnectError>() {
        return Some("not connected".into());
    }
    if error.is::<tonic::TimeoutExpired>() {
        return Some("the transport's time limit was over".into());
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
        (None, _) => "an HTTP/2 error".into(),
    }
}

/// What the system says. An error that somebody wrapped may quote a certificate: only its kind is told.
fn of_io(error: &io::Error) -> Cow<'static, str> {
    const NOT_FOUND: &str = "failed to lookup address information";
    if error.raw_os_error().is_some() {
        return error.to_string().into();
    }
    if error.to_string().starts_with(NOT_FOUND) {
        return "the host name was not found".into();
    }
    match error.kind() {
        io::ErrorKind::InvalidData => "invalid data, as from a failed TLS handshake".into(),
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

    /// An error that says this, because of another.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Chained(&'static str, #[source] Box<dyn Error + Send + Sync>);

    fn said(error: impl Into<Box<dyn Error + Send + Sync>>) -> Cow<'static, str> {
        let failure = Verdict::Failure(Failure::new(damper_core::Code::Unavailable));
        detail(&failure, Cause::Error(&*error.into()))
    }

    #[test]
    fn the_transport_and_the_system_speak_and_nobody_else() {
        let refused = || io::Error::from_raw_os_error(111);
        let secret = "card 4711";
        let table: [(Box<dyn Error + Send + Sync>, &str); 7] = [
            (Box::new(Chained(secret, Box::new(refused()))), &refused().to_string()),
            (Box::new(io::Error::other(secret)), "other error"),
            (
                Box::new(io::Error::new(io::ErrorKind::InvalidData, secret)),
                "invalid data, as from a failed TLS handshake",
            ),
            (
                Box::new(h2::Error::from(h2::Reason::REFUSED_STREAM)),
                "stream reset by this process, REFUSED_STREAM",
            ),
            (Box::new(tonic::Status::internal(secret)), "an error within the process"),
            (secret.into(), "an error within the process"),
            (Box::new(Chained(secret, secret.into())), "an error within the process"),
        ];
        for (error, expected) in table {
            assert_eq!(said(error), expected);
        }
    }

    #[test]
    fn a_detail_is_bounded_however_long_the_chain_is() {
        let mut error: Box<dyn Error + Send + Sync> = "the end".into();
        for number in 0..1000 {
            // Two in turn, as what is said again at once is left out.
            let kind = [io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionAborted][number % 2];
            error = Box::new(io::Error::new(kind, Chained("", error)));
        }
        assert_eq!(said(error).len(), MAX_DETAIL_BYTES);
    }
}
