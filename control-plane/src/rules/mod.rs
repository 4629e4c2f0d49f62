//! `damper.v1.Rules`: the admin API. One use case, one file.
//!
//! Reads come from the table. Writes go to the writer and are answered when the table of this replica shows
//! them; nothing here touches a stream. Input is parsed into the engine's types first, with all its faults.

mod apply;
mod delete;
mod explain;
mod get;
mod list;
mod put;
mod reach;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::{Faults, Pattern, Rule};
use damper_proto::{convert, v1};
use prost::Message as _;
use tonic::{Request, Response, Status, Streaming};

use crate::errors::{Error, within};
use crate::paging::Digest;
use crate::shared::Shared;
use crate::table::{self, TableView};
use crate::writer::{Committed, Proposal, ProposedEdit};

pub(crate) use self::list::Filter;

/// The largest rule.
const MAX_RULE_BYTES: usize = 64 << 10;
const MAX_REQUEST_ID_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 1024;
const MAX_AUTHOR_BYTES: usize = 255;
/// How long a write may wait for the table after it is durable.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// The service.
pub(crate) struct Rules {
    shared: Arc<Shared>,
}

impl Rules {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn counted<T>(&self, operation: &'static str, answer: Result<T, Status>) -> Result<T, Status> {
        let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        self.shared.metrics.write(operation, code);
        answer
    }
}

#[tonic::async_trait]
impl v1::rules_server::Rules for Rules {
    async fn get_rule(&self, request: Request<v1::GetRuleRequest>) -> Result<Response<v1::Rule>, Status> {
        within(self.shared.settings.unary_deadline, get::get(&self.shared, request.into_inner())).await
    }

    async fn list_rules(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::ListRulesResponse>, Status> {
        within(self.shared.settings.unary_deadline, list::list(&self.shared, request.into_inner())).await
    }

    async fn put_rule(
        &self,
        request: Request<v1::PutRuleRequest>,
    ) -> Result<Response<v1::PutRuleResponse>, Status> {
        let work = put::put(&self.shared, request.into_inner());
        self.counted("put", within(self.shared.settings.unary_deadline, work).await)
    }

    async fn delete_rule(
        &self,
        request: Request<v1::DeleteRuleRequest>,
    ) -> Result<Response<v1::DeleteRuleResponse>, Status> {
        let work = delete::delete(&self.shared, request.into_inner());
        self.counted("delete", within(self.shared.settings.unary_deadline, work).await)
    }

    async fn apply_rules(
        &self,
        request: Request<Streaming<v1::ApplyRulesRequest>>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        let work = apply::apply(&self.shared, request.into_inner());
        self.counted("apply", work.await.map(Response::new).map_err(Status::from))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        within(self.shared.settings.unary_deadline, explain::explain(&self.shared, request.into_inner()))
            .await
    }
}

/// Reads a key that must be there.
fn read_key(path: &str, key: Option<&v1::Pattern>) -> Result<Pattern, Faults> {
    let mut faults = Faults::none();
    let Some(key) = key else {
        faults.add(path, "must be given");
        return Err(faults);
    };
    convert::pattern(key).map_err(|inner| {
        faults.nest(path, inner);
        faults
    })
}

/// A rule that may be stored, with all that an operator wrote and nothing that is the server's to say.
struct WrittenRule {
    rule: Rule,
    wire: v1::Rule,
}

/// Reads a rule that must be there.
fn read_rule(path: &str, rule: Option<v1::Rule>) -> Result<WrittenRule, Error> {
    let Some(wire) = rule else { return Err(Error::fault(path, "must be given")) };
    let rule = convert::rule(&wire).map_err(|faults| Error::at(path, faults))?;
    let size = wire.encoded_len();
    if size > MAX_RULE_BYTES {
        return Err(Error::TooLarge(format!(
            "{path}: the rule has {size} bytes, at most {MAX_RULE_BYTES} are allowed"
        )));
    }
    let wire = v1::Rule { key: Some(rule.pattern().into()), policy: wire.policy, ..v1::Rule::default() };
    Ok(WrittenRule { rule, wire })
}

/// Notes what is wrong with the options of a write.
fn check_options(path: &str, options: &v1::WriteOptions, faults: &mut Faults) {
    let v1::WriteOptions { validate_only: _, request_id, reason, author } = options;
    let bounded = [
        ("request_id", request_id, MAX_REQUEST_ID_BYTES),
        ("reason", reason, MAX_REASON_BYTES),
        ("author", author, MAX_AUTHOR_BYTES),
    ];
    for (field, text, limit) in bounded {
        if text.len() > limit {
            let problem = format!("has {} bytes, at most {limit} are allowed", text.len());
            faults.add(format!("{path}.{field}"), problem);
        }
    }
}

/// Joins the faults of the parts of a request.
fn all_or<T>(parts: Result<T, Error>, options: Faults) -> Result<T, Error> {
    match parts {
        Ok(value) if options.is_empty() => Ok(value),
        Ok(_) => Err(Error::Faults(options)),
        Err(Error::Faults(mut faults)) => {
            faults.nest("", options);
            Err(Error::Faults(faults))
        }
        Err(other) => Err(other),
    }
}

/// What is to be stored for a rule. One that is already so is stored as it is, so that the writer sees that
/// nothing changes.
fn value_of(
    table: &TableView,
    written: &WrittenRule,
    options: &v1::WriteOptions,
    at: SystemTime,
) -> bytes::Bytes {
    let stored = table.stored(written.rule.pattern());
    let value = match stored.filter(|stored| stored.wire.policy == written.wire.policy) {
        Some(stored) => table::stored_bytes(&stored.wire),
        None => table::stored_bytes(&v1::Rule {
            updated_at: Some(at.into()),
            updated_by: options.author.clone(),
            ..written.wire.clone()
        }),
    };
    value.into()
}

/// Has edits written and waits until the table shows them.
async fn write(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
    at: SystemTime,
    edits: Vec<ProposedEdit>,
) -> Result<(Committed, Arc<TableView>), Error> {
    let proposal = Proposal {
        author: options.author.clone(),
        reason: options.reason.clone(),
        request_id: options.request_id.clone(),
        request_digest: digest.value(),
        at,
        edits,
    };
    let committed = shared.writer.propose(proposal).await?;
    let table = match shared.table_at(committed.revision, REACHED_WITHIN).await {
        Ok(table) => table,
        Err(error) => {
            // It is durable: to say anything else than yes would be wrong.
            tracing::warn!(%error, committed.revision, "answering a write before the table shows it");
            shared.table()
        }
    };
    Ok((committed, table))
}

/// Checks an expected revision against the table, for a write that is only tried.
fn check_expected(table: &TableView, pattern: &Pattern, expected: Option<u64>) -> Result<(), Error> {
    let current = table.stored(pattern);
    let revision = current.map_or(0, |stored| stored.wire.revision);
    if expected.is_none_or(|expected| expected == revision) {
        return Ok(());
    }
    Err(Error::Conflict {
        subject: format!("rule {pattern}"),
        current: current.map(|stored| Box::new(stored.wire.clone())),
    })
}

fn too_many(rules: usize, limit: usize) -> Error {
    Error::TooLarge(format!("{rules} rules would be more than the limit of {limit}"))
}

fn digest_of(operation: &str, request: &impl prost::Message) -> Digest {
    let mut digest = Digest::new();
    digest.add(operation.as_bytes());
    digest.add(&request.encode_to_vec());
    digest
}
