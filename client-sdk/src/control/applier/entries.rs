//! What the server has sent of one kind, rules or guards, by pattern: in force, as it was sent, refused.
//!
//! One that cannot be read is refused alone and keeps its previous version. If there is none, a rule is off at
//! its pattern, so that a wider rule does not take its place; a guard is as if it were not there. A refusal is
//! kept until what was refused is replaced or removed.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::{Faults, Guard, Mode, Pattern, Policy, Rule};
use damper_proto::{convert, v1};
use prost::Message as _;

/// A refusal's reason is for people; it need not repeat a whole message.
const MAX_REASON_CHARS: usize = 500;

/// What is wrong with one that was refused.
pub(super) fn short_reason(faults: &Faults) -> String {
    faults.to_string().chars().take(MAX_REASON_CHARS).collect()
}

/// A kind of message that the server sends by pattern.
pub(super) trait Sent: prost::Message {
    /// What it is here.
    type InForce: std::fmt::Debug;
    /// Refusals say of which kind they are.
    const IS_GUARD: bool;

    fn key(&self) -> Option<&v1::Pattern>;
    fn revision(&self) -> u64;
    fn parse(&self) -> Result<Self::InForce, Faults>;
    /// What is in force in place of one that is refused and has no previous version.
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

    /// A rule that the server withheld for a feature that is missing here is off; that is no refusal.
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
    rule.expect("a policy that only says off has no setting out of range")
}

/// All of one kind.
#[derive(Debug)]
pub(super) struct Entries<S: Sent> {
    by_key: HashMap<v1::Pattern, Entry<S>>,
    refused: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<S: Sent> {
    in_force: Option<Arc<S::InForce>>,
    /// What `in_force` was read from; none if it stands in for one that was refused.
    sent: Option<Arc<S>>,
    refused: Option<Box<v1::Refusal>>,
}

/// One as it came, and what became of it.
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
    /// How many there are, those that are only refused among them.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// How long they are as messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn in_force(&self) -> impl Iterator<Item = &Arc<S::InForce>> {
        self.by_key.values().filter_map(|entry| entry.in_force.as_ref())
    }

    pub(super) fn sent(&self) -> impl Iterator<Item = &Arc<S>> {
        self.by_key.values().filter_map(|entry| entry.sent.as_ref())
    }

    /// Those that are refused at present.
    pub(super) fn refused(&self) -> impl Iterator<Item = &v1::Refusal> {
        self.by_key.values().filter_map(|entry| entry.refused.as_deref())
    }

    pub(super) fn refused_count(&self) -> usize {
        self.refused
    }

    /// These are all there are now. Adds those that were refused.
    pub(super) fn replace(&mut self, received: Vec<Received<S>>, refused: &mut Vec<v1::Refusal>) {
        let mut previous = std::mem::take(self);
        for Received { key, reading } in received {
            let before = self.take(&key).or_else(|| previous.take(&key));
            self.settle(key, reading, before, refused);
        }
    }

    /// These have changed. Adds those that were refused.
    pub(super) fn change(&mut self, received: Vec<Received<S>>, refused: &mut Vec<v1::Refusal>) {
        for Received { key, reading } in received {
            let before = self.take(&key);
            self.settle(key, reading, before, refused);
        }
    }

    /// Takes up a refusal that was kept.
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
