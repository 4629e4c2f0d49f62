//! Turns responses of the server into the rules in force.
//!
//! Pure of I/O and clock: the stream passes each response and acts on the [`ApplyOutcome`]. A response is
//! applied as a whole. Within an epoch the revision never decreases: an older response is ignored. That is
//! safe because a delta from any revision up to the one held, to any later one, names all differences.
//!
//! An entry that cannot be read is rejected alone, see [`entries`]; rejected entries are named in every
//! hello. A response may carry the full set of kills. They are applied before the rest, even with a page of
//! an incomplete snapshot, see [`kills`].
//!
//! The server is not trusted to be correct: number and size are bounded, texts and numbers are checked when
//! read, and nothing here panics on them.

mod entries;
mod kills;

use std::sync::Arc;

use damper_core::Table;
use damper_core::kill::TimedKill;
use damper_proto::v1;

use self::entries::{Entries, Received, Sent};
use self::kills::ReceivedKills;
pub(super) use self::kills::{KillMessage, Present};

/// Limit in bytes: the control plane accepts no larger table.
const MAX_BYTES: usize = 256 << 20;
/// Limit in entries: small messages take far more memory than bytes on the wire.
const MAX_ENTRIES: usize = 250_000;
/// Weight of a kill: each is compared with every route.
const EFFORT_PER_KILL: usize = 10;
/// Limit of an epoch, a short random name.
const MAX_EPOCH_BYTES: usize = 255;

/// The rules, guards and kills held, with their position.
#[derive(Debug, Default)]
pub(super) struct Applier {
    /// `None` before the first snapshot.
    position: Option<Position>,
    rules: Entries<v1::DistributedRule>,
    guards: Entries<v1::DistributedGuard>,
    kills: ReceivedKills,
    /// True if the kills held differ from those in force.
    thrown: bool,
    /// True if kills arrived since the last ack, which names rejected ones.
    kills_unanswered: bool,
    /// Pages of an incomplete snapshot.
    pages: Option<Pages>,
}

/// A revision and the store that it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: String,
    pub(super) revision: u64,
    /// Id of the commit that made the revision; 0 if unknown.
    pub(super) commit: u64,
}

/// A response with rules or guards.
#[derive(Debug)]
pub(super) enum Response {
    /// A page of the complete table.
    Snapshot(v1::Snapshot),
    /// Changes since a revision that this client held.
    Delta(v1::Delta),
    /// No changes up to the position of the response.
    Bookmark,
}

/// Result of a response.
#[derive(Debug, PartialEq)]
pub(super) enum ApplyOutcome {
    /// Applied, except for the entries rejected. `whole`: from a snapshot.
    Applied { refused: Vec<v1::Refusal>, whole: bool },
    /// The state held is up to date.
    Confirmed,
    /// Older than the state held: ignored.
    Stale,
    /// A page of an incomplete snapshot, or a bookmark before the first one.
    Incomplete,
    /// The response does not follow from the state held or exceeds the limits: a new stream is required.
    OutOfStep(&'static str),
}

/// The complete state, to be stored on disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PersistedState {
    pub(super) position: Option<Position>,
    pub(super) rules: Vec<Arc<v1::DistributedRule>>,
    pub(super) guards: Vec<Arc<v1::DistributedGuard>>,
    pub(super) kills: Vec<v1::ActiveKill>,
    pub(super) refused: Vec<v1::Refusal>,
}

#[derive(Debug)]
struct Pages {
    position: Position,
    rules: Vec<Received<v1::DistributedRule>>,
    guards: Vec<Received<v1::DistributedGuard>>,
    bytes: usize,
}

impl Response {
    /// Returns false if the response can only change kills and the position.
    pub(super) fn is_about_rules(&self) -> bool {
        match self {
            Self::Snapshot(_) => true,
            Self::Delta(delta) => *delta != v1::Delta::default(),
            Self::Bookmark => false,
        }
    }
}

impl Applier {
    /// Returns the position of the state held.
    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Drops the pages of an incomplete snapshot of the previous stream.
    pub(super) fn begin_stream(&mut self) {
        self.pages = None;
        self.kills_unanswered = false;
    }

    /// Returns the rules and guards in force.
    pub(super) fn table(&self) -> Table {
        let mut table: Table = self.rules.in_force().cloned().collect();
        for guard in self.guards.in_force() {
            table.insert_guard(Arc::clone(guard));
        }
        table
    }

    /// Returns the rejected entries.
    pub(super) fn refused(&self) -> impl Iterator<Item = &v1::Refusal> {
        self.rules.refused().chain(self.guards.refused()).chain(self.kills.refused())
    }

    /// Returns the number of rejected entries.
    pub(super) fn refused_count(&self) -> usize {
        self.rules.refused_count() + self.guards.refused_count() + self.kills.refused().len()
    }

    /// Returns the kills held if they changed since the last call. Some may have expired.
    pub(super) fn thrown(&mut self) -> Option<Vec<TimedKill>> {
        std::mem::take(&mut self.thrown).then(|| self.kills.held().cloned().collect())
    }

    /// Applies the kills of a response, unless the response is stale or out of step. Without kills, those
    /// held stay.
    ///
    /// # Errors
    /// The set exceeds the limits; nothing of the response can be used.
    pub(super) fn apply_kills(
        &mut self,
        position: &Position,
        response: &Response,
        kills: Option<KillMessage>,
    ) -> Result<(), &'static str> {
        let Some(message) = kills else { return Ok(()) };
        message.check_size()?;
        let follows = match response {
            Response::Snapshot(_) => true,
            Response::Delta(_) | Response::Bookmark => self.is_of_epoch(position),
        };
        if follows && !self.is_behind(position) {
            self.kills.replace(message);
            self.thrown = true;
            self.kills_unanswered = true;
        }
        Ok(())
    }

    /// Applies a response whose kills were applied already.
    pub(super) fn take(&mut self, position: Position, response: Response) -> ApplyOutcome {
        match response {
            Response::Snapshot(page) => self.take_page(position, page),
            Response::Delta(delta) => self.take_delta(position, delta),
            Response::Bookmark => self.take_bookmark(position),
        }
    }

    /// Returns the number of entries to process for a response.
    pub(super) fn effort(&self, response: &Response, kills: Option<&KillMessage>) -> usize {
        let kills = kills.map_or(0, |message| message.set.kills.len() * EFFORT_PER_KILL);
        let held = self.rules.len() + self.guards.len() + kills;
        match response {
            Response::Snapshot(page) if !page.last => page.rules.len() + page.guards.len(),
            Response::Snapshot(page) => held + page.rules.len() + page.guards.len(),
            Response::Delta(_) if !response.is_about_rules() => kills,
            Response::Delta(delta) => {
                let removed = delta.removed.len() + delta.removed_guards.len();
                held + delta.changed.len() + delta.changed_guards.len() + removed
            }
            Response::Bookmark => kills,
        }
    }

    /// Applies a page of a snapshot.
    fn take_page(&mut self, position: Position, page: v1::Snapshot) -> ApplyOutcome {
        let mut pages = match self.pages.take() {
            None if position.epoch.len() > MAX_EPOCH_BYTES => {
                return ApplyOutcome::OutOfStep("epoch too long");
            }
            None => Pages::new(position),
            Some(pages) if pages.position == position => pages,
            Some(_) => return ApplyOutcome::OutOfStep("snapshot began before the previous one ended"),
        };
        let last = page.last;
        if let Err(problem) = pages.add(page) {
            return ApplyOutcome::OutOfStep(problem);
        }
        if !last {
            self.pages = Some(pages);
            return ApplyOutcome::Incomplete;
        }
        if self.is_behind(&pages.position) {
            return ApplyOutcome::Stale;
        }
        let mut refused = Vec::new();
        self.rules.replace(pages.rules, &mut refused);
        self.guards.replace(pages.guards, &mut refused);
        self.answer_kills(&mut refused);
        self.position = Some(pages.position);
        ApplyOutcome::Applied { refused, whole: true }
    }

    /// Applies a delta.
    fn take_delta(&mut self, position: Position, delta: v1::Delta) -> ApplyOutcome {
        if self.pages.is_some() {
            return ApplyOutcome::OutOfStep("delta before the end of a snapshot");
        }
        if !self.is_of_epoch(&position) {
            return ApplyOutcome::OutOfStep("delta before a snapshot of its epoch");
        }
        if self.is_behind(&position) {
            return ApplyOutcome::Stale;
        }
        let v1::Delta { changed, removed, changed_guards, removed_guards } = delta;
        let entries = self.rules.len() + self.guards.len() + changed.len() + changed_guards.len();
        let bytes = self.rules.bytes() + self.guards.bytes() + encoded(&changed) + encoded(&changed_guards);
        if let Err(problem) = check_size(entries, bytes) {
            return ApplyOutcome::OutOfStep(problem);
        }
        for key in removed {
            self.rules.remove(&key);
        }
        for key in removed_guards {
            self.guards.remove(&key);
        }
        let mut refused = Vec::new();
        self.rules.change(changed.into_iter().map(Received::read).collect(), &mut refused);
        self.guards.change(changed_guards.into_iter().map(Received::read).collect(), &mut refused);
        self.answer_kills(&mut refused);
        self.position = Some(position);
        ApplyOutcome::Applied { refused, whole: false }
    }

    /// Moves the position.
    fn take_bookmark(&mut self, position: Position) -> ApplyOutcome {
        let waiting = self.pages.is_some() || self.position.is_none();
        if waiting {
            return ApplyOutcome::Incomplete;
        }
        if !self.is_of_epoch(&position) {
            return ApplyOutcome::OutOfStep("bookmark before a snapshot of its epoch");
        }
        if self.is_behind(&position) {
            return ApplyOutcome::Stale;
        }
        self.position = Some(position);
        if !self.kills_unanswered {
            return ApplyOutcome::Confirmed;
        }
        let mut refused = Vec::new();
        self.answer_kills(&mut refused);
        ApplyOutcome::Applied { refused, whole: false }
    }

    /// Adds the rejected kills, if kills arrived since the last ack.
    fn answer_kills(&mut self, refused: &mut Vec<v1::Refusal>) {
        if std::mem::take(&mut self.kills_unanswered) {
            refused.extend(self.kills.refused().iter().cloned());
        }
    }

    /// Returns the complete state; `None` before the first snapshot.
    pub(super) fn image(&self, present: Present) -> Option<PersistedState> {
        Some(PersistedState {
            position: Some(self.position.clone()?),
            rules: self.rules.sent().cloned().collect(),
            guards: self.guards.sent().cloned().collect(),
            kills: self.kills.kept(present),
            refused: self.refused().cloned().collect(),
        })
    }

    /// Restores the state from disk. Without a position it is in force until the first snapshot.
    pub(super) fn restore(&mut self, image: PersistedState, present: Present) {
        let PersistedState { position, rules, guards, kills, refused } = image;
        let read = |rule| Received::read(Arc::unwrap_or_clone(rule));
        self.rules.replace(rules.into_iter().map(read).collect(), &mut Vec::new());
        let read = |guard| Received::read(Arc::unwrap_or_clone(guard));
        self.guards.replace(guards.into_iter().map(read).collect(), &mut Vec::new());
        self.kills = ReceivedKills::restore(&kills, present);
        self.thrown = true;
        for refusal in refused {
            match (refusal.guard, refusal.kill) {
                (_, true) => self.kills.refuse(refusal),
                (true, false) => self.guards.refuse(refusal),
                (false, false) => self.rules.refuse(refusal),
            }
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
        Self { position, rules: Vec::new(), guards: Vec::new(), bytes: 0 }
    }

    fn add(&mut self, page: v1::Snapshot) -> Result<(), &'static str> {
        let v1::Snapshot { rules, last: _, guards } = page;
        self.bytes += encoded(&rules) + encoded(&guards);
        check_size(self.rules.len() + self.guards.len() + rules.len() + guards.len(), self.bytes)?;
        self.rules.extend(rules.into_iter().map(Received::read));
        self.guards.extend(guards.into_iter().map(Received::read));
        Ok(())
    }
}

fn encoded<S: Sent>(sent: &[S]) -> usize {
    sent.iter().map(S::encoded_len).sum()
}

fn check_size(entries: usize, bytes: usize) -> Result<(), &'static str> {
    match entries > MAX_ENTRIES || bytes > MAX_BYTES {
        true => Err("too many rules and guards for a table"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
