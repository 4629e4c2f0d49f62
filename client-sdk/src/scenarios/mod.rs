//! The layers against scripted peers, on a paused clock and over real sockets.
//!
//! Shared helpers: a runtime under one policy, a request, a response read to its end, and the counted fates.

mod arriving;
mod bodies;
mod calls;
mod chain;
mod engine;
mod failures;
mod hedges;
pub(crate) mod held;
mod kills;
#[cfg(feature = "metrics")]
mod metrics;
mod operations;
mod options;
mod passing;
pub(crate) mod peer;
mod repeats;
mod reports;
mod spans;
mod strangers;
mod transport;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use damper_core::{Backoff, Ending, Jitter, Mode, Pattern, Policy, Retry, Rule, Table, Waits};
use http::{HeaderMap, Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::client::{ClientLayer, ClientService};
use crate::outcome::BoxError;
use crate::routes::Runtime;

pub(crate) const METHOD: &str = "/inventory.v1.Inventory/Reserve";

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Three attempts, 10 ms apart, without other limits.
pub(crate) fn enforce() -> Policy {
    Policy {
        retry: Some(Retry {
            backoff: Backoff::Always(Waits::Fixed { delay: ms(10), jitter: Jitter::None }),
            ..Retry::default()
        }),
        retry_breaker: None,
        ..Policy::new(Mode::Enforce)
    }
}

pub(crate) fn observe() -> Policy {
    Policy { mode: Mode::Observe, ..enforce() }
}

pub(crate) fn with_retry(change: impl FnOnce(&mut Retry)) -> Policy {
    let mut policy = enforce();
    change(policy.retry.as_mut().unwrap());
    policy
}

pub(crate) fn table(policy: Policy) -> Table {
    let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    Table::from_iter([Arc::new(Rule::new(pattern, policy, 1).unwrap())])
}

/// A runtime of the service `orders`; without a policy it has no rule.
pub(crate) fn engine(policy: impl Into<Option<Policy>>) -> Arc<Runtime> {
    let engine = Runtime::new("orders", "default");
    if let Some(policy) = policy.into() {
        engine.apply(table(policy));
    }
    engine
}

pub(crate) fn layer(engine: &Arc<Runtime>) -> ClientLayer {
    ClientLayer::new(Arc::clone(engine), engine.callee("inventory").unwrap())
}

pub(crate) fn governed<S: 'static>(engine: &Arc<Runtime>, inner: S) -> ClientService<S> {
    layer(engine).layer(inner)
}

/// A unary request as tonic builds it: one complete chunk, without an announced size.
pub(crate) fn request() -> Request<Body> {
    request_of(&["hello"])
}

pub(crate) fn request_of(chunks: &[&'static str]) -> Request<Body> {
    let chunks: Vec<_> = chunks.iter().map(|chunk| peer::data(chunk)).collect();
    Request::post(METHOD)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(peer::ScriptedBody::over(chunks)))
        .unwrap()
}

/// A response read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) trailers_only: bool,
    pub(crate) data: Vec<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) error: Option<BoxError>,
}

impl Answer {
    pub(crate) fn status(&self) -> &str {
        let trailers = self.trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
        trailers.or(self.headers.get("grpc-status")).unwrap().to_str().unwrap()
    }
}

pub(crate) async fn read<B>(response: Response<B>) -> Answer
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    let trailers_only = body.is_end_stream();
    let mut answer =
        Answer { headers: head.headers, trailers_only, data: Vec::new(), trailers: None, error: None };
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        match frame.map(|frame| frame.into_data().map_err(|frame| frame.into_trailers())) {
            Ok(Ok(data)) => answer.data.push(data),
            Ok(Err(trailers)) => answer.trailers = trailers.ok(),
            Err(error) => {
                answer.error = Some(error.into());
                break;
            }
        }
    }
    assert!(body.is_end_stream() || answer.error.is_some() || answer.trailers.is_some());
    answer
}

/// A call as an application makes it: readiness, call, response.
pub(crate) async fn call<S, B>(service: &mut S, request: Request<Body>) -> Result<Answer, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
    Ok(read(service.call(request).await.map_err(Into::into)?).await)
}

/// All counted endings by name. Each call has exactly one.
pub(crate) fn endings(engine: &Runtime) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    let mut calls = 0;
    engine.for_each_route(|_, _, route| {
        let counters = &route.state().counters;
        calls += counters.calls();
        all.extend(Ending::all().map(|ending| (ending.to_string(), counters.ended(ending))));
    });
    all.retain(|(_, count)| *count > 0);
    assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), calls, "{all:?}");
    all
}

#[track_caller]
pub(crate) fn ended(engine: &Runtime, expected: &[(&str, u64)]) {
    let endings = endings(engine);
    let endings: Vec<_> = endings.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(endings, expected);
}
