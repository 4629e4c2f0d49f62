//! Calls any method by its path, with bytes as messages.

use bytes::{Buf as _, BufMut as _, Bytes};
use tokio_stream::StreamExt as _;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::harness::soon;

#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Calls a method, sends these messages and waits for the first answer or the end.
pub(super) async fn call(
    channel: Channel,
    path: &str,
    token: Option<&str>,
    messages: Vec<Vec<u8>>,
) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    soon(grpc.ready()).await.unwrap();
    let messages = tokio_stream::iter(messages.into_iter().map(Bytes::from));
    // The first answer of a bidirectional stream stays open.
    let lasting = path.ends_with("/Subscribe") || path.ends_with("/Follow");
    let open = tokio_stream::pending().take_while(move |_| lasting);
    let messages: std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Bytes> + Send + Sync>> =
        if lasting { Box::pin(messages.chain(open)) } else { Box::pin(messages) };
    let mut request = Request::new(messages);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let path = path.parse().unwrap();
    let answer = soon(grpc.streaming(request, path, Raw)).await?;
    soon(answer.into_inner().message()).await.map(|_| ())
}
