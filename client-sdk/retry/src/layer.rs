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

/// Retries the calls of a tower service. Requests are cloned, or copied by a function.
#[derive(Debug)]
pub struct RetryLayer<P = ByType, C = ByClone, S = Local> {
    retry: Arc<Retry<P, S>>,
    copy: C,
}

/// A service whose calls are retried.
#[derive(Debug)]
pub struct RetryService<I, P = ByType, C = ByClone, S = Local> {
    inner: I,
    retry: Arc<Retry<P, S>>,
    copy: C,
}

/// Copies requests for further attempts. `Fn(&R) -> Option<R>` does.
pub trait CopyRequest<R> {
    /// Returns a copy; `None` if the request can be sent only once. The same for equal requests.
    fn copy(&self, request: &R) -> Option<R>;
}

/// Copies requests with `Clone`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByClone;

impl<R: Clone> CopyRequest<R> for ByClone {
    fn copy(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}

impl<R, F: Fn(&R) -> Option<R>> CopyRequest<R> for F {
    fn copy(&self, request: &R) -> Option<R> {
        self(request)
    }
}

impl<P, S> RetryLayer<P, ByClone, S> {
    /// Returns a layer for this handle.
    pub fn new(retry: Retry<P, S>) -> Self {
        Self { retry: Arc::new(retry), copy: ByClone }
    }
}

impl<P, C, S> RetryLayer<P, C, S> {
    /// Copies requests with this function. Those for which it returns `None` have one attempt.
    pub fn copy_with<N>(self, copy: N) -> RetryLayer<P, N, S> {
        RetryLayer { retry: self.retry, copy }
    }
}

impl<P, C: Clone, S> Clone for RetryLayer<P, C, S> {
    fn clone(&self) -> Self {
        Self { retry: Arc::clone(&self.retry), copy: self.copy.clone() }
    }
}

impl<I: Clone, P, C: Clone, S> Clone for RetryService<I, P, C, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), retry: Arc::clone(&self.retry), copy: self.copy.clone() }
    }
}

impl<I, P, C: Clone, S> Layer<I> for RetryLayer<P, C, S> {
    type Service = RetryService<I, P, C, S>;

    fn layer(&self, inner: I) -> Self::Service {
        RetryService { inner, retry: Arc::clone(&self.retry), copy: self.copy.clone() }
    }
}

/// Makes the attempts of a request.
#[derive(Debug)]
pub struct Replay<I, C, R> {
    /// The service that was ready when the call began; `None` after the first attempt.
    ready: Option<I>,
    service: I,
    copy: C,
    /// Copy for the next attempt; the first one is made when the call begins.
    next: Option<R>,
    request: Option<R>,
}

impl<I, C: CopyRequest<R>, R> Replay<I, C, R> {
    /// Returns the request of an attempt; the request itself if it cannot be copied.
    fn request(&mut self) -> Option<R> {
        let copied = self.next.take().or_else(|| self.copy.copy(self.request.as_ref()?));
        copied.or_else(|| self.request.take())
    }
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

impl<I: Service<R>, R> Sending<I, R> {
    /// Returns the attempt of a request; without a request it never ends.
    pub fn new(service: I, request: Option<R>, is_ready: bool) -> Self {
        Self { service, request, is_ready, response: None }
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

impl<I: Service<R> + Clone, C: CopyRequest<R>, R> Body for Replay<I, C, R> {
    type Future = Sending<I, R>;

    fn start(&mut self, attempt: Attempt) -> Self::Future {
        let is_ready = self.ready.is_some();
        let service = self.ready.take().unwrap_or_else(|| self.service.clone());
        let request = self.request();
        if self.request.is_none() {
            attempt.exhaust();
        }
        Sending::new(service, request, is_ready)
    }
}

impl<I, R, P, C, S> Service<R> for RetryService<I, P, C, S>
where
    I: Service<R> + Clone,
    C: CopyRequest<R> + Clone,
    P: Handlers<I::Response, I::Error>,
    S: Source,
{
    type Response = I::Response;
    type Error = Error<I::Error>;
    type Future = Calling<Arc<Retry<P, S>>, S, Replay<I, C, R>, I::Response, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let not_ready = |error| Error::Failed(crate::Failed::not_ready(error));
        self.inner.poll_ready(cx).map_err(not_ready)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let service = self.inner.clone();
        let ready = Some(std::mem::replace(&mut self.inner, service.clone()));
        let copy = self.copy.clone();
        let next = copy.copy(&request);
        let replayable = next.is_some();
        let body = Replay { ready, service, copy, next, request: Some(request) };
        Calling::new(Arc::clone(&self.retry), body, true, replayable)
    }
}
