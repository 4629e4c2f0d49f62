//! The layers that let requests through: around the API, and around the metrics on the same port.
//!
//! The one around the API stands within the translation of gRPC-Web, so that a refusal reaches a browser in its form,
//! and the end of a stream too. Whoever comes through has its `Caller` in the request's extensions.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use http::Response;

use super::caller::Caller;
use super::denied::Denied;
use super::ending::{Way, until_over};
use super::identify;
use super::methods::{self, Method, Need};
use super::role::Role;
use crate::connection::Peer;
use crate::shared::Shared;

/// Around the API.
pub(crate) async fn api(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response<Body> {
    let method = methods::of_path(request.uri().path());
    match admitted(&shared, request, method.need) {
        Ok((request, caller)) => carried_out(&shared, request, &caller, method, next).await,
        Err(denied) => denied.grpc(),
    }
}

/// Around the metrics where they are on the API's port.
pub(crate) async fn metrics(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match admitted(&shared, request, Need::Role(Role::Viewer)) {
        Ok((request, _)) => next.run(request).await,
        Err(denied) => denied.plain(),
    }
}

/// The request with who asks, where they may.
fn admitted(shared: &Shared, request: Request, need: Need) -> Result<(Request, Caller), Denied> {
    let (mut parts, body) = request.into_parts();
    let found = match need {
        // Health answers whatever is shown with it.
        Need::Nothing => Ok(Caller::Nobody),
        _ => identify::caller(&shared.access, &parts, &shared.table(), SystemTime::now()),
    };
    let permitted = found.and_then(|caller| caller.permit(need).map(|()| caller));
    let caller = permitted.inspect_err(|denied| {
        shared.metrics.denied(denied.reason());
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.address.to_string()).unwrap_or_default();
        tracing::info!(peer, path = parts.uri.path(), reason = denied.reason(), %denied, "a request was denied");
    })?;
    parts.extensions.insert(caller.clone());
    Ok((Request::from_parts(parts, body), caller))
}

async fn carried_out(
    shared: &Shared,
    request: Request,
    caller: &Caller,
    method: Method,
    next: Next,
) -> Response<Body> {
    let peer = request.extensions().get::<Peer>().cloned();
    let until_over =
        |body: Body, way: Way| until_over(body, way, &shared.access.lives, caller, peer.as_ref());
    let request = match method.long_request {
        true => request.map(|body| until_over(body, Way::Request)),
        false => request,
    };
    let answer = next.run(request).await;
    match method.long_answer {
        true => answer.map(|body| until_over(body, Way::Answer)),
        false => answer,
    }
}
