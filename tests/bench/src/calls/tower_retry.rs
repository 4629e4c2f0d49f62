//! The peer: `tower::retry` with its `TpsBudget`, as its documentation has it.
//!
//! A tonic request can not be cloned, so a client that wants `tower::retry` has to read the message first and make
//! the body anew for each attempt: [`Whole`] above and [`Boxed`] below do that in the cheapest way. Where the inner
//! service takes a body that can be cloned neither is needed, which is the case most favourable to tower.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tower::Service;
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::retry::{Policy, Retry};

use super::stock::{Answer, Stock};

const BACKOFF: Duration = Duration::from_millis(25);

/// Three attempts, within the budget that all calls share.
#[derive(Clone, Debug)]
pub(super) struct Attempts {
    left: u32,
    budget: Arc<TpsBudget>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { left: 2, budget: Arc::default() }
    }
}

impl Policy<Request<Full<Bytes>>, Response<Answer>, Infallible> for Attempts {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Full<Bytes>>,
        result: &mut Result<Response<Answer>, Infallible>,
    ) -> Option<Sleep> {
        let status = result.as_ref().ok().and_then(|response| response.headers().get("grpc-status"));
        if status.is_none_or(|status| status == "0") {
            self.budget.deposit();
            return None;
        }
        if self.left == 0 || !self.budget.withdraw() {
            return None;
        }
        self.left -= 1;
        Some(sleep(BACKOFF))
    }

    fn clone_request(&mut self, request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
        Some(request.clone())
    }
}

/// `tower::retry` where the body can be cloned.
pub(super) type Plain = Retry<Attempts, Stock>;

/// `tower::retry` for a tonic client.
pub(super) type ForTonic = Whole<Retry<Attempts, Boxed<Stock>>>;

/// Reads the message, so that the request can be cloned.
#[derive(Clone, Debug)]
pub(super) struct Whole<S>(pub(super) S);

impl<S: Service<Request<Full<Bytes>>>> Service<Request<Body>> for Whole<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let (parts, body) = request.into_parts();
        let mut body = pin!(body);
        let mut cx = Context::from_waker(Waker::noop());
        let first = http_body::Body::poll_frame(body.as_mut(), &mut cx);
        let Poll::Ready(Some(Ok(frame))) = first else { panic!("the message is there") };
        let message = frame.into_data().unwrap_or_default();
        let second = http_body::Body::poll_frame(body.as_mut(), &mut cx);
        assert!(matches!(second, Poll::Ready(None)), "the message is one chunk");
        self.0.call(Request::from_parts(parts, Full::new(message)))
    }
}

/// Makes a tonic request again.
#[derive(Clone, Debug)]
pub(super) struct Boxed<S>(pub(super) S);

impl<S: Service<Request<Body>>> Service<Request<Full<Bytes>>> for Boxed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> S::Future {
        self.0.call(request.map(Body::new))
    }
}
