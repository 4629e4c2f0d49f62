//! The admin port: `/livez`, `/readyz`, `/metrics`, and `/drain` for the service's preStop.
//!
//! Its owner decides about readiness. A proxy is ready once a source of rules is chosen, which takes two
//! seconds at most, and, with an inbound listener, once the service was reached. It depends on neither the
//! control plane nor callees, whose failures would take all instances out at once.

use std::convert::Infallible;
use std::fmt;
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

use crate::inbound::Reach;
use crate::listen::{self, Drain};

/// Time for rules of the control plane or the state file.
const RULES_WITHIN: Duration = Duration::from_secs(2);
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// Returns metrics in the text format of Prometheus.
pub(crate) type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The admin port of a process: `/livez`, `/readyz`, `/metrics`.
#[derive(Clone)]
pub struct Admin {
    problem: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// What `/readyz` adds although the process is ready.
    note: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    metrics: Metrics,
    /// What `/drain` cancels; `None`: there is no such path.
    drain: Option<CancellationToken>,
}

/// Readiness of a proxy.
pub(crate) struct Readiness {
    pub(crate) damper: Damper,
    pub(crate) reach: Arc<Reach>,
    /// Begins the drain of inbound connections.
    pub(crate) inbound: CancellationToken,
    pub(crate) began: Instant,
}

impl Admin {
    /// Returns a port without a listener. `problem` returns why the process is not ready; `metrics` returns
    /// its metrics in the text format of Prometheus.
    pub fn new(
        problem: impl Fn() -> Option<String> + Send + Sync + 'static,
        metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self { problem: Arc::new(problem), note: Arc::new(|| None), metrics: Arc::new(metrics), drain: None }
    }

    /// Adds `/drain`, which cancels this token.
    pub(crate) fn draining(self, token: CancellationToken) -> Self {
        Self { drain: Some(token), ..self }
    }

    /// Adds to `/readyz` why the newest configuration is not in force. That is no reason to be not ready: the
    /// former one serves, and a fault in a file that all instances have would take all of them out.
    pub(crate) fn noting(self, note: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { note: Arc::new(note), ..self }
    }

    /// Serves without an end. The listener closes when the future is dropped.
    pub async fn serve(self, listener: TcpListener) {
        self.run(listener, Drain::default()).await;
    }

    pub(crate) async fn run(self, listener: TcpListener, drain: Drain) {
        listen::accept(listener, drain, |stream| self.clone().converse(stream)).await;
    }

    async fn converse(self, stream: TcpStream) {
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
            ("GET", "/readyz") => match (self.problem)() {
                None => {
                    let note = (self.note)().map(|note| format!("configuration rejected: {note}\n"));
                    text(StatusCode::OK, "ready\n".to_owned() + &note.unwrap_or_default())
                }
                Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
            },
            ("GET", "/metrics") => {
                let mut response = text(StatusCode::OK, (self.metrics)());
                let format = HeaderValue::from_static("text/plain; version=0.0.4");
                response.headers_mut().insert(CONTENT_TYPE, format);
                response
            }
            (method, "/drain") => match (&self.drain, method) {
                (Some(drain), "POST") => {
                    drain.cancel();
                    text(StatusCode::OK, "draining\n".to_owned())
                }
                (Some(_), _) => wrong_method(),
                (None, _) => not_found(),
            },
            (_, "/livez" | "/readyz" | "/metrics") => wrong_method(),
            _ => not_found(),
        }
    }
}

impl Readiness {
    /// Returns why the proxy is not ready.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        if self.inbound.is_cancelled() {
            return Some("draining");
        }
        if self.damper.status().source == Source::BuiltIn && self.began.elapsed() < RULES_WITHIN {
            return Some("no rules yet");
        }
        (!self.reach.is_reached()).then_some("the service is not reached")
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("drain", &self.drain).finish_non_exhaustive()
    }
}

fn wrong_method() -> Response<Full<Bytes>> {
    text(StatusCode::METHOD_NOT_ALLOWED, "wrong method\n".to_owned())
}

fn not_found() -> Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, "not found\n".to_owned())
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}
