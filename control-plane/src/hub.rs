//! Who is connected, what each was sent and acknowledged, and how far a rule has come.
//!
//! The hub is a register: streams write into their own session, readers take a copy. It decides nothing about
//! what is sent. Refusals are kept with the revision of the rule that was refused, so that they are outdated by
//! the rule's next revision without anybody having to clear them.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use damper_core::{Pattern, Policy, feature};
use damper_proto::{convert, v1};
use tokio::sync::watch;

use crate::table::TableView;

/// The most refusals kept of one client.
const MAX_REFUSALS: usize = 1000;
const MAX_REASON_BYTES: usize = 512;

/// What decides which rules a client is sent, and in what form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    pub(crate) service: String,
    pub(crate) cluster: String,
    pub(crate) features: BTreeSet<String>,
}

impl Class {
    /// True if rules with this pattern concern the client.
    pub(crate) fn matches(&self, pattern: &Pattern) -> bool {
        pattern.matches_caller(&self.service, &self.cluster)
    }

    /// The first feature that the policy needs and the client lacks.
    pub(crate) fn lacking(&self, policy: &Policy) -> Option<&'static str> {
        feature::lacking(policy, |feature| self.features.contains(feature))
    }

    /// True if no rule can be beyond the client.
    pub(crate) fn has_all_features(&self) -> bool {
        feature::ALL.iter().all(|feature| self.features.contains(*feature))
    }
}

/// One connected client.
#[derive(Debug)]
pub(crate) struct Session {
    id: u64,
    pub(crate) class: Arc<Class>,
    pub(crate) instance: String,
    address: Option<SocketAddr>,
    sdk_version: String,
    pub(crate) serves: bool,
    /// Held nothing when it came, so that its process has most likely just begun.
    pub(crate) fresh: bool,
    connected_at: SystemTime,
    progress: Mutex<Progress>,
}

/// How far a client has come.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) epoch: Arc<str>,
    /// The revision that the stream is at: sent, or passed over because nothing in it concerns the client.
    pub(crate) sent_revision: u64,
    pub(crate) sent_nonce: u64,
    pub(crate) acknowledged_nonce: u64,
    acknowledged_revision: u64,
    refused: HashMap<Pattern, v1::Refusal>,
    source: i32,
    override_mode: i32,
    heard_at: SystemTime,
}

impl Progress {
    /// The revision up to which the client confirmed everything that concerns it.
    pub(crate) fn acknowledged_revision(&self) -> u64 {
        if self.acknowledged_nonce == self.sent_nonce {
            self.sent_revision
        } else {
            self.acknowledged_revision
        }
    }

    /// Another store: nothing confirmed before counts.
    pub(crate) fn start_anew(&mut self, epoch: Arc<str>) {
        self.epoch = epoch;
        self.acknowledged_nonce = self.sent_nonce;
        self.acknowledged_revision = 0;
        self.sent_revision = 0;
        self.refused.clear();
    }

    /// Writes down what is confirmed, before the next response moves the mark.
    pub(crate) fn settle(&mut self) {
        self.acknowledged_revision = self.acknowledged_revision();
    }

    fn refuse(&mut self, refused: Vec<v1::Refusal>, revision: u64) {
        for mut refusal in refused {
            let Some(pattern) = refusal.key.as_ref().and_then(|key| convert::pattern(key).ok()) else {
                continue;
            };
            if refusal.revision == 0 {
                refusal.revision = revision;
            }
            let end = refusal.reason.floor_char_boundary(MAX_REASON_BYTES);
            refusal.reason.truncate(end);
            if self.refused.len() < MAX_REFUSALS || self.refused.contains_key(&pattern) {
                self.refused.insert(pattern, refusal);
            }
        }
    }

    /// True if the client refuses this revision of the rule.
    fn refuses(&self, pattern: &Pattern, revision: u64) -> bool {
        self.refused.get(pattern).is_some_and(|refusal| refusal.revision >= revision)
    }
}

impl Session {
    /// A client that said hello.
    pub(crate) fn new(hello: v1::Hello, address: Option<SocketAddr>, class: Class, view: &TableView) -> Self {
        let identity = hello.identity.unwrap_or_default();
        let holds = if hello.epoch == **view.epoch() { hello.revision.min(view.revision()) } else { 0 };
        let now = SystemTime::now();
        let mut progress = Progress {
            epoch: view.epoch().clone(),
            sent_revision: holds,
            sent_nonce: 0,
            acknowledged_nonce: 0,
            acknowledged_revision: holds,
            refused: HashMap::new(),
            source: hello.source,
            override_mode: hello.override_mode,
            heard_at: now,
        };
        progress.refuse(hello.refused, holds);
        Self {
            id: 0,
            class: Arc::new(class),
            instance: identity.instance,
            address,
            sdk_version: hello.sdk_version,
            serves: hello.serves,
            fresh: hello.epoch.is_empty(),
            connected_at: now,
            progress: Mutex::new(progress),
        }
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no holder of the lock panics")
    }

    /// Takes an acknowledgement; true if it refuses something.
    pub(crate) fn acknowledge(&self, ack: v1::Ack) -> bool {
        let mut progress = self.progress();
        progress.heard_at = SystemTime::now();
        let known = ack.nonce > progress.acknowledged_nonce && ack.nonce <= progress.sent_nonce;
        if known {
            progress.acknowledged_nonce = ack.nonce;
            progress.acknowledged_revision = ack.revision.min(progress.sent_revision);
        }
        let refuses = !ack.refused.is_empty();
        progress.refuse(ack.refused, ack.revision);
        refuses
    }

    /// Takes what a report says about the client itself.
    pub(crate) fn reported(&self, source: i32, override_mode: i32) {
        let mut progress = self.progress();
        progress.heard_at = SystemTime::now();
        progress.source = source;
        progress.override_mode = override_mode;
    }

    fn describe(&self, view: &TableView) -> v1::Client {
        let progress = self.progress();
        let current = |pattern: &Pattern, refusal: &v1::Refusal| {
            view.stored(pattern).is_some_and(|stored| refusal.revision >= stored.wire.revision)
        };
        let refused = progress.refused.iter().filter(|(pattern, refusal)| current(pattern, refusal));
        let mut refused: Vec<v1::Refusal> = refused.map(|(_, refusal)| refusal.clone()).collect();
        refused.sort_by(|a, b| (a.revision, &a.reason).cmp(&(b.revision, &b.reason)));
        v1::Client {
            identity: Some(v1::Identity {
                service: self.class.service.clone(),
                cluster: self.class.cluster.clone(),
                instance: self.instance.clone(),
            }),
            address: self.address.map(|address| address.to_string()).unwrap_or_default(),
            sdk_version: self.sdk_version.clone(),
            features: self.class.features.iter().cloned().collect(),
            sent_revision: progress.sent_revision,
            acknowledged_revision: progress.acknowledged_revision(),
            refused,
            withheld: withheld(&self.class, view),
            source: progress.source,
            override_mode: progress.override_mode,
            connected_at: Some(self.connected_at.into()),
            last_heard_at: Some(progress.heard_at.into()),
        }
    }
}

/// The patterns that are off at clients of a class because they, or this server, can not carry them out.
fn withheld(class: &Class, view: &TableView) -> Vec<v1::Pattern> {
    let off = |policy: Option<&Policy>| policy.is_none_or(|policy| class.lacking(policy).is_some());
    let all_read = class.has_all_features();
    let rules = view.iter().filter(|(_, stored)| !all_read || stored.rule.is_none());
    let rules = rules.filter(|(pattern, stored)| {
        class.matches(pattern) && off(stored.rule.as_ref().map(|rule| rule.policy()))
    });
    rules.map(|(pattern, _)| pattern.into()).collect()
}

/// All sessions, and how often they report.
pub(crate) struct Hub {
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    next: AtomicU64,
    watchers: AtomicUsize,
    intervals: [Duration; 2],
    report_interval: watch::Sender<Duration>,
}

/// A session in the register; dropping it takes it out.
pub(crate) struct Admitted {
    pub(crate) session: Arc<Session>,
    shared: Arc<crate::shared::Shared>,
}

/// Somebody watches the figures.
pub(crate) struct Watching(Arc<crate::shared::Shared>);

impl Hub {
    pub(crate) fn new(report_interval: Duration, watched: Duration) -> Self {
        Self {
            sessions: Mutex::default(),
            next: AtomicU64::new(1),
            watchers: AtomicUsize::new(0),
            intervals: [report_interval, watched.min(report_interval)],
            report_interval: watch::Sender::new(report_interval),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().expect("no holder of the lock panics")
    }

    /// How often clients report now; changes with who watches.
    pub(crate) fn report_interval(&self) -> watch::Receiver<Duration> {
        self.report_interval.subscribe()
    }

    /// How many clients are connected.
    pub(crate) fn connected(&self) -> usize {
        self.sessions().len()
    }

    /// All sessions, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions().values().cloned().collect()
    }

    /// The clients of a service and cluster (empty = any), by name.
    pub(crate) fn clients(&self, service: &str, cluster: &str, view: &TableView) -> Vec<v1::Client> {
        let wanted = |asked: &str, is: &str| asked.is_empty() || asked == is;
        let mut sessions = self.all();
        sessions.retain(|s| wanted(service, &s.class.service) && wanted(cluster, &s.class.cluster));
        sessions.sort_by(|a, b| {
            let key =
                |s: &Session| (s.class.service.clone(), s.class.cluster.clone(), s.instance.clone(), s.id);
            key(a).cmp(&key(b))
        });
        sessions.iter().map(|session| session.describe(view)).collect()
    }

    fn watch(&self, change: impl Fn(usize) -> usize) {
        // The interval is set inside the update, so that the last to come or go has the last word.
        self.report_interval.send_if_modified(|interval| {
            let watchers = change(self.watchers.load(Ordering::Relaxed));
            self.watchers.store(watchers, Ordering::Relaxed);
            let wanted = self.intervals[usize::from(watchers > 0)];
            std::mem::replace(interval, wanted) != wanted
        });
    }
}

impl Admitted {
    /// Enters a session into the register.
    pub(crate) fn new(shared: &Arc<crate::shared::Shared>, mut session: Session) -> Self {
        session.id = shared.hub.next.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(session);
        shared.hub.sessions().insert(session.id, session.clone());
        shared.metrics.streams.increment(1.0);
        shared.stats.connected(&session);
        Self { session, shared: shared.clone() }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.hub.sessions().remove(&self.session.id);
        self.shared.metrics.streams.decrement(1.0);
        self.shared.stats.disconnected(&self.session);
    }
}

impl Watching {
    pub(crate) fn new(shared: &Arc<crate::shared::Shared>) -> Self {
        shared.hub.watch(|watchers| watchers + 1);
        Self(shared.clone())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.hub.watch(|watchers| watchers.saturating_sub(1));
    }
}

/// How far rules have come, for all clients at one moment.
pub(crate) struct Delivery {
    groups: Vec<Group>,
    refusals: HashMap<Pattern, Vec<u64>>,
}

struct Group {
    class: Arc<Class>,
    /// In ascending order.
    acknowledged: Vec<u64>,
}

/// How many clients a rule concerns, and how many of them have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) clients: u32,
    pub(crate) applied: u32,
    pub(crate) refused: u32,
    pub(crate) lacking: u32,
}

impl Delivery {
    /// A picture of all sessions.
    pub(crate) fn of(hub: &Hub, view: &TableView) -> Self {
        let mut groups: HashMap<Arc<Class>, Vec<u64>> = HashMap::new();
        let mut refusals: HashMap<Pattern, Vec<u64>> = HashMap::new();
        for session in hub.all() {
            let progress = session.progress();
            let same_store = progress.epoch == *view.epoch();
            let acknowledged = if same_store { progress.acknowledged_revision() } else { 0 };
            groups.entry(session.class.clone()).or_default().push(acknowledged);
            for (pattern, stored) in progress.refused.keys().filter_map(|p| Some((p, view.stored(p)?))) {
                if progress.refuses(pattern, stored.wire.revision) {
                    refusals.entry(pattern.clone()).or_default().push(acknowledged);
                }
            }
        }
        let group = |(class, mut acknowledged): (_, Vec<u64>)| {
            acknowledged.sort_unstable();
            Group { class, acknowledged }
        };
        Self { groups: groups.into_iter().map(group).collect(), refusals }
    }

    /// How far a rule has come; `policy` is none where this server can not read it.
    pub(crate) fn delivered(&self, pattern: &Pattern, revision: u64, policy: Option<&Policy>) -> Delivered {
        let mut sum = Delivered::default();
        for group in self.groups.iter().filter(|group| group.class.matches(pattern)) {
            let size = count(group.acknowledged.len());
            sum.clients += size;
            if policy.is_none_or(|policy| group.class.lacking(policy).is_some()) {
                sum.lacking += size;
            } else {
                let behind = group.acknowledged.partition_point(|acknowledged| *acknowledged < revision);
                sum.applied += count(group.acknowledged.len() - behind);
            }
        }
        let refusals = self.refusals.get(pattern).map_or(&[][..], Vec::as_slice);
        sum.refused = count(refusals.len());
        let refused_late = refusals.iter().filter(|acknowledged| **acknowledged >= revision).count();
        sum.applied = sum.applied.saturating_sub(count(refused_late));
        sum
    }

    /// The services and clusters that are connected.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> {
        self.groups.iter().map(|group| &*group.class)
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
