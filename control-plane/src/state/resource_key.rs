//! Key of a store's entry: a rule, a guard or a kill with its pattern, or a queue with its name.
//!
//! The kind and the four names make the store's key, `rules/<caller>/<cluster>/<callee>/<method>`,
//! `guards/...` or `kills/...`; that of a queue is `queues/<name>`. Each name is percent-encoded, so none can
//! contain a separator. Keys of other kinds are ignored.

use std::fmt;

use damper_core::{Faults, Pattern, job};
use damper_proto::v1;

use damper_store::key;

/// Key prefix of rules.
pub(crate) const RULES: &str = "rules/";
/// Key prefix of guards.
pub(crate) const GUARDS: &str = "guards/";
/// Key prefix of kills.
pub(crate) const KILLS: &str = damper_store::URGENT;

/// Key prefix of queues.
pub(crate) const QUEUES: &str = "queues/";

/// Rule, guard, kill or queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ResourceKey {
    Rule(Pattern),
    Guard(Pattern),
    Kill(Pattern),
    /// By its name.
    Queue(String),
}

type Kind = fn(Pattern) -> ResourceKey;

impl ResourceKey {
    /// Parses a store's key; `None` for other kinds.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        if let Some(name) = key.strip_prefix(QUEUES) {
            return queue_of(key, name);
        }
        let kinds = [(RULES, Self::Rule as Kind), (GUARDS, Self::Guard), (KILLS, Self::Kill)];
        let (names, make) =
            kinds.into_iter().find_map(|(kind, make)| Some((key.strip_prefix(kind)?, make)))?;
        let subject = pattern_of(names).map(make);
        if subject.is_none() {
            tracing::warn!(key, "ignoring a stored entry whose key is not a valid route key");
        }
        subject
    }

    /// Returns the store's key.
    pub(crate) fn key(&self) -> String {
        let kind = match self {
            Self::Rule(_) => RULES,
            Self::Guard(_) => GUARDS,
            Self::Kill(_) => KILLS,
            Self::Queue(name) => return key([QUEUES.trim_end_matches('/'), name]),
        };
        let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
            self.pattern().map(Into::into).unwrap_or_default();
        key([kind.trim_end_matches('/'), &caller_service, &caller_cluster, &callee_service, &callee_method])
    }

    /// Returns its pattern; `None` for a queue.
    pub(crate) fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Rule(pattern) | Self::Guard(pattern) | Self::Kill(pattern) => Some(pattern),
            Self::Queue(_) => None,
        }
    }

    /// Returns the kind: `rule`, `guard`, `kill` or `queue`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Guard(_) => "guard",
            Self::Kill(_) => "kill",
            Self::Queue(_) => "queue",
        }
    }

    /// Returns the four words of its pattern, or its name: the subject of findings.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Rule(pattern) | Self::Guard(pattern) | Self::Kill(pattern) => pattern.to_string(),
            Self::Queue(name) => name.clone(),
        }
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.words())
    }
}

fn queue_of(key: &str, name: &str) -> Option<ResourceKey> {
    let name = decoded(name).filter(|name| {
        let mut faults = Faults::none();
        job::check_queue_name("name", name, &mut faults);
        faults.is_empty()
    });
    if name.is_none() {
        tracing::warn!(key, "ignoring a stored entry whose key is not a valid queue name");
    }
    name.map(ResourceKey::Queue)
}

fn pattern_of(names: &str) -> Option<Pattern> {
    let names: Option<Vec<String>> = names.split('/').map(decoded).collect();
    match names?.as_slice() {
        [caller, cluster, callee, method] => Pattern::parse(caller, cluster, callee, method).ok(),
        _ => None,
    }
}

/// One percent-encoded segment of a key.
pub(crate) fn decoded(segment: &str) -> Option<String> {
    percent_encoding::percent_decode_str(segment).decode_utf8().ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_what_it_names() {
        for method in ["*", "p.S/*", "p.S/M", "p.S/M%2F"] {
            let pattern = Pattern::parse("shop", "*", "stock", method).unwrap();
            let kinds = [ResourceKey::Rule, ResourceKey::Guard, ResourceKey::Kill];
            for subject in kinds.map(|kind| kind(pattern.clone())) {
                assert_eq!(ResourceKey::of_key(&subject.key()), Some(subject));
            }
        }
        let queue = ResourceKey::Queue("orders.eu-1".to_owned());
        assert_eq!(queue.key(), "queues/orders.eu-1");
        assert_eq!(ResourceKey::of_key(&queue.key()), Some(queue));
        for other in [
            "queues/",
            "queues/a/b",
            "queues/A",
            "rules/a/b/c",
            "guards/a/b/c",
            "kills/a/b/c/d/e",
            "tokens/a/b/c/d",
        ] {
            assert_eq!(ResourceKey::of_key(other), None);
        }
    }
}
