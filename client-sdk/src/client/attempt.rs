//! One attempt, until its response begins or, if held, is complete.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::held_response::HeldResponse;
use super::in_flight::RequestInFlight;
use crate::outcome::verdict::BoxError;
use crate::record::telemetry::AttemptSpan;

pin_project! {
    /// An attempt with its span.
    pub(super) struct Attempt<S, F, B>
    where
        B: http_body::Body,
    {
        watch: AttemptSpan,
        #[pin]
        stage: Stage<S, F, B>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S, F, B>
    where
        B: http_body::Body,
    {
        // Also the state before and after an attempt.
        Sending { #[pin] sending: RequestInFlight<S, F> },
        Holding { held: Option<Box<HeldResponse<B>>> },
    }
}

/// Result of an attempt.
pub(super) enum AttemptResult<B: http_body::Body> {
    /// Response headers or an error.
    Outcome(Result<Response<B>, BoxError>),
    /// A held response, complete or released early.
    Held(Box<HeldResponse<B>>),
}

impl<S, F, B: http_body::Body> Attempt<S, F, B> {
    /// Returns the absence of an attempt.
    pub(super) fn none() -> Self {
        Self { watch: AttemptSpan::none(), stage: Stage::Sending { sending: RequestInFlight::Over } }
    }

    /// Returns an attempt whose request is in flight.
    pub(super) fn sending(watch: AttemptSpan, sending: RequestInFlight<S, F>) -> Self {
        Self { watch, stage: Stage::Sending { sending } }
    }

    /// Returns an attempt whose response is held.
    pub(super) fn holding(watch: AttemptSpan, held: Box<HeldResponse<B>>) -> Self {
        Self { watch, stage: Stage::Holding { held: Some(held) } }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Sending { sending: RequestInFlight::Over })
    }

    /// Returns the engine's number of the attempt.
    pub(super) fn number(&self) -> u32 {
        self.watch.number()
    }

    /// Takes the span of the attempt.
    pub(super) fn take_watch(self: Pin<&mut Self>) -> AttemptSpan {
        std::mem::replace(self.project().watch, AttemptSpan::none())
    }

    /// Drops the attempt because the call continues without it; its stream is reset.
    pub(super) fn give_up(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.watch.lost();
        this.stage.set(Stage::Sending { sending: RequestInFlight::Over });
    }
}

impl<S, B> Attempt<S, S::Future, B>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Ready once, with the result of the attempt. Pending without an attempt.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<AttemptResult<B>> {
        let mut this = self.project();
        let _in_span = this.watch.span().enter();
        let held = match this.stage.as_mut().project() {
            StageProj::Sending { sending } => return sending.poll(cx).map(AttemptResult::Outcome),
            StageProj::Holding { held } => {
                ready!(held.as_mut().expect("it is taken when it is over").poll(cx));
                held.take().expect("see above")
            }
        };
        this.stage.set(Stage::Sending { sending: RequestInFlight::Over });
        Poll::Ready(AttemptResult::Held(held))
    }
}
