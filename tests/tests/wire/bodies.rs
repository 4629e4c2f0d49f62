//! Bodies that are slow, large, empty or compressed, in both directions.

use bytes::{BufMut as _, Bytes, BytesMut};
use damper_tests::peer::{Act, Peer, Reply, framed};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response};

use super::world::{Sends, THREE, World, ms, path, within};

const MIB: usize = 1 << 20;

fn codec() -> tonic_prost::ProstCodec<String, String> {
    tonic_prost::ProstCodec::default()
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_is_an_answer() {
    let mut reply = Reply::begin();
    for byte in framed("slowly") {
        reply = reply.then(Act::Data(Bytes::copy_from_slice(&[byte]))).pause(ms(5));
    }
    let peer = Peer::start([Reply::unavailable(), reply.trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "slowly");
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let large = "a".repeat(8 * MIB);
    let peer = Peer::start([Reply::unavailable(), Reply::ok(&large)]).await;
    let world = World::new(&peer, THREE).await;
    let mut grpc = tonic::client::Grpc::new(world.channel.clone()).max_decoding_message_size(16 * MIB);
    grpc.ready().await.unwrap();
    let answer = within("the answer", grpc.unary(Request::new("one".to_owned()), path(), codec())).await;
    assert!(answer.unwrap().into_inner() == large);
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_large_request_within_the_limit_is_sent_whole_on_every_attempt() {
    let large = "a".repeat(3 * MIB);
    let fields = format!("replay_limit_bytes: 4194304, {THREE}");
    let failing = || Reply::hang().then(Act::UntilRead).then(unavailable());
    let peer = Peer::start([failing(), failing(), Reply::hang().then(Act::UntilRead).then(empty_ok())]).await;
    let world = World::new(&peer, &fields).await;
    // The answer has no message, which unary calls do not allow.
    world.call(&large).await.unwrap_err();
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 3);
    for request in seen {
        assert!(request.body == framed(&large), "{} bytes", request.body.len());
    }
    world.ended(&[("ok_after_retry", 1)]);
}

fn unavailable() -> Act {
    status("14")
}

fn empty_ok() -> Act {
    status("0")
}

fn status(code: &'static str) -> Act {
    let status = (http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static(code));
    Act::Headers(200, http::HeaderMap::from_iter([status]), true)
}

#[tokio::test]
async fn a_large_request_beyond_the_limit_is_sent_once() {
    let large = "a".repeat(3 * MIB);
    let peer = Peer::start([Reply::hang().then(Act::UntilRead).then(unavailable())]).await;
    let world = World::new(&peer, THREE).await;
    world.call(&large).await.unwrap_err();
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 1);
    assert!(seen[0].body == framed(&large));
    assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
    world.ended(&[("not_replayable", 1)]);
}

#[tokio::test]
async fn empty_messages_are_messages() {
    let peer = Peer::start([Reply::unavailable(), Reply::ok("")]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("").await.unwrap().into_inner(), "");
    for request in peer.until_all_are_over().await {
        assert_eq!(request.body, [0; 5]);
    }
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn an_answer_without_a_message_is_not_sent_for_again() {
    let peer = Peer::start([Reply::begin().trailers(&[("grpc-status", "0")]), Reply::ok("again")]).await;
    let world = World::new(&peer, THREE).await;
    world.call("one").await.unwrap_err();
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("ok", 1)]);
}

/// A gzip member whose one block is stored as it is (RFC 1951 section 3.2.4, RFC 1952).
fn gzipped(text: &str) -> Bytes {
    let message = prost::Message::encode_to_vec(&text.to_owned());
    let length = u16::try_from(message.len()).expect("one block");
    let mut member = BytesMut::new();
    member.put_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    member.put_u8(1);
    member.put_u16_le(length);
    member.put_u16_le(!length);
    member.put_slice(&message);
    member.put_u32_le(crc32fast::hash(&message));
    member.put_u32_le(u32::from(length));
    let mut framed = BytesMut::new();
    framed.put_u8(1);
    framed.put_u32(u32::try_from(member.len()).expect("a short message"));
    framed.put_slice(&member);
    framed.freeze()
}

#[tokio::test]
async fn a_compressed_answer_is_read_after_a_retry() {
    let reply = Reply::begin_with(&[("grpc-encoding", "gzip")]).then(Act::Data(gzipped("squeezed")));
    let peer = Peer::start([Reply::unavailable(), reply.trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, THREE).await;
    let grpc = tonic::client::Grpc::new(world.channel.clone());
    let mut grpc = grpc.accept_compressed(CompressionEncoding::Gzip);
    grpc.ready().await.unwrap();
    let answer: Response<String> = grpc.unary(Request::new("one".to_owned()), path(), codec()).await.unwrap();
    assert_eq!(answer.into_inner(), "squeezed");
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_long_answer_of_many_messages_arrives_in_order() {
    const COUNT: usize = 2_000;
    let mut reply = Reply::begin();
    for number in 0..COUNT {
        reply = reply.message(&number.to_string());
    }
    let peer = Peer::start([Reply::unavailable(), reply.trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, THREE).await;
    let mut grpc = world.grpc().await;
    let answer = grpc.server_streaming(Request::new("one".to_owned()), path(), codec()).await.unwrap();
    let mut messages = answer.into_inner();
    for number in 0..COUNT {
        assert_eq!(messages.message().await.unwrap().unwrap(), number.to_string());
    }
    assert!(messages.message().await.unwrap().is_none());
    world.ended(&[("ok_after_retry", 1)]);
}
