//! Calls of the service: through the client layer, with the context of their request, to the callee.
//!
//! The key of the request is taken off each call. What is not gRPC goes to the callee without the client
//! layer: it is forwarded and never repeated. The bodies of calls are bytes here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use damper_sdk::balance::{BalancedBody, Targets};
use damper_sdk::{Balanced, BoxError, CallOptions, ClientService, Context, Damper, Faults, balanced};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tower::util::MapResponse;
use tower::{Service as _, ServiceExt as _};

use crate::config::{Callee, Tls};
use crate::context::{Contexts, Ids, OfId, carriers};
use crate::counters::{By, Counters};
use crate::failure::{self, Reset};
use crate::fields::{self, BoxedBody, Edit as _, Edited, KeepStop, LeavePushback};
use crate::listen::STREAM_WINDOW;
use crate::request_body::RequestBody;

static RETRY: HeaderName = HeaderName::from_static("damper-retry");
static PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

type Kept = Edited<BalancedBody, KeepStop>;
type Channel = MapResponse<Balanced, fn(Response<BalancedBody>) -> Response<Kept>>;
type Stopped = Box<dyn FnMut() + Send>;

/// The calls to one callee.
#[derive(Clone)]
pub(crate) struct Outbound {
    governed: ClientService<Channel>,
    plain: Balanced,
    external: bool,
    contexts: Arc<Contexts>,
    counters: Arc<Counters>,
}

/// The request of a call.
struct Origin {
    context: Option<Context>,
    /// Set once the service was asked not to repeat a call of the request.
    was_stopped: Option<Arc<AtomicBool>>,
}

impl Outbound {
    /// Returns the calls to a callee, in the current runtime. `listen`: where the service makes them.
    ///
    /// # Errors
    /// The problems of name and endpoints.
    pub(crate) fn new(
        callee: &Callee,
        listen: Option<SocketAddr>,
        damper: &Damper,
        contexts: &Arc<Contexts>,
        counters: &Arc<Counters>,
    ) -> Result<Self, Faults> {
        let layer = damper.client_layer(&callee.name)?;
        let layer = if callee.external { layer.external() } else { layer };
        let targets = targets(callee);
        let plain = balanced(match listen {
            Some(listen) => targets.never_at(listen),
            None => targets,
        })?;
        // Only a channel that is wrapped directly has its endpoints reported.
        drop(layer.layer(plain.clone()));
        let keep_stop: fn(_) -> _ = if callee.external { obey_none } else { obey };
        let governed = layer.layer(plain.clone().map_response(keep_stop));
        let (contexts, counters) = (Arc::clone(contexts), Arc::clone(counters));
        Ok(Self { governed, plain, external: callee.external, contexts, counters })
    }

    /// Sends a call.
    pub(crate) async fn call(self, mut request: Request<Incoming>) -> Result<Response<BoxedBody>, Reset> {
        request.extensions_mut().clear();
        drop_meaningless_authority(&mut request);
        if !fields::is_grpc(&request) {
            carriers::take(request.headers_mut());
            let mut plain = self.plain;
            return match plain.call(request.map(whole)).await {
                Ok(response) => Ok(fields::answer(response, KeepStop { external: true })),
                Err(error) => Ok(failure::response(error, false)?.map(|()| fields::no_body())),
            };
        }
        let origin = self.origin(request.headers_mut());
        let mut request = request.map(whole);
        self.note_own_repeat(&mut request, origin.context.as_ref());
        if let Some(context) = origin.context {
            request.extensions_mut().insert(context);
        }
        let edit = LeavePushback(note(origin.was_stopped));
        let mut governed = self.governed;
        match governed.call(request).await {
            Ok(response) => Ok(fields::answer(response, edit)),
            Err(error) => failed(error, edit),
        }
    }

    /// Finds the request that a call is made for, and takes its key off the call.
    fn origin(&self, headers: &mut HeaderMap) -> Origin {
        let keys = carriers::take(headers);
        let found = |key: Option<u64>, by: By| Some((self.contexts.find(key?)?, by));
        let by_key =
            found(keys.in_trace_state, By::TraceState).or_else(|| found(keys.in_baggage, By::Baggage));
        if let Some((request, by)) = by_key {
            self.counters.context(by);
            return Origin { context: Some(request.context), was_stopped: Some(request.was_stopped) };
        }
        let (context, by) = match Context::of_flag(headers) {
            Some(context) => (Some(context), By::Header),
            None => self.of_trace(headers),
        };
        self.counters.context(by);
        Origin { context, was_stopped: None }
    }

    /// Returns the flag of the request that has the call's trace. A first attempt needs no context: of a
    /// trace alone, neither its deadline nor its end is known.
    fn of_trace(&self, headers: &HeaderMap) -> (Option<Context>, By) {
        let (is_retry, by) = match self.contexts.of_ids(&Ids::of(headers)) {
            OfId::One { is_retry } => (is_retry, By::Id),
            OfId::Several { is_retry } => (is_retry, By::Ambiguous),
            OfId::Unknown => (false, By::None),
        };
        (is_retry.then(Context::of_retry), by)
    }

    /// A call that the service's own gRPC client has repeated is sent once, and is a retry for the callee.
    fn note_own_repeat(&self, request: &mut Request<Body>, context: Option<&Context>) {
        let previous = request.headers().get(&PREVIOUS_ATTEMPTS).cloned();
        let attempts = previous.as_ref().and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let (Some(previous), Some(1..)) = (previous, attempts) else { return };
        self.counters.own_client_repeat();
        request.extensions_mut().insert(CallOptions::new().repeated_by_caller());
        let has_flag = context.is_some_and(Context::is_retry) || request.headers().contains_key(&RETRY);
        if !has_flag && !self.external {
            request.headers_mut().insert(&RETRY, previous);
        }
    }
}

/// Returns the response to a call that failed without one.
fn failed(error: BoxError, mut edit: LeavePushback<Stopped>) -> Result<Response<BoxedBody>, Reset> {
    let mut response = failure::response(error, true)?;
    edit.edit(response.headers_mut());
    Ok(response.map(|()| fields::no_body()))
}

fn whole(body: Incoming) -> Body {
    Body::new(RequestBody::new(body))
}

fn note(stopped: Option<Arc<AtomicBool>>) -> Stopped {
    Box::new(move || {
        if let Some(stopped) = &stopped {
            stopped.store(true, Ordering::Relaxed);
        }
    })
}

fn obey(response: Response<BalancedBody>) -> Response<Kept> {
    fields::edited(response, KeepStop { external: false })
}

fn obey_none(response: Response<BalancedBody>) -> Response<Kept> {
    fields::edited(response, KeepStop { external: true })
}

fn targets(callee: &Callee) -> Targets {
    let scheme = if callee.tls.is_some() { "https" } else { "http" };
    let targets = Targets::new(format!("{scheme}://{}", callee.to));
    let mut targets = targets.keep_authority().stream_window(STREAM_WINDOW);
    let Some(Tls { ca_file, cert_file, key_file, server_name }) = callee.tls.clone() else {
        return targets;
    };
    if let Some(file) = ca_file {
        targets = targets.ca_file(file);
    }
    if let Some((certificate, key)) = cert_file.zip(key_file) {
        targets = targets.certificate(certificate, key);
    }
    match server_name {
        Some(name) => targets.server_name(name),
        None => targets,
    }
}

/// Removes an authority that is only an address of this machine: the channel fills in the callee's.
fn drop_meaningless_authority(request: &mut Request<Incoming>) {
    let is_meaningless = request.uri().host().is_none_or(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok()
    });
    if is_meaningless {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
    }
}
