//! What differs between two versions of a rule or guard, setting by setting.
//!
//! Compared is what they amount to: both sides are written out with every default, so that leaving out a
//! default, or saying it, is no difference. What the server adds (revision, time, author) is not compared.

use std::collections::BTreeMap;

use damper_core::Faults;
use damper_proto::{convert, v1};
use serde::Serialize;
use serde_json::Value;

use crate::exit::Error;
use crate::key;
use crate::output::{self, Format};
use crate::sources::Item;

const UNSET: &str = "unset";

/// A rule or guard that differs.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    change: &'static str,
    kind: &'static str,
    key: v1::Pattern,
    /// Where the new version stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    fields: Vec<Field>,
}

/// A setting that differs; none where it is not set at all.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Field {
    path: String,
    old: Option<String>,
    new: Option<String>,
}

/// Shows the differences and ends the command: that there are any, and every failure, has its own status.
pub(crate) fn show(format: Format, found: Result<Vec<Difference>, Error>) -> Result<(), Error> {
    let of_diff = |error| Error::OfDiff(Box::new(error));
    let differences = found.map_err(of_diff)?;
    let colours = output::colours();
    let text = || differences.iter().map(|difference| difference.text(colours)).collect();
    output::show(format, &differences, text).map_err(of_diff)?;
    if differences.is_empty() { Ok(()) } else { Err(Error::Differs) }
}

/// Every setting by its path, with every default written out.
fn settings(item: &Item) -> Result<BTreeMap<String, String>, Error> {
    let refused = |faults: Faults| {
        let key = key::words(item.key());
        Error::Data(faults.iter().map(|fault| format!("{key}: {fault}")).collect())
    };
    let mut settings = BTreeMap::new();
    match item {
        Item::Rule(rule) => {
            let parsed = convert::rule(rule).map_err(refused)?;
            let policy = text_form(&v1::Policy::from(parsed.policy()))?;
            flatten("policy".to_owned(), policy, &mut settings);
        }
        Item::Guard(guard) => {
            let parsed = convert::guard(guard).map_err(refused)?;
            let ceiling = text_form(&v1::Ceiling::from(parsed.ceiling()))?;
            flatten("ceiling".to_owned(), ceiling, &mut settings);
            let owner = Some(guard.owner.clone()).filter(|owner| !owner.is_empty());
            settings.extend(owner.map(|owner| ("owner".to_owned(), owner)));
        }
    }
    Ok(settings)
}

fn text_form(message: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(message)
        .map_err(|error| Error::Defect(format!("the settings have no text form: {error}")))
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
    /// What differs between two versions, where anything does; none is one that does not exist.
    pub(crate) fn between(
        old: Option<&Item>,
        new: Option<&Item>,
        origin: Option<String>,
    ) -> Result<Option<Self>, Error> {
        let written = |item: Option<&Item>| item.map(settings).transpose().map(Option::unwrap_or_default);
        let fields = changed(written(old)?, written(new)?);
        let change = match (old, new) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "updated",
        };
        let Some(item) = new.or(old).filter(|_| !fields.is_empty()) else { return Ok(None) };
        let kind = match item {
            Item::Rule(_) => "rule",
            Item::Guard(_) => "guard",
        };
        let key = item.key().cloned().unwrap_or_default();
        Ok(Some(Self { change, kind, key, origin, fields }))
    }

    fn text(&self, colours: bool) -> String {
        let (mark, colour) = match self.change {
            "created" => ('+', "32"),
            "deleted" => ('-', "31"),
            _ => ('~', "33"),
        };
        let key = key::words(Some(&self.key));
        let kind = if self.kind == "guard" { "guard " } else { "" };
        let mut text = paint(colours, colour, &format!("{mark} {kind}{key}"));
        text.extend(self.origin.as_ref().map(|origin| format!("  ({origin})")));
        text.push('\n');
        for Field { path, old, new } in &self.fields {
            let old = paint(colours, "31", old.as_deref().unwrap_or(UNSET));
            let new = paint(colours, "32", new.as_deref().unwrap_or(UNSET));
            text.push_str(&match self.change {
                "created" => format!("    {path}: {new}\n"),
                "deleted" => format!("    {path}: {old}\n"),
                _ => format!("    {path}: {old} -> {new}\n"),
            });
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
        settings(&Item::Rule(rule)).unwrap()
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

    #[test]
    fn a_guard_differs_by_its_ceilings_and_its_owner() {
        let of = |ceiling: &str| {
            let text = format!(
                "kind: Guard\nkey: {{ caller_service: '*', caller_cluster: '*', callee_service: b, \
                 callee_method: '*' }}\n{ceiling}\n"
            );
            let document = manifest::parse(&text).unwrap().remove(0);
            let manifest::Manifest::Guard(guard) = document.manifest else { panic!("no guard") };
            settings(&Item::Guard(guard)).unwrap()
        };
        let old = of("ceiling: { max_attempts: 3, repeat_limit: {} }\nowner: team-b");
        let said =
            of("ceiling: { max_attempts: 3, repeat_limit: { mode: observe, ratio: 0.1 } }\nowner: team-b");
        assert_eq!(changed(old.clone(), said), []);
        let new = of("ceiling: { max_attempts: 2, repeat_limit: {}, hedge: forbid }");
        let paths: Vec<String> = changed(old, new).into_iter().map(|field| field.path).collect();
        assert_eq!(paths, ["ceiling.hedge", "ceiling.max_attempts", "owner"]);
    }
}
