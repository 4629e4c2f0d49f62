//! Whatever a control plane sends to a service: responses in any order, of any bytes.
//!
//! A message is either bytes read as one, or made of parts that fit: snapshots in pages, deltas, bookmarks, rules,
//! guards and kills that are valid, spoilt or said twice. Checked after each: within an epoch the revision never goes
//! back; a process that starts with what this one holds comes to the same; calls are still governed, and sent no
//! more often than any rule may say and any kill allows.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use damper_core::kill::TIME_TO_LIVE;
use damper_core::policy::MAX_ATTEMPTS;
use damper_core::{Kill, RouteKey, Table};
use damper_proto::convert::ActiveKill;
use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::fuzzing::{FuzzHarness, Received};
use http::Request;
use prost::Message as _;
use tonic::body::Body;

use crate::application::{Manner, call};
use crate::peer::{CALL, Peer, Script};
use crate::{any, play};

const CALLEES: [&str; 3] = ["stock", "b", "*"];
const METHOD: &str = "a.B/C";

/// Runs one case.
pub fn run(data: &[u8]) {
    play(async {
        // Bytes that do not make a message end the case; what was received until then was checked.
        _ = converse(&mut Unstructured::new(data)).await;
    });
}

async fn converse(u: &mut Unstructured<'_>) -> Result<()> {
    let bench = FuzzHarness::new("orders").expect("the name is a constant");
    let mut calls = 0;
    while !u.is_empty() {
        let message = message(u)?;
        let before = bench.position();
        let received = bench.receive(message);
        let after = bench.position();
        if let (Some((old, was)), Some((new, is))) = (&before, &after) {
            assert!(old != new || was <= is, "revision {is} after {was}");
        }
        match &received {
            Received::Applied(refused) => assert!(refused.len() >= usize::from(!refused.is_empty())),
            Received::Unchanged => {}
            Received::Broken(_) => {
                assert_eq!(before, after, "what is given up changes nothing");
                bench.begin_stream();
            }
        }
        restarts_alike(&bench);
        governs(&bench, &mut calls).await;
    }
    Ok(())
}

fn restarts_alike(bench: &FuzzHarness) {
    let Some(restarted) = bench.restarted() else {
        assert_eq!(bench.position(), None);
        return;
    };
    let (held, again) = (bench.table(), restarted.table());
    assert_eq!((held.len(), bench.position()), (again.len(), restarted.position()));
    assert_eq!(bench.status().refused, restarted.status().refused);
    // The wall clock goes on, so what is nearly over may be.
    let lasting = |bench: &FuzzHarness| {
        let kills = kills(bench).into_iter().filter(|(_, left)| *left > Duration::from_secs(60));
        kills.map(|(kill, _)| kill).collect::<Vec<_>>()
    };
    let after: Vec<_> = kills(&restarted).into_iter().map(|(kill, _)| kill).collect();
    assert!(lasting(bench).iter().all(|kill| after.contains(kill)), "{after:?}");
    assert!(after.len() <= bench.status().kills);
    for callee in CALLEES {
        let in_force = |table: &Table| {
            let route = RouteKey::new("orders", "default", callee, METHOD).ok()?;
            table.in_force(&route).map(|rule| rule.policy().clone())
        };
        assert_eq!(in_force(&held), in_force(&again), "{callee}");
    }
}

/// The kills in force, and what is left of their time.
fn kills(bench: &FuzzHarness) -> Vec<(Kill, Duration)> {
    let mut kills = Vec::new();
    bench.for_each_kill(|kill, left| {
        assert!(!left.is_zero() && left <= TIME_TO_LIVE.max, "{left:?}");
        kills.push((kill.clone(), left));
    });
    assert_eq!(kills.len(), bench.status().kills);
    kills
}

/// One call whose callee is always unavailable.
async fn governs(bench: &FuzzHarness, calls: &mut u64) {
    let peer = Peer::new(vec![Script::default()], true);
    let layer = bench.client_layer("stock").expect("the name is a constant");
    let request = Request::post(format!("/{METHOD}")).header(CALL, 0).body(Body::empty());
    let request = request.expect("it is a request");
    let saw = call(&mut layer.layer(peer.clone()), request, Manner::Patient, false).await;
    assert!(matches!(saw.status(), Some(b"14" | b"4")), "{saw:?}");
    let route = RouteKey::new("orders", "default", "stock", METHOD).expect("constants");
    let kills = kills(bench);
    let matching = || kills.iter().map(|(kill, _)| kill).filter(|kill| kill.pattern().matches(&route));
    let most = match (matching().count(), matching().any(Kill::calls)) {
        (0, _) => MAX_ATTEMPTS.max as usize,
        (_, false) => 1,
        (_, true) => 0,
    };
    assert!(peer.seen(0).len() <= most, "{} sends under {kills:?}", peer.seen(0).len());
    *calls += 1;
    bench.for_each_route(|_, _, counters| assert_eq!(counters.calls(), *calls));
}

fn message(u: &mut Unstructured<'_>) -> Result<v1::ServerMessage> {
    if u.ratio(1, 3)? {
        let length = usize::from(u.arbitrary::<u16>()?).min(u.len());
        return Ok(v1::ServerMessage::decode(u.bytes(length)?).unwrap_or_default());
    }
    let epoch = u.choose(&["e", "e", "e", "f", ""])?.to_string();
    let epoch = if u.ratio(1, 30)? { "x".repeat(300) } else { epoch };
    let revision = if u.ratio(1, 20)? { u.arbitrary()? } else { u.int_in_range(0..=9)? };
    let kind = match u.int_in_range(0..=9)? {
        0..=3 => Kind::Snapshot(v1::Snapshot {
            rules: some(u, rule)?,
            last: u.ratio(3, 4)?,
            guards: some(u, guard)?,
        }),
        4..=6 => Kind::Delta(v1::Delta {
            changed: some(u, rule)?,
            removed: some(u, pattern)?,
            changed_guards: some(u, guard)?,
            removed_guards: some(u, pattern)?,
        }),
        7 => Kind::Bookmark(v1::Bookmark {}),
        8 => Kind::Goodbye(v1::Goodbye { reason: "enough".to_owned() }),
        _ => Kind::ReportSettings(v1::ReportSettings {
            interval: Some(prost_types::Duration { seconds: u.arbitrary()?, nanos: u.arbitrary()? }),
            token_ends_at: Some(prost_types::Timestamp { seconds: u.arbitrary()?, nanos: u.arbitrary()? }),
        }),
    };
    let kills =
        if u.ratio(1, 3)? { Some(v1::KillSet { kills: some(u, kill)?, ..Default::default() }) } else { None };
    Ok(v1::ServerMessage { epoch, revision, nonce: u.arbitrary()?, kind: Some(kind), kills, commit: 0 })
}

fn kill(u: &mut Unstructured<'_>) -> Result<v1::ActiveKill> {
    let kill = any::kill(u, "stock", METHOD)?;
    let remaining = Duration::from_micros(u.int_in_range(0..=86_400_000_000)?);
    let mut sent = v1::ActiveKill::from(&ActiveKill { kill, remaining, expires_at: None });
    match u.int_in_range(0..=9)? {
        0 => sent.remaining = Some(prost_types::Duration { seconds: u.arbitrary()?, nanos: u.arbitrary()? }),
        1 => {
            sent.expires_at = Some(prost_types::Timestamp { seconds: u.arbitrary()?, nanos: u.arbitrary()? })
        }
        2 => sent.reason.clear(),
        3 => sent.key = None,
        4..=6 => sent.key = Some(pattern(u)?),
        _ => {}
    }
    Ok(sent)
}

fn some<T>(u: &mut Unstructured<'_>, make: impl Fn(&mut Unstructured<'_>) -> Result<T>) -> Result<Vec<T>> {
    (0..u.int_in_range(0..=3)?).map(|_| make(u)).collect()
}

fn pattern(u: &mut Unstructured<'_>) -> Result<v1::Pattern> {
    let word = |text: &str| text.to_owned();
    Ok(v1::Pattern {
        caller_service: word(u.choose(&["*", "orders", ""])?),
        caller_cluster: word(u.choose(&["*", "default"])?),
        callee_service: word(u.choose(&CALLEES)?),
        callee_method: word(u.choose(&["*", METHOD, "a.B/*", "a b"])?),
    })
}

fn rule(u: &mut Unstructured<'_>) -> Result<v1::DistributedRule> {
    use v1::distributed_rule::Kind;
    let mut policy = v1::Policy::from(&any::policy(u)?);
    if u.ratio(1, 5)? {
        policy.mode = u.arbitrary()?;
        policy.replay_limit_bytes = u.arbitrary()?;
    }
    let kind = match u.int_in_range(0..=9)? {
        0 => None,
        1 => Some(Kind::NeedsFeature("later".to_owned())),
        _ => Some(Kind::Policy(policy)),
    };
    let key = if u.ratio(19, 20)? { Some(pattern(u)?) } else { None };
    Ok(v1::DistributedRule { key, revision: u.int_in_range(0..=9)?, kind })
}

fn guard(u: &mut Unstructured<'_>) -> Result<v1::DistributedGuard> {
    let made = any::guard(u, "stock")?;
    let mut sent = v1::DistributedGuard::from(&made);
    if u.arbitrary()? {
        sent.key = Some(pattern(u)?);
    }
    if let Some(ceiling) = sent.ceiling.as_mut().filter(|_| u.ratio(1, 5).unwrap_or(false)) {
        (ceiling.hedge, ceiling.max_attempts) = (u.arbitrary()?, u.arbitrary()?);
    }
    Ok(sent)
}
