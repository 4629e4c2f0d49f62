//! A set of manifests in one write: its owner, and the handling of resources that it does not contain.

use std::time::Instant;

use clap::Args;
use damper_proto::v1::apply_rules_request::Kind;
use damper_proto::v1::{self, rule_change};

use crate::error::CliError;
use crate::input::manifests::{self as sources, FileArgs, Manifest, ManifestItem};
use crate::remote::client::Client;

/// Manifests and the owner in whose name they are written.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Default owner, for manifests that name none. Without --take-over, a command that would change rules,
    /// guards or queues of another owner is refused
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Also delete the rules, guards and queues of --owner that are not in the manifests
    #[arg(long, requires = "owner")]
    pub(crate) prune: bool,
    /// Also change rules, guards and queues of other owners, and make --owner their owner
    #[arg(long)]
    pub(crate) take_over: bool,
    /// With --prune: allow an empty set of manifests, which deletes all rules, guards and queues of --owner
    #[arg(long, requires = "prune")]
    allow_empty: bool,
    /// Write a rule, guard or queue even if the stored one was changed after the revision in its manifest
    #[arg(long)]
    overwrite: bool,
}

/// Manifests and their conflict handling.
pub(crate) struct Set {
    pub(crate) manifests: Vec<Manifest>,
    overwrite: bool,
}

impl SetArgs {
    /// Reads the manifests.
    pub(crate) fn read(&self) -> Result<Set, CliError> {
        let manifests = sources::read_set(&self.files, self.allow_empty);
        let manifests = manifests.map_err(|error| match error {
            CliError::Data(mut faults) if self.prune && !self.allow_empty => {
                faults.push(
                    "a set without manifests removes everything of --owner: add --allow-empty to confirm"
                        .to_owned(),
                );
                CliError::Data(faults)
            }
            error => error,
        });
        Ok(Set { manifests: manifests?, overwrite: self.overwrite })
    }

    /// Returns the write options with owner and prune set.
    pub(crate) fn options(&self, write: v1::WriteOptions) -> v1::WriteOptions {
        let prune = if self.prune { v1::Prune::Owned } else { v1::Prune::Unspecified };
        v1::WriteOptions {
            owner: self.owner.clone().unwrap_or_default(),
            take_over: self.take_over,
            prune: prune.into(),
            ..write
        }
    }
}

impl Set {
    /// Manifests that are written at any revision.
    pub(crate) fn whatever(manifests: Vec<Manifest>) -> Self {
        Self { manifests, overwrite: true }
    }

    /// Sends the set. Errors name the place in the manifests.
    pub(crate) async fn send(
        &self,
        client: &Client,
        options: v1::WriteOptions,
    ) -> Result<v1::ApplyRulesResponse, CliError> {
        let messages = [Kind::Header(options)].into_iter().chain(self.changes().map(Kind::Change));
        let requests: Vec<_> = messages.map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect();
        let locate = |field: &str| sources::locate(&self.manifests, field);
        // No own timeout: a large set takes time, and pings detect a dead server.
        let asked_at = Instant::now();
        let answer = client.rules.clone().apply_rules(futures_util::stream::iter(requests)).await;
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(client.why(&status, asked_at, &locate).await),
        }
    }

    /// Returns the predicted effect of the set. Errors are those of `send`.
    pub(crate) async fn predict(
        &self,
        client: &Client,
        options: v1::WriteOptions,
    ) -> Result<v1::WhatIfResponse, CliError> {
        let request = v1::WhatIfRequest { changes: self.changes().collect(), options: Some(options) };
        let locate = |field: &str| sources::locate(&self.manifests, field);
        client.answer_in(client.rules.clone().what_if(request), &locate).await
    }

    fn changes(&self) -> impl Iterator<Item = v1::RuleChange> {
        self.manifests.iter().map(|Manifest { item, .. }| {
            let kind = match item.clone() {
                ManifestItem::Rule(rule) => rule_change::Kind::Put(rule),
                ManifestItem::Guard(guard) => rule_change::Kind::PutGuard(guard),
                ManifestItem::Queue(queue) => rule_change::Kind::PutQueue(queue),
            };
            let expected_revision = expected(item.revision(), self.overwrite);
            v1::RuleChange { kind: Some(kind), expected_revision }
        })
    }
}

/// Returns the revision that a resource must be at; `None` without one in its manifest.
pub(crate) fn expected(revision: u64, overwrite: bool) -> Option<u64> {
    Some(revision).filter(|revision| *revision > 0 && !overwrite)
}
