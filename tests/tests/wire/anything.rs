//! Anything at any time: peers that do what chance says, called by applications that leave when they like.
//!
//! One seed decides all of it and is named when a case fails; `DAMPER_TEST_SEED` plays it again. (What the
//! two sides do is the same then; how their packets fall is not.)

use std::time::Duration;

use bytes::Bytes;
use damper_tests::peer::{Act, Peer, Reply, framed};
use fastrand::Rng;
use futures_util::{StreamExt as _, stream};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::world::{World, ms, path};

/// Under each rule.
const CALLS: usize = 300;
const AT_ONCE: usize = 24;
/// Retries alone, hedges alone, both, and answers held back.
const RULES: [&str; 4] = [
    "timeout: 150ms, replay_limit_bytes: 4096, retry: { max_attempts: 3, per_attempt_timeout: 60ms, \
     codes: { deny: [NOT_FOUND] }, backoff: { random: { min: 0ms, max: 5ms } } }",
    "timeout: 150ms, hedge: { delay: { fixed: 3ms }, max_hedges: 2 }, call_id: true",
    "timeout: 150ms, hedge: { delay: { fixed: 3ms } }, budget: { ratio: 0.2, min_per_second: 5 }, \
     retry: { max_attempts: 4, per_attempt_timeout: 40ms, codes: { deny: [NOT_FOUND] }, \
     backoff: { random: { min: 0ms, max: 5ms } } }",
    "timeout: 150ms, hold_unary: true, hedge: { delay: { fixed: 5ms } }, \
     retry: { max_attempts: 3, codes: { deny: [NOT_FOUND] }, backoff: { none: {} } }",
];

/// What a peer does with one request, by chance.
fn reply(rng: &mut Rng) -> Reply {
    let mut reply = match rng.u32(..12) {
        0 => return Reply::hang(),
        1 => return Reply::reset(rng.u32(..20)),
        2 => return Reply::http(rng.choice([400, 404, 429, 500, 503]).expect("not empty")),
        3 => return Reply::http_page(rng.choice([403, 502]).expect("not empty")),
        4 => return Reply::hang().then(Act::HangUp),
        5..8 => return Reply::error(rng.u32(..20)),
        8 => {
            return Reply::trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback(rng))]);
        }
        _ => Reply::begin(),
    };
    for _ in 0..rng.u32(..4) {
        reply = match rng.u32(..8) {
            0 => reply.pause(ms(rng.u64(..30))),
            1 => reply.then(Act::Data(Bytes::from_static(&[0, 0, 0]))),
            2 => reply.then(Act::Data(Bytes::new())),
            3 => reply.then(Act::UntilRead),
            _ => reply.then(Act::Data(framed("yes"))),
        };
    }
    let reply = if rng.bool() { reply.unread() } else { reply };
    match rng.u32(..8) {
        0 => reply,
        1 => reply.then(Act::End),
        2 => reply.then(Act::HangUp),
        3 => reply.then(Act::Reset(rng.u32(..20))),
        4 => reply.trailers(&[("grpc-status", "x")]),
        5 => reply.trailers(&[("grpc-status", "14"), ("damper-no-more-retry", "1")]),
        _ => reply.trailers(&[("grpc-status", "0")]),
    }
}

fn pushback(rng: &mut Rng) -> &'static str {
    rng.choice(["0", "3", "-1", "", "90000"]).expect("not empty")
}

/// One call as some application makes it; it leaves after a while.
async fn call(world: &World, mut rng: Rng) {
    let patience = if rng.bool() { ms(rng.u64(..80)) } else { Duration::from_secs(20) };
    let message = "a".repeat(rng.usize(..8_192));
    let codec = ProstCodec::<String, String>::default();
    let mut grpc = world.grpc().await;
    let count = rng.usize(1..4);
    let many = stream::iter(vec![message.clone(); count]).then(move |message| async move {
        tokio::task::yield_now().await;
        message
    });
    let calling = async move {
        let answer: Result<Streaming<String>, Status> = match rng.u32(..3) {
            0 => return drop(grpc.unary(Request::new(message), path(), codec).await),
            1 => grpc.server_streaming(Request::new(message), path(), codec).await,
            _ => grpc.streaming(Request::new(many), path(), codec).await,
        }
        .map(tonic::Response::into_inner);
        if let Ok(mut messages) = answer {
            while let Ok(Some(_)) = messages.message().await {}
        }
    };
    // An application that leaves early is one of the cases; one with much patience always gets an answer.
    let stayed = tokio::time::timeout(patience, calling).await.is_ok();
    assert!(stayed || patience < Duration::from_secs(20), "a call has no end");
}

#[tokio::test]
async fn whatever_happens_every_call_has_one_fate_and_leaves_nothing_behind() {
    let seed = std::env::var("DAMPER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("DAMPER_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for rule in RULES {
        play(rule, &mut rng).await;
    }
}

async fn play(rule: &str, rng: &mut Rng) {
    let mut peers_rng = rng.fork();
    let peer = Peer::by(move |_| reply(&mut peers_rng)).await;
    let world = World::new(&peer, rule).await;
    let callers: Vec<_> = (0..CALLS).map(|_| rng.fork()).collect();
    stream::iter(callers).for_each_concurrent(AT_ONCE, |rng| call(&world, rng)).await;
    let calls = u64::try_from(CALLS).expect("few calls");
    assert!(world.has_ended(calls), "{:?} of {CALLS} under {rule}", world.fates());
    let seen = peer.until_all_are_over().await;
    let sends = world.sends();
    let arrived = u64::try_from(seen.len()).expect("few requests");
    assert!(arrived <= sends.attempts, "{arrived} seen of {sends:?} under {rule}");
    for request in seen {
        // Each is a prefix of whole messages: never a byte twice or out of its place.
        assert!(is_repeated_message(&request.body), "{} bytes under {rule}", request.body.len());
    }
}

/// True for what begins like one to three equal messages of the letter a.
fn is_repeated_message(body: &[u8]) -> bool {
    let Some(length) = body.get(1..5).and_then(|length| <[u8; 4]>::try_from(length).ok()) else {
        return body.is_empty() || body[0] == 0;
    };
    let length = usize::try_from(u32::from_be_bytes(length)).expect("a short message");
    let letters = (0..=length).find(|letters| framed(&"a".repeat(*letters)).len() == length + 5);
    let message = framed(&"a".repeat(letters.expect("a length that messages have")));
    body.chunks(message.len()).all(|chunk| message.starts_with(chunk)) && body.len() <= 3 * message.len()
}
