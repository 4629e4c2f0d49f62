//! The entries of one kind, rules or guards, by pattern: as sent, as applied, or rejected.
//!
//! An entry that cannot be read is rejected alone and keeps its previous version. Without one, a rule is off
//! at its pattern, so that no less specific rule applies; a guard has no effect. A rejection is kept until
//! the entry is replaced or removed.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::{Faults, Guard, Mode, Pattern, Policy, Rule};
use damper_proto::{convert, v1};
use prost::Message as _;

/// Limit of a reason, which need not repeat a whole message.
const MAX_REASON_CHARS: usize = 500;

/// Returns why an entry was rejected.
pub(super) fn short_reason(faults: &Faults) -> String {
    faults.to_string().chars().take(MAX_REASON_CHARS).collect()
}

/// A kind of message that the server sends by pattern.
pub(super) trait Sent: prost::Message {
    /// The parsed form.
    type InForce: std::fmt::Debug;
    /// True for guards; named in rejections.
    const IS_GUARD: bool;

    fn key(&self) -> Option<&v1::Pattern>;
    fn revision(&self) -> u64;
    fn parse(&self) -> Result<Self::InForce, Faults>;
    /// Returns the replacement for a rejected entry without a previous version.
    fn stand_in(key: &v1::Pattern, revision: u64) -> Option<Self::InForce>;
}

impl Sent for v1::DistributedRule {
    type InForce = Rule;
    const IS_GUARD: bool = false;

    fn key(&self) -> Option<&v1::Pattern> {
        self.key.as_ref()
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    /// A rule that the server withheld because of a missing feature is off; it is not rejected.
    fn parse(&self) -> Result<Rule, Faults> {
        let withheld = matches!(self.kind, Some(v1::distributed_rule::Kind::NeedsFeature(_)));
        let off = self.key().filter(|_| withheld).and_then(|key| Self::stand_in(key, self.revision));
        off.map_or_else(|| convert::distributed_rule(self), Ok)
    }

    fn stand_in(key: &v1::Pattern, revision: u64) -> Option<Rule> {
        Some(off(convert::pattern(key).ok()?, revision))
    }
}

impl Sent for v1::DistributedGuard {
    type InForce = Guard;
    const IS_GUARD: bool = true;

    fn key(&self) -> Option<&v1::Pattern> {
        self.key.as_ref()
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn parse(&self) -> Result<Guard, Faults> {
        convert::distributed_guard(self)
    }

    fn stand_in(_: &v1::Pattern, _: u64) -> Option<Guard> {
        None
    }
}

fn off(pattern: Pattern, revision: u64) -> Rule {
    let rule = Rule::new(pattern, Policy::new(Mode::Off), revision);
    rule.expect("mode `off` alone is a valid policy")
}

/// All entries of one kind.
#[derive(Debug)]
pub(super) struct Entries<S: Sent> {
    by_key: HashMap<v1::Pattern, Entry<S>>,
    refused: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<S: Sent> {
    in_force: Option<Arc<S::InForce>>,
    /// Source of `in_force`; `None` if that is a stand-in.
    sent: Option<Arc<S>>,
    refused: Option<Box<v1::Refusal>>,
}

/// An entry as received, parsed or rejected.
#[derive(Debug)]
pub(super) struct Received<S: Sent> {
    key: v1::Pattern,
    reading: Reading<S>,
}

#[derive(Debug)]
enum Reading<S: Sent> {
    Accepted { in_force: Arc<S::InForce>, sent: Arc<S> },
    Refused(Box<v1::Refusal>),
}

impl<S: Sent> Default for Entries<S> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), refused: 0, bytes: 0 }
    }
}

impl<S: Sent> Entry<S> {
    fn bytes(&self) -> usize {
        let sent = self.sent.as_ref().map_or(0, |sent| sent.encoded_len());
        let refused = self.refused.as_ref().map_or(0, |refused| refused.encoded_len());
        sent + refused
    }
}

impl<S: Sent> Received<S> {
    pub(super) fn read(sent: S) -> Self {
        let key = sent.key().cloned().unwrap_or_default();
        let reading = match sent.parse() {
            Ok(in_force) => Reading::Accepted { in_force: Arc::new(in_force), sent: Arc::new(sent) },
            Err(faults) => Reading::Refused(Box::new(v1::Refusal {
                key: sent.key().cloned(),
                revision: sent.revision(),
                reason: short_reason(&faults),
                guard: S::IS_GUARD,
                kill: false,
            })),
        };
        Self { key, reading }
    }
}

impl<S: Sent> Entries<S> {
    /// Returns the number of entries, including rejected ones.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns their size as messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn in_force(&self) -> impl Iterator<Item = &Arc<S::InForce>> {
        self.by_key.values().filter_map(|entry| entry.in_force.as_ref())
    }

    pub(super) fn sent(&self) -> impl Iterator<Item = &Arc<S>> {
        self.by_key.values().filter_map(|entry| entry.sent.as_ref())
    }

    /// Returns the rejected entries.
    pub(super) fn refused(&self) -> impl Iterator<Item = &v1::Refusal> {
        self.by_key.values().filter_map(|entry| entry.refused.as_deref())
    }

    pub(super) fn refused_count(&self) -> usize {
        self.refused
    }

    /// Replaces all entries. Adds rejected ones to `refused`.
    pub(super) fn replace(&mut self, received: Vec<Received<S>>, refused: &mut Vec<v1::Refusal>) {
        let mut previous = std::mem::take(self);
        for Received { key, reading } in received {
            let before = self.take(&key).or_else(|| previous.take(&key));
            self.settle(key, reading, before, refused);
        }
    }

    /// Changes entries. Adds rejected ones to `refused`.
    pub(super) fn change(&mut self, received: Vec<Received<S>>, refused: &mut Vec<v1::Refusal>) {
        for Received { key, reading } in received {
            let before = self.take(&key);
            self.settle(key, reading, before, refused);
        }
    }

    /// Restores a rejection.
    pub(super) fn refuse(&mut self, refusal: v1::Refusal) {
        let key = refusal.key.clone().unwrap_or_default();
        let before = self.take(&key);
        self.settle(key, Reading::Refused(Box::new(refusal)), before, &mut Vec::new());
    }

    pub(super) fn remove(&mut self, key: &v1::Pattern) {
        self.take(key);
    }

    fn settle(
        &mut self,
        key: v1::Pattern,
        reading: Reading<S>,
        before: Option<Entry<S>>,
        refused: &mut Vec<v1::Refusal>,
    ) {
        let entry = match reading {
            Reading::Accepted { in_force, sent } => {
                Entry { in_force: Some(in_force), sent: Some(sent), refused: None }
            }
            Reading::Refused(refusal) => {
                refused.push(v1::Refusal::clone(&refusal));
                let (in_force, sent) = before.map_or((None, None), |before| (before.in_force, before.sent));
                let stand_in = || S::stand_in(&key, refusal.revision).map(Arc::new);
                Entry { in_force: in_force.or_else(stand_in), sent, refused: Some(refusal) }
            }
        };
        self.refused += usize::from(entry.refused.is_some());
        self.bytes += entry.bytes();
        self.by_key.insert(key, entry);
    }

    fn take(&mut self, key: &v1::Pattern) -> Option<Entry<S>> {
        let entry = self.by_key.remove(key)?;
        self.refused -= usize::from(entry.refused.is_some());
        self.bytes -= entry.bytes();
        Some(entry)
    }
}
