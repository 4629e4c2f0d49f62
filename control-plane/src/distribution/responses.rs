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
use prost::Message as _;

use crate::hub::Class;
use crate::table::{StoredRule, TableView, UNREAD};

/// The most bytes of one message, well below what receivers accept.
const PAGE_BYTES: usize = 512 << 10;
/// How many responses are kept for sharing; more are made for their streams alone.
const SHARED_RESPONSES: usize = 1024;
/// How many rules the kept responses may hold together, so that many classes of callers and a large table do not
/// fill the memory.
const SHARED_RULES: usize = 250_000;

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
    fn rules(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Delta(delta) => delta.changed.len(),
            Self::Snapshot(pages) => pages.iter().map(|page| page.rules.len()).sum(),
        }
    }
}

type Shelf = HashMap<(Arc<Class>, Option<u64>), Arc<OnceLock<Response>>>;

/// The responses that lead to one table.
#[derive(Default)]
pub(crate) struct Responses {
    shelf: Mutex<(Arc<str>, u64, Shelf)>,
    shared_rules: AtomicUsize,
}

impl Responses {
    /// The response that brings a client of this class from `base` (none = nothing it holds counts) to the view.
    /// `changed` names the patterns changed since the base; none where that is not known.
    pub(crate) fn response(
        &self,
        view: &TableView,
        class: &Arc<Class>,
        base: Option<u64>,
        changed: impl FnOnce() -> Option<BTreeSet<Pattern>>,
    ) -> Response {
        let make = || match base.and_then(|_| changed()) {
            Some(patterns) => difference(view, class, &patterns),
            None => Response::Snapshot(snapshot(view, class)),
        };
        match self.place(view, class, base) {
            Some(place) => place
                .get_or_init(|| {
                    let made = make();
                    self.shared_rules.fetch_add(made.rules(), Ordering::Relaxed);
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
            self.shared_rules.store(0, Ordering::Relaxed);
        }
        let key = (class.clone(), base);
        let full =
            made.len() >= SHARED_RESPONSES || self.shared_rules.load(Ordering::Relaxed) >= SHARED_RULES;
        if full && !made.contains_key(&key) {
            return None;
        }
        Some(made.entry(key).or_default().clone())
    }
}

fn difference(view: &TableView, class: &Class, patterns: &BTreeSet<Pattern>) -> Response {
    let mut delta = v1::Delta::default();
    let mut bytes = 0;
    for pattern in patterns.iter().filter(|pattern| class.matches(pattern)) {
        match view.stored(pattern) {
            Some(stored) => {
                let rule = addressed(pattern, stored, class);
                bytes += rule.encoded_len() + 8;
                delta.changed.push(rule);
            }
            None => {
                let removed = v1::Pattern::from(pattern);
                bytes += removed.encoded_len() + 8;
                delta.removed.push(removed);
            }
        }
        if bytes > PAGE_BYTES {
            return Response::Snapshot(snapshot(view, class));
        }
    }
    match bytes {
        0 => Response::Nothing,
        _ => Response::Delta(Arc::new(delta)),
    }
}

fn snapshot(view: &TableView, class: &Class) -> Arc<[v1::Snapshot]> {
    let mut pages = Vec::new();
    let mut page = v1::Snapshot::default();
    let mut bytes = 0;
    for (pattern, stored) in view.iter().filter(|(pattern, _)| class.matches(pattern)) {
        let rule = addressed(pattern, stored, class);
        let size = rule.encoded_len() + 8;
        if bytes + size > PAGE_BYTES && !page.rules.is_empty() {
            pages.push(std::mem::take(&mut page));
            bytes = 0;
        }
        bytes += size;
        page.rules.push(rule);
    }
    page.last = true;
    pages.push(page);
    pages.into()
}

/// The rule as clients of this class get it.
fn addressed(pattern: &Pattern, stored: &StoredRule, class: &Class) -> v1::DistributedRule {
    use v1::distributed_rule::Kind;
    let kind = match &stored.rule {
        None => Kind::NeedsFeature(UNREAD.to_owned()),
        Some(rule) => match class.lacking(rule.policy()) {
            Some(feature) => Kind::NeedsFeature(feature.to_owned()),
            None => Kind::Policy(rule.policy().into()),
        },
    };
    v1::DistributedRule { key: Some(pattern.into()), revision: stored.wire.revision, kind: Some(kind) }
}
