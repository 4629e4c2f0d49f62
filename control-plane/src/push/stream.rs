//! One client's stream, from hello to goodbye.
//!
//! The task holds one position: the snapshot that its client was last brought to. When there is another
//! snapshot and the outgoing slot is free, it makes the response from one to the other. It always reads, even
//! if its client does not; a client that leaves the slot full for too long is disconnected.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use damper_proto::v1::{self, client_message, server_message};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::Status;

use crate::auth::caller::Caller;
use crate::auth::limits::identity;
use crate::clients::group::ClientGroup;
use crate::clients::session::ClientSession;
use crate::push::PushContext;
use crate::push::group_quota::GroupPermit;
use crate::push::held_revisions::{Claim, Holding};
use crate::push::report_quota::ReportQuota;
use crate::push::responses::{Place, PushResponse};
use crate::push::sent_kills::SentKills;
use crate::push::sessions::SessionGuard;
use crate::push::wire;
use crate::push::wire::{Inbound, Sent};
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::stats::report_interval::ReportSchedule;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Line;
use damper_net::limits::QuotaPermit;
use damper_net::limits::{Limit, LimitExceeded};
use damper_store::Position;

/// Up to this number of streams get their goodbye at once.
const FEW_STREAMS: usize = 64;
/// The part of the drain time over which goodbyes are spread; the rest is for their delivery.
const GOODBYES_OF_DRAIN: f64 = 0.5;
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// The time that the last message of a stream may wait for the slot.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(1);

/// Epochs drawn by stores have 32 bytes.
const MAX_EPOCH_BYTES: usize = 64;

type Out = mpsc::Sender<Sent>;

/// The reason for the end of a stream.
enum StreamEnd {
    ClientLeft,
    Goodbye(&'static str),
    Refused(Status),
    Slow,
}

/// The position of one stream and its pending messages.
struct ClientStream {
    context: Arc<PushContext>,
    admitted: SessionGuard,
    tables: watch::Receiver<Arc<Snapshot>>,
    paces: watch::Receiver<ReportSchedule>,
    /// The report interval that was last sent to the client.
    interval: Option<Duration>,
    out: Out,
    /// The snapshot that the client has, or is being brought to by `pages`.
    at: Arc<Snapshot>,
    /// The response in flight.
    pending: Option<PendingResponse>,
    sent_kills: SentKills,
    /// The client's claim while it is held.
    held: Option<Claim>,
    bookmark_due: bool,
    /// Since when a message waits for the slot.
    waiting_since: Option<Instant>,
    /// Messages that are not part of a response.
    unasked: ReportQuota,
    _place: (Option<(OwnedSemaphorePermit, QuotaPermit)>, GroupPermit),
    /// The expiry of the client's token, if it is soon.
    token_ends: Option<SystemTime>,
}

/// A response in flight.
struct PendingResponse {
    response: PushResponse,
    nonce: u64,
    /// The position in its pages.
    at: Place,
}

/// Serves one stream to its end.
pub(crate) async fn serve(
    context: Arc<PushContext>,
    (peer, caller): (Option<ConnectionInfo>, Caller),
    mut inbound: Inbound,
    out: Out,
) {
    let end = match open(&context, (peer.as_ref(), &caller), &mut inbound, &out).await {
        Ok(mut stream) => stream.converse(&mut inbound).await,
        Err(end) => end,
    };
    let last_word = match end {
        StreamEnd::ClientLeft => return,
        StreamEnd::Slow => {
            context.fleet.metrics.slow_consumers.increment(1);
            if let Some(peer) = peer {
                if let Some(left_out) = context.limiter.line(Line::SlowReader) {
                    tracing::warn!(%peer.address, left_out, "closed a stream that was not read in time");
                }
                peer.cut_off();
            }
            Err(Status::resource_exhausted("the stream was not read in time"))
        }
        StreamEnd::Refused(status) => Err(status),
        StreamEnd::Goodbye(reason) => {
            let goodbye = server_message::Kind::Goodbye(v1::Goodbye { reason: reason.to_owned() });
            Ok(wire::framed(&message(&context.fleet.table(), Some(goodbye)), &[]))
        }
    };
    // A client that does not read the last message gets none.
    let _ = timeout(LAST_WORD_WITHIN, out.send(last_word)).await;
}

/// Reads the hello and makes the first response.
async fn open(
    context: &Arc<PushContext>,
    (peer, caller): (Option<&ConnectionInfo>, &Caller),
    inbound: &mut Inbound,
    out: &Out,
) -> Result<ClientStream, StreamEnd> {
    let who = peer.map(|peer| identity(caller, peer)).unwrap_or_default();
    let room = peer
        .map(|_| context.limiter.stream(&who))
        .transpose()
        .map_err(|exceeded| refused(exceeded.into()))?;
    let hello = tokio::select! {
        hello = timeout(HELLO_WITHIN, inbound.message()) => hello,
        () = context.stopping.cancelled() => return Err(StreamEnd::Goodbye("this server of the control plane is stopping")),
    };
    let hello = match hello {
        Ok(Ok(Some(v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }))) => hello,
        Ok(Ok(Some(_))) => return Err(refused(ApiError::fault("kind", "the first message must be a hello"))),
        Ok(Ok(None)) => return Err(StreamEnd::ClientLeft),
        Ok(Err(status)) => return Err(refused(ApiError::Unread(status))),
        Err(_) => return Err(refused(ApiError::TooLate(HELLO_WITHIN))),
    };
    let class = ClientGroup::read(&hello).map_err(|faults| refused(ApiError::at("hello", faults)))?;
    caller.permit_client(&class.service).map_err(|denied| {
        context.fleet.metrics.denied(denied.reason());
        context.access.rejected.note(&context.limiter, peer, caller, &class.service, &denied);
        refused(denied.into())
    })?;
    let classed = context.groups.admit(&who, class).map_err(|exceeded| refused(exceeded.into()))?;
    let class = classed.class.clone();
    let mut tables = context.fleet.state.distributed.clone();
    check_epoch(&hello).map_err(refused)?;
    let mut claim = Claim::of(&hello);
    claim.read_commit(context, &context.fleet.table()).await;
    let pass = context.admissions.acquire().await.expect("the semaphore is never closed");
    let at = tables.borrow_and_update().clone();
    let holding = claim.against(&at);
    let sent_kills = SentKills::none(&hello);
    let is_held = holding == Holding::More;
    let session = ClientSession::new(hello, peer.map(|peer| peer.address), class, &at, is_held);
    let paces = context.fleet.hub.pace();
    let mut stream = ClientStream {
        admitted: SessionGuard::new(&context.fleet, session),
        context: context.clone(),
        tables,
        paces,
        interval: None,
        out: out.clone(),
        at: at.clone(),
        pending: None,
        sent_kills,
        held: None,
        bookmark_due: false,
        waiting_since: None,
        unasked: ReportQuota::new(context.config.watched_report_interval),
        _place: (room, classed),
        token_ends: caller.ends_soon(SystemTime::now()),
    };
    if is_held {
        stream.hold(claim);
    } else {
        stream.begin(at, holding);
    }
    drop(pass);
    Ok(stream)
}

fn too_often() -> StreamEnd {
    let text = "too many reports or acknowledgements of this client".to_owned();
    refused(LimitExceeded::new(Limit::Reports, text).into())
}

/// An epoch is stored while its client is connected.
fn check_epoch(hello: &v1::Hello) -> Result<(), ApiError> {
    match hello.epoch.len() {
        0..=MAX_EPOCH_BYTES => Ok(()),
        bytes => {
            Err(ApiError::fault("hello.epoch", format!("has {bytes} bytes (at most {MAX_EPOCH_BYTES})")))
        }
    }
}

fn refused(error: ApiError) -> StreamEnd {
    StreamEnd::Refused(error.into())
}

fn message(view: &Snapshot, kind: Option<server_message::Kind>) -> v1::ServerMessage {
    v1::ServerMessage {
        epoch: view.epoch().to_string(),
        revision: view.revision(),
        commit: view.commit_of(view.revision()).unwrap_or_default(),
        nonce: 0,
        kind,
        kills: None,
    }
}

impl ClientStream {
    async fn converse(&mut self, inbound: &mut Inbound) -> StreamEnd {
        let context = self.context.clone();
        let out = self.out.clone();
        let spread = 0.9 + 0.2 * fastrand::f64();
        let age = sleep(context.config.stream_age.mul_f64(spread));
        let leaving = async {
            context.stopping.cancelled().await;
            sleep(goodbye_after(&context)).await;
        };
        tokio::pin!(age, leaving);
        let mut bookmark = Box::pin(sleep(context.config.bookmark_interval));
        loop {
            let waiting = self.is_waiting();
            let patience =
                self.waiting_since.unwrap_or_else(Instant::now) + context.config.slow_consumer_after;
            tokio::select! {
                () = &mut leaving => return StreamEnd::Goodbye("this server of the control plane is stopping"),
                () = &mut age => return StreamEnd::Goodbye("stream age limit reached; the client reconnects"),
                message = inbound.message() => match message {
                    Ok(Some(message)) => if let Err(end) = self.receive(message) { return end },
                    Ok(None) => return StreamEnd::ClientLeft,
                    Err(status) => return refused(ApiError::Unread(status)),
                },
                room = out.reserve(), if waiting => {
                    let Ok(room) = room else { return StreamEnd::ClientLeft };
                    self.waiting_since = None;
                    if let Some(message) = self.next_message() {
                        bookmark.as_mut().reset(Instant::now() + context.config.bookmark_interval);
                        room.send(Ok(message));
                    }
                }
                () = sleep_until(patience), if waiting => return StreamEnd::Slow,
                () = out.closed(), if !waiting => return StreamEnd::ClientLeft,
                () = &mut bookmark, if !self.bookmark_due => {
                    self.bookmark_due = true;
                    bookmark.as_mut().reset(Instant::now() + context.config.bookmark_interval);
                }
                changed = self.tables.changed() => if changed.is_err() {
                    return StreamEnd::Goodbye("this server of the control plane is stopping");
                },
                changed = self.paces.changed() => if changed.is_err() {
                    return StreamEnd::Goodbye("this server of the control plane is stopping");
                },
            }
        }
    }

    /// True if there is a message to send; records since when.
    fn is_waiting(&mut self) -> bool {
        let waiting = self.pending.is_some()
            || self.interval_due().is_some()
            || self.bookmark_due
            || !self.tables.borrow().same_rules(&self.at);
        match waiting {
            true => drop(self.waiting_since.get_or_insert_with(Instant::now)),
            // The waiting message is obsolete; its time does not count for the next one.
            false => self.waiting_since = None,
        }
        waiting
    }

    /// Returns the report interval if it differs from the one sent last.
    fn interval_due(&self) -> Option<Duration> {
        let wanted = self.paces.borrow().of(&self.admitted.session.class);
        (self.interval != Some(wanted)).then_some(wanted)
    }

    fn receive(&mut self, message: v1::ClientMessage) -> Result<(), StreamEnd> {
        let session = &self.admitted.session;
        match message.kind {
            Some(client_message::Kind::Ack(ack)) => {
                if !session.awaits(ack.nonce) && !self.unasked.take() {
                    return Err(too_often());
                }
                if session.acknowledge(ack, &self.context.fleet.table()) {
                    self.context.fleet.metrics.refusals.increment(1);
                }
                self.context.fleet.hub.moved(session);
                Ok(())
            }
            Some(client_message::Kind::Report(report)) => {
                if !self.unasked.take() {
                    return Err(too_often());
                }
                session.reported(&report);
                self.context.fleet.metrics.reports.increment(1);
                let left_out = self.context.fleet.stats.report(session, &report);
                self.context.fleet.metrics.report_faults.increment(left_out);
                // Reports that are rejected here are not sent to peers.
                let parts = (report.routes.len() + report.served.len()) as u64;
                if parts == 0 || left_out < parts {
                    self.context.fleet.hub.reported(session, report);
                }
                Ok(())
            }
            Some(client_message::Kind::Hello(_)) => {
                Err(refused(ApiError::fault("kind", "a hello may only be the first message")))
            }
            // A message of a later protocol version.
            None => Ok(()),
        }
    }

    /// Returns the next message for the free slot: the response in flight, the response to the latest
    /// snapshot, the rest.
    fn next_message(&mut self) -> Option<Bytes> {
        if self.held.is_some() {
            return self.next_to_held();
        }
        if self.pending.is_none() {
            let latest = self.tables.borrow_and_update().clone();
            if !latest.same_rules(&self.at) {
                let holding = match latest.epoch() == self.at.epoch() {
                    true => Holding::Revision(self.at.revision()),
                    false => Holding::Nothing,
                };
                self.respond(latest, holding);
            }
        }
        if let Some(page) = self.next_page() {
            return Some(page);
        }
        if let Some(interval) = self.interval_due() {
            self.interval = Some(interval);
            let interval = prost_types::Duration::try_from(interval).ok();
            self.context.fleet.metrics.sent("report_settings");
            let token_ends_at = self.token_ends.map(Into::into);
            let settings = v1::ReportSettings { interval, token_ends_at };
            let kind = server_message::Kind::ReportSettings(settings);
            return Some(wire::framed(&message(&self.at, Some(kind)), &[]));
        }
        self.bookmark_due.then(|| {
            self.bookmark_due = false;
            self.context.fleet.metrics.sent("bookmark");
            let bookmark = message(&self.at, Some(server_message::Kind::Bookmark(v1::Bookmark {})));
            let kills = self.sent_kills.next_first(&self.at, &self.admitted.session.class);
            wire::framed(&v1::ServerMessage { kills, ..bookmark }, &[])
        })
    }

    /// Returns the next part of the response in flight; only its last part requires an acknowledgement.
    fn next_page(&mut self) -> Option<Bytes> {
        let pending = self.pending.as_mut()?;
        let nonce = pending.nonce;
        let (page, last) = match &pending.response {
            PushResponse::Nothing => return None,
            PushResponse::Delta(delta) => (delta.clone(), true),
            PushResponse::Snapshot(pages) => {
                pages.next(&mut pending.at, &self.at, &self.admitted.session.class)?
            }
        };
        // A kill that was set meanwhile does not wait for the rest of the snapshot. The acknowledgement of
        // the last page covers all pages.
        let kills = self.sent_kills.next(&self.at, &self.tables.borrow(), &self.admitted.session.class);
        let nonce = if last { nonce } else { 0 };
        if last {
            self.pending = None;
        }
        Some(wire::framed(&v1::ServerMessage { nonce, kills, ..message(&self.at, None) }, &page))
    }

    /// Makes the first response to a client that is not held.
    fn begin(&mut self, at: Arc<Snapshot>, holding: Holding) {
        let all = self.admitted.session.class.has_all_features();
        self.respond(at, if all { holding } else { Holding::Nothing });
        // A client without changes is notified at once.
        self.bookmark_due = self.pending.is_none();
    }

    /// Holds the client, because it has more than this server knows.
    fn hold(&mut self, claim: Claim) {
        // Full: the store is being read already.
        let _ = self.context.fleet.state.refresh.try_send(());
        tracing::debug!(
            service = self.admitted.session.class.service,
            instance = self.admitted.session.instance,
            epoch = claim.at.epoch,
            revision = claim.at.revision,
            "a client holds a later revision or another store; it keeps its rules"
        );
        self.held = Some(claim);
        self.bookmark_due = true;
    }

    /// Returns the next message for a held client: a bookmark, or kills. It is released when the latest
    /// snapshot confirms its claim.
    fn next_to_held(&mut self) -> Option<Bytes> {
        let latest = self.tables.borrow_and_update().clone();
        let claim = self.held.as_ref()?;
        let holding = claim.against(&latest);
        if holding != Holding::More {
            self.held = None;
            self.sent_kills.begin_again();
            self.admitted.session.release();
            self.begin(latest, holding);
            return self.next_message();
        }
        self.at = latest;
        let kills = self.sent_kills.add(&self.at, &self.admitted.session.class, claim.takes_additions);
        if kills.is_none() && !self.bookmark_due {
            return None;
        }
        self.bookmark_due = false;
        self.context.fleet.metrics.sent("bookmark");
        let Position { epoch, revision, commit } = claim.at.clone();
        let kind = Some(server_message::Kind::Bookmark(v1::Bookmark {}));
        let message = v1::ServerMessage { epoch, revision, commit, nonce: 0, kind, kills };
        Some(wire::framed(&message, &[]))
    }

    /// Makes the response that leads to a snapshot, and moves there. The client gets everything if the
    /// changes since its revision are no longer known.
    fn respond(&mut self, to: Arc<Snapshot>, holding: Holding) {
        let changed = match holding {
            Holding::Revision(base) => to.changed_since(base).map(|changed| (base, changed)),
            Holding::Nothing | Holding::More => None,
        };
        let (base, changed) = changed.unzip();
        let session = &self.admitted.session;
        let mut response = self.context.responses.response(&to, &session.class, base, || changed);
        let missed = base != Some(to.revision());
        if matches!(response, PushResponse::Nothing)
            && self.sent_kills.want_response(&to, &session.class, missed)
        {
            response = PushResponse::Delta(wire::kind(server_message::Kind::Delta(v1::Delta::default())));
        }
        let mut progress = session.progress();
        if progress.epoch != *to.epoch() {
            progress.reset(to.epoch().clone());
        } else {
            progress.settle();
        }
        self.context.fleet.metrics.sent(match response {
            PushResponse::Nothing => "nothing",
            PushResponse::Delta(_) => "delta",
            PushResponse::Snapshot(_) => "snapshot",
        });
        if !matches!(response, PushResponse::Nothing) {
            let nonce = progress.send_response();
            self.pending = Some(PendingResponse { response, nonce, at: Place::default() });
        }
        progress.sent_revision = to.revision();
        drop(progress);
        self.context.fleet.hub.moved(session);
        self.at = to;
    }
}

/// Returns the delay of a stream's goodbye when the server stops, so that clients do not all reconnect to the
/// other replicas at the same moment.
fn goodbye_after(context: &PushContext) -> Duration {
    match context.fleet.hub.own_streams() {
        0..=FEW_STREAMS => Duration::ZERO,
        _ => context.config.drain.mul_f64(GOODBYES_OF_DRAIN * fastrand::f64()),
    }
}
