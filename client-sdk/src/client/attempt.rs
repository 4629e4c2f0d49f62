//! One attempt, until its answer begins, or is complete where it is held.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tower_service::Service;
use tracing::Span;

use super::held::Held;
use super::verdict::BoxError;

pin_project! {
    /// An attempt with its number and span.
    pub(super) struct Attempt<S, F, B>
    where
        B: http_body::Body,
    {
        pub(super) number: u32,
        pub(super) span: Span,
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
        Holding { held: Option<Held<B>> },
    }
}

/// What an attempt came to.
pub(super) enum Came<B: http_body::Body> {
    /// An answer's headers, or none.
    Outcome(Result<Response<B>, BoxError>),
    /// An answer that was held, whole or let go.
    Held(Held<B>),
}

impl<S, F, B: http_body::Body> Attempt<S, F, B> {
    /// No attempt.
    pub(super) fn none() -> Self {
        Self { number: 0, span: Span::none(), stage: Stage::Over }
    }

    /// One that asks the service whether it is ready.
    pub(super) fn preparing(number: u32, span: Span, service: S, request: Request<Body>) -> Self {
        Self { number, span, stage: Stage::Preparing { service, request: Some(request) } }
    }

    /// One that was given to a service that was ready.
    pub(super) fn sending(number: u32, span: Span, answer: F) -> Self {
        Self { number, span, stage: Stage::Sending { answer } }
    }

    /// One whose answer is held.
    pub(super) fn holding(number: u32, span: Span, held: Held<B>) -> Self {
        Self { number, span, stage: Stage::Holding { held: Some(held) } }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
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
    pub(super) fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Came<B>> {
        let span = self.span.clone();
        let _in_span = span.enter();
        let came = loop {
            let next = match self.as_mut().project().stage.project() {
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
            self.as_mut().project().stage.set(next);
        };
        self.project().stage.set(Stage::Over);
        Poll::Ready(came)
    }
}
