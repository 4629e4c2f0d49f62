//! The conversation with the control plane, one stream after another.
//!
//! Per stream: the hello says who this is and what it holds; each response is put in force first and answered
//! then, a snapshot only once it is on disk; reports go out between. A stream on which nothing is heard for
//! 45 s (three bookmarks) is given up. Nothing here is waited for by an application's call, a long table is
//! read aside, and a server that reads slowly holds up nothing but the answers to it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::Token;
use damper_proto::v1;
use damper_proto::v1::client_message::Kind as FromUs;
use damper_proto::v1::server_message::Kind;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::transport::Uri;
use tonic::{Code, Streaming};

use super::applier::{ApplyOutcome, Position, Response, Told};
use super::opening::{ConnectError, Connector};
use super::reconnect::{ReconnectStep, Replica, Replicas};
use super::report::Reporter;
use super::{ControlContext, Stop};
use crate::aside::aside;

/// Three bookmarks.
const SILENCE: Duration = Duration::from_secs(45);
/// A server that does not take an answer for so long is not reading.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A polite goodbye must not hold up the end of the process.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// A hello or an answer stays below the control plane's limit of 1 MiB per message.
const MAX_REFUSALS: usize = 300;
const MAX_REFUSAL_BYTES: usize = 768 << 10;
/// Up to so many rules, guards and kills are gone through at once, within a millisecond or two.
const MAX_EFFORT: usize = 1_000;
/// So often the files are read for another token while all replicas deny the present one.
const LOOK_FOR_TOKEN_EVERY: Duration = Duration::from_secs(1);
/// An outage is warned of once, and again after each of these.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// What a server says may be of any length.
const MAX_PROBLEM_CHARS: usize = 500;

/// Follows one replica after another until the end.
pub(super) async fn run(shared: &Arc<ControlContext>, mut stop: Stop) {
    let mut following = Following {
        shared,
        replicas: Replicas::new(shared.settings.endpoints.clone()),
        opener: Connector::default(),
        denied: None,
        warned: None,
    };
    loop {
        let turn = tokio::select! {
            turn = following.next() => turn,
            () = stop.stopped() => return,
        };
        let (endpoint, (replica, ended)) = match turn {
            None => return,
            Some(Err(unknown)) => (None, unknown),
            Some(Ok(replica)) => match following.follow(&replica, &mut stop).await {
                None => return,
                Some(ended) => (Some(replica.endpoint.clone()), (replica.to_string(), ended)),
            },
        };
        let denied_by = endpoint.filter(|_| matches!(ended, Ended::Missed(ConnectError::Denied(..))));
        let wait = following.note(&replica, ended);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = following.finds_another_token(denied_by) => {}
            () = stop.stopped() => return,
        }
    }
}

/// How a try ended.
#[derive(Debug)]
enum Ended {
    /// There was no stream, or it brought nothing.
    Missed(ConnectError),
    /// The stream had brought rules.
    Over { trouble: ConnectError, lasted: Duration },
}

/// What lasts from one stream to the next.
struct Following<'a> {
    shared: &'a Arc<ControlContext>,
    replicas: Replicas,
    opener: Connector,
    /// What was shown when we were not let in, and how that was said: it is warned of once.
    denied: Option<(Code, Option<Token>)>,
    /// When the present outage was last warned of.
    warned: Option<Instant>,
}

impl Following<'_> {
    /// The replica to try now, or the endpoint that names none at present; nothing if there are no endpoints.
    async fn next(&mut self) -> Option<Result<Replica, (String, Ended)>> {
        loop {
            let endpoint = match self.replicas.turn()? {
                ReconnectStep::Ask(replica) => return Some(Ok(replica)),
                ReconnectStep::LookUp(endpoint) => endpoint,
            };
            let found = self.opener.look_up(&endpoint).await;
            let found = found.and_then(|addresses| match addresses.is_empty() {
                true => Err("the name has no address".to_owned()),
                false => Ok(addresses),
            });
            match found {
                Ok(addresses) => self.replicas.found(&endpoint, addresses),
                Err(problem) => {
                    let name = endpoint.to_string();
                    return Some(Err((name, Ended::Missed(ConnectError::Failed(problem)))));
                }
            }
        }
    }

    /// One stream, until it breaks; nothing if it was ended here.
    async fn follow(&mut self, replica: &Replica, stop: &mut Stop) -> Option<Ended> {
        self.shared.applier().begin_stream();
        let opened = tokio::select! {
            opened = self.opener.open(self.shared, replica) => opened,
            () = stop.stopped() => return None,
        };
        let (outbox, inbox) = match opened {
            Ok(ends) => ends,
            Err(trouble) => return Some(Ended::Missed(trouble)),
        };
        let begun = Instant::now();
        let (shared, opener) = (self.shared, &self.opener);
        let mut conversation = ControlStream {
            shared,
            opener,
            replica,
            outbox,
            reporter: Reporter::new(),
            heard: false,
            brought_rules: false,
        };
        let trouble = conversation.hold(inbox, stop).await?;
        Some(match conversation.brought_rules {
            true => Ended::Over { trouble, lasted: begun.elapsed() },
            false => Ended::Missed(trouble),
        })
    }

    /// Says why there is no stream, in the status and the log; how long to wait.
    fn note(&mut self, replica: &str, ended: Ended) -> Duration {
        let was_open = matches!(ended, Ended::Over { .. });
        let (trouble, wait) = match ended {
            Ended::Over { trouble, lasted } => {
                (self.denied, self.warned) = (None, None);
                (trouble, self.replicas.after_stream(lasted))
            }
            Ended::Missed(trouble @ ConnectError::Denied(..)) => (trouble, self.replicas.after_denial()),
            Ended::Missed(trouble) => (trouble, self.replicas.after_miss()),
        };
        let rules = self.shared.status.borrow().source;
        let (denied, problem) = match trouble {
            ConnectError::Denied(code, problem) => (Some((code, self.opener.shown().cloned())), problem),
            ConnectError::Failed(problem) => (None, self.opener.hide(&problem)),
        };
        let problem = Short(&problem).to_string();
        match &denied {
            Some(_) if denied == self.denied => {
                tracing::debug!(%replica, %problem, ?wait, "still not let in");
            }
            Some(_) => {
                tracing::warn!(%replica, %problem, ?wait, %rules, "not let in; calls go on, trying again");
            }
            None if wait.is_zero() => {
                tracing::debug!(%replica, %problem, "control plane not reached; trying the next replica");
            }
            None if was_open => {
                tracing::info!(%replica, %problem, ?wait, "the control plane's stream ended; connecting again");
            }
            None if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) => {
                tracing::debug!(%replica, %problem, ?wait, "still no stream from the control plane");
            }
            None => {
                self.warned = Some(Instant::now());
                tracing::warn!(%replica, %problem, ?wait, %rules, "no stream from the control plane; calls go on, connecting again");
            }
        }
        self.shared.status.send_modify(|status| {
            status.connected = false;
            status.denied = denied.is_some();
            status.last_problem = Some(format!("{replica}: {problem}"));
        });
        if denied.is_some() {
            self.denied = denied;
        }
        wait
    }

    /// Returns once the files hold another token than the one that this endpoint denied; never without a denial.
    async fn finds_another_token(&mut self, endpoint: Option<Uri>) {
        let Some(endpoint) = endpoint else { return std::future::pending().await };
        loop {
            tokio::time::sleep(LOOK_FOR_TOKEN_EVERY).await;
            let found = self.opener.read(self.shared, &endpoint).await;
            if found.is_ok_and(|opening| opening.token.as_ref() != self.opener.shown()) {
                return;
            }
        }
    }
}

struct ControlStream<'a> {
    shared: &'a Arc<ControlContext>,
    opener: &'a Connector,
    replica: &'a Replica,
    outbox: mpsc::Sender<v1::ClientMessage>,
    reporter: Reporter,
    /// The server has answered: what took the connection is a control plane that lets us in.
    heard: bool,
    brought_rules: bool,
}

impl ControlStream<'_> {
    /// Speaks until the stream breaks, with the reason, or until the end.
    async fn hold(
        &mut self,
        mut inbox: Streaming<v1::ServerMessage>,
        stop: &mut Stop,
    ) -> Option<ConnectError> {
        let mut silent_at = Instant::now() + SILENCE;
        let mut reported_at = Instant::now();
        let report = tokio::time::sleep(self.reporter.wait());
        tokio::pin!(report);
        loop {
            tokio::select! {
                () = stop.stopped() => {
                    self.close(inbox).await;
                    return None;
                }
                received = tokio::time::timeout_at(silent_at, inbox.message()) => {
                    let received = match received {
                        Err(_) => return Some(format!("nothing heard for {SILENCE:?}").into()),
                        Ok(Err(status)) => return Some(self.opener.said(&status)),
                        Ok(Ok(None)) => return Some("the server ended the stream".to_owned().into()),
                        Ok(Ok(Some(received))) => received,
                    };
                    silent_at = Instant::now() + SILENCE;
                    self.hears();
                    let is_pace = matches!(received.kind, Some(Kind::ReportSettings(_)));
                    if let Err(problem) = self.obey(received).await {
                        return Some(problem.into());
                    }
                    if is_pace {
                        // From the last report on: a pace that changes all the time must not put the next one off.
                        report.as_mut().reset(reported_at + self.reporter.wait());
                    }
                }
                () = &mut report => {
                    self.report().await;
                    reported_at = Instant::now();
                    report.as_mut().reset(Instant::now() + self.reporter.wait());
                }
            }
        }
    }

    /// Notes a message. With the first one the stream is known to be a control plane's.
    fn hears(&mut self) {
        if !std::mem::replace(&mut self.heard, true) {
            tracing::info!(replica = %self.replica, "connected to the control plane");
            self.shared.status.send_modify(|status| (status.connected, status.denied) = (true, false));
        }
    }

    /// Does what a message says.
    async fn obey(&mut self, received: v1::ServerMessage) -> Result<(), String> {
        let at = self.shared.engine.clock().now();
        let v1::ServerMessage { epoch, revision, nonce, kind, kills, commit } = received;
        let response = match kind {
            Some(Kind::Snapshot(page)) => Response::Snapshot(page),
            Some(Kind::Delta(delta)) => Response::Delta(delta),
            Some(Kind::Bookmark(v1::Bookmark {})) => Response::Bookmark,
            Some(Kind::Goodbye(v1::Goodbye { reason })) => {
                return Err(format!("the server said goodbye: {reason}"));
            }
            Some(Kind::ReportSettings(settings)) => {
                if !self.reporter.set(&settings) {
                    tracing::warn!(?settings, "report settings that make no sense are ignored");
                }
                warn_of_end(settings.token_ends_at);
                return Ok(());
            }
            // Of a newer server, which must not need an answer to it.
            None => return Ok(()),
        };
        let kills = kills.map(|set| Told { set, at });
        let throws = kills.is_some();
        let outcome = self.apply(Position { epoch, revision, commit }, response, kills).await?;
        if throws && outcome == ApplyOutcome::Incomplete && self.shared.place.is_some() {
            self.shared.keeper.ask();
        }
        let refused = self.follow_up(outcome, revision).await?;
        self.answer(nonce, refused).await
    }

    async fn apply(
        &self,
        position: Position,
        response: Response,
        kills: Option<Told>,
    ) -> Result<ApplyOutcome, String> {
        let effort = self.shared.applier().effort(&response, kills.as_ref());
        if effort <= MAX_EFFORT {
            return Ok(self.shared.apply(position, response, kills));
        }
        let shared = Arc::clone(self.shared);
        aside(move || shared.apply(position, response, kills)).await
    }

    /// Has what changed kept; what was refused comes back.
    async fn follow_up(&mut self, outcome: ApplyOutcome, sent: u64) -> Result<Vec<v1::Refusal>, String> {
        match outcome {
            ApplyOutcome::OutOfStep(problem) => return Err(problem.to_owned()),
            ApplyOutcome::Incomplete => {}
            ApplyOutcome::Stale => {
                tracing::warn!(revision = sent, "older than what is held; ignored");
            }
            ApplyOutcome::Confirmed => self.brought_rules = true,
            ApplyOutcome::Applied { refused, whole } => {
                self.brought_rules = true;
                note(&refused);
                if self.shared.place.is_some() {
                    match whole {
                        true => self.shared.keeper.ask_and_wait().await,
                        false => self.shared.keeper.ask(),
                    }
                }
                return Ok(refused);
            }
        }
        Ok(Vec::new())
    }

    async fn answer(&self, nonce: u64, refused: Vec<v1::Refusal>) -> Result<(), String> {
        if nonce == 0 {
            return Ok(());
        }
        let revision = self.shared.applier().position().map_or(0, |at| at.revision);
        let ack =
            message(FromUs::Ack(v1::Ack { nonce, revision, refused: at_most(&refused, refused.len()) }));
        match tokio::time::timeout(ANSWER_WITHIN, self.outbox.send(ack)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("the stream is closed".to_owned()),
            Err(_) => Err(format!("the server has read nothing for {ANSWER_WITHIN:?}")),
        }
    }

    /// Sends what is new; if there is no room for it, it is said the next time.
    async fn report(&mut self) {
        for part in self.reporter.parts(self.shared).await {
            if self.outbox.try_send(message(FromUs::Report(part))).is_err() {
                self.reporter.forget();
                return;
            }
        }
    }

    /// The last report, then the end of our side; the server's end says that it has read it.
    async fn close(&mut self, mut inbox: Streaming<v1::ServerMessage>) {
        self.report().await;
        let (closed, _) = mpsc::channel(1);
        self.outbox = closed;
        let ended = async { while let Ok(Some(_)) = inbox.message().await {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, ended).await;
    }
}

/// The server names the end of our token when it is near.
fn warn_of_end(end: Option<prost_types::Timestamp>) {
    if let Some(end) = end {
        tracing::warn!(
            %end,
            "the token shown to the control plane ends soon; replace it, or this process keeps the rules that it has then"
        );
    }
}

pub(super) fn message(kind: FromUs) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

/// With more the server would refuse the message and learn of none.
pub(super) fn at_most<'a>(
    refused: impl IntoIterator<Item = &'a v1::Refusal>,
    count: usize,
) -> Vec<v1::Refusal> {
    let mut bytes = 0;
    let fits = |refusal: &&v1::Refusal| {
        bytes += refusal.encoded_len();
        bytes <= MAX_REFUSAL_BYTES
    };
    let named: Vec<_> = refused.into_iter().take(MAX_REFUSALS).take_while(fits).cloned().collect();
    if named.len() < count {
        tracing::warn!(refused = count, named = named.len(), "too many refusals to name them all");
    }
    named
}

fn note(refused: &[v1::Refusal]) {
    let Some(v1::Refusal { key, revision, reason, guard, kill }) = refused.first() else { return };
    let (count, first) = (refused.len(), format!("{key:?}"));
    tracing::warn!(count, first = %Short(&first), guard, kill, revision, reason, "rules, guards or kills refused; each keeps its previous version; without one a rule is off, and a guard or kill does not hold");
}

/// The beginning of a text of the peer's, on one line: it may be of any length and have breaks of lines in it.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shown in self.0.chars().take(MAX_PROBLEM_CHARS) {
            f.write_char(if shown.is_control() { ' ' } else { shown })?;
        }
        if self.0.chars().nth(MAX_PROBLEM_CHARS).is_some() { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::warn_of_end;

    #[test]
    fn any_end_of_a_token_that_a_server_names_can_be_logged() {
        let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        tracing::subscriber::with_default(subscriber, || {
            for (seconds, nanos) in
                [(i64::MAX, i32::MAX), (i64::MIN, i32::MIN), (0, -1), (253_402_300_800, 0)]
            {
                warn_of_end(Some(prost_types::Timestamp { seconds, nanos }));
            }
        });
    }
}
