//! A unary response that is held until its status is known (`hold_unary`).
//!
//! Headers and message are buffered; the trailers decide. A response that exceeds the limit or begins a
//! second message is released: it counts as begun, and the buffered part is delivered first. Releasing
//! depends on the content alone, never on the timing of packets.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use damper_core::Verdict;
use http::{HeaderMap, Response};
use http_body::Body;

use crate::outcome::cause::Cause;
use crate::outcome::verdict::{self, BoxError};

/// A gRPC message begins with one byte of flags and four of length.
const PREFIX: usize = 5;
/// Frames can be empty, so a limit in bytes alone would not bound them.
const MAX_FRAMES: usize = 65_536;

pub(super) struct HeldResponse<B: Body> {
    pub(super) head: Response<()>,
    pub(super) body: Pin<Box<B>>,
    pub(super) kept: VecDeque<B::Data>,
    pub(super) end: Option<HeldEnd>,
    limit: usize,
    bytes: usize,
    frames: usize,
    prefix: [u8; PREFIX],
}

/// How holding ended.
pub(super) enum HeldEnd {
    Trailers(HeaderMap),
    Error(BoxError),
    /// Without trailers.
    Bare,
    /// Exceeds the limits.
    TooLong,
}

impl<B> HeldResponse<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(response: Response<B>, limit: usize) -> Self {
        let (parts, body) = response.into_parts();
        let head = Response::from_parts(parts, ());
        let (kept, prefix) = (VecDeque::new(), [0; PREFIX]);
        Self { head, body: Box::pin(body), kept, end: None, limit, bytes: 0, frames: 0, prefix }
    }

    /// Ready when holding has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.end.is_none() {
            self.end = match ready!(self.body.as_mut().poll_frame(cx)) {
                None => Some(HeldEnd::Bare),
                Some(Err(error)) => Some(HeldEnd::Error(error.into())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.keep(data),
                    Err(frame) => frame.into_trailers().ok().map(HeldEnd::Trailers),
                },
            };
        }
        Poll::Ready(())
    }

    /// Returns the verdict; `None` if the response was released early.
    pub(super) fn verdict(&self, external: bool) -> Option<Verdict> {
        match self.end.as_ref()? {
            HeldEnd::Trailers(trailers) => Some(verdict::of_trailers(Some(trailers), external)),
            HeldEnd::Error(error) => Some(verdict::of_error(&**error).of_begun()),
            HeldEnd::Bare => Some(verdict::of_trailers(None, external)),
            HeldEnd::TooLong => None,
        }
    }

    /// Returns where the outcome was read.
    pub(super) fn cause(&self) -> Cause<'_> {
        match &self.end {
            Some(HeldEnd::Error(error)) => Cause::Error(&**error),
            Some(HeldEnd::Trailers(_)) => Cause::Trailers,
            Some(HeldEnd::Bare | HeldEnd::TooLong) | None => Cause::Bare,
        }
    }

    fn keep(&mut self, data: B::Data) -> Option<HeldEnd> {
        let fits = self.fits(&data);
        self.bytes = self.bytes.saturating_add(data.remaining());
        self.frames += 1;
        if data.has_remaining() {
            self.kept.push_back(data);
        }
        (!fits || self.frames > MAX_FRAMES).then_some(HeldEnd::TooLong)
    }

    /// Returns true if the response is one message within the limit so far.
    fn fits(&mut self, data: &B::Data) -> bool {
        let after = self.bytes.saturating_add(data.remaining());
        let missing = PREFIX.saturating_sub(self.bytes).min(data.remaining());
        // A prefix spread over the parts of a chunk cannot be read without copying.
        let Some(part) = data.chunk().get(..missing) else {
            return false;
        };
        if let Some(prefix) =
            self.prefix.get_mut(self.bytes.min(PREFIX)..).and_then(|rest| rest.get_mut(..missing))
        {
            prefix.copy_from_slice(part);
        }
        after <= self.limit.max(PREFIX) && (after < PREFIX || after <= self.message_end())
    }

    /// Returns the end of the first message if within the limit, else 0.
    fn message_end(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        let end = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX).saturating_add(PREFIX);
        if end <= self.limit { end } else { 0 }
    }
}
