//! What the cases share: a rule in force in a real Damper, its client layer around a channel to a peer, and
//! what was counted.
//!
//! Only the public API is used, so that the engine inside may change as it likes.

use std::time::Duration;

use damper_core::{Code, Ending};
use damper_sdk::{BoxError, ClientService, Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::hop;
use damper_tests::peer::{Peer, framed};
use http::uri::PathAndQuery;
use http_body_util::{BodyExt as _, Full};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::ServiceExt as _;

/// A call that has not ended by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Three attempts, 10 ms apart.
pub(crate) const THREE: &str = "retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } }";

/// The channel that an application uses.
pub(crate) type Governed = ClientService<Channel>;

/// A service called `orders` that calls a peer called `stock`.
pub(crate) struct World {
    pub(crate) damper: Damper,
    pub(crate) channel: Governed,
    _control_plane: ControlPlane,
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sends {
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) resends: u64,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) headers: http::HeaderMap,
    pub(crate) trailers: Option<http::HeaderMap>,
}

impl World {
    /// Enforces these fields of a policy, without a retry breaker.
    pub(crate) async fn new(peer: &Peer, fields: &str) -> Self {
        Self::around(peer.channel(), fields).await
    }

    /// The same around any channel.
    pub(crate) async fn around(channel: Channel, fields: &str) -> Self {
        let policy = format!("{{ mode: enforce, retry_breaker: {{ enabled: false }}, {fields} }}");
        Self::under(channel, "stock", &policy).await
    }

    /// Under a policy for calls of this callee; those here go to `stock`.
    pub(crate) async fn under(channel: Channel, callee: &str, policy: &str) -> Self {
        let control_plane = ControlPlane::start().await;
        let rule = format!(
            "kind: Rule\n\
             key: {{ caller_service: orders, caller_cluster: '*', callee_service: {callee}, callee_method: test.Hop/Call }}\n\
             policy: {policy}\n"
        );
        control_plane.apply(&rule).await;
        let options = Options::new([control_plane.url()]).service("orders");
        let damper = Damper::connect(options).expect("good options");
        damper.ready(PATIENCE).await.expect("rules arrive");
        let channel = damper.client_layer("stock").expect("a good name").layer(channel);
        Self { damper, channel, _control_plane: control_plane }
    }

    /// A unary call as generated clients make it.
    pub(crate) async fn call(&self, message: &str) -> Result<Response<String>, Status> {
        self.send(Request::new(message.to_owned())).await
    }

    /// The same with metadata.
    pub(crate) async fn send(&self, request: Request<String>) -> Result<Response<String>, Status> {
        within("the call ends", hop::call(self.channel.clone(), request)).await
    }

    /// Tonic's own client, for streams and settings.
    pub(crate) async fn grpc(&self) -> Grpc<Governed> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.expect("the layer is always ready");
        grpc
    }

    /// Sends a request and reads the first message of its answer; the rest is still to come.
    pub(crate) async fn begin(&self) -> (String, Streaming<String>) {
        let codec = ProstCodec::<String, String>::default();
        let request = Request::new("one".to_owned());
        let answer = self.grpc().await.server_streaming(request, path(), codec).await;
        let mut messages: Streaming<String> = answer.expect("the answer begins").into_inner();
        let first = within("a message", messages.message()).await;
        (first.expect("no error").expect("a message"), messages)
    }

    /// A call without tonic's client, which reads more into an answer than the layer does.
    pub(crate) async fn bare(&self) -> Result<Bare, BoxError> {
        let request = http::Request::post(path().as_str()).header("content-type", "application/grpc");
        let body = tonic::body::Body::new(Full::new(framed("one")));
        let request = request.body(body).expect("a request");
        let answer = within("an answer", self.channel.clone().oneshot(request)).await?;
        let (head, body) = answer.into_parts();
        let body = within("the answer's end", body.collect()).await?;
        Ok(Bare { headers: head.headers, trailers: body.trailers().cloned() })
    }

    /// Every call had exactly one fate, and these were they, with their numbers.
    #[track_caller]
    pub(crate) fn ended(&self, expected: &[(&str, u64)]) {
        let fates = self.fates();
        let fates: Vec<_> = fates.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(fates, expected);
        assert_eq!(fates.iter().map(|(_, count)| count).sum::<u64>(), self.calls(), "one fate per call");
    }

    /// True if this many calls were made and each has ended.
    pub(crate) fn has_ended(&self, count: u64) -> bool {
        let fates: u64 = self.fates().iter().map(|(_, count)| count).sum();
        fates == count && self.calls() == count
    }

    /// How calls ended, by name.
    pub(crate) fn fates(&self) -> Vec<(String, u64)> {
        let mut fates = Vec::new();
        self.damper.for_each_route(|_, _, counters| {
            fates.extend(Ending::all().map(|ending| (ending.to_string(), counters.ended(ending))));
        });
        fates.retain(|(_, count)| *count > 0);
        fates
    }

    fn calls(&self) -> u64 {
        let mut calls = 0;
        self.damper.for_each_route(|_, _, counters| calls += counters.calls());
        calls
    }

    pub(crate) fn sends(&self) -> Sends {
        let mut sends = Sends { attempts: 0, retries: 0, resends: 0 };
        self.damper.for_each_route(|_, _, counters| {
            sends.attempts += counters.attempts();
            sends.retries += counters.retries();
            sends.resends += counters.transparent_resends();
        });
        sends
    }

    /// How many of the retries were sent beside an attempt that was still under way.
    pub(crate) fn hedges(&self) -> u64 {
        let mut hedges = 0;
        self.damper.for_each_route(|_, _, counters| hedges += counters.hedges());
        hedges
    }

    /// How many attempts ended with this code, as the engine counts them.
    pub(crate) fn attempts_ended_with(&self, code: tonic::Code) -> u64 {
        let code = u32::try_from(i32::from(code)).ok().and_then(Code::from_number).expect("a code");
        let mut count = 0;
        self.damper.for_each_route(|_, _, counters| count += counters.code(code));
        count
    }
}

/// The path of every call here.
pub(crate) fn path() -> PathAndQuery {
    PathAndQuery::from_static("/test.Hop/Call")
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: &str, waited: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, waited).await;
    waited.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}
