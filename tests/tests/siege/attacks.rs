//! What each of them tries: with no token, with an agent's, a viewer's, an editor's. Every attack goes on
//! until it is dropped.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use damper_proto::v1::{self, apply_rules_request, client_message, rule_change};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::wire::{Opened, Wire, framed, pour, swallow};
use crate::world::pattern;

const SUBSCRIBE: &str = "/damper.v1.Distribution/Subscribe";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The window of a peer that reads.
const OPEN: u32 = 1 << 20;
/// A revision since which the history is long.
const OLD_REVISION: u64 = 2;
/// Between two tries of one attacker.
const PAUSE: Duration = Duration::from_millis(50);

/// All attacks at once, until it is dropped.
pub(crate) type Attackers = JoinSet<()>;

/// Without a token: health that is watched with long heads, files that are not taken, connections that say nothing or
/// half, requests with a bad token.
pub(crate) fn without_token(attackers: &mut Attackers, address: SocketAddr) {
    for _ in 0..15 {
        attackers.spawn(async move { again(move || watch_health(address)).await });
    }
    for _ in 0..4 {
        attackers.spawn(async move { again(move || leave_files(address)).await });
    }
    attackers.spawn(async move { again(move || stay_silent(address)).await });
    for _ in 0..2 {
        attackers.spawn(async move { again(move || show_nonsense(address)).await });
    }
}

/// With an agent's token: refusals with long reasons, messages that never end, long ones, classes, routes, hellos of
/// revisions to come and of old ones.
pub(crate) fn with_agent(attackers: &mut Attackers, address: SocketAddr, token: &str, epoch: &str) {
    for revision in [u64::MAX, OLD_REVISION] {
        for n in 0..2 {
            let (token, epoch) = (token.to_owned(), epoch.to_owned());
            attackers.spawn(async move {
                again(move || claim(address, token.clone(), epoch.clone(), revision, n)).await;
            });
        }
    }
    for n in 0..4 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || refuse(address, token.clone(), n)).await });
    }
    for n in 0..2 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || send_halves(address, token.clone(), n)).await });
    }
    for n in 0..2 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || fall_idle(address, token.clone(), n)).await });
    }
    for n in 0..2 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || make_classes(address, token.clone(), n)).await });
    }
    for n in 0..3 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || invent_routes(address, token.clone(), n)).await });
    }
}

/// With a viewer's token: answers that are not read, and questions that cost much.
pub(crate) fn with_viewer(attackers: &mut Attackers, address: SocketAddr, token: &str) {
    for n in 0..6 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || leave_unread(address, token.clone(), n)).await });
    }
    for _ in 0..4 {
        let token = token.to_owned();
        attackers.spawn(async move { again(move || ask_much(address, token.clone())).await });
    }
}

/// With an editor's token: change sets larger than allowed, two at a time with another editor.
pub(crate) fn with_editor(attackers: &mut Attackers, address: SocketAddr, token: &str) {
    let token = token.to_owned();
    attackers.spawn(async move {
        for n in 0.. {
            let _ = apply_much(address, &token, n).await;
            sleep(PAUSE).await;
        }
    });
}

/// The server may end what it likes; then it is tried again.
async fn again<F: Future<Output = Option<()>> + Send>(attack: impl Fn() -> F + Send) {
    loop {
        let _ = attack().await;
        sleep(PAUSE).await;
    }
}

async fn watch_health(address: SocketAddr) -> Option<()> {
    let mut wire = Wire::connect(address, 0, None).await?.fat(12 << 10);
    let mut held = Vec::new();
    for _ in 0..1000 {
        // The message, and never the end of the request.
        let mut opened = wire.open("/grpc.health.v1.Health/Watch").await?;
        opened.body.send_data(Bytes::from_static(&[0; 5]), false).ok()?;
        held.push(opened);
    }
    sleep(Duration::from_secs(5)).await;
    Some(())
}

async fn leave_files(address: SocketAddr) -> Option<()> {
    let mut wire = Wire::connect(address, 0, None).await?.fat(12 << 10);
    let mut held = Vec::new();
    for _ in 0..1000 {
        held.push(wire.get("/").await?);
    }
    sleep(Duration::from_secs(5)).await;
    Some(())
}

async fn stay_silent(address: SocketAddr) -> Option<()> {
    let mut held = Vec::new();
    for n in 0..1000 {
        let mut socket = TcpStream::connect(address).await.ok()?;
        if n % 2 == 0 {
            let _ = socket.write_all(PREFACE).await;
        }
        held.push(socket);
    }
    sleep(Duration::from_secs(1)).await;
    Some(())
}

async fn show_nonsense(address: SocketAddr) -> Option<()> {
    let nonsense = format!("damper_{}_{}", "0".repeat(16), "0".repeat(64));
    let mut wire = Wire::connect(address, OPEN, Some(&nonsense)).await?;
    for _ in 0..500 {
        let opened = wire.ask("/damper.v1.Rules/ListRules", &v1::ListRulesRequest::default()).await?;
        swallow(opened.answer).await.ok()?;
    }
    Some(())
}

fn hello(cluster: &str, instance: &str) -> v1::Hello {
    let [service, cluster, instance] = ["besieger", cluster, instance].map(str::to_owned);
    v1::Hello { identity: Some(v1::Identity { service, cluster, instance }), ..Default::default() }
}

/// A client that has said hello and reads.
async fn client(wire: &mut Wire, cluster: &str, instance: &str) -> Option<Opened> {
    subscribe(wire, hello(cluster, instance)).await
}

async fn subscribe(wire: &mut Wire, hello: v1::Hello) -> Option<Opened> {
    let mut opened = wire.open(SUBSCRIBE).await?;
    let hello = framed(&v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) });
    opened.body.send_data(hello, false).ok()?;
    Some(opened)
}

/// 64 clients that claim to hold a revision: one to come, or an old one after which everything was changed often. Half
/// of them name the commit that made it.
async fn claim(address: SocketAddr, token: String, epoch: String, revision: u64, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let features: Vec<String> = damper_core::feature::ALL.iter().map(|name| (*name).to_owned()).collect();
    let mut held = JoinSet::new();
    for stream in 0..64_u64 {
        let hello = v1::Hello {
            epoch: epoch.clone(),
            revision,
            commit: stream.is_multiple_of(2).then_some(stream + 1),
            features: features.clone(),
            ..hello("default", &format!("claims-{revision}-{n}-{stream}"))
        };
        let Opened { answer, body } = subscribe(&mut wire, hello).await?;
        held.spawn(async move {
            let _ = swallow(answer).await;
            drop(body);
        });
    }
    sleep(Duration::from_secs(1)).await;
    Some(())
}

/// 1,000 refusals of rules that are there, each with a reason of nearly the largest message.
async fn refuse(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let Opened { answer, mut body } = client(&mut wire, "default", &format!("refuses-{n}")).await?;
    let reading = tokio::spawn(swallow(answer));
    for rule in 0..1000 {
        let refused = vec![v1::Refusal {
            key: Some(pattern(&format!("callee-{rule}"))),
            revision: 1,
            reason: "r".repeat(1 << 20),
            ..Default::default()
        }];
        let ack = v1::Ack { refused, ..Default::default() };
        let message = framed(&v1::ClientMessage { kind: Some(client_message::Kind::Ack(ack)) });
        if !pour(&mut body, message).await || reading.is_finished() {
            break;
        }
    }
    reading.abort();
    Some(())
}

/// 200 clients, each with most of a message.
async fn send_halves(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let mut half = vec![0];
    half.extend((1_u32 << 20).to_be_bytes());
    half.resize(1_000_000, 0);
    let half = Bytes::from(half);
    let mut held = Vec::new();
    for stream in 0..200 {
        let Opened { answer, mut body } = client(&mut wire, "default", &format!("half-{n}-{stream}")).await?;
        let reading = tokio::spawn(swallow(answer));
        let half = half.clone();
        held.push(tokio::spawn(async move {
            let _ = pour(&mut body, half).await;
            sleep(Duration::from_secs(30)).await;
            reading.abort();
        }));
    }
    sleep(Duration::from_secs(5)).await;
    held.iter().for_each(tokio::task::JoinHandle::abort);
    Some(())
}

/// 500 clients, each with a page that it does not read and a long message behind it.
async fn fall_idle(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, 0, Some(&token)).await?;
    let refused = vec![v1::Refusal { reason: "r".repeat(200_000), ..Default::default() }];
    let ack = v1::Ack { refused, ..Default::default() };
    let long = framed(&v1::ClientMessage { kind: Some(client_message::Kind::Ack(ack)) });
    let mut held = Vec::new();
    for stream in 0..500 {
        let mut opened = client(&mut wire, "default", &format!("idle-{n}-{stream}")).await?;
        if !pour(&mut opened.body, long.clone()).await {
            break;
        }
        held.push(opened);
    }
    sleep(Duration::from_secs(5)).await;
    Some(())
}

/// 500 clients, each of a cluster of its own.
async fn make_classes(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let mut held = JoinSet::new();
    for stream in 0..500 {
        let name = format!("class-{n}-{stream}");
        let Opened { answer, body } = client(&mut wire, &name, &name).await?;
        held.spawn(async move {
            let _ = swallow(answer).await;
            drop(body);
        });
    }
    sleep(Duration::from_secs(5)).await;
    Some(())
}

/// Reports of 2,000 routes that nobody has.
async fn invent_routes(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let Opened { answer, mut body } = client(&mut wire, "default", &format!("routes-{n}")).await?;
    let reading = tokio::spawn(swallow(answer));
    for part in 0..20_u64 {
        let route = |at| v1::RouteReport {
            callee_service: format!("invented-{n}-{part}-{at}"),
            callee_method: "p.S/M".to_owned(),
            calls: part + 1,
            attempts: part + 1,
            latency: (0..200).map(|bucket| v1::BucketCount { bucket, count: part + 1 }).collect(),
            ..Default::default()
        };
        let report = v1::Report { routes: (0..100).map(route).collect(), ..Default::default() };
        let message = framed(&v1::ClientMessage { kind: Some(client_message::Kind::Report(report)) });
        if !pour(&mut body, message).await || reading.is_finished() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(5)).await;
    reading.abort();
    Some(())
}

/// A change set: of many usual rules, which is written; of the longest rules, 16 MiB, which is refused
/// where it exceeds the limit; the same, never finished.
async fn apply_much(address: SocketAddr, token: &str, n: usize) -> Option<()> {
    const APPLY_BYTES: usize = 16 << 20;
    const USUAL: usize = 6_000;
    let (is_usual, is_finished) = (n.is_multiple_of(3), !n.is_multiple_of(3) || n.is_multiple_of(2));
    let mut wire = Wire::connect(address, OPEN, Some(token)).await?;
    let Opened { answer, mut body } = wire.open("/damper.v1.Rules/ApplyRules").await?;
    let reading = tokio::spawn(swallow(answer));
    let message = |kind| framed(&v1::ApplyRulesRequest { kind: Some(kind) });
    let options = v1::WriteOptions { author: "editor".to_owned(), force: true, ..Default::default() };
    let mut sent = message(apply_rules_request::Kind::Header(options));
    let retry = v1::Retry { max_attempts: Some(2 + u32::try_from(n % 8).ok()?), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Observe.into(), retry: Some(retry), ..Default::default() };
    let mut bytes = 0;
    for rule in 0.. {
        if !pour(&mut body, sent).await || reading.is_finished() {
            break;
        }
        let (mut key, mut owner) = (pattern(&format!("usual-{rule}")), String::new());
        if !is_usual {
            let long = |name: &str| format!("{name}-{rule}-{}", "x".repeat(230));
            (key.caller_service, key.caller_cluster, key.callee_service) = (long("a"), long("b"), long("c"));
            owner = "o".repeat(255);
        }
        let rule = v1::Rule { key: Some(key), policy: Some(policy.clone()), owner, ..Default::default() };
        let kind = Some(rule_change::Kind::Put(rule));
        sent = message(apply_rules_request::Kind::Change(v1::RuleChange { kind, expected_revision: None }));
        bytes += sent.len();
        let is_whole = match is_usual {
            true => bytes / sent.len() >= USUAL,
            false => bytes + 4096 >= APPLY_BYTES,
        };
        if is_whole {
            break;
        }
    }
    if is_finished {
        body.send_data(Bytes::new(), true).ok()?;
    }
    let _ = tokio::time::timeout(Duration::from_secs(20), reading).await;
    Some(())
}

/// Long answers with a window of 0: 100 of each kind over one connection. The old revision is one after
/// which everything was changed often.
async fn leave_unread(address: SocketAddr, token: String, n: usize) -> Option<()> {
    let window = if n.is_multiple_of(2) { 0 } else { 1 };
    let mut wire = Wire::connect(address, window, Some(&token)).await?;
    let mut held = Vec::new();
    for _ in 0..100 {
        let watch = v1::WatchRequest { rules: true, ..Default::default() };
        held.push(wire.ask("/damper.v1.Fleet/Watch", &watch).await?);
        held.push(wire.ask("/damper.v1.History/Export", &v1::ExportRequest::default()).await?);
        held.push(wire.ask("/damper.v1.History/ExportAudit", &v1::ExportAuditRequest::default()).await?);
        let convergence = v1::WatchConvergenceRequest { revision: 1, ..Default::default() };
        held.push(wire.ask("/damper.v1.Fleet/WatchConvergence", &convergence).await?);
        let list = v1::ListRulesRequest { page_size: 1000, ..Default::default() };
        held.push(wire.ask("/damper.v1.Rules/ListRules", &list).await?);
        let (old, page_size) = (Some(OLD_REVISION), 1000);
        let export = v1::ExportRequest { revision: old };
        held.push(wire.ask("/damper.v1.History/Export", &export).await?);
        let diff = v1::DiffRevisionsRequest { from_revision: old, page_size, ..Default::default() };
        held.push(wire.ask("/damper.v1.History/DiffRevisions", &diff).await?);
        let key = v1::ObjectKey { kind: Some(v1::object_key::Kind::Rule(pattern("callee-0"))) };
        let object = v1::GetObjectRequest { key: Some(key), revision: old };
        held.push(wire.ask("/damper.v1.History/GetObject", &object).await?);
        let changes = v1::ListChangesRequest { page_size, ..Default::default() };
        held.push(wire.ask("/damper.v1.History/ListChanges", &changes).await?);
    }
    sleep(Duration::from_secs(5)).await;
    Some(())
}

/// Questions that look at all rules, routes or clients, many at once.
async fn ask_much(address: SocketAddr, token: String) -> Option<()> {
    let mut wire = Wire::connect(address, OPEN, Some(&token)).await?;
    let mut asked = JoinSet::new();
    for _ in 0..16 {
        let opened = wire.ask("/damper.v1.Fleet/ListClients", &v1::ListClientsRequest::default()).await?;
        asked.spawn(swallow(opened.answer));
        let opened = wire.ask("/damper.v1.Fleet/Diagnose", &v1::DiagnoseRequest::default()).await?;
        asked.spawn(swallow(opened.answer));
        let opened = wire.ask("/damper.v1.Fleet/GetChain", &v1::GetChainRequest::default()).await?;
        asked.spawn(swallow(opened.answer));
        let propose = v1::ProposeRuleRequest { key: Some(pattern("*")) };
        let opened = wire.ask("/damper.v1.Rules/ProposeRule", &propose).await?;
        asked.spawn(swallow(opened.answer));
    }
    while let Some(answered) = asked.join_next().await {
        answered.ok()?.ok()?;
    }
    Some(())
}
