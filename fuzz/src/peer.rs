//! A callee in the process that answers as the fuzzer says, and remembers what reached it.
//!
//! Requests say by `x-call` which call they belong to; each call has a script of its own, and what is beyond the
//! script is answered UNAVAILABLE.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use damper_core::chain::NO_MORE_RETRY;
use damper_core::policy::REPLAY_LIMIT;
use damper_sdk::BoxError;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::time::Sleep;
use tonic::body::Body;
use tower_service::Service;

use crate::application::MOST_FRAMES;
use crate::fields;

/// The header that names the call.
pub(crate) const CALL: &str = "x-call";
/// An endless body stalls after so many frames, for the fuzzer's sake.
const ENDLESS_FRAMES: u32 = 4_000;
/// No layer holds more of it before the application reads, which reads [`MOST_FRAMES`]; what was held comes first.
const MOST_HELD: usize = REPLAY_LIMIT.max as usize + 200_000;
/// So much of it comes at once.
const ENDLESS_BURST: u32 = 64;

/// The callee.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    calls: Vec<Script>,
    ready: bool,
}

/// What one call meets, and what it sent.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) answers: VecDeque<Answer>,
    pub(crate) seen: Vec<Seen>,
}

/// What one attempt brought.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) headers: HeaderMap,
    /// None until the request was read to its end.
    pub(crate) body: Option<Vec<u8>>,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The request is read to its end first.
    reads: bool,
    delay: Duration,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Hang,
    Error(Fault),
    Response { status: StatusCode, headers: HeaderMap, body: ScriptedBody },
}

#[derive(Debug)]
enum Fault {
    Status(i32),
    Reset(u32),
    Io,
    Wrapped(Box<Fault>),
    Other,
}

/// Error kinds are told apart by their source chain.
#[derive(Debug)]
struct Wrapped(BoxError);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("wrapped")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

impl Fault {
    fn any(u: &mut Unstructured<'_>, depth: u32) -> Result<Self> {
        Ok(match u.int_in_range(0..=5)? {
            0 => Self::Status(u.int_in_range(-1..=18)?),
            1 | 2 => Self::Reset(u.int_in_range(0..=15)?),
            3 => Self::Io,
            4 if depth < 4 => Self::Wrapped(Box::new(Self::any(u, depth + 1)?)),
            _ => Self::Other,
        })
    }

    fn error(&self) -> BoxError {
        match self {
            Self::Status(code) => tonic::Status::new(tonic::Code::from(*code), "said so").into(),
            Self::Reset(reason) => h2::Error::from(h2::Reason::from(*reason)).into(),
            Self::Io => std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
            Self::Wrapped(inner) => Wrapped(inner.error()).into(),
            Self::Other => "something else".into(),
        }
    }
}

impl Answer {
    pub(crate) fn any(u: &mut Unstructured<'_>) -> Result<Self> {
        let delay = match u.int_in_range(0..=5)? {
            0 => Duration::from_secs(u.int_in_range(0..=20)?),
            1..=3 => Duration::ZERO,
            _ => Duration::from_micros(u.int_in_range(0..=100_000)?),
        };
        let kind = match u.int_in_range(0..=9)? {
            0 => Kind::Hang,
            1 | 2 => Kind::Error(Fault::any(u, 0)?),
            3..=5 => {
                let mut headers = fields::of_answer(u, 3)?;
                headers.insert("grpc-status", HeaderValue::from(u.int_in_range(0..=17_u16)?));
                Kind::Response { status: StatusCode::OK, headers, body: ScriptedBody::default() }
            }
            6 => {
                let mut trailers = fields::of_answer(u, 3)?;
                trailers.insert("grpc-status", HeaderValue::from(u.int_in_range(0..=17_u16)?));
                let message = Bytes::from_static(&[0, 0, 0, 0, 3, 1, 2, 3]);
                let frames = [Piece::Data(message), Piece::Trailers(trailers)];
                let body = ScriptedBody { pieces: frames.into(), ..ScriptedBody::default() };
                Kind::Response { status: StatusCode::OK, headers: fields::of_answer(u, 2)?, body }
            }
            _ => Kind::Response {
                status: match u.int_in_range(0..=4)? {
                    0 => StatusCode::from_u16(u.int_in_range(100..=999)?).expect("three digits"),
                    1 => *u.choose(&[StatusCode::BAD_GATEWAY, StatusCode::TOO_MANY_REQUESTS])?,
                    _ => StatusCode::OK,
                },
                headers: fields::of_answer(u, 6)?,
                body: ScriptedBody::any(u)?,
            },
        };
        Ok(Self { reads: u.ratio(3, 4)?, delay, kind })
    }

    /// True if it may never come to an end by itself.
    pub(crate) fn may_hang(&self) -> bool {
        match &self.kind {
            Kind::Hang => true,
            Kind::Error(_) => false,
            Kind::Response { body, .. } => body.end != End::Over,
        }
    }
}

impl Script {
    /// True if any answer carries the no-more-retry flag.
    pub(crate) fn raises_flag(&self) -> bool {
        let raised = |fields: &HeaderMap| fields.contains_key(NO_MORE_RETRY);
        self.answers.iter().any(|answer| match &answer.kind {
            Kind::Response { headers, body, .. } => raised(headers) || body.contents().1.iter().any(raised),
            Kind::Hang | Kind::Error(_) => false,
        })
    }

    pub(crate) fn any(u: &mut Unstructured<'_>, most: usize) -> Result<Self> {
        let count = u.int_in_range(0..=most)?;
        let answers = (0..count).map(|_| Answer::any(u)).collect::<Result<_>>()?;
        Ok(Self { answers, seen: Vec::new() })
    }
}

impl Peer {
    pub(crate) fn new(calls: Vec<Script>, ready: bool) -> Self {
        Self(Arc::new(Mutex::new(State { calls, ready })))
    }

    pub(crate) fn seen(&self, call: usize) -> Vec<Seen> {
        self.state().calls.get(call).map_or_else(Vec::new, |script| script.seen.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it is held")
    }
}

impl Service<Request<Body>> for Peer {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), BoxError>> {
        if self.state().ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (head, mut sent) = request.into_parts();
        let number = head.headers.get(CALL).and_then(|value| value.to_str().ok()?.parse().ok());
        let number: usize = number.expect("every attempt names its call");
        let (answer, attempt) = {
            let mut state = self.state();
            let script = state.calls.get_mut(number).expect("the call has a script");
            script.seen.push(Seen { headers: head.headers, body: None });
            (script.answers.pop_front(), script.seen.len() - 1)
        };
        let peer = self.clone();
        Box::pin(async move {
            let Some(Answer { reads, delay, kind }) = answer else {
                return Ok(unavailable());
            };
            if reads {
                let mut body = Vec::new();
                while let Some(frame) = sent.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        body.extend_from_slice(&data);
                    }
                }
                let mut state = peer.state();
                state.calls[number].seen[attempt].body = Some(body);
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            match kind {
                Kind::Hang => std::future::pending().await,
                Kind::Error(fault) => Err(fault.error()),
                Kind::Response { status, headers, body } => {
                    let mut response = Response::new(body);
                    (*response.status_mut(), *response.headers_mut()) = (status, headers);
                    Ok(response)
                }
            }
        })
    }
}

fn unavailable() -> Response<ScriptedBody> {
    let mut response = Response::new(ScriptedBody::default());
    response.headers_mut().insert("grpc-status", HeaderValue::from_static("14"));
    response
}

#[derive(Debug)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    Error(Fault),
    Pause(Duration),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum End {
    #[default]
    Over,
    /// Nothing more comes, and no end.
    Stall,
    /// More and more, so many bytes at a time.
    Endless(usize),
}

/// A body of these pieces.
#[derive(Debug, Default)]
pub(crate) struct ScriptedBody {
    pieces: VecDeque<Piece>,
    end: End,
    /// It says so before its last poll.
    tells_end: bool,
    endless: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl ScriptedBody {
    pub(crate) fn any(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut pieces = VecDeque::new();
        for _ in 0..u.int_in_range(0..=5)? {
            pieces.push_back(match u.int_in_range(0..=7)? {
                0..=2 => Piece::Data(data(u)?),
                3 | 4 => Piece::Trailers(fields::of_answer(u, 5)?),
                5 => Piece::Error(Fault::any(u, 0)?),
                _ => Piece::Pause(Duration::from_micros(u.int_in_range(0..=2_000_000)?)),
            });
        }
        let end = match u.int_in_range(0..=9)? {
            0 => End::Stall,
            1 => End::Endless(u.int_in_range(0..=70_000)?),
            _ => End::Over,
        };
        Ok(Self { pieces, end, tells_end: u.arbitrary()?, endless: 0, pause: None })
    }

    /// The data and trailers of a body that ends by itself, as a reader sees them that stops at an error.
    pub(crate) fn contents(&self) -> (Vec<u8>, Vec<HeaderMap>) {
        let (mut all, mut trailers) = (Vec::new(), Vec::new());
        for piece in &self.pieces {
            match piece {
                Piece::Data(data) => all.extend_from_slice(data),
                Piece::Trailers(fields) => trailers.push(fields.clone()),
                Piece::Error(_) => break,
                Piece::Pause(_) => {}
            }
        }
        (all, trailers)
    }

    pub(crate) fn may_hang(&self) -> bool {
        self.end != End::Over
    }
}

fn data(u: &mut Unstructured<'_>) -> Result<Bytes> {
    let length = match u.int_in_range(0..=9)? {
        0 => u.int_in_range(0..=200_000)?,
        _ => u.int_in_range(0..=16)?,
    };
    let said = length.min(u.len()).min(16);
    let mut data = u.bytes(said)?.to_vec();
    data.resize(length, 0);
    Ok(data.into())
}

impl http_body::Body for ScriptedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let frame = match self.pieces.pop_front() {
                Some(Piece::Data(data)) => Ok(Frame::data(data)),
                Some(Piece::Trailers(fields)) => Ok(Frame::trailers(fields)),
                Some(Piece::Error(fault)) => Err(fault.error()),
                Some(Piece::Pause(pause)) => {
                    self.pause = Some(Box::pin(tokio::time::sleep(pause)));
                    continue;
                }
                None => match self.end {
                    End::Over => return Poll::Ready(None),
                    // A paused clock jumps to the next timer; there may be none.
                    End::Stall => return Poll::Pending,
                    End::Endless(_) if self.endless >= ENDLESS_FRAMES => return Poll::Pending,
                    End::Endless(bytes) => {
                        self.endless += 1;
                        let read = self.endless as usize * bytes;
                        let most = MOST_FRAMES as usize * bytes + MOST_HELD;
                        assert!(read <= most, "more is held than any limit allows");
                        if self.endless.is_multiple_of(ENDLESS_BURST) {
                            self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
                            continue;
                        }
                        Ok(Frame::data(Bytes::from(vec![0; bytes])))
                    }
                },
            };
            return Poll::Ready(Some(frame));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.tells_end && self.pieces.is_empty() && self.pause.is_none() && self.end == End::Over
    }
}
