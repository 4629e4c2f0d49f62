//! Authentication layers: around the API, and around the metrics on the same port.
//!
//! The API's layer is inside the gRPC-Web translation, so browsers get rejections and stream ends in their
//! form. It puts the `Caller` into the request's extensions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use http::Response;

use crate::auth::AuthContext;
use crate::auth::caller::Caller;
use crate::auth::expiry::{BodyDirection, until_over};
use crate::auth::identify;
use crate::auth::limits;
use crate::auth::methods;
use crate::auth::methods::{AccessLevel, MethodPolicy};
use crate::state::error::denied::AccessDenied;
use crate::state::tokens::role::Role;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::{Line, shortened};

/// Method of clients.
const SUBSCRIBE: &str = "/damper.v1.Distribution/Subscribe";
const FOLLOW: &str = "/damper.v1.Replicas/Follow";
/// Time after a start within which peers may not have the same cluster key yet.
const KEYS_WITHIN: Duration = Duration::from_secs(10);

/// Layer around the API.
pub(crate) async fn api(
    State(auth): State<Arc<AuthContext>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let method = methods::of_path(request.uri().path());
    let peer = request.extensions().get::<ConnectionInfo>().cloned();
    match admitted(&auth, request, method.need) {
        Ok((request, caller)) => carried_out(&auth, request, &caller, method, next).await,
        // A denied request does not reach the limits behind this layer, so they are applied here.
        Err((denied, caller)) => limits::admit(&auth.limiter, peer.as_ref(), &caller, method)
            .map_or_else(|over| limits::refused(&auth.limiter, over), |()| denied.grpc()),
    }
}

/// Layer around the metrics on the API's port.
pub(crate) async fn metrics(
    State(auth): State<Arc<AuthContext>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match admitted(&auth, request, AccessLevel::Role(Role::Viewer)) {
        Ok((request, _)) => next.run(request).await,
        Err((denied, _)) => denied.plain(),
    }
}

/// Returns the request with its caller, or the denial and the caller as far as known.
fn admitted(
    auth: &AuthContext,
    request: Request,
    need: AccessLevel,
) -> Result<(Request, Caller), (AccessDenied, Caller)> {
    let (mut parts, body) = request.into_parts();
    let found = match need {
        // Health ignores credentials.
        AccessLevel::Nothing => Ok(Caller::Unauthenticated),
        _ => identify::caller(&auth.access, &parts, &auth.state.table(), SystemTime::now()),
    };
    let permitted = match found {
        Ok(caller) => caller.permit(need).map(|()| caller.clone()).map_err(|denied| (denied, caller)),
        Err(denied) => Err((denied, Caller::Unauthenticated)),
    };
    let caller = permitted.inspect_err(|(denied, caller)| {
        auth.metrics.denied(denied.reason());
        let peer = parts.extensions.get::<ConnectionInfo>();
        if parts.uri.path() == SUBSCRIBE {
            auth.access.rejected.note(&auth.limiter, peer, caller, "", denied);
            return;
        }
        let peer = peer.map(|peer| peer.address.to_string()).unwrap_or_default();
        let is_early = auth.started_at.elapsed().is_ok_and(|since| since < KEYS_WITHIN);
        if is_early && parts.uri.path() == FOLLOW {
            tracing::debug!(peer, %denied, "request of a peer denied; it has no key yet");
            return;
        }
        if let Some(left_out) = auth.limiter.line(Line::Denied) {
            let path = shortened(parts.uri.path());
            tracing::info!(peer, path, reason = denied.reason(), %denied, left_out, "request denied");
        }
    })?;
    parts.extensions.insert(caller.clone());
    Ok((Request::from_parts(parts, body), caller))
}

async fn carried_out(
    auth: &AuthContext,
    request: Request,
    caller: &Caller,
    method: MethodPolicy,
    next: Next,
) -> Response<Body> {
    let peer = request.extensions().get::<ConnectionInfo>().cloned();
    let until_over =
        |body: Body, way: BodyDirection| until_over(body, way, &auth.access.lives, caller, peer.as_ref());
    let request = match method.long_request {
        true => request.map(|body| until_over(body, BodyDirection::Request)),
        false => request,
    };
    let answer = next.run(request).await;
    match method.long_answer {
        true => answer.map(|body| until_over(body, BodyDirection::Answer)),
        false => answer,
    }
}
