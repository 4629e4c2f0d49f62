//! The kills that were sent to the client of a stream, and those to send next.
//!
//! Every message contains all kills that concern the client, so that it cannot keep one that has ended. They
//! are not shared between streams, because the remaining time of a kill is computed when a message is sent.
//! The expiry of a kill is not sent: clients count down themselves. A client ahead of this replica ignores
//! older entries, so nothing counts as sent before the replica has caught up.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Pattern;
use damper_proto::v1;

use crate::clients::group::ClientGroup;
use crate::state::kills::StoredKill;
use crate::state::snapshot::Snapshot;

/// The kills that were last sent to a client.
#[derive(Debug)]
pub(crate) struct SentKills {
    /// The client's epoch and revision at its hello; it ignores anything older.
    client_at: (String, u64),
    /// `None` before the first message.
    last: Option<KillVersions>,
}

/// All kills of a store that concern a client, each with its version.
#[derive(Debug, PartialEq)]
struct KillVersions {
    epoch: Arc<str>,
    kills: Vec<(Pattern, u64, SystemTime)>,
}

impl SentKills {
    /// Creates the state for a client that was sent nothing yet.
    pub(crate) fn none(hello: &v1::Hello) -> Self {
        Self { client_at: (hello.epoch.clone(), hello.revision), last: None }
    }

    /// True if kills alone require a response. `missed`: the client may hold kills that ended before the
    /// view's revision.
    pub(crate) fn want_response(&self, view: &Snapshot, class: &ClientGroup, missed: bool) -> bool {
        if !class.knows_kills() || self.is_stale(view) {
            return false;
        }
        match &self.last {
            None => missed || in_force(view, class, SystemTime::now()).next().is_some(),
            Some(last) => *last != KillVersions::of(view, class),
        }
    }

    /// Returns the kills for a first message that is not a response.
    pub(crate) fn next_first(&mut self, at: &Snapshot, class: &ClientGroup) -> Option<v1::KillSet> {
        if self.last.is_none() { self.next(at, at, class) } else { None }
    }

    /// Returns all current kills for a part of the response that leads to `at`, if they differ from those
    /// sent last.
    pub(crate) fn next(
        &mut self,
        at: &Snapshot,
        latest: &Snapshot,
        class: &ClientGroup,
    ) -> Option<v1::KillSet> {
        if !class.knows_kills() || self.is_stale(at) {
            return None;
        }
        let view = if latest.epoch() == at.epoch() { latest } else { at };
        let current = KillVersions::of(view, class);
        if self.last.as_ref() == Some(&current) {
            return None;
        }
        self.last = Some(current);
        let now = SystemTime::now();
        let kills = concerning(view, class).filter_map(|stored| stored.sent(now)).collect();
        Some(v1::KillSet { kills, ..v1::KillSet::default() })
    }

    /// Returns the kills for a held client: those to add and those that ended since they were added. A client
    /// without that feature gets the whole set, but only if it contains a kill or one has ended.
    pub(crate) fn add(&mut self, view: &Snapshot, class: &ClientGroup, adds: bool) -> Option<v1::KillSet> {
        let current = KillVersions::of(view, class);
        let before = self.last.as_ref().map_or(&[][..], |last| &last.kills);
        if !class.knows_kills() || *before == current.kills {
            return None;
        }
        let is_there = |pattern: &Pattern| current.kills.iter().any(|(other, ..)| other == pattern);
        let gone = before.iter().map(|(pattern, ..)| pattern).filter(|pattern| adds && !is_there(pattern));
        let ended = gone.map(Into::into).collect();
        self.last = Some(current);
        let now = SystemTime::now();
        let kills = concerning(view, class).filter_map(|stored| stored.sent(now)).collect();
        Some(v1::KillSet { kills, adds, ended })
    }

    /// Forgets the additions: the next set is complete.
    pub(crate) fn begin_again(&mut self) {
        self.last = None;
    }

    fn is_stale(&self, at: &Snapshot) -> bool {
        let (epoch, revision) = &self.client_at;
        **at.epoch() == **epoch && at.revision() < *revision
    }
}

impl KillVersions {
    fn of(view: &Snapshot, class: &ClientGroup) -> Self {
        let version = |stored: &StoredKill| {
            // The end distinguishes kills that were set from memory at one revision.
            (stored.kill.pattern().clone(), stored.kill.revision(), stored.expires_at)
        };
        Self { epoch: view.epoch().clone(), kills: concerning(view, class).map(version).collect() }
    }
}

/// Returns the kills for clients of a group in order, including expired ones.
fn concerning<'a>(view: &'a Snapshot, class: &'a ClientGroup) -> impl Iterator<Item = &'a StoredKill> {
    view.kills().all().map(|stored| &**stored).filter(|stored| class.matches(stored.kill.pattern()))
}

fn in_force<'a>(
    view: &'a Snapshot,
    class: &'a ClientGroup,
    now: SystemTime,
) -> impl Iterator<Item = &'a StoredKill> {
    concerning(view, class).filter(move |stored| stored.remaining(now).is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::resource_key::ResourceKey;
    use damper_store::{Entry, StoreContents};

    fn view(epoch: &str, revision: u64, kills: &[(&str, u64)]) -> Snapshot {
        let entry = |(callee, revision): &(&str, u64)| {
            let pattern = Pattern::parse("*", "*", callee, "*").unwrap();
            let expires_at = Some((SystemTime::now() + Duration::from_secs(60)).into());
            let updated_at = Some(SystemTime::now().into());
            let kill =
                v1::KillSwitch { reason: "r".to_owned(), expires_at, updated_at, ..Default::default() };
            let value = StoredKill::value(&kill).into();
            (ResourceKey::Kill(pattern).key(), Entry { revision: *revision, value })
        };
        let entries = kills.iter().map(entry).collect();
        Snapshot::of(&StoreContents {
            epoch: epoch.to_owned(),
            revision,
            entries,
            ..StoreContents::default()
        })
    }

    fn shop() -> ClientGroup {
        let features = damper_core::feature::ALL.iter().copied().collect();
        ClientGroup { service: "shop".to_owned(), cluster: "default".to_owned(), features }
    }

    fn from(epoch: &str, revision: u64) -> SentKills {
        SentKills::none(&v1::Hello { epoch: epoch.to_owned(), revision, ..Default::default() })
    }

    /// The number of kills sent.
    fn told(kills: &mut SentKills, at: &Snapshot, latest: &Snapshot) -> Option<usize> {
        kills.next(at, latest, &shop()).map(|set| set.kills.len())
    }

    #[test]
    fn a_page_is_told_the_latest_kills_and_each_set_once() {
        let mut kills = from("", 0);
        let (at, killed) = (view("e", 5, &[]), view("e", 6, &[("stock", 6)]));
        assert_eq!(told(&mut kills, &at, &at), Some(0));
        assert_eq!(told(&mut kills, &at, &at), None);
        assert_eq!(told(&mut kills, &at, &killed), Some(1), "while the snapshot is still of revision 5");
        assert!(!kills.want_response(&killed, &shop(), false), "nothing more is to be said");
        let ended = view("e", 7, &[]);
        assert!(kills.want_response(&ended, &shop(), false));
        assert_eq!(told(&mut kills, &ended, &ended), Some(0));
    }

    #[test]
    fn another_store_with_the_same_kill_at_the_same_revision_is_told_anew() {
        let mut kills = from("e", 1);
        let (before, after) = (view("e", 5, &[("stock", 5)]), view("f", 5, &[("stock", 5)]));
        assert_eq!(told(&mut kills, &before, &before), Some(1));
        assert_eq!(told(&mut kills, &before, &after), None, "what is of another store comes with that store");
        assert!(kills.want_response(&after, &shop(), false));
        assert_eq!(told(&mut kills, &after, &after), Some(1));
    }

    #[test]
    fn a_client_that_is_ahead_is_told_anew_once_the_replica_has_caught_up() {
        let mut kills = from("e", 9);
        let (behind, caught_up) = (view("e", 5, &[]), view("e", 10, &[]));
        // The client holds a kill of revision 9 that ended at 10, and ignores older revisions.
        assert_eq!(told(&mut kills, &behind, &behind), None);
        assert!(!kills.want_response(&behind, &shop(), true));
        assert!(kills.want_response(&caught_up, &shop(), true));
        assert_eq!(told(&mut kills, &caught_up, &caught_up), Some(0));
        // Another epoch has its own revisions.
        assert_eq!(told(&mut from("d", 9), &behind, &behind), Some(0));
    }
}
