//! Sends requests: picks the endpoint once the request is known, and another one if a closing connection has
//! not accepted it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use damper_core::endpoints::Tried;
use damper_core::{Time, deadline};
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response, Uri, Version};
use tonic::body::Body;
use tonic::{ConnectError, TimeoutExpired};
use tower_service::Service;

use super::set::{Chosen, Shared};
use super::{Balanced, BalancedBody};
use crate::headers;
use crate::outcome::verdict::{self, BoxError};

/// Connections tried for one request, if each is closed before it accepts the request or has no stream left.
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
        // The connections must outlive the request, even if this was the last handle.
        let channel = self.clone();
        let chosen = channel.shared().choose(Tried::NONE);
        let timeout = headers::bytes(request.headers(), &headers::TIMEOUT).and_then(deadline::parse);
        let deadline = timeout.map(|timeout| channel.shared().clock().now() + timeout);
        complete(channel.shared(), &mut request);
        Box::pin(async move {
            let answer = exchange(channel.shared(), request, chosen, deadline);
            match timeout {
                // A timeout beyond the range of the clock is no limit.
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
    deadline: Option<Time>,
) -> Answer {
    let is_grpc = headers::has_grpc_type(request.headers());
    let (mut so_far, mut is_full) = (Tried::NONE, false);
    for _ in 0..SENDS {
        let Chosen { stream, mut in_flight, slot } = match first.take() {
            Some(chosen) => chosen,
            None => shared.wait(so_far).await?,
        };
        so_far.insert(slot);
        let sender = in_flight.stream(stream).await;
        is_full = sender.is_none();
        let Some(mut sender) = sender else { continue };
        in_flight.until(deadline);
        let answer = sender.try_send_request(request);
        // See `Connection::take`.
        drop(sender);
        let mut failed = match answer.await {
            Ok(answer) => {
                in_flight.until(None);
                if is_grpc && let Some(verdict) = verdict::of_response(&answer, false) {
                    in_flight.ended(&verdict);
                }
                return Ok(answer.map(|body| BalancedBody::new(body, in_flight, is_grpc)));
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
    let problem = match is_full {
        true => "all streams that the endpoints allow are in use",
        false => "every connection was closed before it took the request",
    };
    Err(ConnectError(problem.into()).into())
}

/// Sets scheme, authority, path, version and user agent of the request.
fn complete(shared: &Shared, request: &mut Request<Body>) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let (scheme, authority) = shared.authority();
    parts.scheme = Some(scheme);
    if parts.authority.is_none() || !shared.keeps_authority() {
        parts.authority = Some(authority);
    }
    parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are all there");
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(NAME));
}
