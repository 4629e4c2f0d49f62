//! One stream of the peer: reads the request beside doing what the script says, and notes what the client did.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::script::{Act, Reply};
use super::{Log, Seen};

/// One request's line in the log.
#[derive(Clone)]
pub(super) struct Entry {
    log: Arc<Log>,
    place: usize,
}

impl Entry {
    pub(super) fn new(log: Arc<Log>, place: usize) -> Self {
        Self { log, place }
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        self.log.send_modify(|log| change(&mut log[self.place]));
    }

    /// The client's RST_STREAM, if it was one that ended the stream. Both halves see it, the first notes it.
    fn note_reset(&self, reason: Option<u32>) {
        self.note(|seen| {
            if seen.reset.is_none() && reason.is_some() {
                seen.reset = reason;
            }
        });
    }

    async fn until(&self, mut holds: impl FnMut(&Seen) -> bool) {
        let mut log = self.log.subscribe();
        log.wait_for(|log| holds(&log[self.place])).await.expect("the log is here");
    }
}

/// Serves one request to the end of the stream.
pub(super) async fn run(
    reply: Reply,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    over: Over,
    hang_up: Arc<Notify>,
) {
    let entry = over.0.clone();
    let mut answering = Answering { half: Half::Fresh(respond), entry: entry.clone(), hang_up };
    let mut reader = JoinSet::new();
    let mut body = Some(body);
    let echoes = reply.acts.iter().any(|act| matches!(act, Act::Echo));
    if let Some(body) = body.take_if(|_| !reply.unread && !echoes) {
        reader.spawn(read(body, entry.clone()));
    }
    let end = answering.all(reply.acts, &mut body).await;
    if let Some(body) = body {
        reader.spawn(read(body, entry.clone()));
    }
    if !matches!(end, Err(End::Here)) {
        // It is for the client to end it.
        let reason = answering.half.reset().await;
        entry.note_reset(reason);
    }
    reader.join_next().await;
}

/// Says that a stream is over, also where it ends with its connection before anything was done for it.
pub(super) struct Over(Entry);

impl Over {
    pub(super) fn when_dropped(entry: Entry) -> Self {
        Self(entry)
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.0.note(|seen| seen.over = true);
    }
}

/// Reads a request to its end, or to where the client reset it.
async fn read(mut body: RecvStream, entry: Entry) {
    while let Some(data) = body.data().await {
        match data {
            Ok(data) => {
                // Fails only if the stream is gone.
                let _ = body.flow_control().release_capacity(data.len());
                entry.note(|seen| seen.body.extend(&data));
            }
            Err(error) => {
                let reason = error.reason().filter(|_| error.is_reset() && error.is_remote());
                return entry.note_reset(reason.map(u32::from));
            }
        }
    }
    entry.note(|seen| seen.whole = true);
}

/// Why no more is said on a stream.
enum End {
    /// The script ended it.
    Here,
    /// The client let go of it.
    There,
}

impl From<h2::Error> for End {
    fn from(_: h2::Error) -> Self {
        Self::There
    }
}

/// The answer to one request.
struct Answering {
    half: Half,
    entry: Entry,
    hang_up: Arc<Notify>,
}

impl Answering {
    async fn all(&mut self, acts: Vec<Act>, body: &mut Option<RecvStream>) -> Result<(), End> {
        for act in acts {
            self.act(act, body).await?;
        }
        Ok(())
    }

    async fn act(&mut self, act: Act, body: &mut Option<RecvStream>) -> Result<(), End> {
        match act {
            Act::Headers(status, headers, ends) => self.half.headers(status, headers, ends),
            Act::Data(data) => self.half.data(data).await,
            Act::Trailers(trailers) => self.half.trailers(trailers),
            Act::End => self.half.end(),
            Act::Reset(reason) => self.half.send_reset(reason.into()),
            Act::Pause(wait) => self.half.unless_reset(tokio::time::sleep(wait)).await,
            Act::Until(gate) => self.half.unless_reset(gate.passed()).await,
            Act::UntilRead => self.half.unless_reset(self.entry.until(|seen| seen.whole)).await,
            Act::UntilBytes(count) => {
                self.half.unless_reset(self.entry.until(|seen| seen.body.len() >= count)).await
            }
            Act::HangUp => {
                self.hang_up.notify_one();
                pending().await
            }
            Act::Echo => self.echo(body.as_mut().expect("an echo reads the request itself")).await,
        }
    }

    async fn echo(&mut self, body: &mut RecvStream) -> Result<(), End> {
        while let Some(data) = body.data().await {
            let data = data?;
            let length = data.len();
            self.half.data(data).await?;
            body.flow_control().release_capacity(length)?;
        }
        self.entry.note(|seen| seen.whole = true);
        Ok(())
    }
}

/// The sending half of a stream: before the answer's headers and after.
enum Half {
    Fresh(SendResponse<Bytes>),
    Begun(SendStream<Bytes>),
}

impl Half {
    fn headers(&mut self, status: u16, headers: HeaderMap, ends: bool) -> Result<(), End> {
        let Self::Fresh(respond) = self else { panic!("an answer begins once") };
        let mut response = Response::new(());
        *response.status_mut() = status.try_into().expect("an HTTP status");
        *response.headers_mut() = headers;
        *self = Self::Begun(respond.send_response(response, ends)?);
        if ends { Err(End::Here) } else { Ok(()) }
    }

    async fn data(&mut self, mut data: Bytes) -> Result<(), End> {
        let stream = self.begun();
        if data.is_empty() {
            stream.send_data(data, false)?;
            return Ok(());
        }
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let capacity = poll_fn(|cx| stream.poll_capacity(cx)).await.ok_or(End::There)??;
            stream.send_data(data.split_to(capacity.min(data.len())), false)?;
        }
        Ok(())
    }

    fn trailers(&mut self, trailers: HeaderMap) -> Result<(), End> {
        self.begun().send_trailers(trailers)?;
        Err(End::Here)
    }

    fn end(&mut self) -> Result<(), End> {
        self.begun().send_data(Bytes::new(), true)?;
        Err(End::Here)
    }

    fn send_reset(&mut self, reason: Reason) -> Result<(), End> {
        match self {
            Self::Fresh(respond) => respond.send_reset(reason),
            Self::Begun(stream) => stream.send_reset(reason),
        }
        Err(End::Here)
    }

    fn begun(&mut self) -> &mut SendStream<Bytes> {
        match self {
            Self::Begun(stream) => stream,
            Self::Fresh(_) => panic!("data and trailers come after headers"),
        }
    }

    /// Waits for something, but not for longer than the client does.
    async fn unless_reset(&mut self, waited: impl Future<Output = ()>) -> Result<(), End> {
        tokio::select! {
            biased;
            () = waited => Ok(()),
            _ = self.reset() => Err(End::There),
        }
    }

    /// Waits for the client's RST_STREAM; none if the connection ended instead.
    async fn reset(&mut self) -> Option<u32> {
        let reset = match self {
            Self::Fresh(respond) => poll_fn(|cx| respond.poll_reset(cx)).await,
            Self::Begun(stream) => poll_fn(|cx| stream.poll_reset(cx)).await,
        };
        reset.ok().map(u32::from)
    }
}
