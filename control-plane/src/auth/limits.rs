//! Limits of requests, next to the services: rates, connections per identity, and the time of a unary call,
//! the transfer of its message included.
//!
//! The identity is the authenticated one, else the address. A service names an exceeded limit in the trailer
//! `damper-limit`; this layer counts it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;
use tonic::Status;

use crate::auth::AuthContext;
use crate::auth::caller::Caller;
use crate::auth::methods;
use crate::auth::methods::MethodPolicy;
use crate::state::error::ApiError;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::{Limit, LimitExceeded, subscriber};
use damper_net::limits::{Limiter, Opened};

/// Trailer that names the exceeded limit.
pub(crate) const TRAILER: &str = "damper-limit";

/// Handles a request within the limits.
pub(crate) async fn answer(
    State(auth): State<Arc<AuthContext>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let limiter = &auth.limiter;
    let method = methods::of_path(request.uri().path());
    let peer = request.extensions().get::<ConnectionInfo>();
    let caller = Caller::found(request.extensions());
    let who = peer.map(|peer| identity(&caller, peer)).unwrap_or_default();
    // A client takes its permit before its messages are read.
    let is_counted = peer.is_some() && !method.is_client;
    let open = || match limiter.open(&who, !matches!(caller, Caller::Unauthenticated)) {
        Err(over) if method.is_urgent => limiter.open_urgent().map_err(|_| over),
        opened => opened,
    };
    let admitted = admit(limiter, peer, &caller, method).and_then(|()| is_counted.then(open).transpose());
    let opened = match admitted {
        Ok(opened) => opened,
        Err(over) => return refused(limiter, over),
    };
    let request = request.map(|body| limiter.partial().measured(body, who));
    if !method.is_unary() {
        return counted(limiter, next.run(request).await, opened);
    }
    let deadline = auth.state.unary_deadline;
    let answer = timeout(deadline, next.run(request)).await;
    counted(limiter, answer.unwrap_or_else(|_| Status::from(ApiError::TooLate(deadline)).into_http()), opened)
}

/// Handles requests outside the API: files, health, sign-in. The caller is not known yet.
pub(crate) async fn visit(
    State(auth): State<Arc<AuthContext>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Some(peer) = request.extensions().get::<ConnectionInfo>() else { return next.run(request).await };
    match auth.limiter.open(&identity(&Caller::Unauthenticated, peer), false) {
        Ok(opened) => {
            let limiter = auth.limiter.clone();
            let counted = |body| Body::new(LimitCountingBody { body, limiter, _opened: Some(opened) });
            next.run(request).await.map(counted)
        }
        Err(over) => {
            auth.limiter.hit(over.limit);
            (StatusCode::TOO_MANY_REQUESTS, format!("{over}\n")).into_response()
        }
    }
}

/// Applies the rate limits of a caller, also to requests that are denied later.
pub(crate) fn admit(
    limiter: &Limiter,
    peer: Option<&ConnectionInfo>,
    caller: &Caller,
    method: MethodPolicy,
) -> Result<(), LimitExceeded> {
    let Some(peer) = peer else { return Ok(()) };
    let identity = identity(caller, peer);
    // Without authentication the callers' own names do not count.
    let is_proven = !matches!(caller, Caller::Unauthenticated);
    peer.belongs_to(&identity, is_proven, limiter).and_then(|()| limiter.admit(&identity, method.class))
}

/// Returns the answer to a request over a limit.
pub(crate) fn refused(limiter: &Limiter, over: LimitExceeded) -> Response<Body> {
    counted(limiter, Status::from(over).into_http(), None)
}

/// Returns the identity whose limits apply.
pub(crate) fn identity(caller: &Caller, peer: &ConnectionInfo) -> String {
    let principal = caller.principal();
    if principal.is_empty() { format!("address {}", subscriber(peer.address.ip())) } else { principal }
}

/// Counts the exceeded limit of an answer. The request is open until the answer was sent.
fn counted(limiter: &Limiter, answer: Response<Body>, opened: Option<Opened>) -> Response<Body> {
    if count(limiter, answer.headers()) {
        return answer;
    }
    let limiter = limiter.clone();
    answer.map(|body| Body::new(LimitCountingBody { body, limiter, _opened: opened }))
}

fn count(limiter: &Limiter, headers: &HeaderMap) -> bool {
    let named = headers.get(TRAILER);
    let limit = named.and_then(|named| Limit::ALL.into_iter().find(|limit| limit.name() == named));
    if let Some(limit) = limit {
        limiter.hit(limit);
    }
    limit.is_some()
}

/// Answer whose trailers are inspected.
struct LimitCountingBody {
    body: Body,
    limiter: Limiter,
    _opened: Option<Opened>,
}

impl HttpBody for LimitCountingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            count(&self.limiter, trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
