//! The service that is called, and requests to it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version, header};
use http_body::{Body, Frame};
use tonic::GrpcMethod;
use tower::Service;

/// What a tonic codec gives a message before it grows; see `tonic::codec::BufferSettings`.
const BUFFER: usize = 8 * 1024;
const MESSAGE: [u8; 32] = [7; 32];

/// Ready, and answers at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock;

impl<B: Body<Data = Bytes>> Service<Request<B>> for Stock {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Answer>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut body = pin!(request.into_body());
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = 0;
        while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut cx) {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
        assert_eq!(read, MESSAGE.len() + 5, "the whole message arrives");
        ready(Ok(Response::new(Answer { sent: 0 })))
    }
}

/// One message, then the status.
#[derive(Debug)]
pub(super) struct Answer {
    sent: u8,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.sent += 1;
        Poll::Ready(match self.sent {
            1 => Some(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\0")))),
            2 => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            _ => None,
        })
    }
}

/// A message that is encoded when it is read, as tonic does; it does not say how long it is.
#[derive(Debug)]
pub(super) struct Message {
    is_sent: bool,
}

impl Message {
    pub(super) fn new() -> Self {
        Self { is_sent: false }
    }

    /// The message as a whole.
    pub(super) fn encoded() -> Bytes {
        let mut buffer = BytesMut::with_capacity(BUFFER);
        buffer.put_u8(0);
        buffer.put_u32(MESSAGE.len() as u32);
        buffer.put_slice(&MESSAGE);
        buffer.split_to(MESSAGE.len() + 5).freeze()
    }
}

impl Body for Message {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let was_sent = std::mem::replace(&mut self.is_sent, true);
        Poll::Ready((!was_sent).then(|| Ok(Frame::data(Self::encoded()))))
    }
}

/// What is the same in all requests of a client.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    authority: Authority,
}

impl Requests {
    pub(super) fn new() -> Self {
        let authority = Authority::from_static("stock:50051");
        Self { authority }
    }

    pub(super) fn with<B>(&self, body: B) -> Request<B> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(PathAndQuery::from_static("/stock.v1.Stock/Take"));
        let mut request = Request::new(body);
        *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are a URI");
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert("x-request-id", HeaderValue::from_static("4bf92f3577b34da6a3ce929d0e0e4736"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        // Generated clients tell which method it is.
        request.extensions_mut().insert(GrpcMethod::new("stock.v1.Stock", "Take"));
        request
    }
}
