//! The demo's operator: applies manifests through the admin API and waits until the services acknowledge
//! them.
//!
//! It does what `damper apply -f` and `damper clients` do, over the same port. It polls the acknowledgements,
//! so their times include the time of the poll.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use damper_core::RouteKey;
use damper_proto::manifest::{self, Manifest};
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::queues_client::QueuesClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{
    ApplyRulesRequest, Client, ListClientsRequest, PutQueueRequest, RuleChange, WriteOptions,
    apply_rules_request, rule_change,
};
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

use super::chain::Hop;
use super::ledger::LAYERS;

const QUEUE: &str = include_str!("../../demo/queue.yaml");

const ASK_EVERY: Duration = Duration::from_millis(1);
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A client of the control plane.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    rules: RulesClient<Channel>,
    fleet: FleetClient<Channel>,
    queues: QueuesClient<Channel>,
}

/// A change and its acknowledgements.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) revision: u64,
    /// Service and time since the change was sent, in the order of the acknowledgements.
    pub(super) acknowledged: Vec<(String, Duration)>,
}

impl Applied {
    /// From sending the change to the last acknowledgement.
    pub(super) fn last(&self) -> Duration {
        self.acknowledged.last().map_or(Duration::ZERO, |(_, after)| *after)
    }
}

impl Operator {
    pub(super) async fn connect(control_plane: SocketAddr) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{control_plane}"))?
            .connect()
            .await
            .context("no response from the demo's control plane")?;
        Ok(Self {
            rules: RulesClient::new(channel.clone()),
            fleet: FleetClient::new(channel.clone()),
            queues: QueuesClient::new(channel),
        })
    }

    /// Creates the queue of the demo.
    pub(super) async fn put_queue(&mut self) -> anyhow::Result<()> {
        let documents = manifest::parse(QUEUE)?.into_iter().map(|document| document.manifest);
        for manifest in documents {
            let Manifest::Queue(queue) = manifest else { bail!("a document is not a queue") };
            let options = Some(options("demo: orders that stock did not take"));
            let request = PutQueueRequest { queue: Some(queue), options, ..Default::default() };
            self.queues.put_queue(request).await?;
        }
        Ok(())
    }

    /// Applies a manifest, all or nothing, and returns the revision.
    pub(super) async fn apply(&mut self, text: &str, reason: &str) -> anyhow::Result<u64> {
        // The naive rules exceed the limit of amplification: the scenario shows that.
        let header = WriteOptions { force: true, ..options(reason) };
        let mut messages = vec![apply_rules_request::Kind::Header(header)];
        for document in manifest::parse(text)? {
            let Manifest::Rule(rule) = document.manifest else {
                bail!("document {} is not a rule", document.number);
            };
            messages.push(apply_rules_request::Kind::Change(RuleChange {
                kind: Some(rule_change::Kind::Put(rule)),
                expected_revision: None,
            }));
        }
        let messages = messages.into_iter().map(|kind| ApplyRulesRequest { kind: Some(kind) });
        let answer = self.rules.apply_rules(tokio_stream::iter(messages)).await?;
        Ok(answer.into_inner().revision)
    }

    /// Applies a manifest and waits until every service of the chain acknowledged it.
    pub(super) async fn apply_everywhere(&mut self, text: &str, reason: &str) -> anyhow::Result<Applied> {
        let sent = Instant::now();
        let revision = self.apply(text, reason).await?;
        let mut acknowledged: Vec<(String, Duration)> = Vec::new();
        while acknowledged.len() < LAYERS.len() {
            let clients = self.clients().await?;
            for client in clients {
                let service = accepted_by(&client, revision)?;
                if let Some(service) =
                    service.filter(|name| acknowledged.iter().all(|(seen, _)| seen != name))
                {
                    acknowledged.push((service, sent.elapsed()));
                }
            }
            ensure!(
                sent.elapsed() < GIVE_UP_AFTER,
                "only {acknowledged:?} acknowledged revision {revision} within {GIVE_UP_AFTER:?}"
            );
            sleep(ASK_EVERY).await;
        }
        Ok(Applied { revision, acknowledged })
    }

    async fn clients(&mut self) -> anyhow::Result<Vec<Client>> {
        let answer = self.fleet.list_clients(ListClientsRequest::default()).await?;
        Ok(answer.into_inner().clients)
    }
}

fn options(reason: &str) -> WriteOptions {
    WriteOptions { reason: reason.to_owned(), author: "demo".to_owned(), ..WriteOptions::default() }
}

/// Returns the service of a client at this revision or a later one.
fn accepted_by(client: &Client, revision: u64) -> anyhow::Result<Option<String>> {
    let service = client.identity.as_ref().map(|identity| identity.service.clone()).unwrap_or_default();
    if let Some(refusal) = client.refused.first() {
        bail!("service {service} rejected a rule: {}", refusal.reason);
    }
    let runs_on_it = client.acknowledged_revision >= revision;
    Ok((runs_on_it && LAYERS.contains(&service.as_str())).then_some(service))
}

/// Returns the attempts per call that a manifest allows on a hop.
pub(super) fn max_attempts(text: &str, hop: &Hop) -> anyhow::Result<u32> {
    let route = RouteKey::new(hop.caller, "default", hop.callee, hop.method)?;
    let manifest::Checked { rules, .. } = manifest::check(&manifest::parse(text)?)?;
    let rule = rules.iter().find(|rule| rule.pattern().matches(&route));
    Ok(rule.map_or(1, |rule| rule.policy().max_attempts()))
}
