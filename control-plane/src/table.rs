//! All rules at one revision, as this replica knows them, and what changed lately.
//!
//! A view is immutable and shares all but the changed entries with the one before it, so that a change among
//! 100,000 rules costs a few tree nodes. Rules are parsed once, when they come from the store. A stored rule
//! that this version can not read keeps its place: its pattern is off at the clients, because a wider rule must
//! not silently take over. The latest changes are remembered by revision, for streams that resume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Explanation, Pattern, RouteKey, Rule, Table};
use damper_proto::{convert, v1};
use prost::Message as _;
use rpds::RedBlackTreeMapSync;

use crate::store::{Change, State, key};

/// The part of the store that holds rules.
pub(crate) const PREFIX: &str = "rules/";
/// How many changed patterns are remembered in memory; older changes are read from the store.
const REMEMBERED_PATTERNS: usize = 20_000;

/// Why a rule that this server can not read is off.
pub(crate) const UNREAD: &str = "unreadable by this control plane";

/// A rule as stored.
#[derive(Debug)]
pub(crate) struct StoredRule {
    /// With its revision, when and by whom it was changed.
    pub(crate) wire: v1::Rule,
    /// None where this version can not read it.
    pub(crate) rule: Option<Arc<Rule>>,
}

/// All rules at one revision.
#[derive(Clone, Debug)]
pub(crate) struct TableView {
    epoch: Arc<str>,
    revision: u64,
    rules: RedBlackTreeMapSync<Pattern, Arc<StoredRule>>,
    /// The patterns that each of the latest changes touched.
    recent: RedBlackTreeMapSync<u64, Arc<[Pattern]>>,
    recent_patterns: usize,
    /// The store has not answered since.
    pub(crate) stale_since: Option<SystemTime>,
}

impl TableView {
    /// Everything in the store.
    pub(crate) fn of(state: &State) -> Self {
        let mut rules = RedBlackTreeMapSync::new_sync();
        for (key, entry) in &state.entries {
            if let Some(pattern) = pattern_of(key) {
                let stored = StoredRule::read(&pattern, &entry.value, entry.revision);
                rules.insert_mut(pattern, Arc::new(stored));
            }
        }
        Self {
            epoch: state.epoch.as_str().into(),
            revision: state.revision,
            rules,
            recent: RedBlackTreeMapSync::new_sync(),
            recent_patterns: 0,
            stale_since: None,
        }
    }

    /// Follows the store by one change, which must be the next one.
    pub(crate) fn apply(&mut self, change: &Change) {
        let mut patterns = Vec::with_capacity(change.edits.len());
        for edit in &change.edits {
            let Some(pattern) = pattern_of(&edit.key) else { continue };
            match &edit.value {
                Some(value) => {
                    let stored = StoredRule::read(&pattern, value, change.revision);
                    self.rules.insert_mut(pattern.clone(), Arc::new(stored));
                }
                None => {
                    self.rules.remove_mut(&pattern);
                }
            }
            patterns.push(pattern);
        }
        self.revision = change.revision;
        self.recent_patterns += patterns.len().max(1);
        self.recent.insert_mut(change.revision, patterns.into());
        while self.recent_patterns > REMEMBERED_PATTERNS {
            let Some((&oldest, patterns)) = self.recent.first() else { break };
            self.recent_patterns -= patterns.len().max(1);
            self.recent.remove_mut(&oldest);
        }
    }

    /// The identity of the store.
    pub(crate) fn epoch(&self) -> &Arc<str> {
        &self.epoch
    }

    /// The revision of the last change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// True if this is the other view with no more than a change of `stale_since`.
    pub(crate) fn same_rules(&self, other: &Self) -> bool {
        self.revision == other.revision && self.epoch == other.epoch
    }

    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules.size()
    }

    /// The rule with this pattern.
    pub(crate) fn stored(&self, pattern: &Pattern) -> Option<&Arc<StoredRule>> {
        self.rules.get(pattern)
    }

    /// All rules in the order of their patterns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Pattern, &Arc<StoredRule>)> {
        self.rules.iter()
    }

    /// The rules behind a pattern, in order.
    pub(crate) fn after(&self, pattern: &Pattern) -> impl Iterator<Item = (&Pattern, &Arc<StoredRule>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rules.range((Excluded(pattern), Unbounded))
    }

    /// The rule that applies to a route; none also where the nearest one can not be read.
    pub(crate) fn winner(&self, route: &RouteKey) -> Option<&Arc<Rule>> {
        self.matching(route).next()?.1.rule.as_ref()
    }

    /// Why which rule applies to a route; with the pattern of the nearest rule where that can not be read, so
    /// that none applies.
    pub(crate) fn explain(&self, route: &RouteKey) -> (Explanation, Option<Pattern>) {
        match self.matching(route).next() {
            Some((pattern, stored)) if stored.rule.is_none() => {
                (Explanation { winner: None, losers: Vec::new() }, Some(pattern))
            }
            _ => {
                let readable = self.matching(route).filter_map(|(_, stored)| stored.rule.clone());
                (Explanation::of(&readable.collect::<Table>(), route), None)
            }
        }
    }

    /// The stored rules that match a route, the nearest first.
    fn matching(&self, route: &RouteKey) -> impl Iterator<Item = (Pattern, &Arc<StoredRule>)> {
        Pattern::candidates(route).filter_map(|pattern| {
            let stored = self.rules.get(&pattern)?;
            Some((pattern, stored))
        })
    }

    /// The patterns changed after a revision; none where that is no longer remembered.
    pub(crate) fn changed_since(&self, revision: u64) -> Option<BTreeSet<Pattern>> {
        if revision >= self.revision {
            return Some(BTreeSet::new());
        }
        self.recent.get(&(revision + 1))?;
        let changes = self.recent.range(revision + 1..);
        Some(changes.flat_map(|(_, patterns)| patterns.iter().cloned()).collect())
    }
}

impl StoredRule {
    fn read(pattern: &Pattern, value: &[u8], revision: u64) -> Self {
        let unread = |problem: String| {
            tracing::warn!(%pattern, revision, problem, "a stored rule can not be read; its pattern is off");
            v1::Rule { key: Some(pattern.into()), revision, ..v1::Rule::default() }
        };
        let wire = match v1::Rule::decode(value) {
            Ok(wire) => v1::Rule { key: Some(pattern.into()), revision, ..wire },
            Err(error) => return Self { wire: unread(error.to_string()), rule: None },
        };
        match convert::rule(&wire) {
            Ok(rule) => Self { wire, rule: Some(Arc::new(rule)) },
            Err(faults) => {
                unread(faults.to_string());
                Self { wire, rule: None }
            }
        }
    }
}

/// What is stored of a rule: the key and the revision are the entry's own.
pub(crate) fn stored_bytes(rule: &v1::Rule) -> Vec<u8> {
    v1::Rule { revision: 0, ..rule.clone() }.encode_to_vec()
}

/// The store's key of a rule.
pub(crate) fn key_of(pattern: &Pattern) -> String {
    let v1::Pattern { caller_service, caller_cluster, callee_service, callee_method } = pattern.into();
    key(["rules", &caller_service, &caller_cluster, &callee_service, &callee_method])
}

/// The pattern of a store's key; none where it is not a rule's.
pub(crate) fn pattern_of(key: &str) -> Option<Pattern> {
    let names: Option<Vec<String>> = key.strip_prefix(PREFIX)?.split('/').map(decoded).collect();
    let parsed = match names?.as_slice() {
        [caller, cluster, callee, method] => Pattern::parse(caller, cluster, callee, method).ok(),
        _ => None,
    };
    if parsed.is_none() {
        tracing::warn!(key, "a stored key is no rule's; left alone");
    }
    parsed
}

/// One percent-encoded segment of a key.
pub(crate) fn decoded(segment: &str) -> Option<String> {
    percent_encoding::percent_decode_str(segment).decode_utf8().ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Edit;

    fn pattern(method: &str) -> Pattern {
        Pattern::parse("shop", "*", "stock", method).unwrap()
    }

    fn change(revision: u64, edits: Vec<(&Pattern, Option<Vec<u8>>)>) -> Change {
        let edit = |(pattern, value): (&Pattern, Option<Vec<u8>>)| Edit {
            key: key_of(pattern),
            value: value.map(Into::into),
        };
        Change {
            revision,
            at: SystemTime::UNIX_EPOCH,
            author: String::new(),
            reason: String::new(),
            request_id: String::new(),
            request_digest: 0,
            edits: edits.into_iter().map(edit).collect(),
        }
    }

    fn empty() -> TableView {
        TableView::of(&State { epoch: "e".to_owned(), revision: 0, entries: Default::default() })
    }

    fn off() -> Vec<u8> {
        let policy = v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() };
        stored_bytes(&v1::Rule { policy: Some(policy), ..Default::default() })
    }

    #[test]
    fn a_key_gives_back_its_pattern() {
        for method in ["*", "p.S/*", "p.S/M", "p.S/M%2F"] {
            let pattern = pattern(method);
            assert_eq!(pattern_of(&key_of(&pattern)), Some(pattern));
        }
        assert_eq!(pattern_of("rules/a/b/c"), None);
        assert_eq!(pattern_of("tokens/a/b/c/d"), None);
    }

    #[test]
    fn what_changed_is_known_from_the_first_change_seen() {
        let (one, two) = (pattern("p.S/A"), pattern("p.S/B"));
        let mut view = empty();
        view.apply(&change(1, vec![(&one, Some(off()))]));
        view.apply(&change(2, vec![(&two, Some(off()))]));
        view.apply(&change(3, vec![(&one, None)]));
        assert_eq!(view.changed_since(0), Some([one.clone(), two.clone()].into()));
        assert_eq!(view.changed_since(2), Some([one.clone()].into()));
        assert_eq!(view.changed_since(3), Some(BTreeSet::new()));
        assert!(view.stored(&one).is_none());
        assert_eq!(view.stored(&two).unwrap().wire.revision, 2);
    }

    #[test]
    fn forgotten_changes_are_admitted() {
        let mut view = empty();
        let all: Vec<Pattern> = (0..REMEMBERED_PATTERNS).map(|n| pattern(&format!("p.S/M{n}"))).collect();
        view.apply(&change(1, all.iter().map(|pattern| (pattern, Some(off()))).collect()));
        view.apply(&change(2, vec![(&all[0], None)]));
        assert_eq!(view.changed_since(0), None);
        assert_eq!(view.changed_since(1), Some([all[0].clone()].into()));
        assert_eq!(view.len(), REMEMBERED_PATTERNS - 1);
    }

    #[test]
    fn a_rule_that_can_not_be_read_keeps_its_place_and_no_wider_one_takes_it() {
        let (near, wide) = (pattern("p.S/A"), pattern("*"));
        let mut view = empty();
        view.apply(&change(1, vec![(&near, Some(vec![0xff])), (&wide, Some(off()))]));
        assert!(view.stored(&near).unwrap().rule.is_none());
        let route = RouteKey::new("shop", "default", "stock", "p.S/A").unwrap();
        assert!(view.winner(&route).is_none());
        let (explanation, unread) = view.explain(&route);
        assert!(explanation.winner.is_none());
        assert_eq!(unread, Some(near));
        let other = RouteKey::new("shop", "default", "stock", "p.S/B").unwrap();
        assert_eq!(*view.winner(&other).unwrap().pattern(), wide);
        let (explanation, unread) = view.explain(&other);
        assert_eq!((explanation.winner.unwrap().pattern(), unread), (&wide, None));
    }
}
