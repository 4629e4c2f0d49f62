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
use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;
use tonic::Status;

use super::{Limit, Limiter, subscriber};
use crate::access::Caller;
use crate::access::methods::{self, Method};
use crate::connection::Peer;
use crate::errors::Error;
use crate::shared::Shared;

/// Names the limit that an answer is over.
pub(crate) const TRAILER: &str = "damper-limit";

/// Answers within the limits.
pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let limiter = &shared.limiter;
    let method = methods::of_path(request.uri().path());
    let peer = request.extensions().get::<Peer>();
    if let Err(over) = admit(limiter, peer, &Caller::found(request.extensions()), method) {
        return refused(limiter, over);
    }
    if !method.is_unary() {
        return counted(limiter, next.run(request).await);
    }
    let deadline = shared.settings.unary_deadline;
    let answer = timeout(deadline, next.run(request)).await;
    counted(limiter, answer.unwrap_or_else(|_| Status::from(Error::TooLate(deadline)).into_http()))
}

/// Whether whoever asks may ask once more, also where they are refused then.
pub(crate) fn admit(
    limiter: &Limiter,
    peer: Option<&Peer>,
    caller: &Caller,
    method: Method,
) -> Result<(), Error> {
    let Some(peer) = peer else { return Ok(()) };
    let identity = identity(caller, peer);
    // Where nobody is asked who they are, everybody is whom they say.
    let is_proven = !matches!(caller, Caller::Nobody);
    peer.belongs_to(&identity, is_proven, limiter).and_then(|()| limiter.admit(&identity, method.class))
}

/// The answer to a request over a limit.
pub(crate) fn refused(limiter: &Limiter, over: Error) -> Response<Body> {
    counted(limiter, Status::from(over).into_http())
}

/// Whom limits are counted for.
pub(crate) fn identity(caller: &Caller, peer: &Peer) -> String {
    let principal = caller.principal();
    if principal.is_empty() { format!("address {}", subscriber(peer.address.ip())) } else { principal }
}

/// Counts the limit that the answer is over, if any.
fn counted(limiter: &Limiter, answer: Response<Body>) -> Response<Body> {
    if count(limiter, answer.headers()) {
        return answer;
    }
    let limiter = limiter.clone();
    answer.map(|body| Body::new(Counted { body, limiter }))
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
struct Counted {
    body: Body,
    limiter: Limiter,
}

impl HttpBody for Counted {
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
