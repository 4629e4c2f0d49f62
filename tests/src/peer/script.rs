//! What the peer does with one request, said as a sentence of frames.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::watch;

/// One thing the peer does. Each is a frame, a wait, or an end.
#[derive(Clone, Debug)]
pub enum Act {
    /// A HEADERS frame that begins the answer, with its HTTP status; with the mark it ends it too.
    Headers(u16, HeaderMap, bool),
    /// A DATA frame; longer data than the client takes is cut into several.
    Data(Bytes),
    /// A HEADERS frame that ends the answer.
    Trailers(HeaderMap),
    /// An empty DATA frame that ends the answer, without trailers.
    End,
    /// An RST_STREAM frame with this number.
    Reset(u32),
    /// Waits.
    Pause(Duration),
    /// Waits until the test opens the gate.
    Until(Gate),
    /// Waits until the request has been read to its end.
    UntilRead,
    /// Waits until this many bytes of the request have been read.
    UntilBytes(usize),
    /// Closes the connection without a word.
    HangUp,
    /// Sends each DATA frame of the request back as it comes, to its end.
    Echo,
}

/// What the peer does with one request. After the last act it keeps the stream open until the client ends it,
/// unless an act ended it.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(super) acts: Vec<Act>,
    pub(super) unread: bool,
}

impl Reply {
    /// Does nothing: the request hangs.
    #[must_use]
    pub fn hang() -> Self {
        Self::default()
    }

    /// An answer of one message and status 0.
    #[must_use]
    pub fn ok(message: &str) -> Self {
        Self::begin().message(message).trailers(&[("grpc-status", "0")])
    }

    /// Trailers-only: one HEADERS frame with the status, which ends the stream.
    #[must_use]
    pub fn error(code: u32) -> Self {
        Self::trailers_only(&[("grpc-status", &code.to_string())])
    }

    /// UNAVAILABLE as trailers-only.
    #[must_use]
    pub fn unavailable() -> Self {
        Self::error(14)
    }

    /// One HEADERS frame that is the whole answer.
    #[must_use]
    pub fn trailers_only(fields: &[(&str, &str)]) -> Self {
        Self::hang().then(Act::Headers(200, grpc_headers(fields), true))
    }

    /// An answer that is an HTTP error, with no word of gRPC in it.
    #[must_use]
    pub fn http(status: u16) -> Self {
        Self::hang().then(Act::Headers(status, headers(&[("content-type", "text/html")]), true))
    }

    /// The same with a page of text.
    #[must_use]
    pub fn http_page(status: u16) -> Self {
        let page = Bytes::from_static(b"<html>no</html>");
        let begin = Act::Headers(status, headers(&[("content-type", "text/html")]), false);
        Self::hang().then(begin).then(Act::Data(page)).then(Act::End)
    }

    /// A reset instead of an answer.
    #[must_use]
    pub fn reset(code: u32) -> Self {
        Self::hang().then(Act::Reset(code))
    }

    /// Headers without a status: the answer begins.
    #[must_use]
    pub fn begin() -> Self {
        Self::begin_with(&[])
    }

    /// Headers with these fields: the answer begins.
    #[must_use]
    pub fn begin_with(fields: &[(&str, &str)]) -> Self {
        Self::hang().then(Act::Headers(200, grpc_headers(fields), false))
    }

    /// Then does this.
    #[must_use]
    pub fn then(mut self, act: Act) -> Self {
        self.acts.push(act);
        self
    }

    /// Then sends a message of one string.
    #[must_use]
    pub fn message(self, text: &str) -> Self {
        self.then(Act::Data(framed(text)))
    }

    /// Then ends the answer with these trailers.
    #[must_use]
    pub fn trailers(self, fields: &[(&str, &str)]) -> Self {
        self.then(Act::Trailers(headers(fields)))
    }

    /// Then waits.
    #[must_use]
    pub fn pause(self, wait: Duration) -> Self {
        self.then(Act::Pause(wait))
    }

    /// The request's body is not read before the last act is done.
    #[must_use]
    pub fn unread(mut self) -> Self {
        self.unread = true;
        self
    }
}

/// Stops scripts until a test opens it.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// One that is closed.
    #[must_use]
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets all who wait pass, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        self.0.subscribe().wait_for(|open| *open).await.expect("this is a sender itself");
    }
}

/// A message of one string as gRPC frames it: not compressed, its length, its bytes.
#[must_use]
pub fn framed(text: &str) -> Bytes {
    let message = prost::Message::encode_to_vec(&text.to_owned());
    let length = u32::try_from(message.len()).expect("a short message");
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    framed.into()
}

fn grpc_headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut all = headers(&[("content-type", "application/grpc")]);
    all.extend(headers(fields));
    all
}

/// Names may repeat. Values are taken byte for byte, so that they may hold what gRPC forbids.
fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header's value"));
    }
    headers
}
