//! HTTP/2 peers that a test moves frame by frame.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use crate::PATIENCE;

/// A callee or service that responds as the test wants.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    listening: JoinHandle<()>,
}

/// A request at a [`Server`].
pub(crate) struct Arrival {
    pub(crate) head: Parts,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse<Bytes>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(Builder::new()).await
    }

    pub(crate) async fn with(builder: Builder) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), builder)
    }

    fn on(listener: TcpListener, builder: Builder) -> Self {
        let (address, (arrived, arrivals)) = (listener.local_addr().unwrap(), mpsc::unbounded_channel());
        let connections = Arc::<Mutex<Vec<AbortHandle>>>::default();
        let accepted = Arc::clone(&connections);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let task = tokio::spawn(serve(stream, builder.clone(), arrived.clone()));
                accepted.lock().unwrap().push(task.abort_handle());
            }
        });
        Self { address, arrivals, connections, listening }
    }

    /// Ends: it closes all connections and accepts no more.
    pub(crate) async fn end(&mut self) {
        self.listening.abort();
        _ = (&mut self.listening).await;
        self.cut();
    }

    /// Starts again at its address, after its end.
    pub(crate) async fn start_again(&mut self) {
        *self = Self::on(TcpListener::bind(self.address).await.unwrap(), Builder::new());
    }

    /// Returns how many connections it has accepted since the last cut.
    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Returns the next request.
    pub(crate) async fn next(&mut self) -> Arrival {
        within(self.arrivals.recv()).await.expect("the server runs")
    }

    /// Returns a request that has arrived already.
    pub(crate) fn arrived(&mut self) -> Option<Arrival> {
        self.arrivals.try_recv().ok()
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

async fn serve(stream: TcpStream, builder: Builder, arrived: mpsc::UnboundedSender<Arrival>) {
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        if arrived.send(Arrival { head, body, respond }).is_err() {
            return;
        }
    }
}

/// A caller.
pub(crate) struct Client {
    pub(crate) send: SendRequest<Bytes>,
    /// Ends with the connection.
    pub(crate) connection: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream).await
    }

    /// Speaks over a connection that is open.
    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (send, connection) = h2::client::handshake(io).await.unwrap();
        Self { send, connection: tokio::spawn(connection) }
    }

    /// Sends the head of a request.
    pub(crate) async fn begin(
        &mut self,
        head: Request<()>,
        ends: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.send = within(self.send.clone().ready()).await.unwrap();
        self.send.send_request(head, ends).unwrap()
    }
}

/// Waits, and fails the test if it takes forever.
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    async move {
        match timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("nothing happened at {place}"),
        }
    }
}

/// Returns the head of a gRPC request.
pub(crate) fn grpc() -> http::request::Builder {
    Request::post("http://callee.test/shop.Stock/Reserve")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// Returns a gRPC message.
pub(crate) fn message(payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], payload].concat().into()
}

/// Reads a body to its end. An error comes with what was read before.
pub(crate) async fn read(body: &mut RecvStream) -> Result<Vec<u8>, (Vec<u8>, h2::Error)> {
    let mut all = Vec::new();
    while let Some(chunk) = within(body.data()).await {
        match chunk {
            Ok(chunk) => {
                all.extend_from_slice(&chunk);
                // The stream may have ended since.
                _ = body.flow_control().release_capacity(chunk.len());
            }
            Err(error) => return Err((all, error)),
        }
    }
    Ok(all)
}

/// Reads this many bytes of a body.
pub(crate) async fn read_some(body: &mut RecvStream, wanted: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < wanted {
        let chunk = within(body.data()).await.expect("the body goes on").unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    all
}

/// Returns the head of a gRPC response.
pub(crate) fn begun() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).unwrap()
}

/// Returns a response of headers alone.
pub(crate) fn trailers_only(code: u32) -> Response<()> {
    let mut response = begun();
    response.headers_mut().insert("grpc-status", code.into());
    response
}

impl Arrival {
    /// Responds with a message and OK.
    pub(crate) fn serve(&mut self, payload: &[u8]) {
        let mut body = self.respond.send_response(begun(), false).unwrap();
        body.send_data(message(payload), false).unwrap();
        body.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())])).unwrap();
    }

    /// Responds with headers alone.
    pub(crate) fn refuse(&mut self, code: u32) {
        self.respond.send_response(trailers_only(code), true).unwrap();
    }

    /// Returns the code with which the caller has reset the stream.
    pub(crate) async fn reset(&mut self) -> h2::Reason {
        within(std::future::poll_fn(|cx| self.respond.poll_reset(cx))).await.unwrap()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Returns the status of a response that has headers alone.
pub(crate) fn status<B>(response: &Response<B>) -> Option<&str> {
    response.headers().get("grpc-status")?.to_str().ok()
}
