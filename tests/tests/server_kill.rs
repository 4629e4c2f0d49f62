//! kill -9 of `damper serve` during writes: no acknowledged write is lost.
//!
//! Four writers put rules through the admin API as fast as they are answered; the server is killed with
//! SIGKILL at a random moment after a few answers and started again on the same store. Every rule must then
//! be the last one that was acknowledged for its key, or the one that was being written when the server died.

use std::collections::HashMap;
use std::time::Duration;

use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, Mode};
use damper_tests::binary::Served;
use tokio::sync::watch;
use tonic::transport::Channel;

const ROUNDS: u32 = 50;
const WRITERS: u32 = 4;
const KEYS_PER_WRITER: u32 = 8;
/// Acknowledged writes of a round before its kill may come.
const AT_LEAST: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(120);

/// What a writer knows of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    acknowledged_ms: i64,
    acknowledged_revision: u64,
    in_flight_ms: Option<i64>,
}

type Keys = HashMap<String, Known>;

fn rule(callee: &str, timeout_ms: i64) -> v1::Rule {
    let key = v1::Pattern {
        caller_service: "*".to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: callee.to_owned(),
        callee_method: "*".to_owned(),
    };
    let nanos = i32::try_from(timeout_ms % 1000).expect("less than a second") * 1_000_000;
    let timeout = prost_types::Duration { seconds: timeout_ms / 1000, nanos };
    let policy = v1::Policy { mode: Mode::Enforce.into(), timeout: Some(timeout), ..v1::Policy::default() };
    v1::Rule { key: Some(key), policy: Some(policy), ..v1::Rule::default() }
}

fn timeout_ms(rule: &v1::Rule) -> i64 {
    let timeout = rule.policy.as_ref().and_then(|policy| policy.timeout).expect("every rule has a timeout");
    timeout.seconds * 1000 + i64::from(timeout.nanos) / 1_000_000
}

/// Writes until the server is gone.
async fn write(
    mut rules: RulesClient<Channel>,
    writer: u32,
    round: u32,
    mut keys: Keys,
    acknowledged: watch::Sender<u32>,
) -> Keys {
    for step in 0_u32.. {
        let callee = format!("callee-{writer}-{}", step % KEYS_PER_WRITER);
        let value = i64::from(round) * 50_000 + i64::from(step % 50_000) + 1;
        let known = keys.entry(callee.clone()).or_default();
        known.in_flight_ms = Some(value);
        let request =
            v1::PutRuleRequest { rule: Some(rule(&callee, value)), ..v1::PutRuleRequest::default() };
        match rules.put_rule(request).await {
            Ok(answer) => {
                let acknowledged_revision = answer.into_inner().revision;
                *known = Known { acknowledged_ms: value, acknowledged_revision, in_flight_ms: None };
                acknowledged.send_modify(|count| *count += 1);
            }
            Err(_) => break,
        }
    }
    keys
}

async fn verify(rules: &mut RulesClient<Channel>, all: &mut [Keys]) -> u64 {
    let request = v1::ListRulesRequest { page_size: 1000, ..v1::ListRulesRequest::default() };
    let listed = rules.list_rules(request).await.expect("rules are listed").into_inner();
    let name = |rule: &v1::Rule| rule.key.clone().expect("every rule has a key").callee_service;
    let stored: HashMap<_, _> = listed.rules.iter().map(|rule| (name(rule), rule)).collect();
    for (callee, known) in all.iter_mut().flatten() {
        let found = stored.get(callee).map(|rule| timeout_ms(rule));
        let landed = known.in_flight_ms.filter(|value| found == Some(*value));
        let kept = found == (known.acknowledged_ms > 0).then_some(known.acknowledged_ms);
        assert!(kept || landed.is_some(), "{callee}: found {found:?}, known {known:?}");
        assert!(listed.revision >= known.acknowledged_revision, "the head went back");
        known.acknowledged_ms = found.unwrap_or(0);
        known.in_flight_ms = None;
    }
    listed.revision
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = format!("sled:{}", folder.path().join("store").display());
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut all: Vec<Keys> = (0..WRITERS).map(|_| Keys::new()).collect();
    let mut last_revision = 0;
    for round in 0..ROUNDS {
        let mut server = Served::start(&store);
        let mut rules = RulesClient::connect(server.url().to_owned()).await.expect("the server is there");
        let revision = verify(&mut rules, &mut all).await;
        assert!(revision >= last_revision, "the head went back");
        last_revision = revision;
        let acknowledged = watch::Sender::new(0);
        let writers: Vec<_> = (0..WRITERS)
            .zip(all.drain(..))
            .map(|(writer, keys)| {
                tokio::spawn(write(rules.clone(), writer, round, keys, acknowledged.clone()))
            })
            .collect();
        let mut count = acknowledged.subscribe();
        let enough = tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= AT_LEAST)).await;
        enough.expect("writes are acknowledged").expect("the sender is here");
        tokio::time::sleep(Duration::from_millis(random.u64(5..150))).await;
        server.kill();
        for writer in writers {
            all.push(writer.await.expect("a writer does not panic"));
        }
    }
}
