//! Requests that stream: sent straight through, whatever the answer does meanwhile; again only as a whole.

use damper_tests::peer::{Act, Gate, Peer, Reply, framed};
use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

use super::world::{Sends, THREE, World, path, within};

fn codec() -> tonic_prost::ProstCodec<String, String> {
    tonic_prost::ProstCodec::default()
}

/// Messages that together are longer than what is kept of a request.
fn long() -> Vec<String> {
    (0..20).map(|number| format!("{number:05}").repeat(2_000)).collect()
}

fn on_the_wire(messages: &[String]) -> Vec<u8> {
    messages.iter().flat_map(|message| framed(message)).collect()
}

#[tokio::test]
async fn an_answer_before_the_request_is_read_ends_the_call_and_the_body_is_seen_once_at_most() {
    for code in [14, 5] {
        let gate = Gate::closed();
        let early = Reply::error(code).unread();
        let peer = Peer::start([early, Reply::ok("again")]).await;
        let world = World::new(&peer, THREE).await;
        let messages = long();
        let rest = gate.clone();
        let (first, last) = messages.split_at(10);
        let body = stream::iter(first.to_vec())
            .chain(stream::once(async move { rest.passed().await }).filter_map(|()| async { None }))
            .chain(stream::iter(last.to_vec()));
        let answer = within("the answer", async {
            world.grpc().await.client_streaming(Request::new(body), path(), codec()).await
        });
        let error = answer.await.unwrap_err();
        gate.open();
        assert_eq!(i32::from(error.code()), i32::try_from(code).unwrap());
        let seen = peer.until_all_are_over().await;
        assert_eq!(seen.len(), 1, "one attempt");
        assert!(on_the_wire(&messages).starts_with(&seen[0].body), "each byte once and in its place");
        assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
        world.ended(&[(if code == 14 { "not_replayable" } else { "not_retryable" }, 1)]);
    }
}

#[tokio::test]
async fn an_answer_that_begins_while_the_request_is_unread_leaves_it_whole() {
    let gate = Gate::closed();
    let reply = Reply::begin().message("early").then(Act::UntilRead).trailers(&[("grpc-status", "0")]);
    let peer = Peer::start([reply]).await;
    let world = World::new(&peer, THREE).await;
    let messages = long();
    let opened = gate.clone();
    let (first, last) = messages.split_at(1);
    let body = stream::iter(first.to_vec())
        .chain(stream::once(async move { opened.passed().await }).filter_map(|()| async { None }))
        .chain(stream::iter(last.to_vec()));
    let mut grpc = world.grpc().await;
    let answer = grpc.streaming(Request::new(body), path(), codec()).await.unwrap();
    let mut answers = answer.into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap(), "early");
    // Only now the rest of the request is said.
    gate.open();
    assert!(within("the end", answers.message()).await.unwrap().is_none());
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 1);
    assert!(seen[0].whole && seen[0].body == on_the_wire(&messages));
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn a_streamed_request_beyond_the_limit_is_not_repeated_after_it_was_read() {
    let reply = Reply::hang().then(Act::UntilRead).then(Act::Headers(200, unavailable(), true));
    let peer = Peer::start([reply, Reply::ok("again")]).await;
    let world = World::new(&peer, THREE).await;
    let messages = long();
    let body = stream::iter(messages.clone());
    let error = world.grpc().await.client_streaming(Request::new(body), path(), codec()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 1);
    assert!(seen[0].whole && seen[0].body == on_the_wire(&messages));
    world.ended(&[("not_replayable", 1)]);
}

fn unavailable() -> http::HeaderMap {
    status("14")
}

fn ok() -> http::HeaderMap {
    status("0")
}

fn status(code: &'static str) -> http::HeaderMap {
    let status = (http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static(code));
    http::HeaderMap::from_iter([status])
}

#[tokio::test]
async fn a_streamed_request_that_is_complete_from_the_start_is_repeated_whole() {
    let peer = Peer::start([Reply::unavailable().unread(), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    let messages: Vec<_> = ["one", "two", "three"].map(str::to_owned).into();
    let body = stream::iter(messages.clone());
    let answer = world.grpc().await.client_streaming(Request::new(body), path(), codec()).await.unwrap();
    assert_eq!(answer.into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 2);
    assert!(on_the_wire(&messages).starts_with(&seen[0].body));
    assert_eq!(seen[1].body, on_the_wire(&messages));
    world.ended(&[("ok_after_retry", 1)]);
}

/// Returns a request of three messages that are there one after the other, the first not at once.
fn in_turn(gate: &Gate) -> impl futures_util::Stream<Item = String> + Send + use<> {
    let gate = gate.clone();
    let first = stream::once(async move {
        gate.passed().await;
        "one".to_owned()
    });
    first.chain(stream::iter(["two", "three"].map(str::to_owned)))
}

#[tokio::test]
async fn streamed_request_that_is_refused_is_repeated_once_whole() {
    let refusals = [
        Reply::hang().then(Act::UntilRead).then(Act::Headers(200, unavailable(), true)),
        Reply::hang().then(Act::UntilRead).then(Act::Reset(7)),
    ];
    for (refusal, fate) in refusals.into_iter().zip(["ok_after_retry", "ok"]) {
        let peer =
            Peer::start([refusal, Reply::hang().then(Act::UntilRead).then(Act::Headers(200, ok(), true))]);
        let peer = peer.await;
        let world = World::new(&peer, THREE).await;
        let gate = Gate::closed();
        let mut grpc = world.grpc().await;
        let calling = grpc.client_streaming::<_, String, _, _>(Request::new(in_turn(&gate)), path(), codec());
        let began = async {
            peer.until("the first attempt", |seen| seen.len() == 1).await;
            gate.open();
        };
        // The answer has no message, which is no answer to a call with one response.
        let (answer, ()) = within("the answer", futures_util::future::join(calling, began)).await;
        answer.unwrap_err();
        let seen = peer.until_all_are_over().await;
        assert_eq!(seen.len(), 2);
        let whole = on_the_wire(&["one", "two", "three"].map(str::to_owned));
        assert!(seen.iter().all(|seen| seen.whole && seen.body == whole));
        world.ended(&[(fate, 1)]);
    }
}

#[tokio::test]
async fn a_refused_stream_of_a_request_that_is_not_kept_is_not_resent() {
    let peer = Peer::start([Reply::reset(7), Reply::ok("again")]).await;
    let world = World::new(&peer, THREE).await;
    let (send, receive) = mpsc::channel::<String>(1);
    send.send("one".to_owned()).await.unwrap();
    let body = ReceiverStream::new(receive);
    let error = world.grpc().await.client_streaming(Request::new(body), path(), codec()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 1);
    assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
    world.ended(&[("not_replayable", 1)]);
}

#[tokio::test]
async fn both_sides_of_a_stream_take_turns() {
    let peer = Peer::start([Reply::begin().then(Act::Echo).trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, THREE).await;
    let (send, receive) = mpsc::channel(1);
    let mut grpc = world.grpc().await;
    let answer = grpc.streaming(Request::new(ReceiverStream::new(receive)), path(), codec()).await.unwrap();
    let mut answers = answer.into_inner();
    for number in 0..200 {
        send.send(number.to_string()).await.unwrap();
        let echoed = within("an echo", answers.message()).await.unwrap().unwrap();
        assert_eq!(echoed, number.to_string());
    }
    drop(send);
    assert!(answers.message().await.unwrap().is_none());
    assert_eq!(peer.until_all_are_over().await.len(), 1);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn an_error_in_a_stream_that_goes_both_ways_is_its_end() {
    let peer = Peer::start([Reply::begin()
        .then(Act::UntilBytes(1))
        .message("1")
        .trailers(&[("grpc-status", "14")])])
    .await;
    let world = World::new(&peer, THREE).await;
    let (send, receive) = mpsc::channel(1);
    let mut grpc = world.grpc().await;
    let answer = grpc.streaming(Request::new(ReceiverStream::new(receive)), path(), codec()).await.unwrap();
    let mut answers = answer.into_inner();
    send.send("one".to_owned()).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), "1");
    assert_eq!(answers.message().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("committed", 1)]);
}
