//! The admin port: `/livez`, `/readyz`, `/metrics`, and `/drain` for the service's preStop.
//!
//! A proxy is ready once a source of rules is chosen, which takes two seconds at most, and, with an inbound
//! listener, once the service was reached. It depends on neither the control plane nor callees, whose
//! failures would take all instances out at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use damper_sdk::{Damper, Source};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::counters::Counters;
use crate::inbound::Reach;
use crate::listen::{self, Drain};

/// Time for rules of the control plane or the state file.
const RULES_WITHIN: Duration = Duration::from_secs(2);
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// Returns the metrics of the SDK, in the text format of Prometheus.
pub(crate) type MoreMetrics = Arc<dyn Fn() -> String + Send + Sync>;

pub(crate) struct Admin {
    pub(crate) damper: Damper,
    pub(crate) counters: Arc<Counters>,
    /// `None` without an inbound listener.
    pub(crate) reach: Option<Arc<Reach>>,
    /// Begins the drain of inbound connections.
    pub(crate) inbound: CancellationToken,
    pub(crate) began: Instant,
    pub(crate) more: Option<MoreMetrics>,
}

impl Admin {
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener, drain: Drain) {
        listen::accept(listener, drain, |stream| Arc::clone(&self).serve(stream)).await;
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.answer(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(response) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).keep_alive(false);
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(target: "damper", %error, "connection to the admin port ended");
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        match (method.as_str(), path) {
            ("GET", "/livez") => text(StatusCode::OK, "alive\n".to_owned()),
            ("GET", "/readyz") => match self.problem() {
                None => text(StatusCode::OK, "ready\n".to_owned()),
                Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
            },
            ("GET", "/metrics") => {
                let more = self.more.as_ref().map(|more| more()).unwrap_or_default();
                let mut response = text(StatusCode::OK, self.counters.text() + &more);
                let format = HeaderValue::from_static("text/plain; version=0.0.4");
                response.headers_mut().insert(CONTENT_TYPE, format);
                response
            }
            ("POST", "/drain") => {
                self.inbound.cancel();
                text(StatusCode::OK, "draining\n".to_owned())
            }
            (_, "/livez" | "/readyz" | "/metrics" | "/drain") => {
                text(StatusCode::METHOD_NOT_ALLOWED, "wrong method\n".to_owned())
            }
            _ => text(StatusCode::NOT_FOUND, "not found\n".to_owned()),
        }
    }

    /// Returns why the proxy is not ready.
    fn problem(&self) -> Option<&'static str> {
        if self.inbound.is_cancelled() {
            return Some("draining");
        }
        if self.damper.status().source == Source::BuiltIn && self.began.elapsed() < RULES_WITHIN {
            return Some("no rules yet");
        }
        let is_reached = self.reach.as_ref().is_none_or(|reach| reach.is_reached());
        (!is_reached).then_some("the service is not reached")
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}
