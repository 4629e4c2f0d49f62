//! Codec of the generated servers: an unreadable request is an error of the client.
//!
//! tonic's own codec returns INTERNAL, which points operators to the server. This one returns
//! INVALID_ARGUMENT with the message and field. Generated clients keep tonic's codec: an unreadable response
//! is not their error.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Reads requests of type `U` and writes responses of type `T`.
#[derive(Clone, Debug)]
pub struct ServerCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for ServerCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for ServerCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = RequestDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        RequestDecoder(PhantomData)
    }
}

/// Reads requests of type `U`.
#[derive(Clone, Debug)]
pub struct RequestDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for RequestDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, request: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(request)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("unreadable request: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use prost::bytes::{BufMut as _, Bytes, BytesMut};
    use tonic::codec::Streaming;

    use super::*;
    use crate::v1;

    async fn read<T: Message + Default + 'static>(message: &[u8]) -> Result<Option<T>, Status> {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.len().try_into().unwrap());
        frame.put_slice(message);
        let decoder = ServerCodec::<(), T>::default().decoder();
        let mut stream = Streaming::new_request(decoder, Full::new(Bytes::from(frame)), None, None);
        stream.message().await
    }

    #[tokio::test]
    async fn a_name_that_is_not_utf8_is_refused_by_its_field() {
        let route = [0x0a, 2, 0xff, 0xfe];
        let request = [&[0x0a, 4], &route[..]].concat();
        let refused = read::<v1::ExplainRequest>(&request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains("RouteKey.caller_service"), "{refused}");
        assert!(refused.message().contains("ExplainRequest.route"), "{refused}");
    }

    #[tokio::test]
    async fn a_request_cut_off_is_refused() {
        let refused = read::<v1::ExplainRequest>(&[0x0a, 40, 1]).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_good_request_is_read() {
        let request = v1::DeleteRuleRequest { expected_revision: Some(3), ..Default::default() };
        assert_eq!(read(&request.encode_to_vec()).await.unwrap(), Some(request));
    }
}
