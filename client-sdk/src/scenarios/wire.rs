//! Real sockets: tonic's server and channel with the layers, and a plain tonic client.
//!
//! Servers respond as applications do; transport failures are in `transport.rs`.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;

use tokio::net::TcpListener;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::ServerLayer;

type Answering = Pin<Box<dyn Future<Output = Result<tonic::Response<String>, Status>> + Send>>;
type Handler = Arc<dyn Fn(tonic::Request<String>) -> Answering + Send + Sync>;

/// A service of one unary method.
#[derive(Clone)]
struct Inventory(Handler);

impl NamedService for Inventory {
    const NAME: &'static str = "inventory.v1.Inventory";
}

impl Service<Request<Body>> for Inventory {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = Method(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<String, String>::default());
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method(Handler);

impl UnaryService<String> for Method {
    type Response = String;
    type Future = Answering;

    fn call(&mut self, request: tonic::Request<String>) -> Answering {
        (self.0)(request)
    }
}

/// Requests as a service received them.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<tonic::metadata::MetadataMap>>>);

impl Log {
    fn note(&self, request: &tonic::Request<String>) {
        self.0.lock().unwrap().push(request.metadata().clone());
    }

    fn flags(&self) -> Vec<Option<String>> {
        let flag =
            |map: &tonic::metadata::MetadataMap| Some(map.get("damper-retry")?.to_str().unwrap().to_owned());
        self.0.lock().unwrap().iter().map(flag).collect()
    }
}

fn no_flags(count: usize) -> Vec<Option<String>> {
    vec![None; count]
}

/// Serves until the test's runtime ends.
async fn serve(layer: ServerLayer, handler: Handler) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(Inventory(handler));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    connect(address)
}

pub(super) fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

fn handler<F, R>(f: F) -> Handler
where
    F: Fn(tonic::Request<String>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<tonic::Response<String>, Status>> + Send + 'static,
{
    Arc::new(move |request| Box::pin(f(request)))
}

/// A handler that records its request and always responds with this error.
fn failing(log: &Log, status: Status) -> Handler {
    let log = log.clone();
    handler(move |request| {
        log.note(&request);
        let status = status.clone();
        async move { Err(status) }
    })
}

/// A handler that forwards its request and returns the result with `?`.
fn relaying<S>(log: &Log, client: S) -> Handler
where
    S: Caller + Clone + Send + Sync + 'static,
{
    let log = log.clone();
    handler(move |request| {
        log.note(&request);
        let client = client.clone();
        async move {
            let answer = client.reserve(request.into_inner()).await?;
            Ok(answer)
        }
    })
}

/// Makes the unary call with tonic's own client.
pub(super) trait Caller {
    fn reserve(self, message: String)
    -> impl Future<Output = Result<tonic::Response<String>, Status>> + Send;
}

impl<S> Caller for S
where
    S: tonic::client::GrpcService<Body> + Send,
    S::Future: Send,
    S::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    async fn reserve(self, message: String) -> Result<tonic::Response<String>, Status> {
        let mut grpc = tonic::client::Grpc::new(self);
        let error: Result<(), BoxError> = grpc.ready().await.map_err(Into::into);
        error.map_err(Status::from_error)?;
        let path = http::uri::PathAndQuery::from_static(METHOD);
        let codec = ProstCodec::<String, String>::default();
        grpc.unary(tonic::Request::new(message), path, codec).await
    }
}

fn server(engine: &Arc<Runtime>) -> ServerLayer {
    ServerLayer::new(Arc::clone(engine))
}

/// An error as an application creates it.
fn out_of_stock() -> Status {
    let mut metadata = tonic::metadata::MetadataMap::new();
    metadata.append("x-shelf", "a".parse().unwrap());
    metadata.append("x-shelf", "b".parse().unwrap());
    metadata.append_bin("x-trace-bin", tonic::metadata::BinaryMetadataValue::from_bytes(&[0, 255]));
    Status::with_details_and_metadata(Code::Unavailable, "röd", Bytes::from_static(&[1, 2, 3]), metadata)
}

fn assert_same(got: &Status, sent: &Status) {
    assert_eq!((got.code(), got.message(), got.details()), (sent.code(), sent.message(), sent.details()));
    let got = got.metadata();
    assert_eq!(got.get_all("x-shelf").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(got.get_bin("x-trace-bin"), sent.metadata().get_bin("x-trace-bin"));
    for gone in damper_core::chain::HOP_BY_HOP {
        assert!(!got.contains_key(gone), "{gone}");
    }
}

#[tokio::test]
async fn a_call_over_http2_is_retried_and_answered() {
    let (ours, theirs, log) = (engine(enforce()), engine(None), Log::default());
    let seen = log.clone();
    let channel = serve(
        server(&theirs),
        handler(move |request| {
            seen.note(&request);
            let failed = seen.flags().len() < 3;
            async move {
                if failed {
                    Err(out_of_stock())
                } else {
                    Ok(tonic::Response::new(request.into_inner() + "!"))
                }
            }
        }),
    )
    .await;
    let answer = governed(&ours, channel).reserve("one".to_owned()).await.unwrap();
    assert_eq!(answer.get_ref(), "one!");
    assert_eq!(log.flags(), [None, Some("1".to_owned()), Some("2".to_owned())]);
    ended(&ours, &[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn two_hops_retry_once_together_and_the_flag_climbs_to_the_top() {
    let (top, middle, bottom) = (engine(enforce()), engine(enforce()), engine(None));
    let (middle_log, bottom_log) = (Log::default(), Log::default());
    let below = serve(server(&bottom), failing(&bottom_log, out_of_stock())).await;
    let channel = serve(server(&middle), relaying(&middle_log, governed(&middle, below))).await;

    let context = crate::Context::new(None, None, top.clock());
    let error =
        context.clone().scope(governed(&top, channel.clone()).reserve("x".to_owned())).await.unwrap_err();
    assert_eq!(bottom_log.flags(), [None, Some("1".to_owned()), Some("2".to_owned())]);
    assert_eq!(middle_log.flags(), no_flags(1));
    assert_same(&error, &out_of_stock());
    assert!(context.chain().no_more_retry(damper_core::Code::Unavailable));
    assert_eq!(crate::fate(&error).unwrap().ending.fate, damper_core::Fate::ChainNoMoreRetry);
    ended(&top, &[("chain_no_more_retry", 1)]);
    ended(&middle, &[("attempts_exhausted", 1)]);

    // A client without Damper gets gRPC's own pushback.
    let plain = channel.reserve("x".to_owned()).await.unwrap_err();
    assert_eq!(plain.metadata().get_all("grpc-retry-pushback-ms").iter().collect::<Vec<_>>(), ["-1"]);
    assert_eq!(plain.metadata().get_all("damper-no-more-retry").iter().collect::<Vec<_>>(), ["1"]);
    assert!(!plain.metadata().contains_key("damper-fate"));
}

#[tokio::test]
async fn a_hop_without_a_rule_in_the_middle_changes_nothing() {
    let (top, middle, low, bottom) = (engine(enforce()), engine(None), engine(enforce()), engine(None));
    let (middle_log, low_log, bottom_log) = (Log::default(), Log::default(), Log::default());
    let below = serve(server(&bottom), failing(&bottom_log, out_of_stock())).await;
    let below = serve(server(&low), relaying(&low_log, governed(&low, below))).await;
    let channel = serve(server(&middle), relaying(&middle_log, governed(&middle, below))).await;
    let error = governed(&top, channel).reserve("x".to_owned()).await.unwrap_err();
    assert_same(&error, &out_of_stock());
    assert_eq!(middle_log.flags(), no_flags(1));
    assert_eq!(low_log.flags(), no_flags(1));
    assert_eq!(bottom_log.flags().len(), 3);
    ended(&top, &[("chain_no_more_retry", 1)]);
    ended(&middle, &[("policy_off", 1)]);
}

#[tokio::test]
async fn a_status_passed_on_does_not_speak_for_the_hop_below() {
    let (middle, bottom, log) = (engine(enforce()), engine(None), Log::default());
    let mut status = out_of_stock();
    status.metadata_mut().insert("grpc-retry-pushback-ms", "250".parse().unwrap());
    status.metadata_mut().insert("x-envoy-ratelimited", "true".parse().unwrap());
    // Not retryable, so no retries were given up: the caller gets no flag.
    let refused = Status::with_details_and_metadata(
        Code::FailedPrecondition,
        status.message(),
        Bytes::copy_from_slice(status.details()),
        status.metadata().clone(),
    );
    let below = serve(server(&bottom), failing(&log, refused.clone())).await;
    let channel = serve(server(&middle), relaying(&Log::default(), governed(&middle, below))).await;
    let error = channel.reserve("x".to_owned()).await.unwrap_err();
    assert_same(&error, &refused);
    assert_eq!(log.flags(), no_flags(1));
}

#[tokio::test]
async fn an_error_stays_trailers_only_through_the_server_layer() {
    let engine = engine(None);
    let mut channel = serve(server(&engine), failing(&Log::default(), out_of_stock())).await;
    // The empty message of five bytes.
    let request = Request::post(METHOD)
        .header("content-type", "application/grpc")
        .body(Body::new(peer::ScriptedBody::over([peer::data("\0\0\0\0\0")])))
        .unwrap();
    let answer = call(&mut channel, request).await.unwrap();
    assert!(answer.trailers_only);
    assert_eq!(answer.headers["grpc-status"], "14");
    assert!(answer.trailers.is_none());
}

/// Signals its drop.
struct Dropped(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_hanging_server_is_cancelled_at_the_deadline() {
    let (dropped, mut handlers_dropped) = tokio::sync::mpsc::unbounded_channel();
    let hanging = handler(move |_| {
        let running = Dropped(dropped.clone());
        async move {
            let _running = running;
            std::future::pending().await
        }
    });
    let engine = engine(Policy { timeout: Some(ms(60)), ..enforce() });
    let channel = serve(server(&super::engine(None)), hanging).await;
    let error = governed(&engine, channel).reserve("x".to_owned()).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    ended(&engine, &[("deadline", 1)]);
    // The attempt was cancelled on the wire.
    handlers_dropped.recv().await.unwrap();
}
