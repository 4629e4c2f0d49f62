//! `damper.v1.Distribution`: rules to services, over one stream per process.
//!
//! Each stream is one task ([`stream`]) that knows the snapshot of its client and requests the difference to
//! the latest when its one outgoing slot is free ([`responses`]). Nothing is queued behind that slot, so the
//! latest snapshot wins. [`debounce`] decides when streams see a change, [`sent_kills`] which kills are sent
//! with it.

pub(crate) mod convergence;
pub(crate) mod debounce;
pub(crate) mod delivery;
pub(crate) mod fleet_state;
pub(crate) mod group_quota;
pub(crate) mod held_revisions;
pub(crate) mod outbox;
pub(crate) mod report_quota;
pub(crate) mod responses;
pub(crate) mod sent_kills;
pub(crate) mod sessions;
pub(crate) mod stream;
pub(crate) mod watching;
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

use crate::auth::Authenticator;
use crate::auth::caller::Caller;
use crate::push::fleet_state::FleetState;
use crate::push::group_quota::GroupQuota;
use crate::push::responses::ResponseCache;
use crate::push::wire::{Inbound, Outbound};
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limiter;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The number of streams that may make their first response at once.
const ADMISSIONS: usize = 32;

/// The service.
#[derive(Clone)]
pub(crate) struct Distribution {
    context: Arc<PushContext>,
    max_message_bytes: usize,
}

/// The timings of streams.
#[derive(Clone, Debug)]
pub(crate) struct PushConfig {
    pub(crate) watched_report_interval: Duration,
    pub(crate) bookmark_interval: Duration,
    pub(crate) slow_consumer_after: Duration,
    pub(crate) stream_age: Duration,
    pub(crate) drain: Duration,
}

/// The context that all streams share.
pub(crate) struct PushContext {
    pub(crate) fleet: Arc<FleetState>,
    pub(crate) access: Arc<Authenticator>,
    pub(crate) limiter: Limiter,
    pub(crate) stopping: CancellationToken,
    pub(crate) config: PushConfig,
    groups: GroupQuota,
    responses: ResponseCache,
    admissions: Semaphore,
    /// Held while one old revision is read from the store.
    store_reads: Semaphore,
}

impl PushContext {
    pub(crate) fn new(
        fleet: Arc<FleetState>,
        access: Arc<Authenticator>,
        limiter: Limiter,
        stopping: CancellationToken,
        config: PushConfig,
    ) -> Self {
        Self {
            fleet,
            access,
            limiter,
            stopping,
            config,
            groups: GroupQuota::default(),
            responses: ResponseCache::default(),
            admissions: Semaphore::new(ADMISSIONS),
            store_reads: Semaphore::new(1),
        }
    }
}

impl Distribution {
    pub(crate) fn new(context: PushContext, max_message_bytes: usize) -> Self {
        Self { context: Arc::new(context), max_message_bytes }
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
            return ready(Ok(Status::unimplemented("unknown method").into_http()));
        }
        let peer = request.extensions().get::<ConnectionInfo>().cloned();
        let caller = Caller::found(request.extensions());
        let inbound = Inbound::new(request.into_body(), self.max_message_bytes);
        let (out, messages) = mpsc::channel(1);
        tokio::spawn(stream::serve(self.context.clone(), (peer, caller), inbound, out));
        let mut answer = Response::new(Body::new(Outbound::new(messages)));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        ready(Ok(answer))
    }
}
