//! The body of an answer that the application is reading: the call ends where the body does.
//!
//! Headers without a status only begin an answer. From there on the attempt can not be repeated, but it is
//! still the call: its trailers are the verdict, its deadline and the attempt's limit still hold while the
//! body stalls, and dropping it cancels the call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use damper_core::{Answer, Step};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::active_call::ActiveCall;
use super::timed_out;
use super::timer::Timer;
use super::verdict::{self, BoxError};
use crate::headers;

pin_project! {
    /// A response body in which a call ends.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        // None once the call was ended in the inner body's place.
        #[pin]
        inner: Option<B>,
        // None once the call has ended.
        call: Option<ActiveCall>,
        timer: Timer,
        external: bool,
    }
}

impl<B: Body> ResponseBody<B> {
    /// The body of an answer that came after its status: nothing is left to decide.
    pub(crate) fn decided(inner: B) -> Self {
        Self { inner: Some(inner), call: None, timer: Timer::default(), external: false }
    }

    /// The body of an answer that has begun.
    pub(crate) fn begun(inner: B, mut call: ActiveCall, timer: Timer, external: bool) -> Self {
        call.commit();
        let mut call = Some(call);
        if inner.is_end_stream() {
            end_bare(&mut call, external);
        }
        Self { inner: Some(inner), call, timer, external }
    }

    /// No body: the answer was made here.
    pub(crate) fn empty() -> Self {
        Self { inner: None, call: None, timer: Timer::default(), external: false }
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
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let end = match inner.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_trailers() {
                Ok(trailers) => End::Trailers(trailers),
                Err(data) => {
                    // Who asks whether that was the last frame does not ask for another.
                    if this.inner.as_ref().get_ref().as_ref().is_some_and(Body::is_end_stream) {
                        end_bare(this.call, *this.external);
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
            },
            Poll::Ready(Some(Err(error))) => End::Error(error.into()),
            Poll::Ready(None) => End::Bare,
            Poll::Pending => {
                ready!(poll_limit(this.call, this.timer, cx));
                End::Cut
            }
        };
        let timed_out = this.call.take().is_some_and(|call| end.tell(call, *this.external));
        if timed_out {
            this.inner.set(None);
        }
        Poll::Ready(if timed_out {
            Some(Ok(Frame::trailers(timed_out::trailers())))
        } else {
            end.into_frame()
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
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
    /// Ends the call. True if the application is to be told that its time is over.
    fn tell(&self, mut call: ActiveCall, external: bool) -> bool {
        let step = match self {
            Self::Trailers(trailers) => call.attempt_ended(verdict::of_trailers(Some(trailers), external)),
            Self::Error(error) => call.attempt_ended(verdict::of_error(&**error)),
            Self::Bare => call.attempt_ended(verdict::of_trailers(None, external)),
            Self::Cut => call.attempt_timed_out(),
        };
        matches!(step, Step::Finish(finish) if finish.answer == Answer::TimedOut)
    }

    /// What the application sees of an end that is its answer.
    fn into_frame<D>(self) -> Option<Result<Frame<D>, BoxError>> {
        match self {
            Self::Trailers(mut trailers) => {
                headers::strip_hop_by_hop(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::Error(error) => Some(Err(error)),
            Self::Bare | Self::Cut => None,
        }
    }
}

/// Ends the call where the body did without trailers. That is never the engine's own time limit: the
/// application sees the end as it is.
fn end_bare(call: &mut Option<ActiveCall>, external: bool) {
    if let Some(call) = call.take() {
        End::Bare.tell(call, external);
    }
}

/// Ready when the attempt's time is over.
fn poll_limit(call: &mut Option<ActiveCall>, timer: &mut Timer, cx: &mut Context<'_>) -> Poll<()> {
    let Some(call) = call.as_mut().filter(|call| call.is_enforced()) else {
        return Poll::Pending;
    };
    while let Step::Wait { until } = call.next_step() {
        ready!(timer.poll(until, call.clock(), cx));
    }
    Poll::Ready(())
}
