//! One attempt, until its answer begins, or is complete where it is held.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;

use super::held::Held;
use super::telemetry::AttemptWatch;
use super::verdict::BoxError;

pin_project! {
    /// An attempt, and what is told of it.
    pub(super) struct Attempt<S, F, B>
    where
        B: http_body::Body,
    {
        watch: AttemptWatch,
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
        // There is none.
        Over,
        // Waits until the inner service takes a request; that is part of the attempt.
        Preparing { service: S, request: Option<Request<Body>> },
        Sending { #[pin] answer: F },
        Holding { held: Option<Box<Held<B>>> },
    }
}

/// What an attempt came to.
pub(super) enum Came<B: http_body::Body> {
    /// An answer's headers, or none.
    Outcome(Result<Response<B>, BoxError>),
    /// An answer that was held, whole or let go.
    Held(Box<Held<B>>),
}

impl<S, F, B: http_body::Body> Attempt<S, F, B> {
    /// No attempt.
    pub(super) fn none() -> Self {
        Self { watch: AttemptWatch::none(), stage: Stage::Over }
    }

    /// One that asks the service whether it is ready.
    pub(super) fn preparing(watch: AttemptWatch, service: S, request: Request<Body>) -> Self {
        Self { watch, stage: Stage::Preparing { service, request: Some(request) } }
    }

    /// One that was given to a service that was ready.
    pub(super) fn sending(watch: AttemptWatch, answer: F) -> Self {
        Self { watch, stage: Stage::Sending { answer } }
    }

    /// One whose answer is held.
    pub(super) fn holding(watch: AttemptWatch, held: Box<Held<B>>) -> Self {
        Self { watch, stage: Stage::Holding { held: Some(held) } }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// The attempt, as the engine knows it.
    pub(super) fn number(&self) -> u32 {
        self.watch.number()
    }

    /// Takes over what is told of it.
    pub(super) fn take_watch(self: Pin<&mut Self>) -> AttemptWatch {
        std::mem::replace(self.project().watch, AttemptWatch::none())
    }

    /// The call goes on without it: its stream is reset.
    pub(super) fn give_up(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.watch.lost();
        this.stage.set(Stage::Over);
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
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Came<B>> {
        let mut this = self.project();
        let _in_span = this.watch.span().enter();
        let came = loop {
            let next = match this.stage.as_mut().project() {
                StageProj::Over => return Poll::Pending,
                StageProj::Preparing { service, request } => match ready!(service.poll_ready(cx)) {
                    Ok(()) => {
                        let request = request.take().expect("a request is sent once");
                        Stage::Sending { answer: service.call(request) }
                    }
                    Err(error) => break Came::Outcome(Err(error.into())),
                },
                StageProj::Sending { answer } => {
                    break Came::Outcome(ready!(answer.poll(cx)).map_err(Into::into));
                }
                StageProj::Holding { held } => {
                    ready!(held.as_mut().expect("it is taken when it is over").poll(cx));
                    break Came::Held(held.take().expect("see above"));
                }
            };
            this.stage.set(next);
        };
        this.stage.set(Stage::Over);
        Poll::Ready(came)
    }
}
