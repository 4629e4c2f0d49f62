//! A stream that goes both ways for a long time under a rule: what is kept does not grow with it.
//!
//! One test in a binary of its own: the counting allocator counts the whole process, so that nothing else may
//! run beside it. What the application's own client and the peer keep is counted too and does not grow either.

#[path = "wire/world.rs"]
#[expect(dead_code, reason = "the cases next door use the rest")]
mod world;

use std::alloc::System;

use damper_tests::peer::{Act, Peer, Reply};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic_prost::ProstCodec;

use world::{THREE, World, path, within};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MESSAGES: usize = 100_000;
/// Messages that are under way at once.
const AHEAD: usize = 64;
/// Buffers of the connection come and go by that much; a byte kept per message would be more.
const NOISE: usize = 64 << 10;

/// Bytes on the heap now.
fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

#[tokio::test]
async fn a_stream_of_a_hundred_thousand_messages_both_ways_keeps_nothing() {
    let echo = Reply::begin().then(Act::Echo).trailers(&[("grpc-status", "0")]);
    let peer = Peer::start([echo]).await;
    let world = World::new(&peer, &format!("timeout: 1h, {THREE}")).await;
    let (send, receive) = mpsc::channel::<String>(AHEAD);
    let codec = ProstCodec::<String, String>::default();
    let mut grpc = world.grpc().await;
    let answer = grpc.streaming(Request::new(ReceiverStream::new(receive)), path(), codec).await;
    let mut answers = answer.expect("the answer begins").into_inner();
    let saying = async {
        for number in 0..MESSAGES {
            send.send(format!("message {number}")).await.expect("the stream is open");
        }
        drop(send);
    };
    let hearing = async {
        let mut least = usize::MAX;
        let mut most = 0;
        for number in 0..MESSAGES {
            let message = within("an echo", answers.message()).await.expect("no error").expect("a message");
            assert_eq!(message, format!("message {number}"));
            // The first tenth is for buffers to find their size.
            if number > MESSAGES / 10 && number % 1_000 == 0 {
                (least, most) = (least.min(in_use()), most.max(in_use()));
            }
        }
        assert!(answers.message().await.expect("no error").is_none());
        (least, most)
    };
    let ((), (least, most)) = tokio::join!(saying, hearing);
    assert!(most - least < NOISE, "between {least} and {most} bytes");
    peer.until_all_are_over().await;
    world.ended(&[("ok", 1)]);
}
