//! A real etcd that stops responding while the server runs, and recovers.

use std::time::{Duration, Instant};

use damper_control_plane::QueuesUrl;
use damper_proto::v1;
use damper_tests::etcd::Etcd;
use tempfile::TempDir;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{Agent, hello, rule, shop_rule, soon, start_in};

#[tokio::test]
async fn reads_and_streams_go_on_while_the_store_is_unavailable() {
    let etcd = Etcd::start().await;
    let url = format!("etcd://{}", etcd.endpoint());
    let folder = TempDir::new().unwrap();
    let server = start_in(folder, |settings| {
        settings.store = url.parse().unwrap();
        settings.queues = QueuesUrl::Off;
    })
    .await;
    server.put(shop_rule(2)).await;
    let mut watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    assert!(soon(watch.message()).await.unwrap().unwrap().stale_since.is_none());

    etcd.freeze();
    let begin = Instant::now();
    let request = v1::PutRuleRequest { rule: Some(shop_rule(3)), ..Default::default() };
    let refused = soon(server.rules().put_rule(request)).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.get_details_retry_info().is_some());
    while soon(watch.message()).await.unwrap().unwrap().stale_since.is_none() {}
    let (_, rules) = Agent::connect(&server, hello("shop")).await.snapshot().await;
    assert_eq!(rules.len(), 1);
    let key = rule(shop_rule(2).key.unwrap(), 2).key;
    assert!(server.rules().get_rule(v1::GetRuleRequest { key, min_revision: 0 }).await.is_ok());

    etcd.thaw();
    while soon(watch.message()).await.unwrap().unwrap().stale_since.is_some() {}
    soon(async {
        let request = v1::PutRuleRequest { rule: Some(shop_rule(4)), ..Default::default() };
        while server.rules().put_rule(request.clone()).await.is_err() {}
    })
    .await;
    server.stop().await;
}
