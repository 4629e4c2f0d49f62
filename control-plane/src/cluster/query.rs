//! Queries one peer.
//!
//! The peer's clients are mirrored, and the connection is opened again while the peer's key is in the store.
//! A reachable peer without a key is still queried, so that an outage of the store removes no peer. The
//! clients of an unreachable peer are kept for [`KEPT_FOR`], because most likely only the connection ended.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::key;
use damper_core::kill::MAX_KILLS;
use damper_proto::v1;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_stream::wrappers::WatchStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

use crate::cluster::Cluster;
use crate::cluster::connect::connect;
use crate::cluster::mirror::Mirror;
use crate::state::watcher::Hold;
use crate::stats::report_interval::ReportSchedule;
use damper_store::Members;

/// The time limit for a connection until the peer has identified itself.
const OPEN_WITHIN: Duration = Duration::from_secs(3);
/// A peer sends a message every second; after this time without one it is unreachable.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// The time for which the clients of an unreachable peer are kept.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// The shortest and the longest pause before a reconnect, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The time between the regular end of a peer's stream and the removal of its key.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// One peer that is queried.
pub(crate) struct PeerLink {
    cluster: Arc<Cluster>,
    replica: v1::Replica,
    known: watch::Receiver<Members>,
    mirror: Mirror,
}

/// An open stream.
struct Opened {
    messages: Streaming<v1::FollowResponse>,
    first: v1::FollowResponse,
    epoch: Arc<str>,
    say: watch::Sender<v1::FollowRequest>,
    paces: watch::Receiver<ReportSchedule>,
}

/// The reason for the end of a stream.
enum Ended {
    /// Regular end: the peer most likely stops.
    Leaving,
    Lost(String),
}

impl PeerLink {
    pub(crate) fn of(cluster: Arc<Cluster>, replica: v1::Replica, known: watch::Receiver<Members>) -> Self {
        let mirror = Mirror::of(cluster.clone(), replica.id.as_str().into());
        Self { cluster, replica, known, mirror }
    }

    /// Queries until the peer is removed.
    pub(crate) async fn run(mut self) {
        let mut pause = PAUSE.0;
        let mut kept_until = Instant::now();
        while self.is_known() {
            let problem = match self.open(kept_until).await {
                Ok(opened) => {
                    pause = PAUSE.0;
                    let ended = self.receive(opened).await;
                    kept_until = Instant::now() + KEPT_FOR;
                    match ended {
                        Ended::Leaving if self.goes().await => break,
                        Ended::Leaving => "the peer closed the stream".to_owned(),
                        Ended::Lost(problem) => problem,
                    }
                }
                Err(problem) => problem,
            };
            if self.cluster.peers.unreachable(&self.replica.id, problem.clone()) && self.is_known() {
                tracing::warn!(replica = self.replica.id, problem, "peer disconnected");
            }
            self.cluster.fleet.hub.changed();
            self.rest(pause.mul_f64(fastrand::f64()), kept_until).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// True if the peer's key is removed, as in a regular stop.
    async fn goes(&self) -> bool {
        let mut known = self.known.clone();
        let gone = known.wait_for(|known| !known.contains_key(&self.replica.id));
        matches!(timeout(GONE_WITHIN, gone).await, Ok(Ok(_)))
    }

    fn is_known(&self) -> bool {
        self.known.borrow().contains_key(&self.replica.id)
    }

    /// Waits, unless the peer is removed meanwhile.
    async fn rest(&mut self, pause: Duration, kept_until: Instant) {
        let id = self.replica.id.clone();
        let mut known = self.known.clone();
        let mut gone = pin!(known.wait_for(|known| !known.contains_key(&id)));
        let mut rested = pin!(sleep(pause));
        let mut is_kept = true;
        loop {
            tokio::select! {
                () = &mut rested => return,
                Ok(_) = &mut gone => return,
                () = sleep_until(kept_until), if is_kept => {
                    is_kept = false;
                    self.mirror.clear();
                }
            }
        }
    }

    /// Opens a stream and reads the first message.
    async fn open(&mut self, kept_until: Instant) -> Result<Opened, String> {
        let (cluster, replica) = (self.cluster.clone(), self.replica.clone());
        let mut opening = pin!(timeout(OPEN_WITHIN, open(cluster, replica)));
        let mut is_kept = true;
        loop {
            tokio::select! {
                opened = &mut opening => {
                    return opened.unwrap_or_else(|_| Err(format!("no answer within {} s", OPEN_WITHIN.as_secs())));
                }
                () = sleep_until(kept_until), if is_kept => {
                    is_kept = false;
                    self.mirror.clear();
                }
            }
        }
    }

    /// Mirrors the messages until the stream ends.
    async fn receive(&mut self, mut opened: Opened) -> Ended {
        self.mirror.begin(opened.epoch.clone());
        self.take(opened.first, &opened.epoch);
        let mut silent_at = Instant::now() + SILENT_FOR;
        loop {
            let message = tokio::select! {
                message = timeout_at(silent_at, opened.messages.message()) => message,
                changed = opened.paces.changed() => {
                    if changed.is_err() {
                        return Ended::Lost("this replica is stopping".to_owned());
                    }
                    let watched = Some(opened.paces.borrow_and_update().to_wire());
                    opened.say.send_if_modified(|messages| {
                        let is_news = messages.watched != watched;
                        messages.watched = watched;
                        is_news
                    });
                    // The message was not the peer's.
                    continue;
                }
            };
            silent_at = Instant::now() + SILENT_FOR;
            match message {
                Ok(Ok(Some(_))) if *self.cluster.fleet.table().epoch() != opened.epoch => {
                    return Ended::Lost("the store was replaced".to_owned());
                }
                Ok(Ok(Some(message))) => self.take(message, &opened.epoch),
                Ok(Ok(None)) => return Ended::Leaving,
                Ok(Err(status)) => return Ended::Lost(status_text(&status)),
                Err(_) => {
                    return Ended::Lost(format!("no message for {} s", SILENT_FOR.as_secs()));
                }
            }
        }
    }

    fn take(&mut self, mut message: v1::FollowResponse, epoch: &str) {
        for kill in std::mem::take(&mut message.held_kills).into_iter().take(MAX_KILLS) {
            // No room: the peer sends it again within a second.
            let _ = self.cluster.fleet.state.hold.try_send(Hold::Take { kills: vec![kill], answer: None });
        }
        if message.sent_at.is_some() {
            self.cluster.peers.status(&self.replica.id, message.sent_at, message.unaccepted_store.take());
        }
        let (revision, complete) = (message.revision, message.complete);
        if let Some(at) = message.last_export_at.and_then(|at| SystemTime::try_from(at).ok()) {
            // The peer's clock may be ahead.
            self.cluster.peers.exported(at.min(SystemTime::now()));
        }
        let left_out = self.mirror.take(message);
        self.cluster.fleet.metrics.follow_faults.increment(left_out);
        if complete {
            self.cluster.peers.reachable(&self.replica.id, epoch);
            self.cluster.fleet.hub.changed();
            tracing::info!(replica = self.replica.id, "peer connected");
        }
        self.cluster.peers.is_at(&self.replica.id, revision, self.cluster.fleet.table().revision());
    }
}

async fn open(cluster: Arc<Cluster>, replica: v1::Replica) -> Result<Opened, String> {
    let epoch = cluster.fleet.table().epoch().clone();
    let mut paces = cluster.fleet.hub.pace();
    let request = v1::FollowRequest {
        replica: cluster.peers.id().to_string(),
        epoch: epoch.to_string(),
        watched: Some(paces.borrow_and_update().to_wire()),
    };
    let (say, requests) = watch::channel(request);
    let mut client = connect(&cluster, &replica.address).await?;
    let mut request = Request::new(WatchStream::new(requests));
    let credential = cluster.access.peer_credential(&cluster.fleet.table());
    let credential = credential.and_then(|value| MetadataValue::try_from(value.as_bytes()).ok());
    if let Some(mut credential) = credential {
        credential.set_sensitive(true);
        request.metadata_mut().insert("authorization", credential);
    }
    let answer = client.follow(request).await;
    let mut messages = answer.map_err(|status| status_text(&status))?.into_inner();
    let first = messages.message().await.map_err(|status| status_text(&status))?;
    let first = first.ok_or_else(|| "the peer closed the stream at once".to_owned())?;
    if first.replica != replica.id {
        return Err(format!(
            "this address belongs to replica {}",
            first.replica.chars().take(key::MAX_NAME_BYTES).collect::<String>()
        ));
    }
    if *first.epoch != *epoch {
        return Err("it uses another store".to_owned());
    }
    Ok(Opened { messages, first, epoch, say, paces })
}

/// Formats a status for operators.
fn status_text(status: &tonic::Status) -> String {
    let mut text = format!("{} ({:?})", status.message(), status.code());
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text.chars().take(500).collect()
}
