//! A change and a kill are in force in a connected process within a second of their acknowledgement.
//!
//! On a busy machine one of them may be late, so the bound is on the median of several.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::time::{Duration, Instant};

use damper_proto::v1;
use damper_sdk::{Damper, Options};
use damper_tests::control_plane::ControlPlane;

const TRIES: u64 = 9;
const WITHIN: Duration = Duration::from_secs(1);
/// Longer than anything here takes; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Until the process shows it; there is no event for that.
async fn shown(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("not seen: {what}"));
}

#[track_caller]
fn is_quick(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let median = times[times.len() / 2];
    assert!(median < WITHIN, "{what}: {median:?} at the median of {times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_and_a_kill_arrive_within_a_second() {
    let server = ControlPlane::start().await;
    let damper = Damper::connect(Options::new([server.url()]).service("shop")).unwrap();
    damper.ready(PATIENCE).await.unwrap();
    let (mut changes, mut kills, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for attempts in 2..2 + TRIES {
        let revision = server
            .apply(&format!(
                "kind: Rule\n\
                 key: {{ caller_service: shop, caller_cluster: '*', callee_service: stock, callee_method: '*' }}\n\
                 policy: {{ mode: observe, retry: {{ max_attempts: {attempts} }} }}\n"
            ))
            .await;
        let begun = Instant::now();
        shown("the change", || damper.status().revision >= revision).await;
        changes.push(begun.elapsed());

        let callee = damper_core::Pattern::parse("*", "*", "stock", "*").unwrap();
        let key = Some(v1::Pattern::from(&callee));
        let reason = v1::WriteOptions { reason: "a test".to_owned(), ..Default::default() };
        let kill = v1::KillRequest { key: key.clone(), options: Some(reason.clone()), ..Default::default() };
        server.kills().kill(kill).await.unwrap();
        let begun = Instant::now();
        shown("the kill", || damper.status().kills == 1).await;
        kills.push(begun.elapsed());

        let end = v1::UnkillRequest { key, options: Some(reason), ..Default::default() };
        server.kills().unkill(end).await.unwrap();
        let begun = Instant::now();
        shown("the end of the kill", || damper.status().kills == 0).await;
        ends.push(begun.elapsed());
    }
    is_quick("a change", changes);
    is_quick("a kill", kills);
    is_quick("the end of a kill", ends);
}
