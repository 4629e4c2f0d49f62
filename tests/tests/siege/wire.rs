//! gRPC over HTTP/2 without a gRPC library: windows that never open, messages that never end.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a stream waits for its place before it is given up.
const PLACE_WITHIN: Duration = Duration::from_secs(5);

/// A connection; it ends when it is dropped with all its streams.
pub(crate) struct Wire {
    send: SendRequest<Bytes>,
    token: Option<String>,
    /// Put into each request, for what it costs the server.
    fat: usize,
}

/// An open request.
pub(crate) struct Opened {
    pub(crate) answer: ResponseFuture,
    pub(crate) body: SendStream<Bytes>,
}

impl Wire {
    /// Connects with a window of so many bytes for each answer.
    pub(crate) async fn connect(address: SocketAddr, window: u32, token: Option<&str>) -> Option<Self> {
        let socket = timeout(PLACE_WITHIN, TcpStream::connect(address)).await.ok()?.ok()?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(1 << 20);
        let handshake = timeout(PLACE_WITHIN, builder.handshake(socket)).await.ok()?;
        let (send, connection) = handshake.ok()?;
        tokio::spawn(async move { drop(connection.await) });
        Some(Self { send, token: token.map(str::to_owned), fat: 0 })
    }

    /// With so many more bytes in the head of each request.
    pub(crate) fn fat(self, fat: usize) -> Self {
        Self { fat, ..self }
    }

    /// Begins a request; `None` if the connection has no place for it.
    pub(crate) async fn open(&mut self, path: &str) -> Option<Opened> {
        let mut send = timeout(PLACE_WITHIN, self.send.clone().ready()).await.ok()?.ok()?;
        let (answer, body) = send.send_request(self.request(Method::POST, path), false).ok()?;
        self.send = send;
        Some(Opened { answer, body })
    }

    /// A request for a file, whose answer is not taken.
    pub(crate) async fn get(&mut self, path: &str) -> Option<ResponseFuture> {
        let mut send = timeout(PLACE_WITHIN, self.send.clone().ready()).await.ok()?.ok()?;
        let (answer, _) = send.send_request(self.request(Method::GET, path), true).ok()?;
        self.send = send;
        Some(answer)
    }

    /// Sends one message, which is all of the request.
    pub(crate) async fn ask(&mut self, path: &str, message: &impl Message) -> Option<Opened> {
        let mut opened = self.open(path).await?;
        opened.body.send_data(framed(message), true).ok()?;
        Some(opened)
    }

    fn request(&self, method: Method, path: &str) -> Request<()> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if self.fat > 0 {
            request = request.header("x-fat", "f".repeat(self.fat));
        }
        request.body(()).expect("a request")
    }
}

/// A message with its head.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.encoded_len()).expect("a short message").to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes.into()
}

/// Reads an answer to its end and throws it away.
pub(crate) async fn swallow(answer: ResponseFuture) -> Result<usize, h2::Error> {
    let mut body: RecvStream = answer.await?.into_body();
    let mut all = 0;
    while let Some(data) = body.data().await {
        let data = data?;
        all += data.len();
        body.flow_control().release_capacity(data.len())?;
    }
    match body.is_end_stream() {
        true => Ok(all),
        false => Err(Reason::CANCEL.into()),
    }
}

/// Sends bytes as the window opens; false if the stream has ended.
pub(crate) async fn pour(body: &mut SendStream<Bytes>, mut bytes: Bytes) -> bool {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let Ok(Some(Ok(room))) =
            timeout(PLACE_WITHIN, std::future::poll_fn(|cx| body.poll_capacity(cx))).await
        else {
            return false;
        };
        let part = bytes.split_to(room.min(bytes.len()));
        if body.send_data(part, false).is_err() {
            return false;
        }
    }
    true
}
