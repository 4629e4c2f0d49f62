//! One attempt, until its answer begins, or is complete where it is held.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::held::HeldResponse;
use super::sending::RequestInFlight;
use super::telemetry::AttemptSpan;
use super::verdict::BoxError;

pin_project! {
    /// An attempt, and what is told of it.
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
        // Or it is over, or there was none.
        Sending { #[pin] sending: RequestInFlight<S, F> },
        Holding { held: Option<Box<HeldResponse<B>>> },
    }
}

/// What an attempt came to.
pub(super) enum AttemptResult<B: http_body::Body> {
    /// An answer's headers, or none.
    Outcome(Result<Response<B>, BoxError>),
    /// An answer that was held, whole or let go.
    Held(Box<HeldResponse<B>>),
}

impl<S, F, B: http_body::Body> Attempt<S, F, B> {
    /// No attempt.
    pub(super) fn none() -> Self {
        Self { watch: AttemptSpan::none(), stage: Stage::Sending { sending: RequestInFlight::Over } }
    }

    /// One whose request is on its way.
    pub(super) fn sending(watch: AttemptSpan, sending: RequestInFlight<S, F>) -> Self {
        Self { watch, stage: Stage::Sending { sending } }
    }

    /// One whose answer is held.
    pub(super) fn holding(watch: AttemptSpan, held: Box<HeldResponse<B>>) -> Self {
        Self { watch, stage: Stage::Holding { held: Some(held) } }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Sending { sending: RequestInFlight::Over })
    }

    /// The attempt, as the engine knows it.
    pub(super) fn number(&self) -> u32 {
        self.watch.number()
    }

    /// Takes over what is told of it.
    pub(super) fn take_watch(self: Pin<&mut Self>) -> AttemptSpan {
        std::mem::replace(self.project().watch, AttemptSpan::none())
    }

    /// The call goes on without it: its stream is reset.
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
    /// Ready with what it came to; then it is over. One that is over never is.
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
