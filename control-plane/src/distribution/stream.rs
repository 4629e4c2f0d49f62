//! One client's stream, from hello to goodbye.
//!
//! The task holds one position: the table its client was last brought to. When the table is another and the
//! outgoing slot is free, it makes the response that leads from the one to the other. It reads at all times,
//! also while its client does not; a client that leaves the slot full for too long is cut off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use damper_proto::v1::{self, client_message, server_message};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::Desk;
use super::reports::Allowance;
use super::responses::Response;
use super::told::ToldKills;
use crate::access::Caller;
use crate::class::Class;
use crate::connection::Peer;
use crate::errors::Error;
use crate::hub::{Admitted, Session};
use crate::limits::layer::identity;
use crate::limits::{Limit, Registered};
use crate::replicas;
use crate::shared::Shared;
use crate::table::{Subject, TableView};
use crate::watching::Pace;

const HELLO_WITHIN: Duration = Duration::from_secs(10);
const CATCH_UP_WITHIN: Duration = Duration::from_secs(5);
/// How long the last message of a stream may wait for its place.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(1);

type Out = mpsc::Sender<Result<v1::ServerMessage, Status>>;

/// Why a stream ends.
enum End {
    ClientLeft,
    Goodbye(&'static str),
    Refused(Status),
    Slow,
}

/// One stream's position and what it has to say.
struct Stream {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    admitted: Admitted,
    tables: watch::Receiver<Arc<TableView>>,
    paces: watch::Receiver<Pace>,
    /// How often the client was last told to report.
    interval: Option<Duration>,
    out: Out,
    /// The table the client was brought to, or is being brought to by `pages`.
    at: Arc<TableView>,
    /// The response that is being sent.
    underway: Option<Underway>,
    told_kills: ToldKills,
    bookmark_due: bool,
    /// Since when there is something to say and no room to say it.
    waiting_since: Option<Instant>,
    reports: Allowance,
    _room: Option<(OwnedSemaphorePermit, Registered)>,
}

/// A response that is being sent.
struct Underway {
    response: Response,
    nonce: u64,
    next_page: usize,
}

/// Serves one stream to its end.
pub(super) async fn serve(
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    (peer, caller): (Option<Peer>, Caller),
    mut inbound: Streaming<v1::ClientMessage>,
    out: Out,
) {
    let end = match open(&shared, &desk, (peer.as_ref(), &caller), &mut inbound, &out).await {
        Ok(mut stream) => stream.converse(&mut inbound).await,
        Err(end) => end,
    };
    let last_word = match end {
        End::ClientLeft => return,
        End::Slow => {
            shared.metrics.slow_consumers.increment(1);
            if let Some(peer) = peer {
                tracing::warn!(%peer.address, "a stream did not read in time and was closed");
                peer.cut_off();
            }
            Err(Status::resource_exhausted("the stream was not read in time"))
        }
        End::Refused(status) => Err(status),
        End::Goodbye(reason) => Ok(message(
            &shared.table(),
            server_message::Kind::Goodbye(v1::Goodbye { reason: reason.to_owned() }),
        )),
    };
    // A client that does not even take the last word is told nothing.
    let _ = timeout(LAST_WORD_WITHIN, out.send(last_word)).await;
}

/// Takes the hello and makes the first response.
async fn open(
    shared: &Arc<Shared>,
    desk: &Arc<Desk>,
    (peer, caller): (Option<&Peer>, &Caller),
    inbound: &mut Streaming<v1::ClientMessage>,
    out: &Out,
) -> Result<Stream, End> {
    let hello = tokio::select! {
        hello = timeout(HELLO_WITHIN, inbound.message()) => hello,
        () = shared.stopping.cancelled() => return Err(End::Goodbye("the server is stopping")),
    };
    let hello = match hello {
        Ok(Ok(Some(v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }))) => hello,
        Ok(Ok(Some(_))) => return Err(refused(Error::fault("kind", "the first message must be a hello"))),
        Ok(Ok(None)) => return Err(End::ClientLeft),
        Ok(Err(status)) => return Err(refused(Error::Unread(status))),
        Err(_) => return Err(refused(Error::TooLate(HELLO_WITHIN))),
    };
    let class = Class::read(&hello).map_err(|faults| refused(Error::at("hello", faults)))?;
    caller.permit_client(&class.service).map_err(|denied| {
        shared.metrics.denied(denied.reason());
        shared.access.turned_away.note(peer, caller, &class.service, &denied);
        refused(denied.into())
    })?;
    let room =
        peer.map(|peer| shared.limiter.stream(&identity(caller, peer))).transpose().map_err(refused)?;
    let mut tables = shared.distributed.clone();
    catch_up(shared, &hello, &mut tables).await;
    let pass = desk.admissions.acquire().await.expect("the semaphore is never closed");
    let at = tables.borrow_and_update().clone();
    let base = (hello.epoch == **at.epoch() && hello.revision <= at.revision() && class.has_all_features())
        .then_some(hello.revision);
    let changed = match base {
        Some(base) => changed_since(shared, &at, base).await,
        None => None,
    };
    let told_kills = ToldKills::none(&hello);
    let session = Session::new(hello, peer.map(|peer| peer.address), class, &at);
    let paces = shared.hub.pace();
    let mut stream = Stream {
        admitted: Admitted::new(shared, session),
        shared: shared.clone(),
        desk: desk.clone(),
        tables,
        paces,
        interval: None,
        out: out.clone(),
        at: at.clone(),
        underway: None,
        told_kills,
        bookmark_due: false,
        waiting_since: None,
        reports: Allowance::new(shared.settings.watched_report_interval),
        _room: room,
    };
    stream.respond(at, base, changed);
    // A client that missed nothing is told so at once.
    stream.bookmark_due = stream.underway.is_none();
    drop(pass);
    Ok(stream)
}

fn refused(error: Error) -> End {
    End::Refused(error.into())
}

/// Where a client is ahead in the same epoch, waits until the table has caught up or has another epoch. If
/// neither happens in time (the store is away), the client gets a snapshot of what there is.
async fn catch_up(shared: &Shared, hello: &v1::Hello, tables: &mut watch::Receiver<Arc<TableView>>) {
    let reached = |view: &Arc<TableView>| hello.epoch != **view.epoch() || hello.revision <= view.revision();
    if reached(&tables.borrow()) {
        return;
    }
    // Full: the table is being asked already, and what it finds serves this client too.
    let _ = shared.ahead.try_send(hello.revision);
    let _ = timeout(CATCH_UP_WITHIN, tables.wait_for(reached)).await;
}

/// What was changed since a revision, from memory or from the store.
async fn changed_since(shared: &Shared, view: &TableView, base: u64) -> Option<BTreeSet<Subject>> {
    if let Some(changed) = view.changed_since(base) {
        return Some(changed);
    }
    let changes = timeout(CATCH_UP_WITHIN, shared.store.changes(base, view.revision())).await.ok()?.ok()?;
    let whole = changes.first().is_some_and(|first| first.revision == base + 1)
        && changes.last().is_some_and(|last| last.revision == view.revision());
    let edits = changes.iter().flat_map(|change| &change.edits);
    whole.then(|| edits.filter_map(|edit| Subject::of_key(&edit.key)).collect())
}

fn message(view: &TableView, kind: server_message::Kind) -> v1::ServerMessage {
    v1::ServerMessage {
        epoch: view.epoch().to_string(),
        revision: view.revision(),
        nonce: 0,
        kind: Some(kind),
        kills: None,
    }
}

impl Stream {
    async fn converse(&mut self, inbound: &mut Streaming<v1::ClientMessage>) -> End {
        let shared = self.shared.clone();
        let out = self.out.clone();
        let spread = 0.9 + 0.2 * fastrand::f64();
        let age = sleep(shared.settings.stream_age.mul_f64(spread));
        let leaving = async {
            shared.stopping.cancelled().await;
            sleep(replicas::goodbye_after(&shared)).await;
        };
        tokio::pin!(age, leaving);
        let mut bookmark = Box::pin(sleep(shared.settings.bookmark_interval));
        loop {
            let waiting = self.is_waiting();
            let patience =
                self.waiting_since.unwrap_or_else(Instant::now) + shared.settings.slow_consumer_after;
            tokio::select! {
                () = &mut leaving => return End::Goodbye("the server is stopping"),
                () = &mut age => return End::Goodbye("streams are renewed from time to time"),
                said = inbound.message() => match said {
                    Ok(Some(said)) => if let Err(end) = self.hear(said) { return end },
                    Ok(None) => return End::ClientLeft,
                    Err(status) => return refused(Error::Unread(status)),
                },
                room = out.reserve(), if waiting => {
                    let Ok(room) = room else { return End::ClientLeft };
                    self.waiting_since = None;
                    if let Some(message) = self.next_message() {
                        bookmark.as_mut().reset(Instant::now() + shared.settings.bookmark_interval);
                        room.send(Ok(message));
                    }
                }
                () = sleep_until(patience), if waiting => return End::Slow,
                () = out.closed(), if !waiting => return End::ClientLeft,
                () = &mut bookmark, if !self.bookmark_due => {
                    self.bookmark_due = true;
                    bookmark.as_mut().reset(Instant::now() + shared.settings.bookmark_interval);
                }
                changed = self.tables.changed() => if changed.is_err() {
                    return End::Goodbye("the server is stopping");
                },
                changed = self.paces.changed() => if changed.is_err() {
                    return End::Goodbye("the server is stopping");
                },
            }
        }
    }

    /// True if there is something to say; notes since when.
    fn is_waiting(&mut self) -> bool {
        let waiting = self.underway.is_some()
            || self.interval_due().is_some()
            || self.bookmark_due
            || !self.tables.borrow().same_rules(&self.at);
        if waiting {
            self.waiting_since.get_or_insert_with(Instant::now);
        }
        waiting
    }

    /// How often the client is to report, where it was not told so.
    fn interval_due(&self) -> Option<Duration> {
        let wanted = self.paces.borrow().of(&self.admitted.session.class);
        (self.interval != Some(wanted)).then_some(wanted)
    }

    fn hear(&mut self, said: v1::ClientMessage) -> Result<(), End> {
        let session = &self.admitted.session;
        match said.kind {
            Some(client_message::Kind::Ack(ack)) => {
                if session.acknowledge(ack) {
                    self.shared.metrics.refusals.increment(1);
                }
                self.shared.hub.moved(session);
                Ok(())
            }
            Some(client_message::Kind::Report(report)) => {
                if !self.reports.take() {
                    let text = "this client reports more often than any that it is asked to".to_owned();
                    return Err(refused(Error::TooMuch { limit: Limit::Reports, text, again_after: None }));
                }
                session.reported(report.source, report.override_mode);
                self.shared.metrics.reports.increment(1);
                let left_out = self.shared.stats.report(session, &report);
                self.shared.metrics.report_faults.increment(left_out);
                // What is not taken here is none of the other replicas' business.
                let parts = (report.routes.len() + report.served.len()) as u64;
                if parts == 0 || left_out < parts {
                    self.shared.hub.reported(session, report);
                }
                Ok(())
            }
            Some(client_message::Kind::Hello(_)) => {
                Err(refused(Error::fault("kind", "a hello may only be the first message")))
            }
            // Of a later version of the wire.
            None => Ok(()),
        }
    }

    /// What to say now that there is room: the response under way, the way to the latest table, the rest.
    fn next_message(&mut self) -> Option<v1::ServerMessage> {
        if self.underway.is_none() {
            let latest = self.tables.borrow_and_update().clone();
            if !latest.same_rules(&self.at) {
                let base = (latest.epoch() == self.at.epoch()).then(|| self.at.revision());
                let changed = base.and_then(|base| latest.changed_since(base));
                self.respond(latest, base, changed);
            }
        }
        if let Some(page) = self.next_page() {
            return Some(page);
        }
        if let Some(interval) = self.interval_due() {
            self.interval = Some(interval);
            let interval = prost_types::Duration::try_from(interval).ok();
            self.shared.metrics.sent("report_settings");
            let settings = v1::ReportSettings { interval };
            return Some(message(&self.at, server_message::Kind::ReportSettings(settings)));
        }
        self.bookmark_due.then(|| {
            self.bookmark_due = false;
            self.shared.metrics.sent("bookmark");
            let bookmark = message(&self.at, server_message::Kind::Bookmark(v1::Bookmark {}));
            let kills = self.told_kills.tell_first(&self.at, &self.admitted.session.class);
            v1::ServerMessage { kills, ..bookmark }
        })
    }

    /// The next part of the response under way; only its last part wants an answer.
    fn next_page(&mut self) -> Option<v1::ServerMessage> {
        let underway = self.underway.as_mut()?;
        let nonce = underway.nonce;
        let (kind, last) = match &underway.response {
            Response::Nothing => return None,
            Response::Delta(delta) => (server_message::Kind::Delta(v1::Delta::clone(delta)), true),
            Response::Snapshot(pages) => {
                let page = pages.get(underway.next_page)?.clone();
                underway.next_page += 1;
                let last = page.last;
                (server_message::Kind::Snapshot(page), last)
            }
        };
        // A kill that was set meanwhile does not wait for the rest of a snapshot. The answer to its last page is
        // the proof that those before it were obeyed.
        let kills = self.told_kills.tell(&self.at, &self.tables.borrow(), &self.admitted.session.class);
        let nonce = if last { nonce } else { 0 };
        if last {
            self.underway = None;
        }
        Some(v1::ServerMessage { nonce, kills, ..message(&self.at, kind) })
    }

    /// Makes the response that leads to a table, and moves there.
    fn respond(&mut self, to: Arc<TableView>, base: Option<u64>, changed: Option<BTreeSet<Subject>>) {
        let session = &self.admitted.session;
        let mut response = self.desk.responses.response(&to, &session.class, base, || changed);
        let missed = base != Some(to.revision());
        if matches!(response, Response::Nothing) && self.told_kills.want_response(&to, &session.class, missed)
        {
            response = Response::Delta(Arc::default());
        }
        let mut progress = session.progress();
        if progress.epoch != *to.epoch() {
            progress.start_anew(to.epoch().clone());
        } else {
            progress.settle();
        }
        self.shared.metrics.sent(match response {
            Response::Nothing => "nothing",
            Response::Delta(_) => "delta",
            Response::Snapshot(_) => "snapshot",
        });
        if !matches!(response, Response::Nothing) {
            let nonce = progress.send_response();
            self.underway = Some(Underway { response, nonce, next_page: 0 });
        }
        progress.sent_revision = to.revision();
        drop(progress);
        self.shared.hub.moved(session);
        self.at = to;
    }
}
