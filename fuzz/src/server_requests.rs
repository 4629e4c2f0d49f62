//! Whatever a request carries, and whatever its handler answers: the server layer around a handler that makes
//! calls of its own.
//!
//! Checked of every request:
//! - The handler runs once, inside a context that says no more time than the request, and no repeat where the
//!   layer stands at the border; or it does not run and the answer is the refusal.
//! - Status, headers, data and trailers are the handler's, but for the three fields of the no-more-retry flag, which stand
//!   all together, only on an error, only where a call in serving the request failed or
//!   one of its answers raised it.
//! - An answer that is nothing but headers stays one. Every request is counted once.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use damper_core::chain::{
    ENVOY_PREFIX, ENVOY_RATE_LIMITED, FATE, HOP_BY_HOP, NO_MORE_RETRY, PUSHBACK, Repeater,
};
use damper_core::{Table, deadline};
use damper_sdk::fuzzing::FuzzHarness;
use damper_sdk::{BoxError, ClientService, Context};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tonic::body::Body;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::application::{Manner, call};
use crate::peer::{CALL, Peer, Script, ScriptedBody};
use crate::{any, fields, play};

const METHOD: &str = "a.B/C";
/// Nobody reads more frames of one answer.
const MOST_FRAMES: usize = 500;
/// Longer than any pause of a body; then it stalls.
const PATIENCE: Duration = Duration::from_secs(60);

struct Case {
    table: Table,
    edge: bool,
    requests: Vec<Plan>,
}

struct Plan {
    is_grpc: bool,
    path: String,
    headers: HeaderMap,
    after: Duration,
    answer: Response<ScriptedBody>,
    /// The calls that the handler makes one after the other.
    calls: Vec<Script>,
}

/// Runs one case.
pub fn run(data: &[u8]) {
    if let Ok(case) = case(&mut Unstructured::new(data)) {
        play(case.play());
    }
}

fn case(u: &mut Unstructured<'_>) -> Result<Case> {
    let mut table = any::table(u, "stock", METHOD)?;
    for _ in 0..u.int_in_range(0..=2)? {
        table.insert_guard(Arc::new(any::guard(u, "orders")?));
    }
    let edge = u.ratio(1, 6)?;
    let count = u.int_in_range(1..=5)?;
    Ok(Case { table, edge, requests: (0..count).map(|_| plan(u)).collect::<Result<_>>()? })
}

fn plan(u: &mut Unstructured<'_>) -> Result<Plan> {
    let mut answer = Response::new(ScriptedBody::any(u)?);
    *answer.headers_mut() = fields::of_answer(u, 5)?;
    if u.ratio(1, 8)? {
        *answer.status_mut() = StatusCode::from_u16(u.int_in_range(100..=999)?).expect("three digits");
    }
    let calls = u.int_in_range(0..=2)?;
    let mut headers = fields::of_request(u, 6)?;
    // Only requests of gRPC are counted.
    let is_grpc = u.ratio(7, 8)?;
    let content_type = if is_grpc { "application/grpc" } else { "application/json" };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(Plan {
        is_grpc,
        path: u.choose(&["/a.B/C", "/a.B/D", "/", "/a/b/c"])?.to_string(),
        headers,
        after: Duration::from_micros(u.int_in_range(0..=3_000_000)?),
        answer,
        calls: (0..calls).map(|_| Script::any(u, 3)).collect::<Result<_>>()?,
    })
}

impl Case {
    async fn play(self) {
        let bench = FuzzHarness::new("orders").expect("the name is a constant");
        bench.apply(self.table);
        let layer = bench.server_layer();
        let layer = if self.edge { layer.edge() } else { layer };
        let to_stock = bench.client_layer("stock").expect("the name is a constant");
        let count = self.requests.iter().filter(|request| request.is_grpc).count() as u64;
        for Plan { path, headers, after, answer, calls, .. } in self.requests {
            tokio::time::sleep(after).await;
            let told = calls.iter().any(Script::raises_flag);
            let expected = Expected::of(&headers, &answer, told, self.edge);
            let stock: Vec<_> =
                calls.into_iter().map(|script| to_stock.layer(Peer::new(vec![script], true))).collect();
            let ran = Arc::default();
            let handler = Handler { stock, answer: Some(answer), ran: Arc::clone(&ran) };
            let mut request = Request::post(path).body(Body::empty()).expect("it is a request");
            *request.headers_mut() = headers;
            let response = layer.layer(handler).call(request).await.expect("the handler gives no error");
            let ran = std::mem::take(&mut *ran.lock().expect("nothing panics while it is held"));
            match ran {
                Some(ran) => expected.check(&ran, response).await,
                None => expected.check_refusal(&response),
            }
        }
        let mut arrived = 0;
        bench.for_each_served(|_, served| {
            arrived += served.first_sends();
            arrived += Repeater::ALL.into_iter().map(|by| served.repeats(by)).sum::<u64>();
        });
        assert_eq!(arrived, count, "every request of gRPC is counted once");
        assert_eq!(bench.kept_bytes(), 0);
    }
}

/// What the handler saw.
#[derive(Debug)]
struct Ran {
    is_retry: bool,
    time_left: Option<Duration>,
    /// One of its calls was left without an answer.
    failed: bool,
}

struct Handler {
    stock: Vec<ClientService<Peer>>,
    answer: Option<Response<ScriptedBody>>,
    ran: Arc<Mutex<Option<Ran>>>,
}

impl Service<Request<Body>> for Handler {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, BoxError>>>>;

    fn poll_ready(&mut self, _: &mut Task<'_>) -> Poll<std::result::Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let handed = request.extensions().get::<Context>().is_some();
        assert!(handed && Context::current().is_some(), "the handler has no context");
        let answer = self.answer.take().expect("the handler runs once");
        let (stock, ran) = (std::mem::take(&mut self.stock), Arc::clone(&self.ran));
        Box::pin(async move {
            let context = Context::current().expect("the handler runs inside its context");
            let (is_retry, time_left) = (context.is_retry(), context.time_left());
            let mut failed = false;
            for mut stock in stock {
                let inner = Request::post(format!("/{METHOD}")).header(CALL, 0).body(Body::empty());
                let saw = call(&mut stock, inner.expect("it is a request"), Manner::Patient, true).await;
                failed |= saw.status() != Some(b"0");
            }
            *ran.lock().expect("nothing panics while it is held") = Some(Ran { is_retry, time_left, failed });
            Ok(answer)
        })
    }
}

/// What becomes of a request.
struct Expected {
    edge: bool,
    envoy: bool,
    timeout: Option<Duration>,
    /// An answer to one of the handler's calls raises the flag.
    told: bool,
    status: StatusCode,
    headers: HeaderMap,
    data: Vec<u8>,
    trailers: Vec<HeaderMap>,
    ends_at_once: bool,
    may_hang: bool,
}

impl Expected {
    fn of(request: &HeaderMap, answer: &Response<ScriptedBody>, told: bool, edge: bool) -> Self {
        let (data, trailers) = answer.body().contents();
        Self {
            edge,
            told,
            data,
            trailers,
            envoy: request.keys().any(|name| name.as_str().starts_with(ENVOY_PREFIX)),
            timeout: request.get(deadline::HEADER).and_then(|value| deadline::parse(value.as_bytes())),
            status: answer.status(),
            headers: answer.headers().clone(),
            ends_at_once: answer.body().is_end_stream(),
            may_hang: answer.body().may_hang(),
        }
    }

    async fn check<B>(&self, ran: &Ran, response: Response<B>)
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        assert!(!self.edge || !ran.is_retry, "a mark passed the border");
        assert_eq!(ran.time_left.is_some(), self.timeout.is_some());
        assert!(ran.time_left <= self.timeout, "more time than the caller gave");
        let (head, body) = response.into_parts();
        assert_eq!(head.status, self.status);
        self.check_fields(ran, &self.headers, &head.headers);
        assert_eq!(body.is_end_stream(), self.ends_at_once, "headers alone");
        let mut body = std::pin::pin!(body);
        let (mut data, mut trailers) = (Vec::new(), Vec::new());
        for _ in 0..MOST_FRAMES {
            let Ok(Some(Ok(frame))) = timeout(PATIENCE, body.frame()).await else { break };
            match frame.into_data() {
                Ok(some) => data.extend_from_slice(&some),
                Err(frame) => trailers.push(frame.into_trailers().expect("there is no other kind")),
            }
        }
        assert_eq!(self.trailers.len(), trailers.len());
        for (given, sent) in self.trailers.iter().zip(&trailers) {
            self.check_fields(ran, given, sent);
        }
        assert!(data.starts_with(&self.data), "the handler's data");
        assert!(self.may_hang || data.len() == self.data.len());
    }

    fn check_fields(&self, ran: &Ran, given: &HeaderMap, sent: &HeaderMap) {
        let all = |fields: &HeaderMap| fields::without(fields, &[FATE]);
        if all(given) == all(sent) {
            return;
        }
        let hops = [&HOP_BY_HOP[..], &[FATE]].concat();
        assert_eq!(fields::without(given, &hops), fields::without(sent, &hops));
        let status = given.get("grpc-status").map(|status| status.as_bytes());
        assert!(status.is_some_and(|status| status != b"0"), "the flag on a success");
        assert!(ran.failed || self.told, "the flag without a reason");
        self.check_flag(given, sent);
    }

    fn check_flag(&self, given: &HeaderMap, sent: &HeaderMap) {
        let values = |name: &str| sent.get_all(name).iter().map(|value| value.as_bytes()).collect::<Vec<_>>();
        assert_eq!(values(NO_MORE_RETRY), [b"1"]);
        assert_eq!(values(PUSHBACK), [b"-1"]);
        let limited = values(ENVOY_RATE_LIMITED);
        let kept: Vec<_> = given.get_all(ENVOY_RATE_LIMITED).iter().map(|value| value.as_bytes()).collect();
        assert_eq!(limited, if self.envoy { vec![&b"true"[..]] } else { kept });
    }

    fn check_refusal<B: http_body::Body>(&self, response: &Response<B>) {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().get("grpc-status").map(|status| status.as_bytes()), Some(&b"14"[..]));
        assert!(response.body().is_end_stream(), "a refusal is nothing but headers");
        self.check_flag(&HeaderMap::new(), response.headers());
    }
}
