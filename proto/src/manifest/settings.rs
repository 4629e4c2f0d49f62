//! Settings of a rule, guard or queue, and the differences of two versions.
//!
//! Versions are compared with all defaults written, so that an omitted default is not a difference. Fields
//! set by the server (revision, time, author) are not settings.

use std::collections::BTreeMap;

use damper_core::Faults;
use serde::Serialize;
use serde_json::Value;

use crate::{convert, v1};

/// Settings by path, as `policy.retry.max_attempts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

/// A setting that differs; `None` if it is not set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differing {
    /// Path of the setting.
    pub path: String,
    /// Old value as in a manifest.
    pub old: Option<String>,
    /// New value as in a manifest.
    pub new: Option<String>,
}

impl Settings {
    /// Settings of a missing resource.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the settings of a rule.
    ///
    /// # Errors
    /// All faults of the rule.
    pub fn of_rule(rule: &v1::Rule) -> Result<Self, Faults> {
        let parsed = convert::rule(rule)?;
        Ok(Self::of("policy", &v1::Policy::from(parsed.policy()), &rule.owner))
    }

    /// Returns the settings of a guard.
    ///
    /// # Errors
    /// All faults of the guard.
    pub fn of_guard(guard: &v1::Guard) -> Result<Self, Faults> {
        let parsed = convert::guard(guard)?;
        Ok(Self::of("ceiling", &v1::Ceiling::from(parsed.ceiling()), &guard.owner))
    }

    /// Returns the settings of a queue, its name excluded.
    ///
    /// # Errors
    /// All faults of the queue.
    pub fn of_queue(queue: &v1::Queue) -> Result<Self, Faults> {
        let parsed = convert::queue(queue)?;
        let settings =
            v1::Queue { name: String::new(), owner: String::new(), revision: 0, ..v1::Queue::from(&parsed) };
        Ok(Self::of("", &settings, &queue.owner))
    }

    fn of(name: &str, message: &impl Serialize, owner: &str) -> Self {
        let value = serde_json::to_value(message).expect("a message has only string keys and plain values");
        let mut settings = BTreeMap::new();
        flatten(name.to_owned(), value, &mut settings);
        if !owner.is_empty() {
            settings.insert("owner".to_owned(), owner.to_owned());
        }
        Self(settings)
    }

    /// Returns the settings that differ in a new version, by path.
    #[must_use]
    pub fn differing(mut self, Self(mut new): Self) -> Vec<Differing> {
        let old = &mut self.0;
        drop_placeholders(old, &new);
        drop_placeholders(&mut new, old);
        if new.get("policy.retry_breaker.enabled").is_some_and(|enabled| enabled == "false") {
            // Settings of a disabled breaker have no effect; `enabled` is the difference.
            old.retain(|path, _| !path.starts_with("policy.retry_breaker.") || path.ends_with(".enabled"));
        }
        let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
        paths.sort();
        paths.dedup();
        let differing = |path: &String| {
            let (old, new) = (old.get(path).cloned(), new.get(path).cloned());
            (old != new).then(|| Differing { path: path.clone(), old, new })
        };
        paths.into_iter().filter_map(differing).collect()
    }
}

fn flatten(path: String, value: Value, settings: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                flatten(path, field, settings);
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

/// Removes empty values if the other side has fields in their place.
fn drop_placeholders(settings: &mut BTreeMap<String, String>, other: &BTreeMap<String, String>) {
    settings.retain(|path, value| {
        let filled = || {
            other.keys().any(|key| key.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('.')))
        };
        value != "{}" || !filled()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{self, Manifest};

    fn read(text: &str) -> Settings {
        match manifest::parse(text).unwrap().remove(0).manifest {
            Manifest::Rule(rule) => Settings::of_rule(&rule).unwrap(),
            Manifest::Guard(guard) => Settings::of_guard(&guard).unwrap(),
            Manifest::Queue(queue) => Settings::of_queue(&queue).unwrap(),
        }
    }

    fn of(policy: &str) -> Settings {
        read(&format!(
            "kind: Rule\nkey: {{ caller_service: a, caller_cluster: '*', callee_service: b, \
             callee_method: p.S/M }}\npolicy: {policy}\n"
        ))
    }

    fn check(old: &str, new: &str, expected: &[(&str, Option<&str>, Option<&str>)]) {
        let found = of(old).differing(of(new));
        let found: Vec<_> =
            found.iter().map(|one| (one.path.as_str(), one.old.as_deref(), one.new.as_deref())).collect();
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
    fn only_changed_settings_differ() {
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
        check("{ mode: observe }\nowner: team-a", "{ mode: observe }", &[("owner", Some("team-a"), None)]);
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
    fn changed_backoff_kind_differs() {
        let found = of("{ mode: observe, retry: { backoff: { fixed: { delay: 1s } } } }")
            .differing(of("{ mode: observe, retry: { backoff: { none: {} } } }"));
        let paths: Vec<&str> = found.iter().map(|one| one.path.as_str()).collect();
        assert!(paths.contains(&"policy.retry.backoff.none"), "{paths:?}");
        assert!(paths.contains(&"policy.retry.backoff.fixed.delay"), "{paths:?}");
    }

    #[test]
    fn a_guard_differs_by_its_ceilings_and_its_owner() {
        let of = |ceiling: &str| {
            read(&format!(
                "kind: Guard\nkey: {{ caller_service: '*', caller_cluster: '*', callee_service: b, \
                 callee_method: '*' }}\n{ceiling}\n"
            ))
        };
        let old = of("ceiling: { max_attempts: 3, repeat_limit: {} }\nowner: team-b");
        let said =
            of("ceiling: { max_attempts: 3, repeat_limit: { mode: observe, ratio: 0.1 } }\nowner: team-b");
        assert_eq!(old.clone().differing(said), []);
        let new = of("ceiling: { max_attempts: 2, repeat_limit: {}, hedge: forbid }");
        let paths: Vec<String> = old.differing(new).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["ceiling.hedge", "ceiling.max_attempts", "owner"]);
    }
}
