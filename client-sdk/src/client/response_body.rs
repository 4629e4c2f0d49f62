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
use damper_core::{Answer, Step};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::calling::{Answering, Parts};
use super::cause::Cause;
use super::held::{Held, HeldEnd};
use super::own_answer::OwnAnswer;
use super::verdict::{self, BoxError};
use crate::headers;

pin_project! {
    /// A response body in which a call ends.
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        // What was read of the inner body while the answer was held back.
        kept: VecDeque<B::Data>,
        #[pin]
        inner: Inner<B>,
        // None once the call has ended.
        call: Option<Answering>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Plain { #[pin] body: B },
        // It was held back, and so had to stay where it was.
        Held { body: Pin<Box<B>> },
        // It was read to its end, which is still to be handed on.
        Ended { end: Option<End> },
    }
}

impl<B> ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// The body of an answer that came after its status: nothing is left to decide.
    pub(crate) fn decided(inner: B) -> Self {
        Self { kept: VecDeque::new(), inner: Inner::Plain { body: inner }, call: None }
    }

    /// The body of an answer that has begun.
    pub(super) fn begun(inner: B, call: Answering) -> Self {
        let mut call = Some(call);
        if inner.is_end_stream() {
            end_bare(&mut call);
        }
        Self { kept: VecDeque::new(), inner: Inner::Plain { body: inner }, call }
    }

    /// An answer that was held and is let go before its end.
    pub(super) fn let_go(held: Held<B>, call: Answering) -> Response<Self> {
        let Held { head, body, kept, .. } = held;
        head.map(|()| Self { kept, inner: Inner::Held { body }, call: Some(call) })
    }

    /// An answer that was held to its end.
    pub(super) fn held(held: Held<B>) -> Response<Self> {
        let Held { head, kept, end, .. } = held;
        let end = end.map(|end| match end {
            HeldEnd::Trailers(trailers) => End::Trailers(trailers),
            HeldEnd::Error(error) => End::Error(error),
            HeldEnd::Bare | HeldEnd::TooLong => End::Bare,
        });
        head.map(|()| Self { kept, inner: Inner::Ended { end }, call: None })
    }

    /// No body: the answer was made here.
    pub(crate) fn empty() -> Self {
        Self { kept: VecDeque::new(), inner: Inner::Ended { end: None }, call: None }
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
        if let Some(data) = this.kept.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let frame = match this.inner.as_mut().project() {
            InnerProj::Plain { body } => body.poll_frame(cx),
            InnerProj::Held { body } => body.as_mut().poll_frame(cx),
            InnerProj::Ended { end } => return Poll::Ready(end.take().and_then(End::into_frame)),
        };
        let end = match frame {
            Poll::Ready(Some(Ok(frame))) => match frame.into_trailers() {
                Ok(trailers) => End::Trailers(trailers),
                Err(data) => {
                    // Who asks whether that was the last frame does not ask for another.
                    if this.inner.is_end_stream() {
                        end_bare(this.call);
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
            },
            Poll::Ready(Some(Err(error))) => End::Error(error.into()),
            Poll::Ready(None) => End::Bare,
            Poll::Pending => {
                ready!(poll_limit(this.call, cx));
                End::Cut
            }
        };
        let timed_out = end.tell(this.call);
        if timed_out {
            this.inner.set(Inner::Ended { end: None });
        }
        Poll::Ready(if timed_out {
            Some(Ok(Frame::trailers(OwnAnswer::TimedOut.trailers())))
        } else {
            end.into_frame()
        })
    }

    fn is_end_stream(&self) -> bool {
        self.kept.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let kept: u64 = self.kept.iter().map(|data| data.remaining() as u64).sum();
        let rest = self.inner.size_hint();
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower().saturating_add(kept));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }
}

impl<B: Body> Inner<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain { body } => body.is_end_stream(),
            Self::Held { body } => body.is_end_stream(),
            Self::Ended { end } => end.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain { body } => body.size_hint(),
            Self::Held { body } => body.size_hint(),
            Self::Ended { .. } => SizeHint::with_exact(0),
        }
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
    fn tell(&self, answering: &mut Option<Answering>) -> bool {
        let Some(call) = answering else { return false };
        let external = call.calling.external;
        let step = match self {
            Self::Trailers(trailers) => {
                call.ended(verdict::of_trailers(Some(trailers), external), Cause::Trailers)
            }
            Self::Error(error) => call.ended(verdict::of_error(&**error), Cause::Error(&**error)),
            Self::Bare => call.ended(verdict::of_trailers(None, external), Cause::Bare),
            Self::Cut => call.timed_out(),
        };
        *answering = None;
        matches!(step, Step::Finish(finish) if finish.answer == Answer::TimedOut)
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
fn end_bare(call: &mut Option<Answering>) {
    End::Bare.tell(call);
}

/// Ready when the attempt's time is over.
fn poll_limit(call: &mut Option<Answering>, cx: &mut Context<'_>) -> Poll<()> {
    let Some(answering) = call else { return Poll::Pending };
    let Parts { call, timer, .. } = &mut *answering.calling;
    if !call.is_enforced() {
        return Poll::Pending;
    }
    while let Step::Wait { until } = call.next_step() {
        ready!(timer.poll(until, call.clock(), cx));
    }
    Poll::Ready(())
}
