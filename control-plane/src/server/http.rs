//! Serves the web UI, health and metrics, and corrects two status codes of gRPC.
//!
//! gRPC-Web wraps the API alone; the web UI is the fallback behind it. A gRPC call to an unknown service
//! still gets a gRPC answer. tonic reports a message over the limit as OUT_OF_RANGE, which this API never
//! uses: it becomes RESOURCE_EXHAUSTED.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};

use tokio_util::sync::CancellationToken;

use crate::auth::AuthContext;
use crate::auth::layer;
use crate::telemetry;
use crate::telemetry::Telemetry;
use damper_net::limits::Limit;
use damper_net::limits::TRAILER;

const POLICY: &str = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'; \
                      form-action 'self'";
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const INDEX: &str = "index.html";

/// Routes of health and metrics. With `viewers` the metrics require the role viewer.
pub(crate) fn operations(
    telemetry: Arc<Telemetry>,
    stopping: CancellationToken,
    viewers: Option<Arc<AuthContext>>,
) -> Router {
    let metrics = get(metrics).with_state(telemetry);
    let metrics = match viewers {
        None => metrics,
        Some(auth) => metrics.layer(from_fn_with_state(auth, layer::metrics)),
    };
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readiness).with_state(stopping))
        .route("/metrics", metrics)
}

async fn readiness(State(stopping): State<CancellationToken>) -> (StatusCode, &'static str) {
    match stopping.is_cancelled() {
        false => (StatusCode::OK, "ok\n"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
    }
}

async fn metrics(State(telemetry): State<Arc<Telemetry>>) -> Result<impl IntoResponse, StatusCode> {
    let text = telemetry::text(&telemetry).await.ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// Serves the web UI for every other path.
pub(crate) async fn page(request: Request<Body>) -> Response<Body> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("unknown service").into_http();
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    let path = request.uri().path().trim_start_matches('/');
    // The web UI has its own paths; a path with a file name must exist.
    let names_file = path.rsplit('/').next().is_some_and(|last| last.contains('.'));
    let file = match damper_web_ui::file(path) {
        None if !names_file => damper_web_ui::file(INDEX),
        found => found,
    };
    match file {
        Some(file) => answer(file, &request),
        None => plain(StatusCode::NOT_FOUND, "not found\n"),
    }
}

fn answer(file: damper_web_ui::File, request: &Request<Body>) -> Response<Body> {
    let opaque = |tag: &str| tag.trim_start_matches("W/") == file.etag.trim_start_matches("W/");
    let is_known = listed(request, header::IF_NONE_MATCH).any(|tag| tag == "*" || opaque(tag));
    let packed = file.gzip.filter(|_| takes_gzip(request));
    let (status, body) = match is_known {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false if request.method() == Method::HEAD => (StatusCode::OK, Body::empty()),
        false => (StatusCode::OK, Body::from(packed.unwrap_or(file.bytes))),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if packed.is_some() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    headers.insert(header::ETAG, HeaderValue::from_static(file.etag));
    let caching = if file.immutable { IMMUTABLE } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    guard(headers);
    response
}

/// The items of a list header, over all its lines.
fn listed(request: &Request<Body>, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let lines = request.headers().get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// True if the answer may be compressed (RFC 9110, 12.5.3): a weight of 0 forbids it, others are equal.
fn takes_gzip(request: &Request<Body>) -> bool {
    listed(request, header::ACCEPT_ENCODING).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let nought =
            weight.split_once('=').is_some_and(|(_, q)| q.trim().trim_matches(['0', '.']).is_empty());
        name.trim().eq_ignore_ascii_case("gzip") && !nought
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    guard(response.headers_mut());
    response
}

/// Adds security headers.
fn guard(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

/// Corrects the code for a message that exceeds the limit or is malformed. Such an answer has no details;
/// others with the first code have some, and no service returns the second.
pub(crate) fn correct_code(mut response: Response<Body>) -> Response<Body> {
    const OUT_OF_RANGE: &[u8] = b"11";
    const INTERNAL: &[u8] = b"13";
    if response.headers().contains_key("grpc-status-details-bin") {
        return response;
    }
    let headers = response.headers_mut();
    let status = headers.get("grpc-status").map(HeaderValue::as_bytes);
    if status == Some(OUT_OF_RANGE) {
        headers.insert("grpc-status", HeaderValue::from_static("8"));
        headers.insert(TRAILER, HeaderValue::from_static(Limit::MessageBytes.name()));
    } else if status == Some(INTERNAL) {
        headers.insert("grpc-status", HeaderValue::from_static("3"));
    }
    response
}
