//! Request bodies: buffered and equal in each attempt, or forwarded and sent once.

use futures_core::Stream;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::mpsc;

use super::peer::{Peer, Reply, ScriptedBody, data, ok, trailers, unavailable};
use super::*;

fn posted(body: ScriptedBody) -> Request<Body> {
    Request::post(METHOD).body(Body::new(body)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_body_of_many_chunks_is_sent_alike_on_every_attempt() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), ok()]));
    let chunks = ["one", "", "two", "three"];
    call(&mut governed(&engine, peer.clone()), request_of(&chunks)).await.unwrap();
    assert_eq!(peer.seen().len(), 3);
    for seen in peer.seen() {
        assert_eq!(seen.body, chunks);
        assert_eq!(seen.size.exact(), None, "an exact size would become a content-length");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_always_has_a_frame_ends_at_its_deadline_too() {
    let engine = engine(Policy { timeout: Some(ms(20)), ..enforce() });
    let peer = Peer::new([super::peer::begun(ScriptedBody::over((0..100).map(|_| data("more"))))]);
    let response = governed(&engine, peer.clone()).call(super::request()).await.unwrap();
    let mut body = std::pin::pin!(response.into_body());
    let mut frames = 0;
    let trailers = loop {
        match body.frame().await.unwrap().unwrap().into_data() {
            Ok(_) => frames += 1,
            Err(frame) => break frame.into_trailers().unwrap(),
        }
        tokio::time::advance(ms(1)).await;
    };
    assert_eq!((frames, trailers["grpc-status"].to_str().unwrap()), (20, "4"));
    assert!(body.frame().await.is_none() && peer.was_hung_up());
    ended(&engine, &[("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_announces_its_size_does_so_on_every_attempt() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), ok()]));
    let body = ScriptedBody::over([data("12345"), data("678")]).announcing(8);
    call(&mut governed(&engine, peer.clone()), posted(body)).await.unwrap();
    let sizes: Vec<_> = peer.seen().iter().map(|seen| seen.size.exact()).collect();
    assert_eq!(sizes, [Some(8), Some(8)]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_is_retried_too() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), ok()]));
    let request = Request::post(METHOD).body(Body::empty()).unwrap();
    assert_eq!(call(&mut governed(&engine, peer), request).await.unwrap().status(), "0");
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_body_beyond_the_limit_arrives_whole_and_once() {
    let at_limit = Policy { replay_limit: 8, ..enforce() };
    for (chunks, sends) in [(["1234", "5678"], 3), (["1234", "56789"], 1)] {
        let engine = engine(at_limit.clone());
        let peer = Peer::new([unavailable(), unavailable(), unavailable()]);
        call(&mut governed(&engine, peer.clone()), request_of(&chunks)).await.unwrap();
        let seen = peer.seen();
        assert_eq!(seen.len(), sends);
        assert!(seen.iter().all(|seen| seen.body == chunks));
        let fate = if sends == 1 { "not_replayable" } else { "attempts_exhausted" };
        ended(&engine, &[(fate, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_announces_too_many_bytes_is_not_read_ahead() {
    let engine = engine(Policy { replay_limit: 8, ..enforce() });
    let peer = Peer::new([unavailable()]);
    let body = ScriptedBody::over([data("123456789")]).announcing(9);
    call(&mut governed(&engine, peer.clone()), posted(body)).await.unwrap();
    assert_eq!(peer.seen()[0].size.exact(), Some(9));
    ended(&engine, &[("not_replayable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn chunks_without_end_and_bytes_do_not_keep_the_call() {
    let engine = engine(enforce());
    let peer = Peer::new([unavailable()]);
    let body = ScriptedBody::over((0..5_000).map(|_| data("")));
    call(&mut governed(&engine, peer.clone()), posted(body)).await.unwrap();
    assert_eq!(peer.seen()[0].body.len(), 5_000);
    ended(&engine, &[("not_replayable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn request_that_streams_goes_straight_through_and_is_kept() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), ok()]));
    let (send, receive) = mpsc::channel::<&'static str>(4);
    send.send("first").await.unwrap();
    let request = Request::post(METHOD).body(Body::new(StreamBody::new(Frames(receive)))).unwrap();
    let mut service = governed(&engine, peer.clone());
    let calling = tokio::spawn(async move { call(&mut service, request).await.unwrap() });
    tokio::time::sleep(ms(5)).await;
    assert!(!calling.is_finished());
    send.send("second").await.unwrap();
    drop(send);
    assert_eq!(calling.await.unwrap().status(), "0");
    assert_eq!(peer.seen()[0].body, ["first", "second"]);
    assert_eq!(peer.seen()[1].body.concat(), b"firstsecond");
    assert_eq!(peer.seen().len(), 2);
    ended(&engine, &[("ok_after_retry", 1)]);
}

struct Frames(mpsc::Receiver<&'static str>);

impl Stream for Frames {
    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|text| text.map(data))
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_trailers_arrives_whole_and_once() {
    let body = ScriptedBody::over([data("a"), trailers(&[("x-sum", "1")])]);
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable()]));
    call(&mut governed(&engine, peer.clone()), posted(body)).await.unwrap();
    assert_eq!(peer.seen()[0].body, ["a"]);
    assert_eq!(peer.seen()[0].trailers.as_ref().unwrap()["x-sum"], "1");
    ended(&engine, &[("not_replayable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_unencodable_request_fails_as_without_the_layer() {
    let body = ScriptedBody::over([data("a"), Err(tonic::Status::internal("cannot encode").into())]);
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable()]));
    let error = call(&mut governed(&engine, peer.clone()), posted(body)).await.unwrap_err();
    assert_eq!(error.downcast_ref::<tonic::Status>().unwrap().message(), "cannot encode");
    assert!(peer.seen().is_empty());
    ended(&engine, &[("not_retryable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn all_calls_together_keep_a_bounded_number_of_bytes() {
    const MIB: usize = 1 << 20;
    let engine = engine(Policy { replay_limit: 4 << 20, ..enforce() });
    let big = || {
        let frame = Frame::data(Bytes::from(vec![7; 4 * MIB]));
        posted(ScriptedBody::over([Ok(frame)]))
    };
    let holders: Vec<_> = (0..4)
        .map(|_| {
            let mut service = governed(&engine, Peer::new([Reply::Hang]));
            tokio::spawn(async move { call(&mut service, big()).await })
        })
        .collect();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(engine.memory().in_use(), 16 * MIB);
    let peer = Peer::new([unavailable()]);
    call(&mut governed(&engine, peer.clone()), big()).await.unwrap();
    assert_eq!(peer.seen().len(), 1);
    for holder in holders {
        holder.abort();
        assert!(holder.await.is_err());
    }
    assert_eq!(engine.memory().in_use(), 0);
    let peer = Peer::new([unavailable(), ok()]);
    call(&mut governed(&engine, peer.clone()), big()).await.unwrap();
    assert_eq!(peer.seen().len(), 2);
    ended(&engine, &[("ok_after_retry", 1), ("not_replayable", 1), ("cancelled", 4)]);
}
