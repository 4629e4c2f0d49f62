//! The body of an answer that the application is reading: the call ends where the body does.
//!
//! Headers without a status only begin an answer. From there on the attempt can not be repeated, but it is
//! still the call: its trailers are the verdict, its deadline and the attempt's limit still hold while the
//! body stalls, and dropping it cancels the call.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::begun::CommittedCall;
use super::cause::Cause;
use super::held::{HeldEnd, HeldResponse};
use super::own_answer::LocalResponse;
use super::verdict::{self, BoxError};
use crate::headers;

pin_project! {
    /// A response body in which a call ends.
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        #[pin]
        inner: Inner<B>,
        // None once the call has ended.
        call: Option<CommittedCall>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B>
    where
        B: Body,
    {
        Plain { #[pin] body: B },
        // Apart, for it is large and rare: answers are moved.
        WasHeld { rest: Box<Rest<B>> },
        // Nothing is left.
        Over,
    }
}

/// What is left of an answer that was held back.
struct Rest<B: Body> {
    /// What was read of it.
    kept: VecDeque<B::Data>,
    /// What was not; it had to stay where it was. None if it was read to its end.
    body: Option<Pin<Box<B>>>,
    /// Its end, if it was read and is still to be handed on.
    end: Option<End>,
}

impl<B> ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// The body of an answer that came after its status: nothing is left to decide.
    pub(crate) fn decided(inner: B) -> Self {
        Self { inner: Inner::Plain { body: inner }, call: None }
    }

    /// The body of an answer that has begun.
    pub(super) fn begun(inner: B, call: CommittedCall) -> Self {
        let mut call = Some(call);
        if inner.is_end_stream() {
            end_bare(&mut call);
        }
        Self { inner: Inner::Plain { body: inner }, call }
    }

    /// An answer that was held and is let go before its end.
    pub(super) fn let_go(held: HeldResponse<B>, call: CommittedCall) -> Response<Self> {
        let HeldResponse { head, body, kept, .. } = held;
        let rest = Box::new(Rest { kept, body: Some(body), end: None });
        head.map(|()| Self { inner: Inner::WasHeld { rest }, call: Some(call) })
    }

    /// An answer that was held to its end.
    pub(super) fn held(held: HeldResponse<B>) -> Response<Self> {
        let HeldResponse { head, kept, end, .. } = held;
        let end = end.map(|end| match end {
            HeldEnd::Trailers(trailers) => End::Trailers(trailers),
            HeldEnd::Error(error) => End::Error(error),
            HeldEnd::Bare | HeldEnd::TooLong => End::Bare,
        });
        let rest = Box::new(Rest { kept, body: None, end });
        head.map(|()| Self { inner: Inner::WasHeld { rest }, call: None })
    }

    /// No body: the answer was made here.
    pub(crate) fn empty() -> Self {
        Self::default()
    }
}

/// A body without content, as tonic's interceptors need one for the calls that they refuse.
impl<B: Body> Default for ResponseBody<B> {
    fn default() -> Self {
        Self { inner: Inner::Over, call: None }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let frame = match this.inner.as_mut().project() {
            InnerProj::Plain { body } => body.poll_frame(cx),
            InnerProj::WasHeld { rest } => match (rest.kept.pop_front(), &mut rest.body) {
                (Some(data), _) => Poll::Ready(Some(Ok(Frame::data(data)))),
                (None, Some(body)) => body.as_mut().poll_frame(cx),
                (None, None) => return Poll::Ready(rest.end.take().and_then(End::into_frame)),
            },
            InnerProj::Over => return Poll::Ready(None),
        };
        let end = match frame {
            Poll::Ready(Some(Ok(frame))) if !frame.is_trailers() => {
                if this.call.as_mut().is_some_and(CommittedCall::is_over_at_frame) {
                    let told = End::Cut.tell(this.call);
                    debug_assert!(told, "the engine ends it");
                    this.inner.set(Inner::Over);
                    return Poll::Ready(Some(Ok(Frame::trailers(LocalResponse::TimedOut.trailers()))));
                }
                // Who asks whether that was the last frame does not ask for another.
                if this.inner.is_end_stream() {
                    end_bare(this.call);
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(Some(Ok(frame))) => frame.into_trailers().map_or(End::Bare, End::Trailers),
            Poll::Ready(Some(Err(error))) => End::Error(error.into()),
            Poll::Ready(None) => End::Bare,
            Poll::Pending => {
                let Some(call) = this.call.as_mut() else { return Poll::Pending };
                ready!(call.poll_limit(cx));
                End::Cut
            }
        };
        let timed_out = end.tell(this.call);
        if timed_out {
            this.inner.set(Inner::Over);
        }
        Poll::Ready(if timed_out {
            Some(Ok(Frame::trailers(LocalResponse::TimedOut.trailers())))
        } else {
            end.into_frame()
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Plain { body } => body.size_hint(),
            Inner::WasHeld { rest } => rest.size_hint(),
            Inner::Over => SizeHint::with_exact(0),
        }
    }
}

impl<B: Body> Inner<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain { body } => body.is_end_stream(),
            Self::WasHeld { rest } => rest.is_end_stream(),
            Self::Over => true,
        }
    }
}

impl<B: Body> Rest<B> {
    fn is_end_stream(&self) -> bool {
        let is_read = || self.body.as_ref().map_or(self.end.is_none(), |body| body.is_end_stream());
        self.kept.is_empty() && is_read()
    }

    fn size_hint(&self) -> SizeHint {
        let kept: u64 = self.kept.iter().map(|data| data.remaining() as u64).sum();
        let rest = self.body.as_ref().map_or(SizeHint::with_exact(0), |body| body.size_hint());
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower().saturating_add(kept));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("call", &self.call).finish_non_exhaustive()
    }
}

/// How a body ends.
enum End {
    Trailers(HeaderMap),
    Error(BoxError),
    /// Without trailers.
    Bare,
    /// Its time is over.
    Cut,
}

impl End {
    /// Ends the call, unless it has. True if the application is to be told that its time is over.
    fn tell(&self, begun: &mut Option<CommittedCall>) -> bool {
        let Some(call) = begun.take() else { return false };
        let external = call.is_external();
        match self {
            Self::Trailers(trailers) => {
                call.ended(verdict::of_trailers(Some(trailers), external), Cause::Trailers)
            }
            Self::Error(error) => call.ended(verdict::of_error(&**error), Cause::Error(&**error)),
            Self::Bare => call.ended(verdict::of_trailers(None, external), Cause::Bare),
            Self::Cut => call.timed_out(),
        }
    }

    /// What the application sees of an end that is its answer.
    fn into_frame<D>(self) -> Option<Result<Frame<D>, BoxError>> {
        match self {
            Self::Trailers(mut trailers) => {
                headers::clean(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::Error(error) => Some(Err(error)),
            Self::Bare | Self::Cut => None,
        }
    }
}

/// Ends the call where the body did without trailers. That is never the engine's own time limit: the
/// application sees the end as it is.
fn end_bare(call: &mut Option<CommittedCall>) {
    End::Bare.tell(call);
}
