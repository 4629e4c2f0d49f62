//! An answer of one message that is held back until its status is known (`hold_unary`).
//!
//! Its headers and its message are kept; its trailers decide. An answer that is longer than the limit, or that
//! begins a second message, is let go as it is: it has begun, and what was kept is handed on first. When that
//! happens depends on what the answer says, never on when its packets arrive.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use damper_core::Verdict;
use http::{HeaderMap, Response};
use http_body::Body;

use super::cause::Cause;
use super::verdict::{self, BoxError};

/// A gRPC message begins with one byte of flags and four of length.
const PREFIX: usize = 5;
/// Frames can be empty, so bytes alone would not bound them.
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

/// How it came out.
pub(super) enum HeldEnd {
    Trailers(HeaderMap),
    Error(BoxError),
    /// Without trailers.
    Bare,
    /// It can not be held any longer.
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

    /// Ready when it has an end.
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

    /// What its end says; none if it has no end but was let go.
    pub(super) fn verdict(&self, external: bool) -> Option<Verdict> {
        match self.end.as_ref()? {
            HeldEnd::Trailers(trailers) => Some(verdict::of_trailers(Some(trailers), external)),
            HeldEnd::Error(error) => Some(verdict::of_error(&**error).of_begun()),
            HeldEnd::Bare => Some(verdict::of_trailers(None, external)),
            HeldEnd::TooLong => None,
        }
    }

    /// The same in words.
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

    /// True if the answer is one message within the limit so far.
    fn fits(&mut self, data: &B::Data) -> bool {
        let after = self.bytes.saturating_add(data.remaining());
        let missing = PREFIX.saturating_sub(self.bytes).min(data.remaining());
        // A chunk in several pieces can not be looked into without taking it apart.
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

    /// Where the first message ends, if that is within the limit.
    fn message_end(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        let end = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX).saturating_add(PREFIX);
        if end <= self.limit { end } else { 0 }
    }
}
