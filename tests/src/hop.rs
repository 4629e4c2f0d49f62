//! One hop of a chain: a real tonic server with one unary method over a loopback socket, and a client for it.
//!
//! The method is `test.Hop/Call`; a message is one string. Handlers are closures, so that a test reads as the
//! chain it is about.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use damper_sdk::{ClientLayer, ClientService, ServerLayer};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// `package.Service/Method` of every hop.
pub const METHOD: &str = "test.Hop/Call";

type Answer = Pin<Box<dyn Future<Output = Result<Response<String>, Status>> + Send>>;
type Handle = Arc<dyn Fn(Request<String>) -> Answer + Send + Sync>;

/// A hop that listens; stops when it is dropped.
#[derive(Debug)]
pub struct Hop {
    address: SocketAddr,
    handled: Arc<AtomicU64>,
    server: tokio::task::JoinHandle<()>,
}

impl Hop {
    /// Serves a handler; with a layer as a service with Damper, without one as a stranger.
    pub async fn serve<F, R>(layer: Option<ServerLayer>, handler: F) -> Self
    where
        F: Fn(Request<String>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response<String>, Status>> + Send + 'static,
    {
        let handled = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&handled);
        let handle: Handle = Arc::new(move |request| {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(handler(request))
        });
        let router = axum::Router::new().route_service(&format!("/{METHOD}"), HopService(handle));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        // As tonic's own `serve` does; else an answer that comes late waits for the caller's next request.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tokio::spawn(async move {
            let routes = Routes::from(router);
            let served = match layer {
                Some(layer) => {
                    Server::builder().layer(layer).add_routes(routes).serve_with_incoming(incoming).await
                }
                None => Server::builder().add_routes(routes).serve_with_incoming(incoming).await,
            };
            served.expect("the hop serves");
        });
        Self { address, handled, server }
    }

    /// How many requests have reached the handler.
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A plain channel to it.
    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(self.url()).expect("a URL");
        endpoint.connect().await.expect("the hop listens")
    }

    /// A channel to it that obeys the rules of the caller's Damper.
    pub async fn governed_channel(&self, layer: &ClientLayer) -> ClientService<Channel> {
        layer.layer(self.channel().await)
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Calls a hop over any channel.
///
/// # Errors
/// The status that the hop answered with.
pub async fn call<S>(channel: S, request: Request<String>) -> Result<Response<String>, Status>
where
    S: tonic::client::GrpcService<Body>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<tonic::codegen::StdError>,
{
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.into().to_string()))?;
    let path = PathAndQuery::from_static("/test.Hop/Call");
    client.unary(request, path, ProstCodec::<String, String>::default()).await
}

#[derive(Clone)]
struct HopService(Handle);

impl tower::Service<http::Request<axum::body::Body>> for HopService {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let unary = Unary(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
            Ok(grpc.unary(unary, request).await)
        })
    }
}

struct Unary(Handle);

impl tonic::server::UnaryService<String> for Unary {
    type Response = String;
    type Future = Answer;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        (self.0)(request)
    }
}
