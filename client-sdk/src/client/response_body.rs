//! Response body in which a call ends.
//!
//! Headers without a status only begin a response. From then on the attempt cannot be retried, but the call
//! continues: the trailers are its verdict, its deadline and the limit of the attempt still apply while the
//! body stalls, and dropping the body cancels the call.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::committed::{CallEnd, CommittedCall};
use super::held_response::{HeldEnd, HeldResponse};
use super::local_response::LocalResponse;
use crate::headers;
use crate::outcome::cause::Cause;
use crate::outcome::verdict::{self, BoxError};
use crate::record::report::{self, CallReport};

/// Result for the application.
pub(super) type CallResult<B> = Result<Response<ResponseBody<B>>, BoxError>;

pin_project! {
    /// Response body of the client layer.
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        #[pin]
        inner: Inner<B>,
        // `None` once the call has ended.
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
        // Boxed: it is large and rare, and responses are moved.
        WasHeld { rest: Box<Rest<B>> },
        // No content is left.
        Over,
    }
}

/// The rest of a held response.
struct Rest<B: Body> {
    /// Data read while held.
    kept: VecDeque<B::Data>,
    /// The unread body, pinned; `None` if read to its end.
    body: Option<Pin<Box<B>>>,
    /// Its end, if read and not yet delivered.
    end: Option<End>,
    /// Report of the call, if it has ended.
    report: Option<CallReport>,
    /// Job that the call has become.
    #[cfg(feature = "queue")]
    job: Option<http::HeaderValue>,
}

impl<B> ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// Returns the body of a response whose status is known.
    pub(crate) fn decided(inner: B) -> Self {
        Self { inner: Inner::Plain { body: inner }, call: None }
    }

    /// Returns the body of a response that has begun.
    pub(super) fn begun(inner: B, call: CommittedCall) -> Self {
        let mut call = Some(call);
        if inner.is_end_stream() {
            end_bare(&mut call);
        }
        Self { inner: Inner::Plain { body: inner }, call }
    }

    /// Returns a held response that is released before its end.
    pub(super) fn released(held: HeldResponse<B>, call: CommittedCall) -> Response<Self> {
        let HeldResponse { head, body, kept, .. } = held;
        let rest = Box::new(Rest { body: Some(body), ..Rest::of(kept, None) });
        head.map(|()| Self { inner: Inner::WasHeld { rest }, call: Some(call) })
    }

    /// Returns a held response that is complete.
    pub(super) fn held(held: HeldResponse<B>) -> Response<Self> {
        let HeldResponse { head, kept, end, .. } = held;
        let end = end.map(|end| match end {
            HeldEnd::Trailers(trailers) => End::Trailers(trailers),
            HeldEnd::Error(error) => End::Error(error),
            HeldEnd::Bare | HeldEnd::TooLong => End::Bare,
        });
        let rest = Box::new(Rest::of(kept, end));
        head.map(|()| Self { inner: Inner::WasHeld { rest }, call: None })
    }

    /// Adds the report of a call that has ended: to the trailers of a held response, to the headers of any
    /// other failure, and to the extensions of a success.
    pub(super) fn report(response: &mut Response<Self>, report: Option<CallReport>) {
        let Some(report) = report else { return };
        if report.ending.fate.is_ok() {
            response.extensions_mut().insert(report);
        } else if let Inner::WasHeld { rest } = &mut response.body_mut().inner {
            rest.report = Some(report);
        } else {
            report.add_to(response.headers_mut());
        }
    }

    /// Returns true if the response can carry the id of a job to the application.
    #[cfg(feature = "queue")]
    pub(super) fn can_name_a_job(&self) -> bool {
        let Inner::WasHeld { rest } = &self.inner else { return true };
        matches!(rest.end, Some(End::Trailers(_) | End::Error(_)))
    }

    /// Adds the id of the job that the call has become, where [`report`](Self::report) adds the report.
    #[cfg(feature = "queue")]
    pub(super) fn name_job(response: &mut Response<Self>, job: &http::HeaderValue) {
        if let Inner::WasHeld { rest } = &mut response.body_mut().inner {
            rest.job = Some(job.clone());
        } else {
            response.headers_mut().insert(&headers::JOB, job.clone());
        }
    }

    /// Returns no body, for a response made here.
    pub(crate) fn empty() -> Self {
        Self::default()
    }
}

/// An empty body. tonic's interceptors need it for the calls that they reject.
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
                (None, None) => return Poll::Ready(rest.take_end()),
            },
            InnerProj::Over => return Poll::Ready(None),
        };
        let end = match frame {
            Poll::Ready(Some(Ok(frame))) if !frame.is_trailers() => {
                if this.call.as_mut().is_some_and(CommittedCall::is_over_at_frame) {
                    let CallEnd { timed_out, report } = End::Cut.end_call(this.call);
                    debug_assert!(timed_out, "the engine ends it");
                    this.inner.set(Inner::Over);
                    return Poll::Ready(End::of_timeout().into_frame(report));
                }
                // The application may check `is_end_stream` instead of polling for another frame.
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
        let CallEnd { timed_out, report } = end.end_call(this.call);
        if timed_out {
            this.inner.set(Inner::Over);
            return Poll::Ready(End::of_timeout().into_frame(report));
        }
        Poll::Ready(end.into_frame(report))
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
    fn of(kept: VecDeque<B::Data>, end: Option<End>) -> Self {
        Self {
            kept,
            body: None,
            end,
            report: None,
            #[cfg(feature = "queue")]
            job: None,
        }
    }

    /// Takes the end as the application's frame.
    fn take_end<D>(&mut self) -> Option<Result<Frame<D>, BoxError>> {
        let frame = self.end.take()?.into_frame(self.report)?;
        #[cfg(feature = "queue")]
        if let Some(job) = self.job.take() {
            return Some(with_job(frame, &job));
        }
        Some(frame)
    }

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

/// The end of a body.
enum End {
    Trailers(HeaderMap),
    Error(BoxError),
    /// Without trailers.
    Bare,
    /// Its time is over.
    Cut,
}

impl End {
    /// Returns the end of a response that is cut at its time limit.
    fn of_timeout() -> Self {
        Self::Trailers(LocalResponse::TimedOut.trailers())
    }

    /// Ends the call, unless it has ended.
    fn end_call(&self, begun: &mut Option<CommittedCall>) -> CallEnd {
        let Some(call) = begun.take() else { return CallEnd::default() };
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

    /// Converts the end into the application's frame, with the report of the call.
    fn into_frame<D>(self, report: Option<CallReport>) -> Option<Result<Frame<D>, BoxError>> {
        match self {
            Self::Trailers(mut trailers) => {
                headers::clean(&mut trailers);
                if let Some(report) = report {
                    report.add_to(&mut trailers);
                }
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::Error(error) => Some(Err(report::in_error(report, error))),
            Self::Bare | Self::Cut => None,
        }
    }
}

#[cfg(feature = "queue")]
fn with_job<D>(frame: Result<Frame<D>, BoxError>, job: &http::HeaderValue) -> Result<Frame<D>, BoxError> {
    let mut frame = frame.map_err(|error| report::with_job(error, job))?;
    if let Some(trailers) = frame.trailers_mut() {
        trailers.insert(&headers::JOB, job.clone());
    }
    Ok(frame)
}

/// Ends the call of a body that ended without trailers. This is never the engine's time limit: the
/// application sees the end unchanged.
fn end_bare(call: &mut Option<CommittedCall>) {
    End::Bare.end_call(call);
}
