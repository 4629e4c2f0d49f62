//! Where the status is: in the first headers, in trailers, nowhere, or only in the words of HTTP.

use damper_tests::peer::{Peer, Reply};
use tonic::Code;

use super::world::{Sends, THREE, World, ms};

#[tokio::test]
async fn an_error_in_the_first_headers_is_repeated_and_the_last_one_is_the_answer() {
    let failed = || Reply::trailers_only(&[("grpc-status", "14"), ("grpc-message", "no%20more")]);
    let peer = Peer::start([failed(), failed(), failed()]).await;
    let world = World::new(&peer, THREE).await;
    let error = world.call("one").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "no more"));
    let seen = peer.until_all_are_over().await;
    let flags: Vec<_> = seen.iter().map(|request| request.header("damper-retry")).collect();
    assert_eq!(flags, [None, Some("1"), Some("2")]);
    let previous: Vec<_> = seen.iter().map(|request| request.header("grpc-previous-rpc-attempts")).collect();
    assert_eq!(previous, [None, Some("1"), Some("2")]);
    assert_eq!(world.sends(), Sends { attempts: 3, retries: 2, resends: 0 });
    world.ended(&[("attempts_exhausted", 1)]);
}

#[tokio::test]
async fn an_error_in_the_first_headers_and_then_an_answer_is_an_answer() {
    let peer = Peer::start([Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[0].body, seen[1].body);
    assert!(seen.iter().all(|request| request.whole && request.connection == 0));
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_status_in_the_first_headers_is_final_although_the_stream_goes_on() {
    let open = || Reply::begin_with(&[("grpc-status", "14")]);
    let peer =
        Peer::start([open(), open().pause(ms(50)).trailers(&[("grpc-status", "0")]), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    // What was left of the failed attempts was cancelled on the wire.
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 3);
    assert!(seen[0].reset.is_some());
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn headers_without_a_status_commit_however_soon_the_trailers_follow() {
    for wait in [0, 5, 50] {
        for (code, fate) in [("14", "committed"), ("5", "not_retryable"), ("0", "ok")] {
            let reply = Reply::begin().message("yes");
            let reply = if wait > 0 { reply.pause(ms(wait)) } else { reply };
            let peer = Peer::start([reply.trailers(&[("grpc-status", code)]), Reply::ok("again")]).await;
            let world = World::new(&peer, THREE).await;
            let answer = world.call("one").await.map(tonic::Response::into_inner);
            let number = answer.as_ref().err().map_or(0, |error| i32::from(error.code()));
            assert_eq!(number.to_string(), code, "after {wait} ms");
            assert_eq!(peer.until_all_are_over().await.len(), 1, "after {wait} ms");
            world.ended(&[(fate, 1)]);
        }
    }
}

#[tokio::test]
async fn headers_and_trailers_without_a_message_between_commit_too() {
    for wait in [0, 5, 50] {
        let reply = if wait > 0 { Reply::begin().pause(ms(wait)) } else { Reply::begin() };
        let peer = Peer::start([reply.trailers(&[("grpc-status", "14")]), Reply::ok("again")]).await;
        let world = World::new(&peer, THREE).await;
        assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(peer.until_all_are_over().await.len(), 1);
        assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
        world.ended(&[("committed", 1)]);
    }
}

#[tokio::test]
async fn a_status_that_is_missing_or_malformed_is_unknown() {
    let missing = || Reply::begin().message("yes");
    let script = [
        missing().then(damper_tests::peer::Act::End),
        missing().trailers(&[("x-other", "1")]),
        missing().trailers(&[("grpc-status", "fourteen")]),
        missing().trailers(&[("grpc-status", "")]),
        missing().trailers(&[("grpc-status", "17")]),
        Reply::trailers_only(&[("grpc-status", "-1")]),
        Reply::trailers_only(&[("grpc-status", "99999999999999999999")]),
        Reply::trailers_only(&[("grpc-status", "1 4")]),
    ];
    let count = u64::try_from(script.len()).unwrap();
    let peer = Peer::start(script).await;
    let world = World::new(&peer, THREE).await;
    for _ in 0..count {
        assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unknown);
    }
    assert_eq!(world.attempts_ended_with(Code::Unknown), count);
    assert_eq!(world.sends(), Sends { attempts: count, retries: 0, resends: 0 });
    world.ended(&[("not_retryable", count)]);
}

#[tokio::test]
async fn a_malformed_status_is_retried_where_unknown_is() {
    let fields = "retry: { max_attempts: 3, codes: { allow: [UNKNOWN] }, backoff: { none: {} } }";
    let peer = Peer::start([Reply::trailers_only(&[("grpc-status", "x")]), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    world.call("one").await.unwrap();
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn headers_that_end_the_stream_without_a_status_are_unknown() {
    let peer = Peer::start([Reply::trailers_only(&[])]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unknown);
    assert_eq!(world.attempts_ended_with(Code::Unknown), 1);
    world.ended(&[("not_retryable", 1)]);
}

#[tokio::test]
async fn an_http_error_without_a_status_is_what_grpc_says_it_is() {
    let table = [
        (400, Code::Internal),
        (401, Code::Unauthenticated),
        (403, Code::PermissionDenied),
        (404, Code::Unimplemented),
        (429, Code::Unavailable),
        (500, Code::Unknown),
        (502, Code::Unavailable),
        (503, Code::Unavailable),
        (504, Code::Unavailable),
    ];
    for (status, code) in table {
        for (reply, is_page) in [(Reply::http(status), false), (Reply::http_page(status), true)] {
            let peer = Peer::by(move |_| reply.clone()).await;
            let world = World::new(&peer, THREE).await;
            let error = world.call("one").await.unwrap_err();
            // Tonic tries to read a page as messages and reports that; the engine goes by the status.
            assert!(is_page || error.code() == code, "{status}: {error}");
            let (sends, fate) =
                if code == Code::Unavailable { (3, "attempts_exhausted") } else { (1, "not_retryable") };
            assert_eq!(peer.seen().len(), sends, "{status}");
            assert_eq!(world.attempts_ended_with(code), u64::try_from(sends).unwrap(), "{status}");
            world.ended(&[(fate, 1)]);
        }
    }
}

#[tokio::test]
async fn a_gateway_that_recovers_is_retried_like_any_callee() {
    let peer = Peer::start([Reply::http_page(503), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    world.ended(&[("ok_after_retry", 1)]);
}
