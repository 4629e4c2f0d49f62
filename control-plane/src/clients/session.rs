//! One connected client: who it is, and how far it has come.
//!
//! A client is connected here, or to another replica which tells of it; both are a [`Session`] of the same form, so that
//! whoever reads need not tell them apart. Refusals are kept with the revision of the rule or guard that was refused, so
//! that they are outdated by its next revision without anybody having to clear them.

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

/// The most bytes of the refusals that are kept of one client: some thirty usual ones.
pub(crate) const MAX_REFUSAL_BYTES: usize = 8 << 10;
const MAX_REASON_BYTES: usize = 512;
/// Of so many responses that are not answered yet it is remembered when they were made.
const MAX_UNANSWERED: usize = 64;

/// One connected client.
#[derive(Debug)]
pub(crate) struct ClientSession {
    id: u64,
    /// The replica that it is connected to; none = this one.
    replica: Option<Arc<str>>,
    /// The same process has since come to another replica.
    superseded: AtomicBool,
    pub(crate) class: Arc<ClientGroup>,
    pub(crate) instance: String,
    address: Option<SocketAddr>,
    sdk_version: String,
    /// It holds more than its server knows.
    held: AtomicBool,
    /// The epoch of what it held when it connected.
    claimed_epoch: String,
    /// Held nothing when it came, so that its process has most likely just begun.
    pub(crate) fresh: bool,
    connected_at: SystemTime,
    /// The same by this machine's own clock; none = before that began.
    since: Option<Instant>,
    progress: Mutex<AckProgress>,
}

/// What a client refuses, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    /// That of the rule, guard or kill.
    pub(crate) revision: u64,
    pub(crate) reason: Box<str>,
}

/// How far a client has come.
#[derive(Debug)]
pub(crate) struct AckProgress {
    pub(crate) epoch: Arc<str>,
    /// The revision that the stream is at: sent, or passed over because nothing in it concerns the client.
    pub(crate) sent_revision: u64,
    sent_nonce: u64,
    acknowledged_nonce: u64,
    acknowledged_revision: u64,
    /// Responses that wait for an answer, the oldest first, by their nonces.
    unanswered: VecDeque<(u64, SystemTime)>,
    refused: HashMap<ResourceKey, Refused>,
    /// What they take.
    refused_bytes: usize,
    source: i32,
    override_mode: i32,
    serves: bool,
    heard_at: SystemTime,
}

impl AckProgress {
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
        self.forget_refusals();
    }

    /// Notes that a response is being sent that wants an answer; gives its nonce.
    pub(crate) fn send_response(&mut self) -> u64 {
        self.sent_nonce += 1;
        if self.unanswered.len() < MAX_UNANSWERED {
            self.unanswered.push_back((self.sent_nonce, SystemTime::now()));
        }
        self.sent_nonce
    }

    /// Takes the answer to a response; false if it is none.
    fn answered(&mut self, nonce: u64, revision: u64) -> bool {
        let is_answer = nonce > self.acknowledged_nonce && nonce <= self.sent_nonce;
        if is_answer {
            self.acknowledged_nonce = nonce;
            self.acknowledged_revision = revision.min(self.sent_revision);
            self.unanswered.retain(|(waiting, _)| *waiting > nonce);
            if nonce < self.sent_nonce && self.unanswered.is_empty() {
                // More than are remembered: since now, at least.
                self.unanswered.push_back((self.sent_nonce, self.heard_at));
            }
        }
        is_answer
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

    /// Keeps what is refused, as far as it `concerns` the client. A copy of the reason: what was cut off would keep its
    /// memory.
    fn refuse(&mut self, refused: Vec<v1::Refusal>, revision: u64, concerns: impl Fn(&ResourceKey) -> bool) {
        for refusal in refused {
            let Some(subject) = subject_of(&refusal).filter(&concerns) else { continue };
            let end = refusal.reason.floor_char_boundary(MAX_REASON_BYTES);
            let revision = if refusal.revision == 0 { revision } else { refusal.revision };
            self.keep(subject, Refused { revision, reason: refusal.reason[..end].into() });
        }
    }

    /// Keeps one refusal. The oldest give way to it, those of kills last.
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

    /// What the refusals take, those included that are no longer current.
    #[cfg(test)]
    pub(crate) fn refused_bytes(&self) -> usize {
        self.refused.iter().map(|(subject, refused)| refused.bytes(subject)).sum()
    }

    /// Takes what another replica says of its client, which is of this epoch.
    fn follow(&mut self, told: v1::FollowedClient, epoch: &Arc<str>) {
        self.epoch = epoch.clone();
        self.sent_revision = told.sent_revision;
        self.acknowledged_revision = told.acknowledged_revision;
        // What is acknowledged there is told, and not known by nonces here.
        (self.sent_nonce, self.acknowledged_nonce) = (1, 0);
        self.unanswered = told.behind_since.and_then(time).map(|since| (1, since)).into_iter().collect();
        self.forget_refusals();
        // The other replica has looked at them; its table may be newer than this one.
        self.refuse(told.refused, told.acknowledged_revision, |_| true);
        self.source = told.source;
        self.override_mode = told.override_mode;
        self.serves |= told.serves;
        self.heard_at = told.last_heard_at.and_then(time).unwrap_or_else(SystemTime::now);
    }

    /// What the client refuses of what is in the table now.
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
        let names = v1::Pattern::from(subject.pattern()).encoded_len();
        size_of::<(ResourceKey, Self)>() + names + self.reason.len()
    }

    fn wire(&self, subject: &ResourceKey) -> v1::Refusal {
        v1::Refusal {
            key: Some(subject.pattern().into()),
            revision: self.revision,
            reason: self.reason.to_string(),
            guard: matches!(subject, ResourceKey::Guard(_)),
            kill: matches!(subject, ResourceKey::Kill(_)),
        }
    }
}

/// What a refusal is about; `None` if that cannot be read.
fn subject_of(refusal: &v1::Refusal) -> Option<ResourceKey> {
    let pattern = convert::pattern(refusal.key.as_ref()?).ok()?;
    Some(match (refusal.guard, refusal.kill) {
        (_, true) => ResourceKey::Kill(pattern),
        (true, false) => ResourceKey::Guard(pattern),
        (false, false) => ResourceKey::Rule(pattern),
    })
}

impl ClientSession {
    /// A client that said hello; `held`: it holds more than this server knows, which confirms nothing.
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
            heard_at: now,
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
            fresh: hello.epoch.is_empty(),
            held: AtomicBool::new(held),
            claimed_epoch: hello.epoch,
            connected_at: now,
            since: Some(Instant::now()),
            progress: Mutex::new(progress),
        }
    }

    /// A client of another replica, as that tells of it.
    pub(crate) fn mirrored(
        mut told: v1::FollowedClient,
        class: impl Into<Arc<ClientGroup>>,
        replica: Arc<str>,
        epoch: &Arc<str>,
        view: &Snapshot,
    ) -> Self {
        let hello = told.hello.take().unwrap_or_default();
        let address = told.address.parse().ok();
        let connected_at = told.connected_at.and_then(time).unwrap_or_else(SystemTime::now);
        let age = told.connected_for.and_then(convert::length).unwrap_or_default();
        let session = Self::new(hello, address, class, view, told.held);
        session.progress().follow(told, epoch);
        Self { replica: Some(replica), connected_at, since: Instant::now().checked_sub(age), ..session }
    }

    /// True if it holds more than its server knows, so that nothing is taken from it.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// The epoch of what it held when it connected.
    pub(crate) fn claimed_epoch(&self) -> &str {
        &self.claimed_epoch
    }

    /// Its server knows what it holds now.
    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    /// Takes what another replica says of its client.
    pub(crate) fn follow(&self, told: v1::FollowedClient, epoch: &Arc<str>) {
        self.held.store(told.held, Ordering::Relaxed);
        self.progress().follow(told, epoch);
    }

    /// The client as other replicas are told of it; `whole`: also what never changes.
    pub(crate) fn told(&self, view: &Snapshot, whole: bool) -> v1::FollowedClient {
        let progress = self.progress();
        let mut told = v1::FollowedClient {
            number: self.id,
            behind_since: progress.behind_since().map(Into::into),
            source: progress.source,
            override_mode: progress.override_mode,
            last_heard_at: Some(progress.heard_at.into()),
            serves: progress.serves,
            held: self.is_held(),
            ..v1::FollowedClient::default()
        };
        // Whoever is told takes it for this epoch's, and of another one nothing that was confirmed counts.
        if progress.epoch == *view.epoch() {
            told.sent_revision = progress.sent_revision;
            told.acknowledged_revision = progress.acknowledged_revision();
            told.refused = progress.refuses(view).map(|(subject, refused)| refused.wire(subject)).collect();
        }
        if whole {
            let epoch = match (self.fresh, self.is_held()) {
                (true, _) => String::new(),
                (false, true) => self.claimed_epoch.clone(),
                (false, false) => progress.epoch.to_string(),
            };
            told.address = self.address.map(|address| address.to_string()).unwrap_or_default();
            told.connected_at = Some(self.connected_at.into());
            told.connected_for = self.since.and_then(|since| since.elapsed().try_into().ok());
            told.hello = Some(v1::Hello {
                identity: Some(self.identity()),
                sdk_version: self.sdk_version.clone(),
                features: self.class.wire_features(),
                epoch,
                serves: progress.serves,
                ..v1::Hello::default()
            });
        }
        told
    }

    /// True if it is connected to this replica.
    pub(crate) fn is_own(&self) -> bool {
        self.replica.is_none()
    }

    /// The other replica that it is connected to.
    pub(crate) fn replica(&self) -> Option<&Arc<str>> {
        self.replica.as_ref()
    }

    /// True if the same process has since come to another replica, and this one has not noticed yet that it left.
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

    /// Service, cluster, instance.
    pub(crate) fn names(&self) -> [String; 3] {
        [self.class.service.clone(), self.class.cluster.clone(), self.instance.clone()]
    }

    /// Which of the streams of one process is the newest. Not by the time of day, which replicas need not agree on.
    pub(crate) fn age_rank(&self) -> (Option<Instant>, u64) {
        (self.since, self.id)
    }

    pub(crate) fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Marks it as left, or as not.
    pub(crate) fn supersede(&self, is_so: bool) {
        self.superseded.store(is_so, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, AckProgress> {
        self.progress.lock().expect("no holder of the lock panics")
    }

    /// True if this is the answer to something that waits for one.
    pub(crate) fn awaits(&self, nonce: u64) -> bool {
        let progress = self.progress();
        nonce > progress.acknowledged_nonce && nonce <= progress.sent_nonce
    }

    /// Takes an acknowledgement; true if it refuses something. What it refuses is kept if it is in the table and for
    /// this client.
    pub(crate) fn acknowledge(&self, ack: v1::Ack, view: &Snapshot) -> bool {
        let mut progress = self.progress();
        progress.heard_at = SystemTime::now();
        if progress.answered(ack.nonce, ack.revision) {
            // What it confirms is in force there; its next report would say the same.
            progress.source = v1::Source::Live.into();
        }
        let refuses = !ack.refused.is_empty();
        progress.refuse(ack.refused, ack.revision, |subject| concerns(&self.class, subject, view));
        refuses
    }

    /// Takes what a report says about the client itself.
    pub(crate) fn reported(&self, report: &v1::Report) {
        let mut progress = self.progress();
        progress.heard_at = SystemTime::now();
        progress.source = report.source;
        progress.override_mode = report.override_mode;
        progress.serves |= report.serves;
    }

    /// True if it has a server layer.
    pub(crate) fn serves(&self) -> bool {
        self.progress().serves
    }

    /// Tells it from all others that were ever connected here.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The client as operators see it; `withheld` are the rules that are off at its class. At most `listed` of the
    /// entries that it refuses are listed, kills first.
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
            last_heard_at: Some(progress.heard_at.into()),
            behind_since: progress.behind_since().map(Into::into),
            features_lacking: self.class.features_lacking().map(str::to_owned).collect(),
            serves: progress.serves,
            replica: self.replica.as_deref().unwrap_or(here).to_owned(),
            held: self.is_held(),
        }
    }
}

/// True if a rule, guard or kill is in the table and for clients of the class.
fn concerns(class: &ClientGroup, subject: &ResourceKey, view: &Snapshot) -> bool {
    class.matches(subject.pattern()) && view.revision_of(subject).is_some()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A time as it can be told; none where it lies outside of the years 1970 to 9999.
fn time(wire: prost_types::Timestamp) -> Option<SystemTime> {
    const YEAR_10000: i64 = 253_402_300_800;
    if (0..YEAR_10000).contains(&wire.seconds) { SystemTime::try_from(wire).ok() } else { None }
}
