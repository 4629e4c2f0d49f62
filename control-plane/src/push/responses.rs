//! Responses that bring a client to a snapshot: everything, or the difference to what it holds.
//!
//! Made once per group of clients, base and snapshot, then shared: a thousand processes of one service cost
//! one pass through the rules. A difference too large for one message is sent as a full snapshot, in pages.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use damper_core::Pattern;
use damper_proto::v1;
use damper_proto::v1::server_message::Kind;

use crate::clients::group::ClientGroup;
use crate::push::wire;
use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::stored::{StoredGuard, StoredRule};

/// A page ends with the entry that makes it longer than this. Small, because one is buffered per client.
pub(crate) const PAGE_BYTES: usize = 16 << 10;
/// A longer difference is sent as a full snapshot.
const DELTA_BYTES: usize = 64 << 10;
/// The number of shared responses; others are made for one stream.
const SHARED_RESPONSES: usize = 1024;
/// The total size of shared responses. Others are made for one stream, page by page.
pub(crate) const SHARED_BYTES: usize = 8 << 20;

/// One response, without the fields of a stream.
#[derive(Clone, Debug)]
pub(crate) enum PushResponse {
    /// No change between base and snapshot concerns the client.
    Nothing,
    /// The changes, encoded.
    Delta(Bytes),
    /// Everything, in pages.
    Snapshot(Pages),
}

/// The pages of a full snapshot: made once for all clients of a group, or each when it is sent.
#[derive(Clone, Debug)]
pub(crate) enum Pages {
    /// Encoded.
    Shared(Arc<[Bytes]>),
    Alone,
}

/// The position of a stream in a full snapshot.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pages: usize,
    /// The last guard and the last rule that were sent.
    guard: Option<Pattern>,
    rule: Option<Pattern>,
    is_at_end: bool,
}

impl Pages {
    /// Returns the next encoded page for clients of a group, and whether it is the last; `None` after that.
    pub(crate) fn next(&self, at: &mut Place, view: &Snapshot, class: &ClientGroup) -> Option<(Bytes, bool)> {
        match self {
            Self::Shared(pages) => {
                let page = pages.get(at.pages)?;
                at.pages += 1;
                Some((page.clone(), at.pages == pages.len()))
            }
            Self::Alone => at.next(view, class).map(|page| (page, at.is_at_end)),
        }
    }
}

type Shelf = HashMap<(Arc<ClientGroup>, Option<u64>), Arc<OnceLock<PushResponse>>>;

/// The responses that lead to one snapshot.
#[derive(Default)]
pub(crate) struct ResponseCache {
    shelf: Mutex<(Arc<str>, u64, Shelf)>,
    /// Reserved while a response is made, then its size.
    shared_bytes: AtomicUsize,
}

impl ResponseCache {
    /// Returns the response that brings a client of this group from `base` to the view. `base` is `None` if
    /// the client holds nothing usable. `changed` lists the changes since the base; `None` if unknown.
    pub(crate) fn response(
        &self,
        view: &Snapshot,
        class: &Arc<ClientGroup>,
        base: Option<u64>,
        changed: impl FnOnce() -> Option<BTreeSet<ResourceKey>>,
    ) -> PushResponse {
        let difference = || base.and_then(|_| changed()).and_then(|changed| difference(view, class, changed));
        match self.place(view, class, base) {
            Some(place) => place.get_or_init(|| self.shared(view, class, difference())).clone(),
            None => difference().map_or(PushResponse::Snapshot(Pages::Alone), |(response, _)| response),
        }
    }

    /// Returns a shared response while there is room for it.
    fn shared(
        &self,
        view: &Snapshot,
        class: &ClientGroup,
        difference: Option<(PushResponse, usize)>,
    ) -> PushResponse {
        let room = SHARED_BYTES.saturating_sub(self.shared_bytes.load(Ordering::Relaxed));
        let (made, bytes) = difference.unwrap_or_else(|| match snapshot(view, class, room) {
            Some((pages, bytes)) => (PushResponse::Snapshot(Pages::Shared(pages)), bytes),
            None => (PushResponse::Snapshot(Pages::Alone), 0),
        });
        self.shared_bytes.fetch_add(bytes, Ordering::Relaxed);
        made
    }

    fn place(
        &self,
        view: &Snapshot,
        class: &Arc<ClientGroup>,
        base: Option<u64>,
    ) -> Option<Arc<OnceLock<PushResponse>>> {
        let mut shelf = self.shelf.lock().expect("no holder of the lock panics");
        let (epoch, revision, made) = &mut *shelf;
        if *epoch != *view.epoch() || *revision != view.revision() {
            // A stream at an older view makes its own response.
            if *epoch == *view.epoch() && *revision > view.revision() {
                return None;
            }
            (*epoch, *revision) = (view.epoch().clone(), view.revision());
            made.clear();
            self.shared_bytes.store(0, Ordering::Relaxed);
        }
        let key = (class.clone(), base);
        let full =
            made.len() >= SHARED_RESPONSES || self.shared_bytes.load(Ordering::Relaxed) >= SHARED_BYTES;
        if full && !made.contains_key(&key) {
            return None;
        }
        Some(made.entry(key).or_default().clone())
    }
}

/// Encodes the changes; `None` if they exceed one message.
fn difference(
    view: &Snapshot,
    class: &ClientGroup,
    mut changed: BTreeSet<ResourceKey>,
) -> Option<(PushResponse, usize)> {
    changed.retain(|subject| class.is_concerned(subject));
    if !class.knows_guards() {
        add_guarded_rules(view, class, &mut changed);
    }
    let mut delta = v1::Delta::default();
    let mut bytes = 0;
    for subject in &changed {
        bytes += 8 + match subject {
            ResourceKey::Rule(pattern) => match view.stored(pattern) {
                Some(stored) => put(&mut delta.changed, addressed(pattern, stored, class, view.guards())),
                None => put(&mut delta.removed, pattern.into()),
            },
            ResourceKey::Guard(_) if !class.knows_guards() => continue,
            // Kills are sent with each response, always all of them; queues are not sent.
            ResourceKey::Kill(_) | ResourceKey::Queue(_) => continue,
            ResourceKey::Guard(pattern) => {
                match view.guards().stored(pattern).and_then(|stored| sent(stored)) {
                    Some(guard) => put(&mut delta.changed_guards, guard),
                    None => put(&mut delta.removed_guards, pattern.into()),
                }
            }
        };
        if bytes > DELTA_BYTES {
            return None;
        }
    }
    Some(match bytes {
        0 => (PushResponse::Nothing, 0),
        _ => (PushResponse::Delta(wire::kind(Kind::Delta(delta))), bytes),
    })
}

/// A changed guard may switch rules off or on at clients without support for guards.
fn add_guarded_rules(view: &Snapshot, class: &ClientGroup, changed: &mut BTreeSet<ResourceKey>) {
    let guards: Vec<Pattern> = changed
        .iter()
        .filter_map(|subject| match subject {
            ResourceKey::Guard(pattern) => Some(pattern.clone()),
            ResourceKey::Rule(_) | ResourceKey::Kill(_) | ResourceKey::Queue(_) => None,
        })
        .collect();
    if guards.is_empty() {
        return;
    }
    let rules = view.iter().map(|(pattern, _)| pattern).filter(|pattern| class.matches(pattern));
    let guarded = rules.filter(|pattern| guards.iter().any(|guard| guard.overlaps(pattern)));
    changed.extend(guarded.cloned().map(ResourceKey::Rule));
}

/// Appends an entry to a list and returns its size.
fn put<T: prost::Message>(list: &mut Vec<T>, entry: T) -> usize {
    let size = entry.encoded_len();
    list.push(entry);
    size
}

/// Returns all pages and their size; `None` if they exceed the limit.
fn snapshot(view: &Snapshot, class: &ClientGroup, room: usize) -> Option<(Arc<[Bytes]>, usize)> {
    let (mut pages, mut all, mut at) = (Vec::new(), 0, Place::default());
    while let Some(page) = at.next(view, class) {
        all += page.len();
        if all > room {
            return None;
        }
        pages.push(page);
    }
    Some((pages.into(), all))
}

impl Place {
    /// Returns the next encoded page, guards first; `None` after the last one.
    fn next(&mut self, view: &Snapshot, class: &ClientGroup) -> Option<Bytes> {
        self.page(view, class).map(|page| wire::kind(Kind::Snapshot(page)))
    }

    fn page(&mut self, view: &Snapshot, class: &ClientGroup) -> Option<v1::Snapshot> {
        if self.is_at_end {
            return None;
        }
        let (mut page, mut bytes) = (v1::Snapshot::default(), 0);
        if self.rule.is_none() && class.knows_guards() {
            let last = self.guard.clone();
            let rest = view.guards().behind(last.as_ref());
            for stored in rest.filter(|stored| class.matches(&stored.pattern)) {
                if bytes >= PAGE_BYTES {
                    return Some(page);
                }
                bytes += 8 + sent(stored).map_or(0, |guard| put(&mut page.guards, guard));
                self.guard = Some(stored.pattern.clone());
            }
        }
        let last = self.rule.clone();
        for (pattern, stored) in view.behind(last.as_ref()).filter(|(pattern, _)| class.matches(pattern)) {
            if bytes >= PAGE_BYTES {
                return Some(page);
            }
            bytes += 8 + put(&mut page.rules, addressed(pattern, stored, class, view.guards()));
            self.rule = Some(pattern.clone());
        }
        (page.last, self.is_at_end) = (true, true);
        Some(page)
    }
}

/// Returns the rule as sent to clients of this group.
fn addressed(
    pattern: &Pattern,
    stored: &StoredRule,
    class: &ClientGroup,
    guards: &GuardTable,
) -> v1::DistributedRule {
    use v1::distributed_rule::Kind;
    let kind = match (&stored.rule, class.off_because(guards, pattern, stored.rule.as_deref())) {
        (Some(rule), None) => Some(Kind::Policy(class.sent(rule.policy()).as_ref().into())),
        (_, off) => off.map(|why| Kind::NeedsFeature(why.to_owned())),
    };
    v1::DistributedRule { key: Some(pattern.into()), revision: stored.wire.revision, kind }
}

/// Returns the guard as sent to clients; `None` if this server cannot read it.
fn sent(stored: &StoredGuard) -> Option<v1::DistributedGuard> {
    stored.guard.as_deref().map(Into::into)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use damper_store::{Entry, StoreContents};

    /// A snapshot with rules of all callers, each of about 250 bytes.
    fn table(rules: usize) -> Snapshot {
        let policy = v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() };
        let value = StoredRule::value(&v1::Rule { policy: Some(policy), ..Default::default() });
        let entry = |n| {
            let callee = format!("{n:06}-{}", "c".repeat(200));
            let pattern = Pattern::parse("*", "*", &callee, "*").unwrap();
            (ResourceKey::Rule(pattern).key(), Entry { revision: 1, value: value.clone().into() })
        };
        Snapshot::of(&StoreContents {
            epoch: "e".to_owned(),
            revision: 1,
            entries: (0..rules).map(entry).collect(),
            ..StoreContents::default()
        })
    }

    fn class(cluster: &str) -> Arc<ClientGroup> {
        let [service, cluster] = ["shop", cluster].map(str::to_owned);
        Arc::new(ClientGroup { service, cluster, features: [].into() })
    }

    fn pages(response: &PushResponse, view: &Snapshot, class: &ClientGroup) -> Vec<v1::Snapshot> {
        let PushResponse::Snapshot(pages) = response else { panic!("{response:?}") };
        let mut at = Place::default();
        let page = |(bytes, is_last)| match v1::ServerMessage::decode(bytes).unwrap().kind {
            Some(Kind::Snapshot(page)) if page.last == is_last => page,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| pages.next(&mut at, view, class)).map(page).collect()
    }

    #[test]
    fn pages_are_small_and_the_same_whether_shared_or_not() {
        let (view, class) = (table(2_000), class("c"));
        let shared = ResponseCache::default().response(&view, &class, None, || None);
        assert!(matches!(shared, PushResponse::Snapshot(Pages::Shared(_))));
        let shared = pages(&shared, &view, &class);
        assert_eq!(shared, pages(&PushResponse::Snapshot(Pages::Alone), &view, &class));
        assert_eq!(shared.iter().map(|page| page.rules.len()).sum::<usize>(), 2_000);
        assert!(shared.iter().all(|page| page.encoded_len() <= PAGE_BYTES + 1024));
        let last: Vec<bool> = shared.iter().map(|page| page.last).collect();
        assert!(last.iter().rev().skip(1).all(|last| !last) && last.last() == Some(&true));
        let nothing = pages(&PushResponse::Snapshot(Pages::Alone), &table(0), &class);
        assert!(nothing.len() == 1 && nothing[0].last && nothing[0].rules.is_empty());
    }

    #[test]
    fn responses_that_are_kept_have_a_bound_in_bytes() {
        let (view, responses) = (table(4_000), ResponseCache::default());
        let of_classes = (0..40).map(|n| responses.response(&view, &class(&n.to_string()), None, || None));
        let shared =
            of_classes.filter(|response| matches!(response, PushResponse::Snapshot(Pages::Shared(_))));
        let kept: usize = shared
            .flat_map(|response| pages(&response, &view, &class("")))
            .map(|page| page.encoded_len())
            .sum();
        assert!(kept <= SHARED_BYTES && kept > SHARED_BYTES / 2, "{kept}");
    }
}
