//! Compare and set under contention, on every store through the server: of those who write over one revision exactly
//! one wins, and each loser is told what is there instead.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use damper_proto::v1;
use damper_proto::v1::rules_client::RulesClient;
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use futures_util::future::join_all;
use prost::Message as _;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Rules that are raced for at the same time.
const RULES: usize = 100;
/// Races for each, one after the other.
const ROUNDS: u32 = 100;
const RACERS: u32 = 3;
/// A server that gives no answer so often, each after seconds, is broken.
const MAX_REPEATS: usize = 10;

fn key(rule: usize) -> v1::Pattern {
    v1::Pattern {
        caller_service: format!("shop-{rule}"),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/*".to_owned(),
    }
}

/// A version that nobody else writes in any round.
fn version(rule: usize, round: u32, racer: u32) -> v1::Rule {
    let millis = i64::from(1 + round * RACERS + racer);
    let timeout = prost_types::Duration {
        seconds: millis / 1000,
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap(),
    };
    let policy = v1::Policy { mode: v1::Mode::Observe.into(), timeout: Some(timeout), ..Default::default() };
    v1::Rule { key: Some(key(rule)), policy: Some(policy), ..Default::default() }
}

/// The rule that the details of a lost race hold.
fn current(lost: &Status) -> v1::Rule {
    let details = tonic_types::pb::Status::decode(lost.details()).unwrap().details;
    let packed =
        details.iter().find(|any| any.type_url.ends_with("/damper.v1.Rule")).expect("the current rule");
    v1::Rule::decode(packed.value.as_slice()).unwrap()
}

/// The answer to a write. Where a busy disk lets it wait too long it is asked for again, under the same request id.
async fn answered(
    client: &mut RulesClient<Channel>,
    request: v1::PutRuleRequest,
) -> Result<tonic::Response<v1::PutRuleResponse>, Status> {
    for _ in 0..MAX_REPEATS {
        match client.put_rule(request.clone()).await {
            Err(status) if status.code() == Code::Unavailable => {}
            answer => return answer,
        }
    }
    client.put_rule(request).await
}

/// All races for one rule, each over the revision that the one before left.
async fn race(clients: &[RulesClient<Channel>], rule: usize) {
    let mut at = 0;
    for round in 0..ROUNDS {
        let puts = (0..RACERS).map(|racer| {
            let mut client = clients[racer as usize % clients.len()].clone();
            let request_id = format!("{rule}-{round}-{racer}");
            let options = v1::WriteOptions { request_id, ..Default::default() };
            let request = v1::PutRuleRequest {
                rule: Some(version(rule, round, racer)),
                expected_revision: Some(at),
                options: Some(options),
            };
            async move { answered(&mut client, request).await }
        });
        let (mut won, mut lost) = (Vec::new(), Vec::new());
        for answer in join_all(puts).await {
            match answer {
                Ok(done) => won.push(done.into_inner()),
                Err(status) => lost.push(status),
            }
        }
        let [winner] = won.as_slice() else {
            panic!("rule {rule}, round {round}: {won:?} won, {lost:?} lost")
        };
        let stored = winner.rule.clone().unwrap();
        assert!(winner.changed && winner.revision == stored.revision && stored.revision > at, "{winner:?}");
        for status in &lost {
            assert_eq!(status.code(), Code::Aborted, "{status:?}");
            assert_eq!(current(status), stored, "the loser is told what won");
        }
        at = stored.revision;
    }
}

/// 10,000 races, 100 at a time.
async fn one_wins_each(replicas: &[&ControlPlane]) {
    let clients: Vec<_> = replicas.iter().map(|replica| replica.rules()).collect();
    join_all((0..RULES).map(|rule| race(&clients, rule))).await;
    let races = RULES as u64 * u64::from(ROUNDS);
    let request = v1::ListRulesRequest { min_revision: races, ..Default::default() };
    let listed = replicas[0].rules().list_rules(request).await.unwrap().into_inner();
    assert_eq!((listed.revision, listed.total as usize), (races, RULES), "a revision for each race, no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_of_10000_races_each_has_exactly_one_winner() {
    one_wins_each(&[&ControlPlane::start().await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_of_10000_races_between_replicas_each_has_exactly_one_winner() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    one_wins_each(&[&one, &two]).await;
}
