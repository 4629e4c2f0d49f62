//! What each replica does by itself is done once.

use std::time::Duration;

use damper_proto::v1;
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;

use crate::world::{all_hear, so, until};

#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_clear_an_expired_kill_away_with_one_change() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let all =
        [ControlPlane::on(&store).await, ControlPlane::on(&store).await, ControlPlane::on(&store).await];
    all_hear(&[&all[0], &all[1], &all[2]]).await;
    let [caller_service, caller_cluster, callee_service, callee_method] =
        ["*", "*", "stock", "*"].map(str::to_owned);
    let kill = v1::KillRequest {
        key: Some(v1::Pattern { caller_service, caller_cluster, callee_service, callee_method }),
        time_to_live: prost_types::Duration::try_from(Duration::from_secs(1)).ok(),
        options: Some(v1::WriteOptions {
            author: "test".to_owned(),
            reason: "an incident".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let set = all[0].kills().kill(kill).await.expect("the kill is set").into_inner();
    let changes = || async {
        let mut told = Vec::new();
        let listed = all[1].history().list_changes(v1::ListChangesRequest::default()).await.expect("changes");
        told.extend(listed.into_inner().changes);
        told
    };
    until("it is cleared away", || async {
        let told = changes().await;
        so(told.iter().any(|change| change.revision > set.revision), told.len())
    })
    .await;
    // Every replica has had its turn by then: they are spread over half a second, and try again after one.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = changes().await;
    assert_eq!(told.len(), 2, "set once, cleared once: {told:?}");
}
