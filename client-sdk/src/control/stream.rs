//! The conversation with the control plane, one stream after another.
//!
//! Per stream: the hello says who this is and what it holds; each response is put in force first and answered
//! then, a snapshot only once it is on disk; reports go out between. A stream on which nothing is heard for
//! 45 s (three bookmarks) is given up. Nothing here is waited for by an application's call, a long table is
//! read aside, and a server that reads slowly holds up nothing but the answers to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use damper_core::feature;
use damper_proto::v1;
use damper_proto::v1::client_message::Kind as FromUs;
use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::server_message::Kind;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Endpoint, Uri};

use super::applier::{Outcome, Position, Response, Told};
use super::aside::aside;
use super::channel::SafeChannel;
use super::reconnect::Replicas;
use super::report::Reporter;
use super::{SDK_VERSION, Shared, Stop, mode_to_wire};

/// Three bookmarks.
const SILENCE: Duration = Duration::from_secs(45);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Connecting, the hello, and the answer's headers.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// A server that does not take an answer for so long is not reading.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A polite goodbye must not hold up the end of the process.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Messages that wait for a server that is not reading.
const OUTBOX: usize = 16;
/// A hello or an answer stays below the control plane's limit of 1 MiB per message.
const MAX_REFUSALS: usize = 300;
const MAX_REFUSAL_BYTES: usize = 768 << 10;
/// Up to so many rules, guards and kills are gone through at once, within a millisecond or two.
const MAX_EFFORT: usize = 1_000;
/// What a server says may be of any length.
const MAX_PROBLEM_CHARS: usize = 500;

/// Follows one replica after another until the end.
pub(super) async fn run(shared: &Arc<Shared>, mut stop: Stop) {
    let mut replicas = Replicas::shuffled(shared.settings.endpoints.clone());
    while let Some(replica) = replicas.next() {
        let ended = follow(shared, &replica, &mut stop).await;
        shared.status.send_modify(|status| status.connected = false);
        let (problem, wait) = match ended {
            Ended::Stopped => return,
            Ended::Unreached(problem) => (problem, replicas.after_miss()),
            Ended::Broken { problem, lasted, brought_rules } => {
                (problem, replicas.after_stream(lasted, brought_rules))
            }
        };
        let problem = Short(&problem).to_string();
        let source = shared.status.borrow().source;
        if wait.is_zero() {
            tracing::debug!(%replica, %problem, "control plane not reached; trying the next replica");
        } else {
            tracing::warn!(%replica, %problem, ?wait, rules = %source, "no stream from the control plane; calls go on, connecting again");
        }
        shared.status.send_modify(|status| status.last_problem = Some(format!("{replica}: {problem}")));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.stopped() => return,
        }
    }
}

/// How a stream ended.
#[derive(Debug)]
enum Ended {
    Stopped,
    Unreached(String),
    Broken { problem: String, lasted: Duration, brought_rules: bool },
}

async fn follow(shared: &Arc<Shared>, replica: &Uri, stop: &mut Stop) -> Ended {
    shared.applier().begin_stream();
    let opened = tokio::select! {
        opened = tokio::time::timeout(OPEN_WITHIN, open(shared, replica)) => opened,
        () = stop.stopped() => return Ended::Stopped,
    };
    let (outbox, inbox) = match opened {
        Ok(Ok(ends)) => ends,
        Ok(Err(problem)) => return Ended::Unreached(problem),
        Err(_) => return Ended::Unreached(format!("no answer within {OPEN_WITHIN:?}")),
    };
    tracing::info!(%replica, "connected to the control plane");
    shared.status.send_modify(|status| status.connected = true);
    let begun = Instant::now();
    let mut conversation = Conversation { shared, outbox, reporter: Reporter::new(), brought_rules: false };
    match conversation.hold(inbox, stop).await {
        None => Ended::Stopped,
        Some(problem) => {
            Ended::Broken { problem, lasted: begun.elapsed(), brought_rules: conversation.brought_rules }
        }
    }
}

type Ends = (mpsc::Sender<v1::ClientMessage>, Streaming<v1::ServerMessage>);

async fn open(shared: &Shared, replica: &Uri) -> Result<Ends, String> {
    let endpoint = Endpoint::from(replica.clone()).connect_timeout(CONNECT_WITHIN);
    let channel = endpoint.connect().await.map_err(|error| with_sources(&error))?;
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let hello = message(FromUs::Hello(hello(shared)));
    outbox.try_send(hello).map_err(|error| error.to_string())?;
    let mut client = DistributionClient::new(SafeChannel(channel));
    let answer = client.subscribe(ReceiverStream::new(messages)).await;
    let inbox = answer.map_err(|status| said(&status))?.into_inner();
    Ok((outbox, inbox))
}

fn hello(shared: &Shared) -> v1::Hello {
    let status = shared.status.borrow().clone();
    let (position, refused) = {
        let applier = shared.applier();
        (applier.position().cloned(), at_most(applier.refused(), applier.refused_count()))
    };
    let (epoch, revision) = position.map_or_else(Default::default, |at| (at.epoch, at.revision));
    v1::Hello {
        identity: Some((&shared.settings.identity).into()),
        sdk_version: SDK_VERSION.to_owned(),
        features: feature::ALL.iter().map(|&name| name.to_owned()).collect(),
        epoch,
        revision,
        refused,
        source: v1::Source::from(status.source).into(),
        serves: shared.engine.serves(),
        override_mode: mode_to_wire(status.override_mode),
    }
}

struct Conversation<'a> {
    shared: &'a Arc<Shared>,
    outbox: mpsc::Sender<v1::ClientMessage>,
    reporter: Reporter,
    brought_rules: bool,
}

impl Conversation<'_> {
    /// Speaks until the stream breaks, with the reason, or until the end.
    async fn hold(&mut self, mut inbox: Streaming<v1::ServerMessage>, stop: &mut Stop) -> Option<String> {
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
                        Err(_) => return Some(format!("nothing heard for {SILENCE:?}")),
                        Ok(Err(status)) => return Some(said(&status)),
                        Ok(Ok(None)) => return Some("the server ended the stream".to_owned()),
                        Ok(Ok(Some(received))) => received,
                    };
                    silent_at = Instant::now() + SILENCE;
                    let is_pace = matches!(received.kind, Some(Kind::ReportSettings(_)));
                    if let Err(problem) = self.obey(received).await {
                        return Some(problem);
                    }
                    if is_pace {
                        // From the last report on: a pace that changes all the time must not put the next one off.
                        report.as_mut().reset(reported_at + self.reporter.wait());
                    }
                }
                () = &mut report => {
                    self.report();
                    reported_at = Instant::now();
                    report.as_mut().reset(Instant::now() + self.reporter.wait());
                }
            }
        }
    }

    /// Does what a message says.
    async fn obey(&mut self, received: v1::ServerMessage) -> Result<(), String> {
        let at = self.shared.engine.clock().now();
        let v1::ServerMessage { epoch, revision, nonce, kind, kills } = received;
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
                return Ok(());
            }
            // Of a newer server, which must not need an answer to it.
            None => return Ok(()),
        };
        let kills = kills.map(|set| Told { set, at });
        let throws = kills.is_some();
        let outcome = self.apply(Position { epoch, revision }, response, kills).await?;
        if throws && outcome == Outcome::Incomplete && self.shared.place.is_some() {
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
    ) -> Result<Outcome, String> {
        let effort = self.shared.applier().effort(&response, kills.as_ref());
        if effort <= MAX_EFFORT {
            return Ok(self.shared.apply(position, response, kills));
        }
        let shared = Arc::clone(self.shared);
        aside(move || shared.apply(position, response, kills)).await
    }

    /// Has what changed kept; what was refused comes back.
    async fn follow_up(&mut self, outcome: Outcome, sent: u64) -> Result<Vec<v1::Refusal>, String> {
        match outcome {
            Outcome::OutOfStep(problem) => return Err(problem.to_owned()),
            Outcome::Incomplete => {}
            Outcome::Stale => {
                tracing::warn!(revision = sent, "older than what is held; ignored");
            }
            Outcome::Confirmed => self.brought_rules = true,
            Outcome::Applied { refused, whole } => {
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
    fn report(&mut self) {
        for part in self.reporter.parts(self.shared) {
            if self.outbox.try_send(message(FromUs::Report(part))).is_err() {
                self.reporter.forget();
                return;
            }
        }
    }

    /// The last report, then the end of our side; the server's end says that it has read it.
    async fn close(&mut self, mut inbox: Streaming<v1::ServerMessage>) {
        self.report();
        let (closed, _) = mpsc::channel(1);
        self.outbox = closed;
        let ended = async { while let Ok(Some(_)) = inbox.message().await {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, ended).await;
    }
}

fn message(kind: FromUs) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

/// With more the server would refuse the message and learn of none.
fn at_most<'a>(refused: impl IntoIterator<Item = &'a v1::Refusal>, count: usize) -> Vec<v1::Refusal> {
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

/// The beginning of a text that may be of any length.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MAX_PROBLEM_CHARS) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

fn said(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
