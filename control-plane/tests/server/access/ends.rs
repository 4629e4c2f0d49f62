//! Streams end with the token that opened them.

use std::time::{Duration, Instant};

use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, client_message};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use super::{Guarded, bearer, reason, wanted};
use crate::harness::{header, hello, shop_rule, soon, to_message};

/// Longest time that a stream may outlast its token.
const AT_MOST: Duration = Duration::from_secs(30);

/// Reads until the end; returns the status and the time.
async fn end<T>(mut stream: Streaming<T>) -> (Status, Instant) {
    loop {
        match soon(stream.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended well"),
            Err(status) => return (status, Instant::now()),
        }
    }
}

/// Opens one stream of every kind, of an agent and of a viewer. Each has answered when this returns.
struct Streams {
    subscription: Streaming<v1::ServerMessage>,
    watch: Streaming<v1::WatchResponse>,
    convergence: Streaming<v1::Convergence>,
    audit: Streaming<v1::Change>,
    _messages: mpsc::Sender<v1::ClientMessage>,
}

impl Streams {
    async fn open(server: &Guarded, agent: &str, viewer: &str, attempts: u32) -> Self {
        let channel = server.server.channel();
        let (messages, outgoing) = mpsc::channel(4);
        messages.send(to_message(client_message::Kind::Hello(hello("shop")))).await.unwrap();
        let mut distribution = DistributionClient::with_interceptor(channel.clone(), bearer(agent));
        let subscribed = soon(distribution.subscribe(ReceiverStream::new(outgoing))).await;
        let mut subscription = subscribed.unwrap().into_inner();
        soon(subscription.message()).await.unwrap().unwrap();
        let mut fleet = FleetClient::with_interceptor(channel.clone(), bearer(viewer));
        let mut watch = soon(fleet.watch(v1::WatchRequest::default())).await.unwrap().into_inner();
        soon(watch.message()).await.unwrap().unwrap();
        // The client never acknowledges the rule.
        let within = prost_types::Duration { seconds: 60, nanos: 0 };
        let revision = server.put(&shop_rule(attempts)).await;
        let asked = v1::WatchConvergenceRequest { revision, within: Some(within), ..Default::default() };
        let mut convergence = soon(fleet.watch_convergence(asked)).await.unwrap().into_inner();
        soon(convergence.message()).await.unwrap().unwrap();
        // The window is so small that most of the audit log waits for its reader.
        let endpoint = Endpoint::from_shared(server.server.url.clone()).unwrap();
        let narrow = endpoint.initial_stream_window_size(1024).connect_lazy();
        let mut history = HistoryClient::with_interceptor(narrow, bearer(viewer));
        let audit = soon(history.export_audit(v1::ExportAuditRequest::default())).await.unwrap().into_inner();
        Self { subscription, watch, convergence, audit, _messages: messages }
    }

    /// Each ends in time because of its token; the audit log has a slow reader, so it is not done before.
    async fn end(self, since: Instant) {
        let Self { subscription, watch, convergence, audit, _messages } = self;
        let ends = [end(subscription).await, end(watch).await, end(convergence).await, end(audit).await];
        for (n, (status, at)) in ends.into_iter().enumerate() {
            assert_eq!(
                (status.code(), reason(&status).as_str()),
                (Code::Unauthenticated, "CREDENTIAL_ENDED"),
                "{n}"
            );
            let after = at.saturating_duration_since(since);
            assert!(after < AT_MOST, "{n}: {after:?}");
        }
    }
}

impl Guarded {
    async fn server_revision(&self) -> u64 {
        soon(self.tokens().list_tokens(v1::ListTokensRequest {})).await.unwrap().into_inner().revision
    }

    /// Writes enough history to keep an audit log open until it is read.
    async fn fill_history(&self) {
        for n in 0..40 {
            self.put(&shop_rule(2 + n % 2)).await;
        }
    }

    async fn put(&self, rule: &v1::Rule) -> u64 {
        let mut rules = RulesClient::with_interceptor(self.server.channel(), bearer(&self.admin));
        let options = Some(v1::WriteOptions { reason: "x".repeat(1000), ..Default::default() });
        let request = v1::PutRuleRequest { rule: Some(rule.clone()), options, ..Default::default() };
        soon(rules.put_rule(request)).await.unwrap().into_inner().revision
    }
}

#[tokio::test]
async fn streams_of_a_revoked_token_end_in_time() {
    let server = Guarded::start().await;
    server.fill_history().await;
    let (agent_id, agent) = server.make(wanted(v1::Role::Agent, &["shop"], &[])).await;
    let (viewer_id, viewer) = server.make(wanted(v1::Role::Viewer, &[], &[])).await;
    let streams = Streams::open(&server, &agent, &viewer, 4).await;
    let other = server.token(v1::Role::Agent, &[], &[]).await;
    let kept = Streams::open(&server, &other, &server.admin, 3).await;
    server.revoke(&agent_id).await.unwrap();
    server.revoke(&viewer_id).await.unwrap();
    let since = Instant::now();
    streams.end(since).await;
    let Streams { mut watch, .. } = kept;
    soon(watch.message()).await.unwrap().expect("what others opened goes on");
    server.server.stop().await;
}

#[tokio::test]
async fn revoked_token_writes_nothing_of_a_set_in_transfer() {
    let server = Guarded::start().await;
    let (id, editor) = server.make(wanted(v1::Role::Editor, &[], &[])).await;
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&editor));
    let (messages, outgoing) = mpsc::channel(4);
    messages.send(header(v1::WriteOptions::default())).await.unwrap();
    let applying = rules.apply_rules(ReceiverStream::new(outgoing));
    let before = server.server_revision().await;
    let since = Instant::now();
    // Either may be answered first; the set ends only with the token.
    let (applied, revoked) = soon(async { tokio::join!(applying, server.revoke(&id)) }).await;
    revoked.unwrap();
    let refused = applied.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    assert!(since.elapsed() < AT_MOST);
    assert_eq!(server.server_revision().await, before + 1, "only the revocation");
    server.server.stop().await;
}

#[tokio::test]
async fn revoking_the_own_token_is_acknowledged() {
    let server = Guarded::start().await;
    let (id, admin) = server.make(wanted(v1::Role::Admin, &[], &[])).await;
    let request = v1::RevokeTokenRequest { id, options: None };
    soon(server.tokens_as(&admin).revoke_token(request)).await.unwrap();
    let refused = soon(server.tokens_as(&admin).who_am_i(v1::WhoAmIRequest {})).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::Unauthenticated, "TOKEN_INVALID"));
    server.server.stop().await;
}
