//! Messages of a client stream as bytes.
//!
//! tonic keeps a buffer as large as the largest message, in each direction, for the life of the stream, and
//! an unencoded message takes about 16 times its encoded size. With thousands of streams both matter. So
//! messages are encoded before they are queued, and their memory is released after sending.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use damper_proto::v1;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

/// The header of a gRPC message: a flag, and the length.
const HEAD: usize = 5;

/// A complete message to a client, or the error that ends its stream.
pub(crate) type Sent = Result<Bytes, Status>;

/// The encoded field `kind` of a message.
pub(crate) fn kind(kind: v1::server_message::Kind) -> Bytes {
    let message = v1::ServerMessage { kind: Some(kind), ..Default::default() };
    message.encode_to_vec().into()
}

/// Frames a message; an encoded `kind` is appended to its other fields.
pub(crate) fn framed(message: &v1::ServerMessage, encoded: &[u8]) -> Bytes {
    let length = message.encoded_len() + encoded.len();
    let mut bytes = Vec::with_capacity(HEAD + length);
    bytes.push(0);
    bytes.extend(u32::try_from(length).expect("pages and differences are short").to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes.extend(encoded);
    bytes.into()
}

/// The messages of a client.
pub(crate) struct Inbound {
    body: Body,
    /// Received bytes that are not parsed yet.
    rest: Bytes,
    /// Received bytes of the next message, including its header.
    part: Vec<u8>,
    most: usize,
}

impl Inbound {
    /// Reads the messages of a request's body. Errors if one exceeds `most` bytes.
    pub(crate) fn new(body: Body, most: usize) -> Self {
        Self { body, rest: Bytes::new(), part: Vec::new(), most }
    }

    /// Returns the next message; `None` if the client has left. Cancel safe.
    pub(crate) async fn message(&mut self) -> Result<Option<v1::ClientMessage>, Status> {
        loop {
            let due = self.due()?;
            let missing = due - self.part.len();
            if missing == 0 {
                let message = std::mem::take(&mut self.part);
                let read = v1::ClientMessage::decode(&message[HEAD..]);
                return read.map(Some).map_err(|error| Status::internal(error.to_string()));
            }
            let next = self.rest.split_to(missing.min(self.rest.len()));
            self.part.reserve_exact(missing);
            self.part.extend_from_slice(&next);
            if self.rest.is_empty() && self.part.len() < due {
                match std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
                    Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                    Some(Err(status)) if status.code() == tonic::Code::Cancelled => return Ok(None),
                    Some(Err(status)) => return Err(status),
                    None if self.part.is_empty() => return Ok(None),
                    None => return Err(Status::internal("the last message is incomplete")),
                }
            }
        }
    }

    /// Returns the size of the next message, if known.
    fn due(&self) -> Result<usize, Status> {
        let Some((head, _)) = self.part.split_first_chunk::<HEAD>() else { return Ok(HEAD) };
        let [flag, length @ ..] = head;
        let (length, most) = (u32::from_be_bytes(*length) as usize, self.most);
        match flag {
            0 if length <= most => Ok(HEAD + length),
            0 => Err(Status::out_of_range(format!("the message has {length} bytes (at most {most})"))),
            _ => Err(Status::unimplemented("the message is compressed, which this server does not read")),
        }
    }
}

/// The response body: messages, then trailers.
pub(crate) struct Outbound {
    messages: mpsc::Receiver<Sent>,
    is_ended: bool,
}

impl Outbound {
    pub(crate) fn new(messages: mpsc::Receiver<Sent>) -> Self {
        Self { messages, is_ended: false }
    }
}

impl HttpBody for Outbound {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let ended = match ready!(self.messages.poll_recv(context)) {
            Some(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.is_ended = true;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(ended.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tonic::Code;
    use v1::client_message::Kind;

    use super::*;

    fn ack(reason: &str) -> Vec<u8> {
        let refused = vec![v1::Refusal { reason: reason.to_owned(), ..Default::default() }];
        let ack = v1::Ack { refused, ..Default::default() };
        let message = v1::ClientMessage { kind: Some(Kind::Ack(ack)) }.encode_to_vec();
        [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
    }

    fn inbound(bytes: &[u8], chunk: usize) -> Inbound {
        let chunks: Vec<_> =
            bytes.chunks(chunk).map(|chunk| Ok::<_, Status>(Bytes::copy_from_slice(chunk))).collect();
        Inbound::new(Body::new(axum::body::Body::from_stream(stream::iter(chunks))), 1 << 20)
    }

    #[tokio::test]
    async fn messages_are_read_however_they_are_cut() {
        let long = "e".repeat(100_000);
        let bytes = [ack("a"), vec![0; HEAD], ack(&long), ack("b")].concat();
        for chunk in [1, 7, 4096, bytes.len()] {
            let mut inbound = inbound(&bytes, chunk);
            for expected in [Some("a"), None, Some(&*long), Some("b")] {
                let read = inbound.message().await.unwrap().expect("a message");
                let reason = read.kind.map(|kind| match kind {
                    Kind::Ack(ack) => ack.refused[0].reason.clone(),
                    other => panic!("{other:?}"),
                });
                assert_eq!(reason.as_deref(), expected);
                assert_eq!(inbound.part.capacity(), 0, "a message leaves nothing behind");
            }
            assert!(inbound.message().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn messages_that_cannot_be_read_are_refused_at_their_head() {
        for (head, code) in [([0, 0, 16, 0, 1], Code::OutOfRange), ([1, 0, 0, 0, 1], Code::Unimplemented)] {
            assert_eq!(inbound(&head, HEAD).message().await.unwrap_err().code(), code);
        }
        let unfinished = inbound(&ack("a")[..6], 3).message().await.unwrap_err();
        assert_eq!(unfinished.code(), Code::Internal);
    }
}
