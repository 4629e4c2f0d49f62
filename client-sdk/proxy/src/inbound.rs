//! Requests to the service: through the server layer, with a key for their context, to the service.
//!
//! Each connection of a caller has one connection to the service. Where the service closes it, the caller's
//! is drained too, so that a service which ends gracefully ends so for its callers.

mod link;
mod peer_header;
mod tls;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{self, Poll};
use std::time::Duration;

use damper_sdk::{Context, ServerLayer, ServerService};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tower::{Layer as _, Service};

use self::link::Link;
use self::tls::Caller;
pub(crate) use self::tls::Tls;
use crate::context::{Contexts, Ids, Kept, carriers};
use crate::counters::{Counters, LeftOut};
use crate::failure::{self, Reset};
use crate::fields::{self, BoxedBody, Edit};
use crate::listen::{self, Drain};
use crate::lock::lock;
use crate::request_body::RequestBody;

/// Time between attempts to reach a service that was not reached.
const REACH_EVERY: Duration = Duration::from_secs(1);

/// What all connections of callers share.
pub(crate) struct Inbound {
    pub(crate) to: SocketAddr,
    pub(crate) layer: ServerLayer,
    pub(crate) contexts: Arc<Contexts>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) reach: Arc<Reach>,
    /// Callers are not trusted.
    pub(crate) is_edge: bool,
    /// TLS from callers.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Whether the service can be reached.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// There is an inbound listener.
    is_needed: AtomicBool,
    is_reached: AtomicBool,
    /// Where the service is now.
    target: Mutex<Option<SocketAddr>>,
    lost: Notify,
}

impl Reach {
    /// Returns true if the service is reached, or need not be.
    pub(crate) fn is_reached(&self) -> bool {
        !self.is_needed.load(Ordering::Relaxed) || self.is_reached.load(Ordering::Relaxed)
    }

    pub(crate) fn needs(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Ordering::Relaxed);
        if !is_needed {
            self.is_reached.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a request did not reach the service. Where it has been before does not count.
    fn lost(&self, to: SocketAddr) {
        if *self.target() == Some(to) {
            self.is_reached.store(false, Ordering::Relaxed);
            self.lost.notify_one();
        }
    }

    fn target(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        lock(&self.target)
    }

    /// Connects until the service is reached, and again after it was lost. What was known stays until the
    /// first connect has ended: a service that has moved is not away.
    async fn keep(&self, to: SocketAddr) {
        *self.target() = Some(to);
        loop {
            match link::connect(to).await {
                Ok(_) => {
                    self.is_reached.store(true, Ordering::Relaxed);
                    self.lost.notified().await;
                }
                Err(error) => {
                    self.is_reached.store(false, Ordering::Relaxed);
                    tracing::debug!(target: "damper", %to, %error, "service not reached");
                }
            }
            tokio::time::sleep(REACH_EVERY).await;
        }
    }
}

impl Inbound {
    /// Accepts callers until it stops. Where `serves` changes, open connections are drained.
    pub(crate) async fn run(listener: TcpListener, serves: watch::Receiver<Arc<Self>>, drain: Drain) {
        let (mut newest, ends) = (serves.clone(), drain.clone());
        let reach = async {
            loop {
                let shared = Arc::clone(&newest.borrow_and_update());
                tokio::select! {
                    () = shared.reach.keep(shared.to) => {}
                    changed = newest.changed() => if changed.is_err() { return },
                }
            }
        };
        tokio::select! {
            () = reach => {}
            () = listen::accept(listener, drain, |stream| Self::serve(serves.clone(), stream, ends.clone())) => {}
        }
    }

    async fn serve(mut serves: watch::Receiver<Arc<Self>>, stream: TcpStream, drain: Drain) {
        let shared = Arc::clone(&serves.borrow_and_update());
        let Some(tls) = &shared.tls else {
            let caller = shared.is_edge.then(Caller::unknown);
            return Self::converse(Arc::clone(&shared), serves, stream, caller, drain).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            () = drain.stops.cancelled() => return,
        };
        match accepted {
            Ok((stream, caller)) => {
                Self::converse(Arc::clone(&shared), serves, stream, Some(caller), drain).await;
            }
            Err(problem) => {
                shared.counters.handshake_failed();
                tracing::debug!(target: "damper", "connection of a caller without TLS: {problem}");
            }
        }
    }

    async fn converse(
        shared: Arc<Self>,
        mut serves: watch::Receiver<Arc<Self>>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        caller: Option<Caller>,
        drain: Drain,
    ) {
        let link = Arc::new(Link::new(shared.to));
        let forward = Forward { shared: Arc::clone(&shared), link: Arc::clone(&link), caller };
        let service: ServerService<Forward> = shared.layer.layer(forward);
        let service = service_fn(move |request| service.clone().call(request));
        let is_late = drain.begins.is_cancelled();
        let goodbye = async {
            tokio::select! {
                () = drain.begins.cancelled(), if !is_late => {}
                () = drain.stops.cancelled() => {}
                () = link.ended() => {}
                _ = serves.changed() => {}
            }
        };
        listen::serve(io, service, goodbye).await;
    }
}

/// Forwards requests to the service; below the server layer.
#[derive(Clone)]
pub(crate) struct Forward {
    shared: Arc<Inbound>,
    link: Arc<Link>,
    /// Who has connected over TLS.
    caller: Option<Caller>,
}

/// Ends the request in the table with its response.
pub(crate) struct Settle(Kept);

impl Edit for Settle {
    fn edit(&mut self, fields: &mut HeaderMap) {
        if self.0.was_stopped() {
            fields::drop_copied_pushback(fields);
        }
    }
}

impl Service<Request<Incoming>> for Forward {
    type Response = Response<BoxedBody>;
    type Error = Reset;
    type Future = Pin<Box<dyn Future<Output = Result<Response<BoxedBody>, Reset>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Reset>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let Self { shared, link, caller } = self.clone();
        if let Some(caller) = caller {
            caller.mark(request.headers_mut());
        }
        let context = request.extensions_mut().remove::<Context>();
        let context = context.expect("the server layer adds the context");
        let kept = shared.keep(context.clone(), request.headers_mut());
        complete(&mut request, shared.to);
        Box::pin(async move {
            let is_grpc = fields::is_grpc(&request);
            match link.send(request.map(RequestBody::new)).await {
                Ok(response) => Ok(fields::answer(response, Settle(kept))),
                Err(link::Failed::NotConnected(error)) => {
                    shared.reach.lost(shared.to);
                    // Another instance may serve the request: no failure of a call may stop that.
                    context.forget_failures();
                    let response = failure::response(tonic::ConnectError(error.into()).into(), is_grpc);
                    Ok(response?.map(|()| fields::no_body()))
                }
                Err(link::Failed::Broken(error)) => {
                    Ok(failure::response(error.into(), is_grpc)?.map(|()| fields::no_body()))
                }
            }
        })
    }
}

impl Inbound {
    /// Keeps the context of a request, and replaces the key that arrived by its own.
    fn keep(&self, context: Context, headers: &mut HeaderMap) -> Kept {
        carriers::take(headers);
        let kept = self.contexts.keep(context, Ids::of(headers));
        match kept.key() {
            None => self.counters.left_out(LeftOut::TableFull),
            Some(key) if !carriers::put(headers, key) => self.counters.left_out(LeftOut::HeadFull),
            Some(_) => {}
        }
        kept
    }
}

/// Fills in what a request over HTTP/2 must have. What is there stays.
fn complete(request: &mut Request<Incoming>, to: SocketAddr) {
    *request.version_mut() = Version::HTTP_2;
    if request.uri().scheme().is_some() && request.uri().authority().is_some() {
        return;
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    let own = || to.to_string().parse::<Authority>().expect("a socket address is an authority");
    parts.authority = Some(parts.authority.unwrap_or_else(own));
    parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are all there");
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn until(reach: &Reach, to: SocketAddr, expected: bool) {
        let reached = async {
            while reach.is_reached() != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = reach.keep(to) => {}
            () = reached => {}
        }
    }

    #[tokio::test]
    async fn readiness_stays_until_the_new_target_was_checked() {
        let (before, after) =
            (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
        let (before, after) = (before.unwrap(), after.unwrap());
        let (was, is) = (before.local_addr().unwrap(), after.local_addr().unwrap());
        let reach = Reach::default();
        reach.needs(true);
        assert!(!reach.is_reached(), "not before the first check");
        until(&reach, was, true).await;
        let mut keep = Box::pin(reach.keep(is));
        poll_fn(|cx| Poll::Ready(keep.as_mut().poll(cx).is_pending())).await;
        assert!(reach.is_reached(), "the check has only begun");
        // A connection from before loses the service where it was.
        reach.lost(was);
        assert!(reach.is_reached());
        drop((keep, after));
        until(&reach, is, false).await;
        reach.needs(false);
        reach.needs(true);
        assert!(!reach.is_reached(), "another listener knows nothing of the one before");
    }
}
