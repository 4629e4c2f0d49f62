//! Which kills a stream's client was told, and what is to be told now.
//!
//! A client is always told all kills that concern it, so that it can never keep one that has ended. They are not
//! shared between streams like other responses: what is left of a kill's time is reckoned when a message leaves.

use std::time::SystemTime;

use damper_core::Pattern;
use damper_proto::v1;

use crate::class::Class;
use crate::table::{StoredKill, TableView};

/// The kills that a client was told last, each with its version; none before the first time.
#[derive(Debug, Default)]
pub(super) struct ToldKills(Option<Vec<(Pattern, u64)>>);

impl ToldKills {
    /// True if a response must go out for the sake of kills alone. `missed`: the client may hold kills of a
    /// revision before the view's, of which it must learn that they have ended.
    pub(super) fn want_response(&self, view: &TableView, class: &Class, missed: bool) -> bool {
        if !class.knows_kills() {
            return false;
        }
        let now = SystemTime::now();
        match &self.0 {
            None => missed || concerning(view, class, now).next().is_some(),
            Some(told) => {
                !told.iter().eq(concerning(view, class, now).map(version).collect::<Vec<_>>().iter())
            }
        }
    }

    /// What goes beside the first message, where that is no response.
    pub(super) fn tell_first(&mut self, view: &TableView, class: &Class) -> Option<v1::KillSet> {
        if self.0.is_none() { self.tell(view, class) } else { None }
    }

    /// What goes beside a response to this view: all kills, where they differ from what was told.
    pub(super) fn tell(&mut self, view: &TableView, class: &Class) -> Option<v1::KillSet> {
        if !class.knows_kills() {
            return None;
        }
        let now = SystemTime::now();
        let current: Vec<_> = concerning(view, class, now).map(version).collect();
        if self.0.as_ref() == Some(&current) {
            return None;
        }
        self.0 = Some(current);
        Some(v1::KillSet {
            kills: concerning(view, class, now).filter_map(|stored| stored.sent(now)).collect(),
        })
    }
}

/// The kills in force for clients of a class, in order.
fn concerning<'a>(
    view: &'a TableView,
    class: &'a Class,
    now: SystemTime,
) -> impl Iterator<Item = &'a StoredKill> {
    view.kills().in_force(now).map(|stored| &**stored).filter(|stored| class.matches(stored.kill.pattern()))
}

fn version(stored: &StoredKill) -> (Pattern, u64) {
    (stored.kill.pattern().clone(), stored.kill.revision())
}
