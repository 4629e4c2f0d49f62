//! A server process with rules and tokens, an operator who sets kills, and what both measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::tokens_client::TokensClient;
use damper_proto::v1::{self, Role, apply_rules_request, rule_change};
use damper_tests::binary::Served;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// What the shipped manifests allow the server.
pub(crate) const MEMORY_MIB: u64 = 512;
/// Rules of all callers: every client is sent all of them.
pub(crate) const RULES: usize = 3_000;
/// How often each of them was changed.
const WRITES: u32 = 8;

/// How often a token is asked for.
const TRIES: u32 = 12;

/// The server under siege.
pub(crate) struct World {
    pub(crate) server: Served,
    pub(crate) address: SocketAddr,
    admin: String,
    channel: Channel,
    folder: tempfile::TempDir,
}

/// How kills were answered.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    pub(crate) answered: usize,
    /// Of these, the kills that the store had not taken yet.
    pub(crate) from_memory: usize,
    pub(crate) worst: Duration,
}

impl World {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut before = Self::open(folder).await;
        for attempts in 2..2 + WRITES {
            before.put_rules(attempts).await;
        }
        before.server.terminate();
        Self::open(before.folder).await
    }

    /// Starts a server, which remembers nothing of the changes that are in its store.
    async fn open(folder: tempfile::TempDir) -> Self {
        let store = format!("sled:{}", folder.path().join("store").display());
        let first = folder.path().join("first-token");
        let server = Served::start_with(&[
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
            "--auth",
            "tokens",
            "--bootstrap-token-file",
            first.to_str().expect("a path in UTF-8"),
        ]);
        let admin = std::fs::read_to_string(&first).expect("the first token").trim().to_owned();
        let endpoint = Endpoint::from_shared(server.url().to_owned()).expect("a URL");
        let channel = endpoint.connect().await.expect("the server is there");
        let address = server.address().parse().expect("an address");
        Self { server, address, admin, channel, folder }
    }

    /// The epoch of the store, which every client learns.
    pub(crate) async fn epoch(&self) -> String {
        let request = self.shown(v1::ListReplicasRequest {});
        let listed = FleetClient::new(self.channel.clone()).list_replicas(request).await;
        listed.expect("the server is there").into_inner().replicas.remove(0).epoch
    }

    fn shown<T>(&self, message: T) -> Request<T> {
        shown(&self.admin, message)
    }

    async fn put_rules(&self, attempts: u32) {
        let options = v1::WriteOptions { author: "siege".to_owned(), ..Default::default() };
        let retry = v1::Retry { max_attempts: Some(attempts), ..Default::default() };
        let policy = v1::Policy { mode: v1::Mode::Observe.into(), retry: Some(retry), ..Default::default() };
        let change = |n| {
            let key = Some(pattern(&format!("callee-{n}")));
            let rule = v1::Rule { key, policy: Some(policy.clone()), ..Default::default() };
            v1::RuleChange { kind: Some(rule_change::Kind::Put(rule)), expected_revision: None }
        };
        let changes = (0..RULES).map(|n| apply_rules_request::Kind::Change(change(n)));
        let kinds = std::iter::once(apply_rules_request::Kind::Header(options)).chain(changes);
        let messages: Vec<_> = kinds.map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect();
        let request = self.shown(tokio_stream::iter(messages));
        RulesClient::new(self.channel.clone()).apply_rules(request).await.expect("the rules are good");
    }

    /// A token of a role, limited to a service if it is an agent's.
    pub(crate) async fn token(&self, role: Role, name: &str) -> String {
        let scope = v1::Scope { callers: vec!["besieger".to_owned()], ..Default::default() };
        let request = v1::CreateTokenRequest {
            role: role.into(),
            scope: (role == Role::Agent).then_some(scope),
            ..Default::default()
        };
        // Under attack a write may time out; only kills must not.
        for n in 0..TRIES {
            // One whose answer was lost may be there.
            let name = format!("{name}-{n}");
            let request = self.shown(v1::CreateTokenRequest { name, ..request.clone() });
            match TokensClient::new(self.channel.clone()).create_token(request).await {
                Ok(made) => return made.into_inner().secret,
                Err(status) => println!("no token yet: {}", status.message()),
            }
        }
        panic!("an admin cannot make a token");
    }

    /// Sets kills as an operator over a connection of its own, one after the other, until it is told to stop.
    pub(crate) async fn set_kills(&self, stop: Arc<AtomicBool>) -> Kills {
        let token = self.token(Role::Operator, "operator").await;
        let endpoint = Endpoint::from_shared(self.server.url().to_owned()).expect("a URL");
        let mut kills = KillsClient::new(endpoint.connect().await.expect("the server is there"));
        let mut seen = Kills::default();
        while !stop.load(Ordering::Relaxed) {
            let options = v1::WriteOptions {
                author: "operator".to_owned(),
                reason: "the siege".to_owned(),
                ..Default::default()
            };
            let request = v1::KillRequest {
                key: Some(pattern("callee-0")),
                options: Some(options),
                ..Default::default()
            };
            let asked = Instant::now();
            let answer = kills.kill(shown(&token, request)).await.expect("a kill is always answered");
            seen.from_memory += usize::from(answer.into_inner().kill.is_some_and(|kill| kill.unstored));
            seen.worst = seen.worst.max(asked.elapsed());
            seen.answered += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        seen
    }
}

fn shown<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {token}").parse().expect("a token is text");
    request.metadata_mut().insert("authorization", value);
    request
}

/// All callers of a callee.
pub(crate) fn pattern(callee: &str) -> v1::Pattern {
    let any = "*".to_owned();
    v1::Pattern {
        caller_service: any.clone(),
        caller_cluster: any.clone(),
        callee_service: callee.to_owned(),
        callee_method: any,
    }
}
