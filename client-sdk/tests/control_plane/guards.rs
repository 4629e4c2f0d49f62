//! Guards tighten the rules for calls of this process and limit the retries that it serves.

use damper_proto::v1;
use damper_sdk::{Damper, Source};

use crate::callee::{REPEAT, attempts, served};
use crate::server::*;

const ENFORCE: v1::Mode = v1::Mode::Enforce;

async fn connected(plane: &mut ControlPlane) -> (Damper, Stream) {
    let damper = Damper::connect(plane.options()).unwrap();
    (damper, plane.accept().await)
}

/// A guard with a ratio that is invalid for any guard.
fn bad_guard(callee: &str, revision: u64) -> v1::DistributedGuard {
    let ceiling = v1::Ceiling { max_retry_breaker_ratio: Some(f64::NAN), ..v1::Ceiling::default() };
    guard(callee, revision, ceiling)
}

#[tokio::test]
async fn an_acknowledged_guard_tightens_matching_rules() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    let rules = vec![rule("a", 1), rule("b", 1)];
    let ack = stream.exchange(7, 1, guarded(rules, vec![guard("a", 2, at_most(2))])).await;
    assert_eq!((ack.revision, ack.refused), (7, vec![]));
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (2, 3));
    stream.exchange(8, 2, guards_changed(vec![guard("*", 8, at_most(1))], &[])).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 1));
    stream.exchange(9, 3, guards_changed(vec![], &["a", "*"])).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (3, 3));
}

#[tokio::test]
async fn an_unreadable_guard_keeps_its_previous_version() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    let rules = vec![rule("a", 1), rule("b", 1), rule("c", 1)];
    stream.exchange(7, 1, guarded(rules, vec![guard("a", 2, at_most(2))])).await;
    let changed = vec![bad_guard("a", 8), bad_guard("b", 8), guard("c", 8, at_most(1))];
    let ack = stream.exchange(8, 2, guards_changed(changed, &[])).await;
    let refused = |refusal: &v1::Refusal| (refusal.guard, refusal.key.clone().unwrap().callee_service);
    let expected = [(true, "a".to_owned()), (true, "b".to_owned())];
    assert_eq!(ack.refused.iter().map(refused).collect::<Vec<_>>(), expected);
    let reason = &ack.refused[0].reason;
    assert!(
        reason.starts_with("ceiling.max_retry_breaker_ratio: must be between 0.001 and 1, not NaN"),
        "{reason}"
    );
    let made = (attempts(&damper, "a").await, attempts(&damper, "b").await, attempts(&damper, "c").await);
    assert_eq!(made, (2, 3, 1));
    assert_eq!(damper.status().refused, 2);
    drop(stream);
    let hello = plane.accept().await.hello;
    assert!(hello.refused.len() == 2 && hello.refused.iter().all(|refusal| refusal.guard), "{hello:?}");
}

#[tokio::test]
async fn the_repeat_limit_of_a_guard_applies_to_served_methods() {
    let mut plane = ControlPlane::start().await;
    let (damper, mut stream) = connected(&mut plane).await;
    assert_eq!(served(&damper, 5, REPEAT).await, 5, "no guard, no limit");
    let elsewhere = guard("billing", 1, repeats(ENFORCE, 0));
    let ours = guard("orders", 2, repeats(ENFORCE, 8));
    let ack = stream.exchange(7, 1, guarded(vec![], vec![elsewhere, ours])).await;
    assert_eq!(ack.refused, []);
    assert_eq!(served(&damper, 5, REPEAT).await, 3, "earlier requests count");
    assert_eq!(served(&damper, 5, &[]).await, 5);
    let observed = guard("orders", 8, repeats(v1::Mode::Observe, 8));
    stream.exchange(8, 2, guards_changed(vec![observed], &[])).await;
    assert_eq!(served(&damper, 5, REPEAT).await, 5);
    let mut shed = 0;
    damper.for_each_served(|method, served| {
        assert_eq!(method, "a.B/Served");
        shed += served.shed();
    });
    assert_eq!(shed, 2);
}

#[tokio::test]
async fn guards_outlive_the_control_plane_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    let guards = vec![guard("a", 2, at_most(2)), guard("orders", 2, repeats(ENFORCE, 1)), bad_guard("c", 3)];
    stream.exchange(7, 1, guarded(vec![rule("a", 1)], guards)).await;
    drop(stream);
    damper.shutdown().await;
    plane.kill().await;
    let nowhere = options(["http://127.0.0.1:1".to_owned()]).state_dir(folder.path());
    let damper = Damper::connect(nowhere).unwrap();
    let status = until(&damper, |status| status.source == Source::LastKnownGood).await;
    assert_eq!((status.revision, status.rules, status.refused), (7, 1, 1));
    assert_eq!(attempts(&damper, "a").await, 2);
    assert_eq!(served(&damper, 5, REPEAT).await, 1);
}
