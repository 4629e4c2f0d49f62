//! What the server sent, turned into the rules in force.
//!
//! Without I/O and clock: the stream hands over each response and does what the [`Outcome`] says. A response
//! is applied whole. Within an epoch the revision never goes back: an older response changes nothing, which
//! is safe because a delta from any revision up to the one held, to any later one, names all that differs.
//!
//! A rule that cannot be read is refused alone. It keeps its previous version; if there is none, or if the
//! server withheld it for a feature that is missing here, its pattern is off, so that a wider rule does not
//! take its place. Refusals are kept until the rule is replaced or removed, and named in every hello.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::{Mode, Pattern, Policy, Rule, Table};
use damper_proto::{convert, v1};
use prost::Message as _;

/// A snapshot longer than this is no snapshot: the control plane accepts no more rules than fit into it.
const MAX_SNAPSHOT_BYTES: usize = 256 << 20;
/// A refusal's reason is for people; it need not repeat a whole message.
const MAX_REASON_CHARS: usize = 500;

/// The rules held, and how far.
#[derive(Debug, Default)]
pub(super) struct Applier {
    /// None before the first snapshot.
    position: Option<Position>,
    entries: HashMap<v1::Pattern, Entry>,
    /// The pages so far of a snapshot that is still coming in.
    pages: Option<Pages>,
}

/// A revision, and the store it is a revision of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: String,
    pub(super) revision: u64,
}

/// What a response changed.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// Other rules are in force; these were refused. `whole`: by a snapshot.
    Applied { refused: Vec<v1::Refusal>, whole: bool },
    /// The rules held are the server's.
    Confirmed,
    /// Older than what is held: ignored.
    Stale,
    /// A page of a snapshot; more will come. Or a sign of life before anything is held.
    Incomplete,
    /// It does not follow from what is held: only another stream can help.
    OutOfStep(&'static str),
}

/// Everything held, to be kept on disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Image {
    pub(super) position: Option<Position>,
    pub(super) rules: Vec<Arc<v1::DistributedRule>>,
    pub(super) refused: Vec<v1::Refusal>,
}

#[derive(Debug, Default)]
struct Entry {
    /// In force. None only if the pattern itself cannot be read.
    rule: Option<Arc<Rule>>,
    /// What `rule` was read from; none if it stands in for one that was refused.
    sent: Option<Arc<v1::DistributedRule>>,
    refused: Option<Box<v1::Refusal>>,
}

#[derive(Debug)]
struct Pages {
    position: Position,
    received: Vec<Received>,
    bytes: usize,
}

/// A rule as it came, and what became of it.
#[derive(Debug)]
struct Received {
    key: v1::Pattern,
    reading: Reading,
}

#[derive(Debug)]
enum Reading {
    Accepted {
        rule: Arc<Rule>,
        sent: Arc<v1::DistributedRule>,
    },
    /// With what takes its place if nothing else does; none if the pattern itself cannot be read.
    Refused {
        refusal: Box<v1::Refusal>,
        off: Option<Arc<Rule>>,
    },
}

impl Applier {
    /// How far the rules held go.
    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Half a snapshot of the stream before is of no use to the next.
    pub(super) fn begin_stream(&mut self) {
        self.pages = None;
    }

    /// The rules in force.
    pub(super) fn table(&self) -> Table {
        self.entries.values().filter_map(|entry| entry.rule.clone()).collect()
    }

    /// Every rule that is refused at present.
    pub(super) fn refused(&self) -> Vec<v1::Refusal> {
        self.entries.values().filter_map(|entry| entry.refused.as_deref().cloned()).collect()
    }

    /// One page of a snapshot.
    pub(super) fn snapshot(&mut self, position: Position, page: v1::Snapshot) -> Outcome {
        let v1::Snapshot { rules, last, guards: _ } = page;
        let mut pages = match self.pages.take() {
            None => Pages::new(position),
            Some(pages) if pages.position == position => pages,
            Some(_) => return Outcome::OutOfStep("a snapshot began before the last one ended"),
        };
        pages.bytes += rules.iter().map(v1::DistributedRule::encoded_len).sum::<usize>();
        if pages.bytes > MAX_SNAPSHOT_BYTES {
            return Outcome::OutOfStep("the snapshot is too long");
        }
        pages.received.extend(rules.into_iter().map(read));
        if !last {
            self.pages = Some(pages);
            return Outcome::Incomplete;
        }
        if self.is_behind(&pages.position) {
            return Outcome::Stale;
        }
        let mut previous = std::mem::take(&mut self.entries);
        let mut refused = Vec::new();
        for Received { key, reading } in pages.received {
            let before = self.entries.remove(&key).or_else(|| previous.remove(&key));
            let entry = settle(reading, before, &mut refused);
            self.entries.insert(key, entry);
        }
        self.position = Some(pages.position);
        Outcome::Applied { refused, whole: true }
    }

    /// What changed since a revision that this client held.
    pub(super) fn delta(&mut self, position: Position, delta: v1::Delta) -> Outcome {
        let v1::Delta { changed, removed, changed_guards: _, removed_guards: _ } = delta;
        if self.pages.is_some() {
            return Outcome::OutOfStep("a delta came before the snapshot ended");
        }
        if !self.is_of_epoch(&position) {
            return Outcome::OutOfStep("a delta came before a snapshot of its epoch");
        }
        if self.is_behind(&position) {
            return Outcome::Stale;
        }
        let received: Vec<Received> = changed.into_iter().map(read).collect();
        for key in removed {
            self.entries.remove(&key);
        }
        let mut refused = Vec::new();
        for Received { key, reading } in received {
            let entry = settle(reading, self.entries.remove(&key), &mut refused);
            self.entries.insert(key, entry);
        }
        self.position = Some(position);
        Outcome::Applied { refused, whole: false }
    }

    /// Nothing changed up to this position.
    pub(super) fn bookmark(&mut self, position: Position) -> Outcome {
        let waiting = self.pages.is_some() || self.position.is_none();
        if waiting {
            return Outcome::Incomplete;
        }
        if !self.is_of_epoch(&position) {
            return Outcome::OutOfStep("a bookmark came before a snapshot of its epoch");
        }
        if self.is_behind(&position) {
            return Outcome::Stale;
        }
        self.position = Some(position);
        Outcome::Confirmed
    }

    /// Everything held; none before the first snapshot.
    pub(super) fn image(&self) -> Option<Image> {
        Some(Image {
            position: Some(self.position.clone()?),
            rules: self.entries.values().filter_map(|entry| entry.sent.clone()).collect(),
            refused: self.refused(),
        })
    }

    /// Takes up what was kept on disk. Without a position the rules are in force until the first snapshot.
    pub(super) fn restore(&mut self, image: Image) {
        let Image { position, rules, refused } = image;
        self.entries.clear();
        for rule in rules {
            let Received { key, reading } = read(Arc::unwrap_or_clone(rule));
            self.entries.insert(key, settle(reading, None, &mut Vec::new()));
        }
        for refusal in refused {
            let key = refusal.key.clone().unwrap_or_default();
            let off = convert::pattern(&key).ok().map(|pattern| off(pattern, refusal.revision));
            let before = self.entries.remove(&key);
            let entry = settle(Reading::Refused { refusal: Box::new(refusal), off }, before, &mut Vec::new());
            self.entries.insert(key, entry);
        }
        self.position = position;
    }

    fn is_of_epoch(&self, position: &Position) -> bool {
        self.position.as_ref().is_some_and(|held| held.epoch == position.epoch)
    }

    fn is_behind(&self, position: &Position) -> bool {
        let held = self.position.as_ref().filter(|held| held.epoch == position.epoch);
        held.is_some_and(|held| position.revision < held.revision)
    }
}

impl Pages {
    fn new(position: Position) -> Self {
        Self { position, received: Vec::new(), bytes: 0 }
    }
}

fn read(sent: v1::DistributedRule) -> Received {
    let key = sent.key.clone().unwrap_or_default();
    let off = convert::pattern(&key).ok().map(|pattern| off(pattern, sent.revision));
    let withheld = matches!(sent.kind, Some(v1::distributed_rule::Kind::NeedsFeature(_)));
    let reading = match (off, convert::distributed_rule(&sent)) {
        (Some(rule), Err(_)) if withheld => Reading::Accepted { rule, sent: Arc::new(sent) },
        (_, Ok(rule)) => Reading::Accepted { rule: Arc::new(rule), sent: Arc::new(sent) },
        (off, Err(faults)) => {
            let reason = faults.to_string().chars().take(MAX_REASON_CHARS).collect();
            let refusal =
                Box::new(v1::Refusal { key: sent.key, revision: sent.revision, reason, guard: false });
            Reading::Refused { refusal, off }
        }
    };
    Received { key, reading }
}

fn settle(reading: Reading, before: Option<Entry>, refused: &mut Vec<v1::Refusal>) -> Entry {
    match reading {
        Reading::Accepted { rule, sent } => Entry { rule: Some(rule), sent: Some(sent), refused: None },
        Reading::Refused { refusal, off } => {
            refused.push(v1::Refusal::clone(&refusal));
            let before = before.unwrap_or_default();
            Entry { rule: before.rule.or(off), sent: before.sent, refused: Some(refusal) }
        }
    }
}

fn off(pattern: Pattern, revision: u64) -> Arc<Rule> {
    let rule = Rule::new(pattern, Policy::new(Mode::Off), revision);
    Arc::new(rule.expect("a policy that only says off has no setting out of range"))
}

#[cfg(test)]
mod tests;
