//! The stream of a worker: connects, opens, reconnects after waits, and detects a silent server.
//!
//! A state machine whose `next` may be dropped at any time: the worker waits for other events meanwhile.

use std::pin::Pin;
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::from_worker::Kind as FromUs;
use damper_proto::v1::to_worker::Kind as ToUs;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::control::{ConnectError, OPEN_WITHIN};
use crate::queue::dial::{Boxed, Dial, Line, LineEnd, Missed};

/// Time without messages after which a stream is closed: three of the server's signs of life.
const SILENCE: Duration = Duration::from_secs(15);
/// Limit for closing a stream.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Messages queued in addition to those of leases.
const OUTBOX: usize = 256;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is handled at once")]
pub(super) enum Event {
    /// There is a connection: call [`Connection::open`].
    Connected,
    /// The stream has begun.
    Opened,
    Message(ToUs),
    /// The stream ended or could not be opened. The next one follows.
    Closed(String),
}

pub(super) struct Connection {
    state: State,
    /// Messages of a stream: at most this number may wait for the server.
    outbox: usize,
}

#[expect(clippy::large_enum_variant, reason = "a worker has one")]
enum State {
    Waiting(Box<dyn Dial>, Pin<Box<Sleep>>),
    Connecting(Boxed<'static, (Box<dyn Dial>, Result<Line, Missed>)>),
    Connected(Box<dyn Dial>, Line),
    Opening {
        dial: Box<dyn Dial>,
        line: Line,
        outbox: mpsc::Sender<v1::FromWorker>,
        opening: Opening,
    },
    Open(Stream),
    /// Only within a transition.
    None,
}

type Opening = Boxed<'static, Result<Streaming<v1::ToWorker>, Status>>;

struct Stream {
    dial: Box<dyn Dial>,
    line: Line,
    outbox: mpsc::Sender<v1::FromWorker>,
    inbox: Streaming<v1::ToWorker>,
    since: Instant,
    silent_at: Instant,
    /// The server has accepted the worker.
    is_welcome: bool,
    /// The server does not read.
    is_stuck: bool,
}

impl Connection {
    /// Returns a connection that opens at once. `slots` bounds the leases of the worker.
    pub(super) fn new(dial: Box<dyn Dial>, slots: u32) -> Self {
        let outbox = OUTBOX.saturating_add(usize::try_from(slots).unwrap_or(usize::MAX).saturating_mul(4));
        Self { state: connecting(dial), outbox }
    }

    /// Returns the next event.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            match &mut self.state {
                State::Waiting(_, wait) => {
                    wait.as_mut().await;
                    let State::Waiting(dial, _) = self.take() else { continue };
                    self.state = connecting(dial);
                }
                State::Connecting(connecting) => {
                    let (dial, connected) = connecting.await;
                    match connected {
                        Ok(line) => {
                            self.state = State::Connected(dial, line);
                            return Event::Connected;
                        }
                        Err(Missed { problem, wait }) => {
                            self.state = waiting(dial, wait);
                            return Event::Closed(problem);
                        }
                    }
                }
                State::Opening { opening, .. } => {
                    let opened = opening.await;
                    return self.opened(opened);
                }
                State::Open(stream) => {
                    let received = stream.next().await;
                    return self.received(received);
                }
                // The worker opens the stream next.
                State::Connected(..) | State::None => std::future::pending().await,
            }
        }
    }

    /// Opens the stream after [`Event::Connected`].
    pub(super) fn open(&mut self, hello: v1::WorkerHello) {
        let State::Connected(dial, line) = self.take() else { return };
        let (outbox, messages) = mpsc::channel(self.outbox);
        // The queue is empty.
        _ = outbox.try_send(message(FromUs::Hello(hello)));
        let request = line.request(ReceiverStream::new(messages));
        let mut client = line.client();
        let opening: Opening = Box::pin(async move {
            match tokio::time::timeout(OPEN_WITHIN, client.work(request)).await {
                Ok(opened) => Ok(opened?.into_inner()),
                Err(_) => Err(Status::unavailable(format!(
                    "the control plane did not answer the worker within {OPEN_WITHIN:?}"
                ))),
            }
        });
        self.state = State::Opening { dial, line, outbox, opening };
    }

    /// Sends a message if the stream is open. A server that does not read loses the stream.
    pub(super) fn send(&mut self, kind: FromUs) {
        if let State::Open(stream) = &mut self.state {
            stream.is_stuck |= stream.outbox.try_send(message(kind)).is_err();
        }
    }

    /// Returns true if the stream is open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Sends the goodbye and closes the stream. The end of the server's half confirms that it was read.
    pub(super) async fn close(&mut self) {
        self.send(FromUs::Bye(v1::Bye {}));
        let State::Open(Stream { outbox, mut inbox, .. }) = self.take() else { return };
        drop(outbox);
        let ended = async { while let Ok(Some(_)) = inbox.message().await {} };
        // The server releases the leases later.
        _ = tokio::time::timeout(CLOSE_WITHIN, ended).await;
    }

    fn opened(&mut self, opened: Result<Streaming<v1::ToWorker>, Status>) -> Event {
        let State::Opening { mut dial, line, outbox, .. } = self.take() else {
            return Event::Closed(String::new());
        };
        match opened {
            Ok(inbox) => {
                let (since, silent_at) = (Instant::now(), Instant::now() + SILENCE);
                let (is_welcome, is_stuck) = (false, false);
                self.state =
                    State::Open(Stream { dial, line, outbox, inbox, since, silent_at, is_welcome, is_stuck });
                Event::Opened
            }
            Err(status) => {
                let (end, problem) = problem_of(&line, &status);
                let wait = dial.wait_after(end);
                self.state = waiting(dial, wait);
                Event::Closed(problem)
            }
        }
    }

    fn received(&mut self, received: Result<ToUs, Ended>) -> Event {
        let ended = match received {
            Ok(kind) => return Event::Message(kind),
            Err(ended) => ended,
        };
        let State::Open(stream) = self.take() else { return Event::Closed(String::new()) };
        let Stream { mut dial, line, since, is_welcome, .. } = stream;
        let (end, problem) = match ended {
            Ended::By(status) => problem_of(&line, &status),
            Ended::Because(problem) => (LineEnd::Failed, problem),
        };
        let end = if is_welcome { LineEnd::Lasted(since.elapsed()) } else { end };
        let wait = dial.wait_after(end);
        self.state = waiting(dial, wait);
        Event::Closed(problem)
    }

    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::None)
    }
}

/// How a stream ended.
enum Ended {
    By(Status),
    Because(String),
}

impl Stream {
    /// Returns the next message of a known kind.
    async fn next(&mut self) -> Result<ToUs, Ended> {
        loop {
            if self.is_stuck {
                return Err(Ended::Because("the server does not read".to_owned()));
            }
            let received = match tokio::time::timeout_at(self.silent_at, self.inbox.message()).await {
                Err(_) => return Err(Ended::Because(format!("no message within {SILENCE:?}"))),
                Ok(Err(status)) => return Err(Ended::By(status)),
                Ok(Ok(None)) => return Err(Ended::Because("the server closed the stream".to_owned())),
                Ok(Ok(Some(received))) => received,
            };
            self.silent_at = Instant::now() + SILENCE;
            match received.kind {
                Some(ToUs::Goodbye(v1::Goodbye { reason })) => {
                    return Err(Ended::Because(format!("goodbye from the server: {reason}")));
                }
                Some(kind) => {
                    self.is_welcome |= matches!(kind, ToUs::Welcome(_));
                    return Ok(kind);
                }
                // Of a newer server, which must not require an answer.
                None => {}
            }
        }
    }
}

fn connecting(mut dial: Box<dyn Dial>) -> State {
    State::Connecting(Box::pin(async move {
        let connected = dial.connect().await;
        (dial, connected)
    }))
}

fn waiting(dial: Box<dyn Dial>, wait: Duration) -> State {
    State::Waiting(dial, Box::pin(tokio::time::sleep(wait)))
}

fn problem_of(line: &Line, status: &Status) -> (LineEnd, String) {
    match line.error_of(status) {
        ConnectError::Denied(_, problem) => (LineEnd::Denied, problem),
        ConnectError::Failed(problem) => (LineEnd::Failed, problem),
    }
}

fn message(kind: FromUs) -> v1::FromWorker {
    v1::FromWorker { kind: Some(kind) }
}
