//! Sends requests: chooses the endpoint when the request is known, and another where a closing connection has not
//! taken it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use damper_core::deadline;
use damper_core::endpoints::Tried;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response, Uri, Version};
use tonic::body::Body;
use tonic::{ConnectError, TimeoutExpired};
use tower_service::Service;

use super::set::{Chosen, Shared};
use super::{Balanced, BalancedBody, tried};
use crate::client::{BoxError, verdict};
use crate::headers;

/// So often a request is sent anew that no connection has taken.
const SENDS: usize = 8;
const NAME: &str = concat!("damper-sdk/", env!("CARGO_PKG_VERSION"));

type Answer = Result<Response<BalancedBody>, BoxError>;

impl Service<Request<Body>> for Balanced {
    type Response = Response<BalancedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    /// Always ready: the endpoint is chosen when the request is known.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(self.shared());
        let so_far = tried::so_far();
        let chosen = shared.choose(so_far);
        if let Some(chosen) = &chosen {
            tried::now(chosen.slot);
        }
        let timeout = headers::bytes(request.headers(), &headers::TIMEOUT).and_then(deadline::parse);
        complete(&shared, &mut request);
        Box::pin(async move {
            let answer = exchange(&shared, request, chosen, so_far, timeout);
            match timeout {
                // Beyond what a clock can count there is no limit.
                Some(timeout) => tokio::time::timeout(timeout, answer)
                    .await
                    .unwrap_or_else(|_| Err(TimeoutExpired(()).into())),
                None => answer.await,
            }
        })
    }
}

async fn exchange(
    shared: &Arc<Shared>,
    mut request: Request<Body>,
    mut first: Option<Chosen>,
    mut so_far: Tried,
    timeout: Option<Duration>,
) -> Answer {
    let deadline = timeout.map(|timeout| shared.clock().now() + timeout);
    for _ in 0..SENDS {
        let Chosen { mut sender, mut in_flight, slot } = match first.take() {
            Some(chosen) => chosen,
            None => shared.wait(so_far).await?,
        };
        so_far.insert(slot);
        in_flight.until(deadline);
        let answer = sender.try_send_request(request);
        // See `Endpoint::sender`.
        drop(sender);
        let mut failed = match answer.await {
            Ok(answer) => {
                if let Some(verdict) = verdict::of_response(&answer, false) {
                    in_flight.ended(&verdict);
                }
                return Ok(answer.map(|body| BalancedBody::new(body, in_flight)));
            }
            Err(failed) => failed,
        };
        match failed.take_message() {
            Some(untaken) => request = untaken,
            None => {
                let error = failed.into_error();
                in_flight.failed(&error);
                return Err(error.into());
            }
        }
    }
    Err(ConnectError("every connection was closed before it took the request".into()).into())
}

/// Makes the request one for the target: whom it is for, and by whom it is made.
fn complete(shared: &Shared, request: &mut Request<Body>) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let (scheme, authority) = shared.authority();
    parts.scheme = Some(scheme);
    parts.authority = Some(authority);
    parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are all there");
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(NAME));
}
