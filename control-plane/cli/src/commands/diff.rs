//! `damper diff -f`: what `apply` would change, and nothing else.
//!
//! Compared is what rules amount to: both sides are written out with every default, so that leaving out a
//! default, or saying it, is no difference. What the server adds (revision, time, author) is not compared.
//! Ends with 0 where nothing differs, 1 where something does, 2 with any error.

use std::collections::BTreeMap;

use clap::Args;
use damper_proto::{convert, v1};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use serde_json::Value;

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::key;
use crate::output::{self, show};
use crate::sources::{self, FileArgs, Manifest};

/// So many rules are asked for at a time.
const AT_A_TIME: usize = 32;
const UNSET: &str = "unset";

/// Arguments of `damper diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
}

/// One manifest against the server's rule.
#[derive(Debug, Serialize)]
struct Difference {
    change: &'static str,
    key: v1::Pattern,
    origin: String,
    fields: Vec<Field>,
}

/// A setting that differs; none where it is not set at all.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Field {
    path: String,
    old: Option<String>,
    new: Option<String>,
}

/// Shows the differences.
pub(crate) async fn run(session: &Session, args: DiffArgs) -> Result<(), Error> {
    let differences = differences(session, args).await.map_err(|error| Error::OfDiff(Box::new(error)))?;
    let colours = output::colours();
    let text = || differences.iter().map(|difference| difference.text(colours)).collect();
    show(session.format, &differences, text).map_err(|error| Error::OfDiff(Box::new(error)))?;
    if differences.is_empty() { Ok(()) } else { Err(Error::Differs) }
}

async fn differences(session: &Session, args: DiffArgs) -> Result<Vec<Difference>, Error> {
    let manifests = sources::read(&args.files)?;
    let client = Client::connect(&session.server).await?;
    let compared = futures_util::stream::iter(manifests).map(|manifest| compare(&client, manifest));
    let compared: Vec<Option<Difference>> = compared.buffered(AT_A_TIME).try_collect().await?;
    Ok(compared.into_iter().flatten().collect())
}

async fn compare(client: &Client, Manifest { origin, rule }: Manifest) -> Result<Option<Difference>, Error> {
    let key = rule.key.clone().unwrap_or_default();
    let there = match client.rule(key.clone()).await {
        Ok(there) => Some(there),
        Err(Error::Missing(_)) => None,
        Err(error) => return Err(error),
    };
    let old = there.as_ref().map(settings).transpose()?.unwrap_or_default();
    let fields = changed(old, settings(&rule)?);
    let change = if there.is_some() { "updated" } else { "created" };
    let origin = origin.to_string();
    Ok((!fields.is_empty()).then_some(Difference { change, key, origin, fields }))
}

/// Every setting of the rule's effective policy by its path.
fn settings(rule: &v1::Rule) -> Result<BTreeMap<String, String>, Error> {
    let parsed = convert::rule(rule).map_err(|faults| {
        let key = key::words(rule.key.as_ref());
        Error::Data(faults.iter().map(|fault| format!("{key}: {fault}")).collect())
    })?;
    let value = serde_json::to_value(v1::Policy::from(parsed.policy()))
        .map_err(|error| Error::Defect(format!("a policy has no text form: {error}")))?;
    let mut settings = BTreeMap::new();
    flatten("policy".to_owned(), value, &mut settings);
    Ok(settings)
}

fn flatten(path: String, value: Value, settings: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                flatten(format!("{path}.{name}"), field, settings);
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(scalar).collect();
            settings.insert(path, format!("[{}]", items.join(", ")));
        }
        value => {
            settings.insert(path, scalar(&value));
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// The settings that differ, by path.
fn changed(mut old: BTreeMap<String, String>, mut new: BTreeMap<String, String>) -> Vec<Field> {
    drop_placeholders(&mut old, &new);
    drop_placeholders(&mut new, &old);
    if new.get("policy.retry_breaker.enabled").is_some_and(|enabled| enabled == "false") {
        // The settings of a breaker that is switched off mean nothing; that it is off is the difference.
        old.retain(|path, _| !path.starts_with("policy.retry_breaker.") || path.ends_with(".enabled"));
    }
    let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
    paths.sort();
    paths.dedup();
    let field = |path: &String| {
        let (old, new) = (old.get(path).cloned(), new.get(path).cloned());
        (old != new).then(|| Field { path: path.clone(), old, new })
    };
    paths.into_iter().filter_map(field).collect()
}

/// Takes out what says no more than "nothing in here" where the other side has something in there.
fn drop_placeholders(settings: &mut BTreeMap<String, String>, other: &BTreeMap<String, String>) {
    settings.retain(|path, value| {
        let filled = || {
            other.keys().any(|key| key.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('.')))
        };
        value != "{}" || !filled()
    });
}

impl Difference {
    fn text(&self, colours: bool) -> String {
        let (mark, colour) = if self.change == "created" { ('+', "32") } else { ('~', "33") };
        let key = key::words(Some(&self.key));
        let mut text = paint(colours, colour, &format!("{mark} {key}"));
        text.push_str(&format!("  ({})\n", self.origin));
        for Field { path, old, new } in &self.fields {
            let new = new.as_deref().unwrap_or(UNSET);
            text.push_str(&format!("    {path}: "));
            if self.change == "updated" {
                let old = old.as_deref().unwrap_or(UNSET);
                text.push_str(&format!("{} -> ", paint(colours, "31", old)));
            }
            text.push_str(&paint(colours, "32", new));
            text.push('\n');
        }
        text
    }
}

fn paint(colours: bool, colour: &str, text: &str) -> String {
    if colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use damper_proto::manifest;

    use super::*;

    fn of(policy: &str) -> BTreeMap<String, String> {
        let text = format!(
            "kind: Rule\nkey: {{ caller_service: a, caller_cluster: '*', callee_service: b, \
             callee_method: p.S/M }}\npolicy: {policy}\n"
        );
        let document = manifest::parse(&text).unwrap().remove(0);
        let manifest::Manifest::Rule(rule) = document.manifest else { panic!("no rule") };
        settings(&rule).unwrap()
    }

    fn check(old: &str, new: &str, expected: &[(&str, Option<&str>, Option<&str>)]) {
        let found = changed(of(old), of(new));
        let found: Vec<_> = found
            .iter()
            .map(|field| (field.path.as_str(), field.old.as_deref(), field.new.as_deref()))
            .collect();
        assert_eq!(found, expected, "{old} against {new}");
    }

    #[test]
    fn default_written_or_left_out_is_no_difference() {
        let said = "{ mode: enforce, replay_limit_bytes: 65536, chain: { ignore_retry_flag: false }, \
                    retry: { max_attempts: 3, codes: { allow: [UNAVAILABLE] }, \
                    backoff: { exponential: { base: 25ms, max: 250ms, jitter: full } } }, \
                    retry_breaker: { enabled: true, ratio: 0.1 } }";
        check("{ mode: enforce, retry: {} }", said, &[]);
        check(said, "{ mode: enforce, retry: {} }", &[]);
    }

    #[test]
    fn only_what_changed_is_shown() {
        check(
            "{ mode: observe, retry: { max_attempts: 3 } }",
            "{ mode: enforce, retry: { max_attempts: 5 } }",
            &[
                ("policy.mode", Some("observe"), Some("enforce")),
                ("policy.retry.max_attempts", Some("3"), Some("5")),
            ],
        );
        check(
            "{ mode: observe }",
            "{ mode: observe, chain: { ignore_retry_flag: true }, timeout: 2s }",
            &[("policy.chain.ignore_retry_flag", None, Some("true")), ("policy.timeout", None, Some("2s"))],
        );
    }

    #[test]
    fn breaker_switched_off_is_one_difference() {
        check(
            "{ mode: observe, retry_breaker: { ratio: 0.2 } }",
            "{ mode: observe, retry_breaker: { enabled: false } }",
            &[("policy.retry_breaker.enabled", Some("true"), Some("false"))],
        );
    }

    #[test]
    fn another_kind_of_backoff_is_shown() {
        let found = changed(
            of("{ mode: observe, retry: { backoff: { fixed: { delay: 1s } } } }"),
            of("{ mode: observe, retry: { backoff: { none: {} } } }"),
        );
        let paths: Vec<&str> = found.iter().map(|field| field.path.as_str()).collect();
        assert!(paths.contains(&"policy.retry.backoff.none"), "{paths:?}");
        assert!(paths.contains(&"policy.retry.backoff.fixed.delay"), "{paths:?}");
    }
}
