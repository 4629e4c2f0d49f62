//! What the server sent, turned into the rules in force.
//!
//! Without I/O and clock: the stream hands over each response and does what the [`Outcome`] says. A response
//! is applied whole. Within an epoch the revision never goes back: an older response changes nothing, which
//! is safe because a delta from any revision up to the one held, to any later one, names all that differs.
//!
//! What cannot be read is refused alone, see [`entries`]. Refusals are named in every hello. Kills come beside a
//! response, all of them at once, and are taken over before it, also beside a page of a snapshot that is still
//! coming in, see [`kills`].
//!
//! A server may send anything. What is held is bounded in number and bytes; text and numbers are checked where
//! they are read, and nothing here panics on them.

mod entries;
mod kills;

use std::sync::Arc;

use damper_core::Table;
use damper_core::kill::TimedKill;
use damper_proto::v1;

use self::entries::{Entries, Received, Sent};
use self::kills::Kills;
pub(super) use self::kills::{Present, Told};

/// More than this is no table: the control plane accepts no more than fits into it.
const MAX_BYTES: usize = 256 << 20;
/// Nor are more rules and guards than this. Small messages take far more room in memory than on the wire.
const MAX_ENTRIES: usize = 250_000;
/// Each kill is compared with every route.
const EFFORT_PER_KILL: usize = 10;
/// An epoch is a short random name.
const MAX_EPOCH_BYTES: usize = 255;

/// The rules and guards held, and how far.
#[derive(Debug, Default)]
pub(super) struct Applier {
    /// None before the first snapshot.
    position: Option<Position>,
    rules: Entries<v1::DistributedRule>,
    guards: Entries<v1::DistributedGuard>,
    kills: Kills,
    /// Others are held than were last put in force.
    thrown: bool,
    /// Kills came since the last answer, which names those that are refused.
    kills_unanswered: bool,
    /// The pages so far of a snapshot that is still coming in.
    pages: Option<Pages>,
}

/// A revision, and the store it is a revision of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: String,
    pub(super) revision: u64,
    /// The id of the commit that made the revision; 0 = unknown.
    pub(super) commit: u64,
}

/// A response that is about the table.
#[derive(Debug)]
pub(super) enum Response {
    /// One page of all there is.
    Snapshot(v1::Snapshot),
    /// What changed since a revision that this client held.
    Delta(v1::Delta),
    /// Nothing changed up to the response's position.
    Bookmark,
}

/// What a response changed.
#[derive(Debug, PartialEq)]
pub(super) enum ApplyOutcome {
    /// Others are in force; these were refused. `whole`: by a snapshot.
    Applied { refused: Vec<v1::Refusal>, whole: bool },
    /// What is held is the server's.
    Confirmed,
    /// Older than what is held: ignored.
    Stale,
    /// A page of a snapshot; more will come. Or a sign of life before anything is held.
    Incomplete,
    /// It does not follow from what is held, or is more than can be: only another stream can help.
    OutOfStep(&'static str),
}

/// Everything held, to be kept on disk.
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
    /// False if it can only tell of kills, and how far the server is.
    pub(super) fn is_about_rules(&self) -> bool {
        match self {
            Self::Snapshot(_) => true,
            Self::Delta(delta) => *delta != v1::Delta::default(),
            Self::Bookmark => false,
        }
    }
}

impl Applier {
    /// How far what is held goes.
    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Half a snapshot of the stream before is of no use to the next.
    pub(super) fn begin_stream(&mut self) {
        self.pages = None;
        self.kills_unanswered = false;
    }

    /// The rules and guards in force.
    pub(super) fn table(&self) -> Table {
        let mut table: Table = self.rules.in_force().cloned().collect();
        for guard in self.guards.in_force() {
            table.insert_guard(Arc::clone(guard));
        }
        table
    }

    /// Every rule and guard that is refused at present.
    pub(super) fn refused(&self) -> impl Iterator<Item = &v1::Refusal> {
        self.rules.refused().chain(self.guards.refused()).chain(self.kills.refused())
    }

    /// How many are refused at present.
    pub(super) fn refused_count(&self) -> usize {
        self.rules.refused_count() + self.guards.refused_count() + self.kills.refused().len()
    }

    /// The kills held, if others were taken over since this was last asked. Some may be over.
    pub(super) fn thrown(&mut self) -> Option<Vec<TimedKill>> {
        std::mem::take(&mut self.thrown).then(|| self.kills.held().cloned().collect())
    }

    /// Takes over the kills beside a response, unless that is older than what is held or out of step; without
    /// them those held stay.
    ///
    /// # Errors
    /// They are more than there can be; nothing of such a message is of use.
    pub(super) fn hear(
        &mut self,
        position: &Position,
        response: &Response,
        kills: Option<Told>,
    ) -> Result<(), &'static str> {
        let Some(told) = kills else { return Ok(()) };
        told.check_size()?;
        let follows = match response {
            Response::Snapshot(_) => true,
            Response::Delta(_) | Response::Bookmark => self.is_of_epoch(position),
        };
        if follows && !self.is_behind(position) {
            self.kills.replace(told);
            self.thrown = true;
            self.kills_unanswered = true;
        }
        Ok(())
    }

    /// Takes over a response, the kills beside it having been heard.
    pub(super) fn take(&mut self, position: Position, response: Response) -> ApplyOutcome {
        match response {
            Response::Snapshot(page) => self.take_page(position, page),
            Response::Delta(delta) => self.take_delta(position, delta),
            Response::Bookmark => self.take_bookmark(position),
        }
    }

    /// How many rules, guards and kills have to be gone through for a response.
    pub(super) fn effort(&self, response: &Response, kills: Option<&Told>) -> usize {
        let kills = kills.map_or(0, |told| told.set.kills.len() * EFFORT_PER_KILL);
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

    /// One page of a snapshot.
    fn take_page(&mut self, position: Position, page: v1::Snapshot) -> ApplyOutcome {
        let mut pages = match self.pages.take() {
            None if position.epoch.len() > MAX_EPOCH_BYTES => {
                return ApplyOutcome::OutOfStep("the epoch is too long");
            }
            None => Pages::new(position),
            Some(pages) if pages.position == position => pages,
            Some(_) => return ApplyOutcome::OutOfStep("a snapshot began before the last one ended"),
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

    /// What changed since a revision that this client held.
    fn take_delta(&mut self, position: Position, delta: v1::Delta) -> ApplyOutcome {
        if self.pages.is_some() {
            return ApplyOutcome::OutOfStep("a delta came before the snapshot ended");
        }
        if !self.is_of_epoch(&position) {
            return ApplyOutcome::OutOfStep("a delta came before a snapshot of its epoch");
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

    /// No rule or guard changed up to this position.
    fn take_bookmark(&mut self, position: Position) -> ApplyOutcome {
        let waiting = self.pages.is_some() || self.position.is_none();
        if waiting {
            return ApplyOutcome::Incomplete;
        }
        if !self.is_of_epoch(&position) {
            return ApplyOutcome::OutOfStep("a bookmark came before a snapshot of its epoch");
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

    /// Names the kills that are refused, if any came since the last answer.
    fn answer_kills(&mut self, refused: &mut Vec<v1::Refusal>) {
        if std::mem::take(&mut self.kills_unanswered) {
            refused.extend(self.kills.refused().iter().cloned());
        }
    }

    /// Everything held; none before the first snapshot.
    pub(super) fn image(&self, present: Present) -> Option<PersistedState> {
        Some(PersistedState {
            position: Some(self.position.clone()?),
            rules: self.rules.sent().cloned().collect(),
            guards: self.guards.sent().cloned().collect(),
            kills: self.kills.kept(present),
            refused: self.refused().cloned().collect(),
        })
    }

    /// Takes up what was kept on disk. Without a position it is in force until the first snapshot.
    pub(super) fn restore(&mut self, image: PersistedState, present: Present) {
        let PersistedState { position, rules, guards, kills, refused } = image;
        let read = |rule| Received::read(Arc::unwrap_or_clone(rule));
        self.rules.replace(rules.into_iter().map(read).collect(), &mut Vec::new());
        let read = |guard| Received::read(Arc::unwrap_or_clone(guard));
        self.guards.replace(guards.into_iter().map(read).collect(), &mut Vec::new());
        self.kills = Kills::restore(&kills, present);
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
        true => Err("more rules and guards than a table can hold"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
