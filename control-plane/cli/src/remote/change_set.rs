//! A set of manifests as it is sent to the server: whose it is, and what becomes of what it does not name.

use std::time::Instant;

use clap::Args;
use damper_proto::v1::apply_rules_request::Kind;
use damper_proto::v1::{self, rule_change};

use crate::error::CliError;
use crate::input::manifests::{self as sources, FileArgs, Manifest, ManifestItem};
use crate::remote::client::Client;

/// Which manifests, in whose name.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    files: FileArgs,
    /// In whose name: what names no owner gets this one, and what belongs to another is not touched
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Also remove the rules and guards of --owner that are not in the manifests
    #[arg(long, requires = "owner")]
    pub(crate) prune: bool,
    /// Also change what belongs to another; it becomes --owner's
    #[arg(long)]
    pub(crate) take_over: bool,
    /// With --prune: there may be no manifest at all, so that everything of --owner is removed
    #[arg(long, requires = "prune")]
    allow_empty: bool,
    /// Write also where a rule or guard has changed since the revision that its manifest names
    #[arg(long)]
    overwrite: bool,
}

/// Manifests, and how the server is asked for them.
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
                    "a set without manifests removes everything of --owner: say --allow-empty".to_owned(),
                );
                CliError::Data(faults)
            }
            error => error,
        });
        Ok(Set { manifests: manifests?, overwrite: self.overwrite })
    }

    /// The options of a write with what these say.
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
    /// Manifests that are written whatever revision they name.
    pub(crate) fn whatever(manifests: Vec<Manifest>) -> Self {
        Self { manifests, overwrite: true }
    }

    /// Sends the set. Faults are told in the words of the manifests.
    pub(crate) async fn send(
        &self,
        client: &Client,
        options: v1::WriteOptions,
    ) -> Result<v1::ApplyRulesResponse, CliError> {
        let messages = [Kind::Header(options)].into_iter().chain(self.changes().map(Kind::Change));
        let requests: Vec<_> = messages.map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect();
        let locate = |field: &str| sources::locate(&self.manifests, field);
        // Without a limit of our own: a large set takes its time, and a server that died is found out by its pings.
        let asked_at = Instant::now();
        let answer = client.rules.clone().apply_rules(futures_util::stream::iter(requests)).await;
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(client.why(&status, asked_at, &locate).await),
        }
    }

    /// What the set would do. Faults are told as they are of a set that is sent.
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
            };
            let expected_revision = expected(item.revision(), self.overwrite);
            v1::RuleChange { kind: Some(kind), expected_revision }
        })
    }
}

/// The revision that a rule or guard must be at, where its manifest names one.
pub(crate) fn expected(revision: u64, overwrite: bool) -> Option<u64> {
    Some(revision).filter(|revision| *revision > 0 && !overwrite)
}
