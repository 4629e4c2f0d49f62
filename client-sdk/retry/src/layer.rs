//! A tower layer for any service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::attempt::Attempt;
use crate::error::Error;
use crate::handle::Retry;
use crate::handle::future::{Body, Calling};
use crate::handlers::{ByType, Handlers};
use crate::source::{Local, Source};

/// Retries the calls of a tower service.
#[derive(Debug)]
pub struct RetryLayer<P = ByType, S = Local>(Arc<Retry<P, S>>);

/// A service whose calls are retried.
#[derive(Debug)]
pub struct RetryService<I, P = ByType, S = Local> {
    inner: I,
    retry: Arc<Retry<P, S>>,
}

impl<P, S> RetryLayer<P, S> {
    /// Returns a layer for this handle.
    pub fn new(retry: Retry<P, S>) -> Self {
        Self(Arc::new(retry))
    }
}

impl<P, S> Clone for RetryLayer<P, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I: Clone, P, S> Clone for RetryService<I, P, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), retry: Arc::clone(&self.retry) }
    }
}

impl<I, P, S> Layer<I> for RetryLayer<P, S> {
    type Service = RetryService<I, P, S>;

    fn layer(&self, inner: I) -> Self::Service {
        RetryService { inner, retry: Arc::clone(&self.0) }
    }
}

/// Sends a request again for each attempt.
#[derive(Debug)]
pub struct Replay<I, R> {
    /// The service that was ready when the call began; `None` after the first attempt.
    ready: Option<I>,
    service: I,
    request: R,
}

pin_project! {
    /// Future of one attempt: waits until the service is ready, then sends.
    pub struct Sending<I, R>
    where
        I: Service<R>,
    {
        service: I,
        request: Option<R>,
        is_ready: bool,
        #[pin]
        response: Option<I::Future>,
    }
}

impl<I: Service<R>, R> Future for Sending<I, R> {
    type Output = Result<I::Response, I::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(request) = this.request.take() {
            if !*this.is_ready {
                match this.service.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        *this.request = Some(request);
                        return Poll::Pending;
                    }
                }
            }
            this.response.set(Some(this.service.call(request)));
        }
        match this.response.as_pin_mut() {
            Some(response) => response.poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<I: Service<R> + Clone, R: Clone> Body for Replay<I, R> {
    type Future = Sending<I, R>;

    fn start(&mut self, _: Attempt) -> Self::Future {
        let is_ready = self.ready.is_some();
        let service = self.ready.take().unwrap_or_else(|| self.service.clone());
        Sending { service, request: Some(self.request.clone()), is_ready, response: None }
    }
}

impl<I, R, P, S> Service<R> for RetryService<I, P, S>
where
    I: Service<R> + Clone,
    R: Clone,
    P: Handlers<I::Response, I::Error>,
    S: Source,
{
    type Response = I::Response;
    type Error = Error<I::Error>;
    type Future = Calling<Arc<Retry<P, S>>, S, Replay<I, R>, I::Response, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let not_ready = |error| Error::Failed(crate::Failed::not_ready(error));
        self.inner.poll_ready(cx).map_err(not_ready)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let service = self.inner.clone();
        let ready = Some(std::mem::replace(&mut self.inner, service.clone()));
        Calling::new(Arc::clone(&self.retry), Replay { ready, service, request }, true, true)
    }
}
