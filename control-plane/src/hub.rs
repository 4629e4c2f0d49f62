//! Who is connected, and what each was sent and acknowledged.
//!
//! The hub is a register: streams write into their own session, readers take a copy. It decides nothing about
//! what is sent. Refusals are kept with the revision of the rule or guard that was refused, so that they are outdated by
//! its next revision without anybody having to clear them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use damper_core::Pattern;
use damper_proto::{convert, v1};
use tokio::sync::watch;

use crate::class::Class;
use crate::table::{Subject, TableView};
use crate::watching::Pace;

/// The most refusals kept of one client.
const MAX_REFUSALS: usize = 1000;
const MAX_REASON_BYTES: usize = 512;
/// Of so many responses that are not answered yet it is remembered when they were made.
const MAX_UNANSWERED: usize = 64;

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
    sent_nonce: u64,
    acknowledged_nonce: u64,
    acknowledged_revision: u64,
    /// Responses that wait for an answer, the oldest first, by their nonces.
    unanswered: VecDeque<(u64, SystemTime)>,
    refused: HashMap<Subject, v1::Refusal>,
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
        self.unanswered.clear();
        self.refused.clear();
    }

    /// Notes that a response is being sent that wants an answer; gives its nonce.
    pub(crate) fn send_response(&mut self) -> u64 {
        self.sent_nonce += 1;
        if self.unanswered.len() < MAX_UNANSWERED {
            self.unanswered.push_back((self.sent_nonce, SystemTime::now()));
        }
        self.sent_nonce
    }

    /// Takes the answer to a response.
    fn answered(&mut self, nonce: u64, revision: u64) {
        if nonce > self.acknowledged_nonce && nonce <= self.sent_nonce {
            self.acknowledged_nonce = nonce;
            self.acknowledged_revision = revision.min(self.sent_revision);
            self.unanswered.retain(|(waiting, _)| *waiting > nonce);
            if nonce < self.sent_nonce && self.unanswered.is_empty() {
                // More than are remembered: since now, at least.
                self.unanswered.push_back((self.sent_nonce, self.heard_at));
            }
        }
    }

    /// Since when something that was sent is not answered.
    pub(crate) fn behind_since(&self) -> Option<SystemTime> {
        self.unanswered.front().map(|(_, since)| *since)
    }

    /// What the client runs on, as the wire numbers it.
    pub(crate) fn source(&self) -> i32 {
        self.source
    }

    /// The mode that is imposed on it where it runs; 0 = none.
    pub(crate) fn override_mode(&self) -> i32 {
        self.override_mode
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
            let subject = match (refusal.guard, refusal.kill) {
                (_, true) => Subject::Kill(pattern),
                (true, false) => Subject::Guard(pattern),
                (false, false) => Subject::Rule(pattern),
            };
            if refusal.revision == 0 {
                refusal.revision = revision;
            }
            let end = refusal.reason.floor_char_boundary(MAX_REASON_BYTES);
            refusal.reason.truncate(end);
            if self.refused.len() < MAX_REFUSALS || self.refused.contains_key(&subject) {
                self.refused.insert(subject, refusal);
            }
        }
    }

    /// What the client refuses of what is in the table now.
    pub(crate) fn refuses<'a>(
        &'a self,
        view: &'a TableView,
    ) -> impl Iterator<Item = (&'a Subject, &'a v1::Refusal)> {
        let current = |subject: &Subject, refusal: &v1::Refusal| {
            view.revision_of(subject).is_some_and(|revision| refusal.revision >= revision)
        };
        self.refused.iter().filter(move |(subject, refusal)| current(subject, refusal))
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
            unanswered: VecDeque::new(),
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
        progress.answered(ack.nonce, ack.revision);
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

    /// Tells it from all others that were ever connected here.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The client as operators see it; `withheld` are the rules that are off at its class.
    fn describe(&self, view: &TableView, withheld: &[Pattern]) -> v1::Client {
        let progress = self.progress();
        let mut refused: Vec<v1::Refusal> =
            progress.refuses(view).map(|(_, refusal)| refusal.clone()).collect();
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
            withheld: withheld.iter().map(Into::into).collect(),
            source: progress.source,
            override_mode: progress.override_mode,
            connected_at: Some(self.connected_at.into()),
            last_heard_at: Some(progress.heard_at.into()),
            behind_since: progress.behind_since().map(Into::into),
            features_lacking: self.class.features_lacking().map(str::to_owned).collect(),
            serves: self.serves,
            replica: String::new(),
        }
    }
}

/// All sessions, and how often they report.
pub(crate) struct Hub {
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    next: AtomicU64,
    /// Rises whenever a client comes, goes, is sent something or answers.
    moves: watch::Sender<u64>,
    pace: watch::Sender<Pace>,
}

/// A session in the register; dropping it takes it out.
pub(crate) struct Admitted {
    pub(crate) session: Arc<Session>,
    shared: Arc<crate::shared::Shared>,
}

impl Hub {
    pub(crate) fn new(report_interval: Duration, watched: Duration) -> Self {
        Self {
            sessions: Mutex::default(),
            next: AtomicU64::new(1),
            moves: watch::Sender::new(0),
            pace: watch::Sender::new(Pace::new(report_interval, watched)),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().expect("no holder of the lock panics")
    }

    /// How often clients report now; changes with who watches.
    pub(crate) fn pace(&self) -> watch::Receiver<Pace> {
        self.pace.subscribe()
    }

    /// Somebody begins or ceases to watch.
    pub(crate) fn change_pace(&self, change: impl FnOnce(&mut Pace)) {
        self.pace.send_modify(change);
    }

    /// A client has come, gone, been sent something or answered.
    pub(crate) fn moved(&self) {
        self.moves.send_modify(|moves| *moves += 1);
    }

    /// Rises with every such event.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
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
        // Once per class: it is a look at every rule.
        let mut withheld: HashMap<&Class, Vec<Pattern>> = HashMap::new();
        let described = sessions.iter().map(|session| {
            let withheld = withheld.entry(&session.class).or_insert_with(|| session.class.withheld(view));
            session.describe(view, withheld)
        });
        described.collect()
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
        shared.hub.moved();
        Self { session, shared: shared.clone() }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.hub.sessions().remove(&self.session.id);
        self.shared.metrics.streams.decrement(1.0);
        self.shared.stats.disconnected(&self.session);
        self.shared.hub.moved();
    }
}
