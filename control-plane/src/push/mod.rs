//! `damper.v1.Distribution`: rules to services, over one stream per process.
//!
//! Each stream is one task ([`stream`]) that knows what its client holds and asks for the difference to the
//! table when its one outgoing slot is free ([`responses`]); nothing is queued behind that slot, so the latest
//! table wins. [`pace`] decides when a change of the table is shown to the streams, [`told`] which kills go along.

pub(crate) mod convergence;
pub(crate) mod debounce;
pub(crate) mod delivery;
pub(crate) mod group_quota;
pub(crate) mod held_revisions;
pub(crate) mod outbox;
pub(crate) mod report_quota;
pub(crate) mod responses;
pub(crate) mod sent_kills;
pub(crate) mod sessions;
pub(crate) mod stream;
pub(crate) mod wire;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use damper_proto::v1::distribution_server::SERVICE_NAME;
use http::{HeaderValue, Request, Response, header};
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use crate::auth::caller::Caller;
use crate::push::group_quota::GroupQuota;
use crate::push::responses::ResponseCache;
use crate::push::wire::{Inbound, Outbound};
use crate::state::shared::Shared;
use damper_net::connection::ConnectionInfo;

/// How many streams at once may be making their first response.
const ADMISSIONS: usize = 32;

/// The service.
#[derive(Clone)]
pub(crate) struct Distribution {
    shared: Arc<Shared>,
    desk: Arc<PushContext>,
    max_message_bytes: usize,
}

/// What streams share among themselves.
pub(crate) struct PushContext {
    groups: GroupQuota,
    responses: ResponseCache,
    admissions: Semaphore,
    /// Held while the store is asked for one old revision.
    looks: Semaphore,
}

impl Distribution {
    pub(crate) fn new(shared: Arc<Shared>, max_message_bytes: usize) -> Self {
        let desk = PushContext {
            groups: GroupQuota::default(),
            responses: ResponseCache::default(),
            admissions: Semaphore::new(ADMISSIONS),
            looks: Semaphore::new(1),
        };
        Self { shared, desk: Arc::new(desk), max_message_bytes }
    }
}

impl NamedService for Distribution {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for Distribution {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME));
        if method != Some("/Subscribe") {
            return ready(Ok(Status::unimplemented("there is no such method").into_http()));
        }
        let peer = request.extensions().get::<ConnectionInfo>().cloned();
        let caller = Caller::found(request.extensions());
        let inbound = Inbound::new(request.into_body(), self.max_message_bytes);
        let (out, messages) = mpsc::channel(1);
        tokio::spawn(stream::serve(self.shared.clone(), self.desk.clone(), (peer, caller), inbound, out));
        let mut answer = Response::new(Body::new(Outbound::new(messages)));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        ready(Ok(answer))
    }
}
