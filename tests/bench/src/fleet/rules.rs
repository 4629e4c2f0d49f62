//! Rules such as people write, and writing them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};
use damper_proto::manifest::{self, Manifest};
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use tonic::Request;

use super::Door;
use super::client::{SERVICES, callee_at, service_at};
use crate::patience::{PATIENCE, within};

/// The backoffs of rules, in microseconds: all as long when they are encoded.
const BASES: std::ops::Range<u32> = 100_000..250_000;

/// A rule such as people write, each time with another backoff: what changes nothing is not written. Processes begin
/// with different ones, since they change each other's rules.
///
/// # Errors
/// The names make no rule.
pub fn rule(caller: &str, callee: &str) -> Result<v1::Rule> {
    static WRITTEN: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(fastrand::u32(BASES)));
    let base = BASES.start + WRITTEN.fetch_add(1, Ordering::Relaxed) % (BASES.end - BASES.start);
    let text = format!(
        "kind: Rule
key: {{ caller_service: '{caller}', caller_cluster: '*', callee_service: {callee}, callee_method: '*' }}
policy: {{ mode: enforce, retry: {{ max_attempts: 3, codes: {{ allow: [UNAVAILABLE] }},
           backoff: {{ exponential: {{ base: {base}us, max: 250ms }} }} }}, retry_breaker: {{ ratio: 0.1 }} }}
"
    );
    match manifest::parse(&text)?.pop().map(|document| document.manifest) {
        Some(Manifest::Rule(rule)) => Ok(rule),
        other => bail!("not a rule: {other:?}"),
    }
}

/// The change that puts a rule.
#[must_use]
pub fn put(rule: &v1::Rule) -> rule_change::Kind {
    rule_change::Kind::Put(rule.clone())
}

/// The request of an operator that puts a rule for every call to a callee.
///
/// # Errors
/// The name makes no rule.
pub fn put_request(door: &Door, callee: &str) -> Result<Request<v1::PutRuleRequest>> {
    let options = v1::WriteOptions { author: "bench".to_owned(), ..Default::default() };
    let rule = Some(rule("*", callee)?);
    Ok(door.admin(v1::PutRuleRequest { rule, options: Some(options), ..Default::default() }))
}

/// Rules for the services that clients of a fleet are, each client's share the same.
///
/// # Errors
/// They are not written.
pub async fn write_rules(door: &Door, count: usize) -> Result<()> {
    let rules = (0..count).map(|place| rule(&service_at(place), &callee_at(place / SERVICES)));
    let puts = rules.map(|rule| Ok(put(&rule?)));
    apply(door, puts.collect::<Result<_>>()?).await?;
    Ok(())
}

/// Writes a rule that concerns every client; answers with the revision.
///
/// # Errors
/// It is refused.
pub async fn put_late(door: &Door) -> Result<u64> {
    apply(door, vec![put(&rule("*", "late")?)]).await
}

/// Writes changes, all or none; answers with the revision.
///
/// # Errors
/// They are refused.
pub async fn apply(door: &Door, changes: Vec<rule_change::Kind>) -> Result<u64> {
    let options = v1::WriteOptions { author: "bench".to_owned(), ..Default::default() };
    let changes = changes.into_iter().map(|kind| {
        apply_rules_request::Kind::Change(v1::RuleChange { kind: Some(kind), expected_revision: None })
    });
    let messages: Vec<_> = std::iter::once(apply_rules_request::Kind::Header(options))
        .chain(changes)
        .map(|kind| v1::ApplyRulesRequest { kind: Some(kind) })
        .collect();
    let request = door.admin(tokio_stream::iter(messages));
    let mut rules = RulesClient::new(door.channel().await?);
    let written = within(PATIENCE, "the write of rules", rules.apply_rules(request)).await??;
    Ok(written.into_inner().revision)
}
