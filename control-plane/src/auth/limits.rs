//! The limits of requests, right before the services: rates, the connections of an identity and how long a unary call
//! may take, the time in which its message comes included.
//!
//! The identity is the one that was proven, else the address. Whatever a service refuses because of a limit says which
//! in the trailer `damper-limit`; it is counted here, where answers pass.

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

/// Names the limit that an answer is over.
pub(crate) const TRAILER: &str = "damper-limit";

/// Answers within the limits.
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
    // A client has a place of its own, which it takes before it is listened to.
    let is_counted = peer.is_some() && !method.is_client;
    let open = || match limiter.open(&who, !matches!(caller, Caller::Nobody)) {
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

/// Answers requests for what is not the API: its files, health, signing in. Who asks is not known yet.
pub(crate) async fn visit(
    State(auth): State<Arc<AuthContext>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Some(peer) = request.extensions().get::<ConnectionInfo>() else { return next.run(request).await };
    match auth.limiter.open(&identity(&Caller::Nobody, peer), false) {
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

/// Whether whoever asks may ask once more, also where they are refused then.
pub(crate) fn admit(
    limiter: &Limiter,
    peer: Option<&ConnectionInfo>,
    caller: &Caller,
    method: MethodPolicy,
) -> Result<(), LimitExceeded> {
    let Some(peer) = peer else { return Ok(()) };
    let identity = identity(caller, peer);
    // Where nobody is asked who they are, everybody is whom they say.
    let is_proven = !matches!(caller, Caller::Nobody);
    peer.belongs_to(&identity, is_proven, limiter).and_then(|()| limiter.admit(&identity, method.class))
}

/// The answer to a request over a limit.
pub(crate) fn refused(limiter: &Limiter, over: LimitExceeded) -> Response<Body> {
    counted(limiter, Status::from(over).into_http(), None)
}

/// Whom limits are counted for.
pub(crate) fn identity(caller: &Caller, peer: &ConnectionInfo) -> String {
    let principal = caller.principal();
    if principal.is_empty() { format!("address {}", subscriber(peer.address.ip())) } else { principal }
}

/// Counts the limit that the answer is over, if any. The request is open until its answer has been taken.
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

/// An answer whose trailers are looked at.
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
