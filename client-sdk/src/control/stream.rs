//! The stream to the control plane, one after another.
//!
//! The hello names this process and the state that it holds. Each response is applied and then acknowledged,
//! a snapshot only once stored on disk. Reports are sent in between. A stream without messages for 45 s
//! (three bookmarks) is closed. No call of the application waits here, large tables are applied off the
//! runtime, and a server that reads slowly delays only its own acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::Token;
use damper_proto::v1;
use damper_proto::v1::client_message::Kind as FromUs;
use damper_proto::v1::server_message::Kind;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::transport::Uri;
use tonic::{Code, Streaming};

use super::applier::{ApplyOutcome, KillMessage, Position, Response};
use super::opening::{ConnectError, Connector};
use super::reconnect::{Replica, Replicas};
use super::refusals::{Short, at_most, note};
use super::report::Reporter;
use super::{ControlContext, Stop};
use crate::background::worker::run_blocking;

/// Time without messages after which a stream is closed: three bookmarks.
const SILENCE: Duration = Duration::from_secs(45);
/// Limit for sending an acknowledgement to a server that does not read.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Limit for closing the stream at shutdown.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Number of entries processed on the runtime, which takes a millisecond or two.
const MAX_EFFORT: usize = 1_000;
/// Interval at which the files are checked for a new token while all replicas deny access.
const LOOK_FOR_TOKEN_EVERY: Duration = Duration::from_secs(1);
/// Interval between warnings of the same outage.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Follows one replica after another until stopped.
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
            turn = following.opener.next(&mut following.replicas) => turn,
            () = stop.stopped() => return,
        };
        let (endpoint, (replica, ended)) = match turn {
            None => return,
            Some(Err((name, problem))) => (None, (name, Ended::Missed(ConnectError::Failed(problem)))),
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

/// Result of an attempt.
#[derive(Debug)]
enum Ended {
    /// There was no stream, or it delivered nothing.
    Missed(ConnectError),
    /// The stream delivered rules.
    Over { trouble: ConnectError, lasted: Duration },
}

/// State kept from one stream to the next.
struct Following<'a> {
    shared: &'a Arc<ControlContext>,
    replicas: Replicas,
    opener: Connector,
    /// Code and token of the last denial, which is logged once.
    denied: Option<(Code, Option<Token>)>,
    /// Time of the last warning of the present outage.
    warned: Option<Instant>,
}

impl Following<'_> {
    /// Runs a stream until it breaks; `None` if stopped.
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
            has_message: false,
            brought_rules: false,
        };
        let trouble = conversation.hold(inbox, stop).await?;
        Some(match conversation.brought_rules {
            true => Ended::Over { trouble, lasted: begun.elapsed() },
            false => Ended::Missed(trouble),
        })
    }

    /// Logs the reason, sets the status and returns the wait.
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
                tracing::debug!(%replica, %problem, ?wait, "access still denied");
            }
            Some(_) => {
                tracing::warn!(%replica, %problem, ?wait, %rules, "access denied by the control plane; retrying, calls continue");
            }
            None if wait.is_zero() => {
                tracing::debug!(%replica, %problem, "replica unavailable; trying the next one");
            }
            None if was_open => {
                tracing::info!(%replica, %problem, ?wait, "stream to the control plane ended; reconnecting");
            }
            None if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) => {
                tracing::debug!(%replica, %problem, ?wait, "control plane still unavailable");
            }
            None => {
                self.warned = Some(Instant::now());
                tracing::warn!(%replica, %problem, ?wait, %rules, "control plane unavailable; reconnecting, calls continue");
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

    /// Returns once the files contain another token than the one that this endpoint denied. Pending forever
    /// without a denial.
    async fn finds_another_token(&mut self, endpoint: Option<Uri>) {
        let Some(endpoint) = endpoint else { return std::future::pending().await };
        loop {
            tokio::time::sleep(LOOK_FOR_TOKEN_EVERY).await;
            let found = self.opener.read(&self.shared.settings.access, &endpoint).await;
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
    /// True once the server has sent a message: the peer is a control plane that accepts this process.
    has_message: bool,
    brought_rules: bool,
}

impl ControlStream<'_> {
    /// Runs the stream. Returns the reason for its end; `None` if stopped.
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
                        Err(_) => return Some(format!("no message within {SILENCE:?}").into()),
                        Ok(Err(status)) => return Some(self.opener.error_of(&status)),
                        Ok(Ok(None)) => return Some("the server closed the stream".to_owned().into()),
                        Ok(Ok(Some(received))) => received,
                    };
                    silent_at = Instant::now() + SILENCE;
                    self.note_message();
                    let is_pace = matches!(received.kind, Some(Kind::ReportSettings(_)));
                    if let Err(problem) = self.handle(received).await {
                        return Some(problem.into());
                    }
                    if is_pace {
                        // Counts from the last report, so that frequent changes of the interval do not delay
                        // it.
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

    /// Notes a message. The first one proves that the peer is a control plane.
    fn note_message(&mut self) {
        if !std::mem::replace(&mut self.has_message, true) {
            tracing::info!(replica = %self.replica, "connected to the control plane");
            self.shared.status.send_modify(|status| (status.connected, status.denied) = (true, false));
        }
    }

    /// Handles a message.
    async fn handle(&mut self, received: v1::ServerMessage) -> Result<(), String> {
        let at = self.shared.engine.clock().now();
        let v1::ServerMessage { epoch, revision, nonce, kind, kills, commit } = received;
        let response = match kind {
            Some(Kind::Snapshot(page)) => Response::Snapshot(page),
            Some(Kind::Delta(delta)) => Response::Delta(delta),
            Some(Kind::Bookmark(v1::Bookmark {})) => Response::Bookmark,
            Some(Kind::Goodbye(v1::Goodbye { reason })) => {
                return Err(format!("goodbye from the server: {reason}"));
            }
            Some(Kind::ReportSettings(settings)) => {
                if !self.reporter.set(&settings) {
                    tracing::warn!(?settings, "report settings out of range; ignored");
                }
                warn_of_end(settings.token_ends_at);
                return Ok(());
            }
            // Sent by a newer server, which must not require an acknowledgement.
            None => return Ok(()),
        };
        let kills = kills.map(|set| KillMessage { set, at });
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
        kills: Option<KillMessage>,
    ) -> Result<ApplyOutcome, String> {
        let effort = self.shared.applier().effort(&response, kills.as_ref());
        if effort <= MAX_EFFORT {
            return Ok(self.shared.apply(position, response, kills));
        }
        let shared = Arc::clone(self.shared);
        run_blocking(move || shared.apply(position, response, kills)).await
    }

    /// Has changes stored and returns the entries rejected.
    async fn follow_up(&mut self, outcome: ApplyOutcome, sent: u64) -> Result<Vec<v1::Refusal>, String> {
        match outcome {
            ApplyOutcome::OutOfStep(problem) => return Err(problem.to_owned()),
            ApplyOutcome::Incomplete => {}
            ApplyOutcome::Stale => {
                tracing::warn!(revision = sent, "stale response ignored");
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
            Ok(Err(_)) => Err("stream closed".to_owned()),
            Err(_) => Err(format!("the server has not read for {ANSWER_WITHIN:?}")),
        }
    }

    /// Sends changes; if the queue is full, with the next report.
    async fn report(&mut self) {
        for part in self.reporter.parts(self.shared).await {
            if self.outbox.try_send(message(FromUs::Report(part))).is_err() {
                self.reporter.forget();
                return;
            }
        }
    }

    /// Sends the last report and closes the sending half. The end of the server's half confirms that it was
    /// read.
    async fn close(&mut self, mut inbox: Streaming<v1::ServerMessage>) {
        self.report().await;
        let (closed, _) = mpsc::channel(1);
        self.outbox = closed;
        let ended = async { while let Ok(Some(_)) = inbox.message().await {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, ended).await;
    }
}

/// Warns that the token expires soon.
fn warn_of_end(end: Option<prost_types::Timestamp>) {
    if let Some(end) = end {
        tracing::warn!(
            %end,
            "token of the control plane expires soon; replace it, otherwise rules are no longer updated"
        );
    }
}

pub(super) fn message(kind: FromUs) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::warn_of_end;

    #[test]
    fn any_token_expiry_of_a_server_can_be_logged() {
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
