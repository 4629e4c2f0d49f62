//! Responses of the server, applied before the ack.

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Source};

use crate::callee::attempts;
use crate::server::*;

async fn connected(plane: &mut ControlPlane) -> (Damper, Stream) {
    let damper = Damper::connect(plane.options()).unwrap();
    (damper, plane.accept().await)
}

fn reasons(ack: &v1::Ack) -> Vec<(&str, u64, &str)> {
    let mut all = Vec::new();
    for v1::Refusal { key, revision, reason, .. } in &ack.refused {
        all.push((key.as_ref().unwrap().callee_service.as_str(), *revision, reason.as_str()));
    }
    all
}

#[tokio::test]
async fn a_first_hello_has_the_identity_and_no_position() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options().instance_id("i-1")).unwrap();
    let hello = plane.accept().await.hello;
    let identity = hello.identity.unwrap();
    assert_eq!(
        (identity.service.as_str(), identity.cluster.as_str(), identity.instance.as_str()),
        ("orders", "online", "i-1")
    );
    assert_eq!((hello.epoch.as_str(), hello.revision), ("", 0));
    assert_eq!(hello.features, damper_core::feature::ALL);
    assert_eq!(hello.source, i32::from(v1::Source::BuiltIn));
    assert_eq!(hello.override_mode, i32::from(v1::Mode::Unspecified));
    assert!(!hello.sdk_version.is_empty());
    assert_eq!(hello.refused, []);
}

#[tokio::test]
async fn a_snapshot_is_in_force_when_it_is_acknowledged() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    assert_eq!(attempts(&damper, "inventory").await, 1, "built in: no retries");
    assert_eq!(damper.status().source, Source::BuiltIn);
    let ack = stream.exchange(7, 1, snapshot(vec![rule("inventory", 5)])).await;
    assert_eq!((ack.revision, ack.refused), (7, vec![]));
    assert_eq!(attempts(&damper, "inventory").await, 3);
    let status = damper.status();
    assert_eq!((status.source, status.epoch.as_str(), status.revision), (Source::Live, "e", 7));
    assert_eq!((status.rules, status.refused, status.connected), (1, 0, true));
    damper.ready(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn the_pages_of_a_snapshot_come_into_force_together() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    stream.say(7, 0, Kind::Snapshot(v1::Snapshot { rules: vec![rule("a", 1)], ..Default::default() })).await;
    stream.exchange(7, 1, snapshot(vec![rule("b", 1)])).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (3, 3));
}

#[tokio::test]
async fn deltas_change_and_remove_rules() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    assert_eq!(stream.exchange(8, 2, delta(vec![rule("b", 8)], &[])).await.revision, 8);
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (3, 3));
    stream.exchange(9, 3, delta(vec![], &["a"])).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 3));
}

#[tokio::test]
async fn an_invalid_rule_is_rejected_and_the_others_apply() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    stream.exchange(7, 1, snapshot(vec![rule("*", 1), rule("known", 2)])).await;
    let sent = vec![unknown_rule("known", 8), unknown_rule("new", 8), rule("good", 8)];
    let ack = stream.exchange(8, 2, delta(sent, &[])).await;
    let reason = "policy.mode: must be off, observe or enforce, not 77";
    assert_eq!(reasons(&ack), [("known", 8, reason), ("new", 8, reason)]);
    assert_eq!(ack.revision, 8);
    assert_eq!(attempts(&damper, "known").await, 3, "keeps its previous version");
    assert_eq!(attempts(&damper, "new").await, 1, "off, although \"*\" retries");
    assert_eq!(attempts(&damper, "good").await, 3);
    assert_eq!(attempts(&damper, "other").await, 3);
    assert_eq!(damper.status().refused, 2);
    let ack = stream.exchange(9, 3, delta(vec![rule("new", 9)], &["known"])).await;
    assert_eq!(ack.refused, []);
    assert_eq!(attempts(&damper, "new").await, 3);
    assert_eq!(damper.status().refused, 0);
}

#[tokio::test]
async fn a_withheld_rule_is_off_here() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    let kind = Some(v1::distributed_rule::Kind::NeedsFeature("hedge".to_owned()));
    let withheld = v1::DistributedRule { key: Some(pattern("a")), revision: 3, kind };
    let ack = stream.exchange(7, 1, snapshot(vec![rule("*", 1), withheld])).await;
    assert_eq!(ack.refused, []);
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 3));
}

#[tokio::test]
async fn an_older_response_is_ignored_and_answered_with_what_is_held() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    assert_eq!(stream.exchange(6, 2, delta(vec![], &["a"])).await.revision, 7);
    assert_eq!(stream.exchange(5, 3, snapshot(vec![])).await.revision, 7);
    assert_eq!(attempts(&damper, "a").await, 3);
    stream.say_in("other", 2, 4, snapshot(vec![])).await;
    assert_eq!(stream.ack().await.revision, 2, "another epoch may have any revision");
    assert_eq!(attempts(&damper, "a").await, 1);
}

#[tokio::test]
async fn messages_of_newer_servers_are_ignored() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    stream.say_nothing_known().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    assert_eq!(attempts(&damper, "a").await, 3);
}
