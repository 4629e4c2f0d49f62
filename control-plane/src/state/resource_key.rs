//! Key of a store's entry: a rule, a guard or a kill with its pattern.
//!
//! The kind and the four names make the store's key, `rules/<caller>/<cluster>/<callee>/<method>`,
//! `guards/...` or `kills/...`. Each name is percent-encoded, so none can contain a separator. Keys of other
//! kinds are ignored.

use std::fmt;

use damper_core::Pattern;
use damper_proto::v1;

use damper_store::key;

/// Key prefix of rules.
pub(crate) const RULES: &str = "rules/";
/// Key prefix of guards.
pub(crate) const GUARDS: &str = "guards/";
/// Key prefix of kills.
pub(crate) const KILLS: &str = damper_store::URGENT;

/// Rule, guard or kill.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ResourceKey {
    Rule(Pattern),
    Guard(Pattern),
    Kill(Pattern),
}

type Kind = fn(Pattern) -> ResourceKey;

impl ResourceKey {
    /// Parses a store's key; `None` for other kinds.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        let kinds = [(RULES, Self::Rule as Kind), (GUARDS, Self::Guard), (KILLS, Self::Kill)];
        let (names, make) =
            kinds.into_iter().find_map(|(kind, make)| Some((key.strip_prefix(kind)?, make)))?;
        let subject = pattern_of(names).map(make);
        if subject.is_none() {
            tracing::warn!(key, "a stored key names no pattern; left alone");
        }
        subject
    }

    /// Returns the store's key.
    pub(crate) fn key(&self) -> String {
        let kind = match self {
            Self::Rule(_) => RULES,
            Self::Guard(_) => GUARDS,
            Self::Kill(_) => KILLS,
        };
        let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } =
            self.pattern().into();
        key([kind.trim_end_matches('/'), &caller_service, &caller_cluster, &callee_service, &callee_method])
    }

    /// Returns its pattern.
    pub(crate) fn pattern(&self) -> &Pattern {
        match self {
            Self::Rule(pattern) | Self::Guard(pattern) | Self::Kill(pattern) => pattern,
        }
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(pattern) => write!(f, "rule {pattern}"),
            Self::Guard(pattern) => write!(f, "guard {pattern}"),
            Self::Kill(pattern) => write!(f, "kill {pattern}"),
        }
    }
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
        for other in ["rules/a/b/c", "guards/a/b/c", "kills/a/b/c/d/e", "tokens/a/b/c/d"] {
            assert_eq!(ResourceKey::of_key(other), None);
        }
    }
}
