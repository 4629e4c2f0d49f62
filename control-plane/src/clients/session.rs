//! Session of a connected client: its identity and acknowledged progress.
//!
//! A client is connected here or to a peer, which reports it; both have a [`ClientSession`] of the same form,
//! so readers treat them alike. Refusals are kept with the revision of the refused entry, so its next
//! revision outdates them without a cleanup.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use damper_proto::{convert, v1};
use prost::Message as _;
use tokio::time::Instant;

use crate::clients::group::{ClientGroup, Withheld};
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;

/// Maximum bytes of kept refusals per client: some thirty usual ones.
pub(crate) const MAX_REFUSAL_BYTES: usize = 4 << 10;
const MAX_REASON_BYTES: usize = 512;
/// Number of unanswered responses whose times are kept.
const MAX_UNANSWERED: usize = 64;

/// Connected client.
#[derive(Debug)]
pub(crate) struct ClientSession {
    id: u64,
    /// Replica of the connection; `None`: this one.
    replica: Option<Arc<str>>,
    /// The same process has since connected to another replica.
    superseded: AtomicBool,
    pub(crate) class: Arc<ClientGroup>,
    pub(crate) instance: String,
    address: Option<SocketAddr>,
    sdk_version: String,
    /// Whether it is a proxy, as its wire number.
    via: i32,
    /// The client holds a later state than its server.
    held: AtomicBool,
    /// Epoch of its state at connection time.
    claimed_epoch: String,
    /// It held nothing when it connected, so its process has probably just started.
    pub(crate) fresh: bool,
    connected_at: SystemTime,
    /// Connection time by the monotonic clock; `None`: before that began.
    since: Option<Instant>,
    progress: Mutex<AckProgress>,
}

/// Refusal of a client, with its reason.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Revision of the refused rule, guard or kill.
    pub(crate) revision: u64,
    pub(crate) reason: Box<str>,
}

/// Acknowledged progress of a client.
#[derive(Debug)]
pub(crate) struct AckProgress {
    pub(crate) epoch: Arc<str>,
    /// Revision of the stream: sent, or skipped because nothing in it concerns the client.
    pub(crate) sent_revision: u64,
    sent_nonce: u64,
    acknowledged_nonce: u64,
    acknowledged_revision: u64,
    /// Unanswered responses by nonce, oldest first.
    unanswered: VecDeque<(u64, SystemTime)>,
    refused: HashMap<ResourceKey, Refused>,
    /// Their bytes.
    refused_bytes: usize,
    source: i32,
    override_mode: i32,
    serves: bool,
    received_at: SystemTime,
}

impl AckProgress {
    /// Returns the revision up to which the client acknowledged everything that concerns it.
    pub(crate) fn acknowledged_revision(&self) -> u64 {
        if self.acknowledged_nonce == self.sent_nonce {
            self.sent_revision
        } else {
            self.acknowledged_revision
        }
    }

    /// Restarts for another store: earlier acknowledgements do not count.
    pub(crate) fn reset(&mut self, epoch: Arc<str>) {
        self.epoch = epoch;
        self.acknowledged_nonce = self.sent_nonce;
        self.acknowledged_revision = 0;
        self.sent_revision = 0;
        self.unanswered.clear();
        self.forget_refusals();
    }

    /// Records a response that needs an answer; returns its nonce.
    pub(crate) fn send_response(&mut self) -> u64 {
        self.sent_nonce += 1;
        if self.unanswered.len() < MAX_UNANSWERED {
            self.unanswered.push_back((self.sent_nonce, SystemTime::now()));
        }
        self.sent_nonce
    }

    /// Records the answer to a response; false if it matches none.
    fn answered(&mut self, nonce: u64, revision: u64) -> bool {
        let is_answer = nonce > self.acknowledged_nonce && nonce <= self.sent_nonce;
        if is_answer {
            self.acknowledged_nonce = nonce;
            self.acknowledged_revision = revision.min(self.sent_revision);
            self.unanswered.retain(|(waiting, _)| *waiting > nonce);
            if nonce < self.sent_nonce && self.unanswered.is_empty() {
                // More responses than are kept: late at least since now.
                self.unanswered.push_back((self.sent_nonce, self.received_at));
            }
        }
        is_answer
    }

    /// Returns since when a response is unanswered.
    pub(crate) fn behind_since(&self) -> Option<SystemTime> {
        self.unanswered.front().map(|(_, since)| *since)
    }

    /// Returns the source of the client's policy, as its wire number.
    pub(crate) fn source(&self) -> i32 {
        self.source
    }

    /// Returns the local mode override; 0: none.
    pub(crate) fn override_mode(&self) -> i32 {
        self.override_mode
    }

    /// Records the acknowledged revision before the next response.
    pub(crate) fn settle(&mut self) {
        self.acknowledged_revision = self.acknowledged_revision();
    }

    /// Keeps the refusals that concern the client. Copies the reason, since a slice would keep the whole
    /// message in memory.
    fn refuse(&mut self, refused: Vec<v1::Refusal>, revision: u64, concerns: impl Fn(&ResourceKey) -> bool) {
        for refusal in refused {
            let Some(subject) = subject_of(&refusal).filter(&concerns) else { continue };
            let end = refusal.reason.floor_char_boundary(MAX_REASON_BYTES);
            let revision = if refusal.revision == 0 { revision } else { refusal.revision };
            self.keep(subject, Refused { revision, reason: refusal.reason[..end].into() });
        }
    }

    /// Keeps one refusal. Removes the oldest ones for it, those of kills last.
    fn keep(&mut self, subject: ResourceKey, refused: Refused) {
        self.refused_bytes += refused.bytes(&subject);
        let before = self.refused.get(&subject).map_or(0, |before| before.bytes(&subject));
        self.refused_bytes -= before;
        self.refused.insert(subject, refused);
        while self.refused_bytes > MAX_REFUSAL_BYTES {
            let rank = |subject: &ResourceKey, refused: &Refused| {
                (matches!(subject, ResourceKey::Kill(_)), refused.revision)
            };
            let oldest = self.refused.iter().min_by_key(|(subject, refused)| rank(subject, refused));
            let Some(oldest) = oldest.map(|(subject, _)| subject.clone()) else { break };
            if let Some(gone) = self.refused.remove(&oldest) {
                self.refused_bytes -= gone.bytes(&oldest);
            }
        }
    }

    fn forget_refusals(&mut self) {
        self.refused.clear();
        self.refused_bytes = 0;
    }

    /// Returns the bytes of all refusals, outdated ones included.
    #[cfg(test)]
    pub(crate) fn refused_bytes(&self) -> usize {
        self.refused.iter().map(|(subject, refused)| refused.bytes(subject)).sum()
    }

    /// Applies a peer's message about its client, which is of this epoch.
    fn follow(&mut self, message: v1::FollowedClient, epoch: &Arc<str>) {
        self.epoch = epoch.clone();
        self.sent_revision = message.sent_revision;
        self.acknowledged_revision = message.acknowledged_revision;
        // Acknowledged revisions come from the peer; nonces are not known here.
        (self.sent_nonce, self.acknowledged_nonce) = (1, 0);
        self.unanswered = message.behind_since.and_then(time).map(|since| (1, since)).into_iter().collect();
        self.forget_refusals();
        // The peer has checked them; its snapshot may be newer than this one.
        self.refuse(message.refused, message.acknowledged_revision, |_| true);
        self.source = message.source;
        self.override_mode = message.override_mode;
        self.serves |= message.serves;
        self.received_at = message.last_heard_at.and_then(time).unwrap_or_else(SystemTime::now);
    }

    /// Iterates over the current entries that the client refuses.
    pub(crate) fn refuses<'a>(
        &'a self,
        view: &'a Snapshot,
    ) -> impl Iterator<Item = (&'a ResourceKey, &'a Refused)> {
        let current = |subject: &ResourceKey, refusal: &Refused| {
            view.revision_of(subject).is_some_and(|revision| refusal.revision >= revision)
        };
        self.refused.iter().filter(move |(subject, refusal)| current(subject, refusal))
    }
}

impl Refused {
    fn bytes(&self, subject: &ResourceKey) -> usize {
        let names = subject.pattern().map_or(0, |pattern| v1::Pattern::from(pattern).encoded_len());
        size_of::<(ResourceKey, Self)>() + names + self.reason.len()
    }

    fn wire(&self, subject: &ResourceKey) -> v1::Refusal {
        v1::Refusal {
            key: subject.pattern().map(Into::into),
            revision: self.revision,
            reason: self.reason.to_string(),
            guard: matches!(subject, ResourceKey::Guard(_)),
            kill: matches!(subject, ResourceKey::Kill(_)),
        }
    }
}

/// Returns the resource of a refusal; `None` if it cannot be read.
fn subject_of(refusal: &v1::Refusal) -> Option<ResourceKey> {
    let pattern = convert::pattern(refusal.key.as_ref()?).ok()?;
    Some(match (refusal.guard, refusal.kill) {
        (_, true) => ResourceKey::Kill(pattern),
        (true, false) => ResourceKey::Guard(pattern),
        (false, false) => ResourceKey::Rule(pattern),
    })
}

impl ClientSession {
    /// Creates the session of a Hello. `held`: the client holds a later state than this server, which
    /// acknowledges nothing.
    pub(crate) fn new(
        hello: v1::Hello,
        address: Option<SocketAddr>,
        class: impl Into<Arc<ClientGroup>>,
        view: &Snapshot,
        held: bool,
    ) -> Self {
        let class = class.into();
        let identity = hello.identity.unwrap_or_default();
        let is_known = !held && hello.epoch == **view.epoch();
        let holds = if is_known { hello.revision.min(view.revision()) } else { 0 };
        let now = SystemTime::now();
        let mut progress = AckProgress {
            epoch: view.epoch().clone(),
            sent_revision: holds,
            sent_nonce: 0,
            acknowledged_nonce: 0,
            acknowledged_revision: holds,
            unanswered: VecDeque::new(),
            refused: HashMap::new(),
            refused_bytes: 0,
            source: hello.source,
            override_mode: hello.override_mode,
            serves: hello.serves,
            received_at: now,
        };
        progress.refuse(hello.refused, holds, |subject| concerns(&class, subject, view));
        Self {
            id: 0,
            replica: None,
            superseded: AtomicBool::new(false),
            class,
            instance: identity.instance,
            address,
            sdk_version: hello.sdk_version,
            via: hello.via,
            fresh: hello.epoch.is_empty(),
            held: AtomicBool::new(held),
            claimed_epoch: hello.epoch,
            connected_at: now,
            since: Some(Instant::now()),
            progress: Mutex::new(progress),
        }
    }

    /// Creates the session of a peer's client.
    pub(crate) fn mirrored(
        mut message: v1::FollowedClient,
        class: impl Into<Arc<ClientGroup>>,
        replica: Arc<str>,
        epoch: &Arc<str>,
        view: &Snapshot,
    ) -> Self {
        let hello = message.hello.take().unwrap_or_default();
        let address = message.address.parse().ok();
        let connected_at = message.connected_at.and_then(time).unwrap_or_else(SystemTime::now);
        let age = message.connected_for.and_then(convert::length).unwrap_or_default();
        let session = Self::new(hello, address, class, view, message.held);
        session.progress().follow(message, epoch);
        Self { replica: Some(replica), connected_at, since: Instant::now().checked_sub(age), ..session }
    }

    /// Returns true if it holds a later state than its server, so its data is not used.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the epoch of its state at connection time.
    pub(crate) fn claimed_epoch(&self) -> &str {
        &self.claimed_epoch
    }

    /// Marks that its server has caught up with its state.
    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    /// Applies a peer's message about its client.
    pub(crate) fn follow(&self, message: v1::FollowedClient, epoch: &Arc<str>) {
        self.held.store(message.held, Ordering::Relaxed);
        self.progress().follow(message, epoch);
    }

    /// Returns the message for peers; `whole`: including its constant fields.
    pub(crate) fn follow_message(&self, view: &Snapshot, whole: bool) -> v1::FollowedClient {
        let progress = self.progress();
        let mut message = v1::FollowedClient {
            number: self.id,
            behind_since: progress.behind_since().map(Into::into),
            source: progress.source,
            override_mode: progress.override_mode,
            last_heard_at: Some(progress.received_at.into()),
            serves: progress.serves,
            held: self.is_held(),
            ..v1::FollowedClient::default()
        };
        // Peers assume this epoch; acknowledgements of another one do not count.
        if progress.epoch == *view.epoch() {
            message.sent_revision = progress.sent_revision;
            message.acknowledged_revision = progress.acknowledged_revision();
            message.refused =
                progress.refuses(view).map(|(subject, refused)| refused.wire(subject)).collect();
        }
        if whole {
            let epoch = match (self.fresh, self.is_held()) {
                (true, _) => String::new(),
                (false, true) => self.claimed_epoch.clone(),
                (false, false) => progress.epoch.to_string(),
            };
            message.address = self.address.map(|address| address.to_string()).unwrap_or_default();
            message.connected_at = Some(self.connected_at.into());
            message.connected_for = self.since.and_then(|since| since.elapsed().try_into().ok());
            message.hello = Some(v1::Hello {
                identity: Some(self.identity()),
                sdk_version: self.sdk_version.clone(),
                features: self.class.wire_features(),
                epoch,
                serves: progress.serves,
                via: self.via,
                ..v1::Hello::default()
            });
        }
        message
    }

    /// Returns true if it is connected to this replica.
    pub(crate) fn is_own(&self) -> bool {
        self.replica.is_none()
    }

    /// Returns the other replica that it is connected to.
    pub(crate) fn replica(&self) -> Option<&Arc<str>> {
        self.replica.as_ref()
    }

    /// Returns true if the same process has since connected to another replica, unnoticed by this one.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    fn identity(&self) -> v1::Identity {
        v1::Identity {
            service: self.class.service.clone(),
            cluster: self.class.cluster.clone(),
            instance: self.instance.clone(),
        }
    }

    /// Returns service, cluster and instance.
    pub(crate) fn names(&self) -> [String; 3] {
        [self.class.service.clone(), self.class.cluster.clone(), self.instance.clone()]
    }

    /// Returns the order of the streams of one process. Independent of the time of day, on which replicas may
    /// differ.
    pub(crate) fn age_rank(&self) -> (Option<Instant>, u64) {
        (self.since, self.id)
    }

    pub(crate) fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Marks it as superseded or not.
    pub(crate) fn supersede(&self, is_so: bool) {
        self.superseded.store(is_so, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, AckProgress> {
        self.progress.lock().expect("no holder of the lock panics")
    }

    /// Returns true if an answer with this nonce is pending.
    pub(crate) fn awaits(&self, nonce: u64) -> bool {
        let progress = self.progress();
        nonce > progress.acknowledged_nonce && nonce <= progress.sent_nonce
    }

    /// Applies an acknowledgement; true if it refuses an entry. Keeps refusals of current entries that
    /// concern this client.
    pub(crate) fn acknowledge(&self, ack: v1::Ack, view: &Snapshot) -> bool {
        let mut progress = self.progress();
        progress.received_at = SystemTime::now();
        if progress.answered(ack.nonce, ack.revision) {
            // What it acknowledges is in force there; its next report would confirm the same.
            progress.source = v1::Source::Live.into();
        }
        let refuses = !ack.refused.is_empty();
        progress.refuse(ack.refused, ack.revision, |subject| concerns(&self.class, subject, view));
        refuses
    }

    /// Applies what a report contains about the client itself.
    pub(crate) fn reported(&self, report: &v1::Report) {
        let mut progress = self.progress();
        progress.received_at = SystemTime::now();
        progress.source = report.source;
        progress.override_mode = report.override_mode;
        progress.serves |= report.serves;
    }

    /// Returns true if it has a server layer.
    pub(crate) fn serves(&self) -> bool {
        self.progress().serves
    }

    /// Returns an id unique among all clients of this replica.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Describes the client for operators. `withheld`: the rules that are off at its group. Lists at most
    /// `listed` refused entries, kills first.
    pub(crate) fn describe(
        &self,
        view: &Snapshot,
        withheld: &Withheld,
        listed: usize,
        here: &str,
    ) -> v1::Client {
        let progress = self.progress();
        let mut refused: Vec<v1::Refusal> =
            progress.refuses(view).map(|(subject, refused)| refused.wire(subject)).collect();
        refused.sort_by(|a, b| (!a.kill, a.revision, &a.reason).cmp(&(!b.kill, b.revision, &b.reason)));
        let refused_count = count(refused.len());
        refused.truncate(listed);
        v1::Client {
            identity: Some(self.identity()),
            address: self.address.map(|address| address.to_string()).unwrap_or_default(),
            sdk_version: self.sdk_version.clone(),
            features: self.class.wire_features(),
            sent_revision: progress.sent_revision,
            acknowledged_revision: progress.acknowledged_revision(),
            refused,
            refused_count,
            withheld: withheld.first.clone(),
            withheld_count: count(withheld.count),
            source: progress.source,
            override_mode: progress.override_mode,
            connected_at: Some(self.connected_at.into()),
            last_heard_at: Some(progress.received_at.into()),
            behind_since: progress.behind_since().map(Into::into),
            features_lacking: self.class.features_lacking().map(str::to_owned).collect(),
            serves: progress.serves,
            replica: self.replica.as_deref().unwrap_or(here).to_owned(),
            held: self.is_held(),
            via: self.via,
        }
    }
}

/// Returns true if an entry is in the snapshot and concerns the group.
fn concerns(class: &ClientGroup, subject: &ResourceKey, view: &Snapshot) -> bool {
    class.is_concerned(subject) && view.revision_of(subject).is_some()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Converts a time; `None` outside the years 1970 to 9999.
fn time(wire: prost_types::Timestamp) -> Option<SystemTime> {
    const YEAR_10000: i64 = 253_402_300_800;
    if (0..YEAR_10000).contains(&wire.seconds) { SystemTime::try_from(wire).ok() } else { None }
}
