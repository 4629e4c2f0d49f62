//! What a client must be told to hold the table: everything, or the difference to what it holds.
//!
//! Made once per class of clients (who calls, with which features), base and table, then shared: a thousand
//! processes of one service cost one look through the rules. A difference that would be too large for one
//! message is told as a snapshot, which comes in pages.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use damper_core::Pattern;
use damper_proto::v1;

use crate::class::Class;
use crate::table::{Guards, StoredGuard, StoredRule, Subject, TableView};

/// The most bytes of one message, well below what receivers accept.
const PAGE_BYTES: usize = 512 << 10;
/// How many responses are kept for sharing; more are made for their streams alone.
const SHARED_RESPONSES: usize = 1024;
/// How many rules and guards the kept responses may hold together, so that many classes of callers and a large
/// table do not fill the memory.
const SHARED_ENTRIES: usize = 250_000;

/// One response, before it is addressed to a stream.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    /// Nothing between base and table concerns the client.
    Nothing,
    /// What changed.
    Delta(Arc<v1::Delta>),
    /// Everything, in pages.
    Snapshot(Arc<[v1::Snapshot]>),
}

impl Response {
    /// Rules and guards.
    fn entries(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Delta(delta) => delta.changed.len() + delta.changed_guards.len(),
            Self::Snapshot(pages) => pages.iter().map(|page| page.rules.len() + page.guards.len()).sum(),
        }
    }
}

type Shelf = HashMap<(Arc<Class>, Option<u64>), Arc<OnceLock<Response>>>;

/// The responses that lead to one table.
#[derive(Default)]
pub(crate) struct Responses {
    shelf: Mutex<(Arc<str>, u64, Shelf)>,
    shared_entries: AtomicUsize,
}

impl Responses {
    /// The response that brings a client of this class from `base` (none = nothing it holds counts) to the view.
    /// `changed` names what was changed since the base; none where that is not known.
    pub(crate) fn response(
        &self,
        view: &TableView,
        class: &Arc<Class>,
        base: Option<u64>,
        changed: impl FnOnce() -> Option<BTreeSet<Subject>>,
    ) -> Response {
        let make = || match base.and_then(|_| changed()) {
            Some(changed) => difference(view, class, changed),
            None => Response::Snapshot(snapshot(view, class)),
        };
        match self.place(view, class, base) {
            Some(place) => place
                .get_or_init(|| {
                    let made = make();
                    self.shared_entries.fetch_add(made.entries(), Ordering::Relaxed);
                    made
                })
                .clone(),
            None => make(),
        }
    }

    fn place(
        &self,
        view: &TableView,
        class: &Arc<Class>,
        base: Option<u64>,
    ) -> Option<Arc<OnceLock<Response>>> {
        let mut shelf = self.shelf.lock().expect("no holder of the lock panics");
        let (epoch, revision, made) = &mut *shelf;
        if *epoch != *view.epoch() || *revision != view.revision() {
            // A stream that is still at an older view makes its response for itself.
            if *epoch == *view.epoch() && *revision > view.revision() {
                return None;
            }
            (*epoch, *revision) = (view.epoch().clone(), view.revision());
            made.clear();
            self.shared_entries.store(0, Ordering::Relaxed);
        }
        let key = (class.clone(), base);
        let full =
            made.len() >= SHARED_RESPONSES || self.shared_entries.load(Ordering::Relaxed) >= SHARED_ENTRIES;
        if full && !made.contains_key(&key) {
            return None;
        }
        Some(made.entry(key).or_default().clone())
    }
}

fn difference(view: &TableView, class: &Class, mut changed: BTreeSet<Subject>) -> Response {
    changed.retain(|subject| class.matches(subject.pattern()));
    if !class.knows_guards() {
        add_guarded_rules(view, class, &mut changed);
    }
    let mut delta = v1::Delta::default();
    let mut bytes = 0;
    for subject in &changed {
        bytes += 8 + match subject {
            Subject::Rule(pattern) => match view.stored(pattern) {
                Some(stored) => put(&mut delta.changed, addressed(pattern, stored, class, view.guards())),
                None => put(&mut delta.removed, pattern.into()),
            },
            Subject::Guard(_) if !class.knows_guards() => continue,
            // Kills go beside a response, all of them.
            Subject::Kill(_) => continue,
            Subject::Guard(pattern) => match view.guards().stored(pattern).and_then(|stored| sent(stored)) {
                Some(guard) => put(&mut delta.changed_guards, guard),
                None => put(&mut delta.removed_guards, pattern.into()),
            },
        };
        if bytes > PAGE_BYTES {
            return Response::Snapshot(snapshot(view, class));
        }
    }
    match bytes {
        0 => Response::Nothing,
        _ => Response::Delta(Arc::new(delta)),
    }
}

/// A guard that changed may switch rules off or on at clients that know nothing of guards.
fn add_guarded_rules(view: &TableView, class: &Class, changed: &mut BTreeSet<Subject>) {
    let guards: Vec<Pattern> = changed
        .iter()
        .filter_map(|subject| match subject {
            Subject::Guard(pattern) => Some(pattern.clone()),
            Subject::Rule(_) | Subject::Kill(_) => None,
        })
        .collect();
    if guards.is_empty() {
        return;
    }
    let rules = view.iter().map(|(pattern, _)| pattern).filter(|pattern| class.matches(pattern));
    let guarded = rules.filter(|pattern| guards.iter().any(|guard| guard.overlaps(pattern)));
    changed.extend(guarded.cloned().map(Subject::Rule));
}

/// Puts an entry into a list and tells its size.
fn put<T: prost::Message>(list: &mut Vec<T>, entry: T) -> usize {
    let size = entry.encoded_len();
    list.push(entry);
    size
}

fn snapshot(view: &TableView, class: &Class) -> Arc<[v1::Snapshot]> {
    let mut pages = Pages { pages: vec![v1::Snapshot::default()], bytes: 0 };
    let guards = view.guards().iter().filter(|stored| class.knows_guards() && class.matches(&stored.pattern));
    for guard in guards.filter_map(|stored| sent(stored)) {
        pages.with_room_for(&guard).guards.push(guard);
    }
    for (pattern, stored) in view.iter().filter(|(pattern, _)| class.matches(pattern)) {
        let rule = addressed(pattern, stored, class, view.guards());
        pages.with_room_for(&rule).rules.push(rule);
    }
    let mut pages = pages.pages;
    if let Some(page) = pages.last_mut() {
        page.last = true;
    }
    pages.into()
}

/// The pages of a snapshot so far, and the size of the last one.
struct Pages {
    pages: Vec<v1::Snapshot>,
    bytes: usize,
}

impl Pages {
    /// The page that takes the next entry.
    fn with_room_for(&mut self, entry: &impl prost::Message) -> &mut v1::Snapshot {
        let size = entry.encoded_len() + 8;
        if self.bytes + size > PAGE_BYTES && self.bytes > 0 {
            self.pages.push(v1::Snapshot::default());
            self.bytes = 0;
        }
        self.bytes += size;
        self.pages.last_mut().expect("there is always a page")
    }
}

/// The rule as clients of this class get it.
fn addressed(pattern: &Pattern, stored: &StoredRule, class: &Class, guards: &Guards) -> v1::DistributedRule {
    use v1::distributed_rule::Kind;
    let kind = match (&stored.rule, class.off_because(guards, pattern, stored.rule.as_deref())) {
        (Some(rule), None) => Some(Kind::Policy(rule.policy().into())),
        (_, off) => off.map(|why| Kind::NeedsFeature(why.to_owned())),
    };
    v1::DistributedRule { key: Some(pattern.into()), revision: stored.wire.revision, kind }
}

/// The guard as clients get it; none where this server can not read it.
fn sent(stored: &StoredGuard) -> Option<v1::DistributedGuard> {
    stored.guard.as_deref().map(Into::into)
}
