//! A scripted callee in the process that records its requests.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tonic::body::Body;
use tower_service::Service;

use crate::outcome::BoxError;

#[derive(Clone, Default)]
pub(crate) struct Peer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    script: VecDeque<Reply>,
    seen: Vec<Seen>,
    never_ready: bool,
    hung_up: Arc<AtomicBool>,
}

/// Content of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) headers: HeaderMap,
    pub(crate) extensions: http::Extensions,
    pub(crate) size: SizeHint,
    pub(crate) body: Vec<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) at: tokio::time::Instant,
}

pub(crate) enum Reply {
    /// This response, once the request was read to its end.
    With(Response<ScriptedBody>),
    Error(BoxError),
    /// This reply after a delay.
    After(Duration, Box<Reply>),
    /// No response.
    Hang,
}

impl Peer {
    pub(crate) fn new(script: impl IntoIterator<Item = Reply>) -> Self {
        let peer = Self::default();
        peer.state().script.extend(script);
        peer
    }

    pub(crate) fn never_ready() -> Self {
        let peer = Self::default();
        peer.state().never_ready = true;
        peer
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// An attempt or its response body was dropped before its end.
    pub(crate) fn was_hung_up(&self) -> bool {
        self.state().hung_up.load(Ordering::Relaxed)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Service<Request<Body>> for Peer {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.state().never_ready { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let reply = self.state().script.pop_front().expect("the script is long enough");
        let (peer, mut watch) = (self.clone(), HangUp(Some(Arc::clone(&self.state().hung_up))));
        Box::pin(async move {
            let at = tokio::time::Instant::now();
            let (head, mut sent) = request.into_parts();
            let size = http_body::Body::size_hint(&sent);
            let (mut body, mut trailers) = (Vec::new(), None);
            while let Some(frame) = sent.frame().await {
                match frame?.into_data() {
                    Ok(data) => body.push(data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            let http::request::Parts { headers, extensions, .. } = head;
            peer.state().seen.push(Seen { headers, extensions, size, body, trailers, at });
            let mut reply = reply;
            let reply = loop {
                match reply {
                    Reply::With(response) => break Ok(response),
                    Reply::Error(error) => break Err(error),
                    Reply::Hang => std::future::pending().await,
                    Reply::After(delay, then) => {
                        tokio::time::sleep(delay).await;
                        reply = *then;
                    }
                }
            };
            let hung_up = watch.0.take();
            reply.map(|response| {
                response.map(|mut body| {
                    body.watch = HangUp(hung_up);
                    body
                })
            })
        })
    }
}

/// Notes a drop before the end.
#[derive(Debug)]
struct HangUp(Option<Arc<AtomicBool>>);

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(hung_up) = &self.0 {
            hung_up.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) enum End {
    Over,
    /// No further frames and no end.
    Stall,
}

/// A body of these frames, then an end or none.
#[derive(Debug)]
pub(crate) struct ScriptedBody {
    frames: VecDeque<Result<Frame<Bytes>, BoxError>>,
    end: End,
    exact: Option<u64>,
    watch: HangUp,
}

impl ScriptedBody {
    pub(crate) fn over(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Self {
        Self { frames: frames.into_iter().collect(), end: End::Over, exact: None, watch: HangUp(None) }
    }

    pub(crate) fn stalling(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Self {
        Self { end: End::Stall, ..Self::over(frames) }
    }

    pub(crate) fn announcing(self, bytes: u64) -> Self {
        Self { exact: Some(bytes), ..self }
    }
}

impl http_body::Body for ScriptedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match (self.frames.pop_front(), &self.end) {
            (Some(frame), _) => Poll::Ready(Some(frame)),
            (None, End::Over) => {
                self.watch.0 = None;
                Poll::Ready(None)
            }
            // The scenarios move the clock, which wakes the task.
            (None, End::Stall) => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && matches!(self.end, End::Over)
    }

    fn size_hint(&self) -> SizeHint {
        self.exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

pub(crate) fn data(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

pub(crate) fn trailers(fields: &[(&'static str, &'static str)]) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::trailers(map(fields)))
}

fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    map
}

/// A headers-only response.
pub(crate) fn trailers_only(fields: &[(&'static str, &'static str)]) -> Reply {
    let mut response = Response::new(ScriptedBody::over([]));
    *response.headers_mut() = map(fields);
    Reply::With(response)
}

pub(crate) fn unavailable() -> Reply {
    trailers_only(&[("grpc-status", "14"), ("grpc-message", "down")])
}

/// Headers without a status, then this body.
pub(crate) fn begun(body: ScriptedBody) -> Reply {
    let mut response = Response::new(body);
    *response.headers_mut() = map(&[("content-type", "application/grpc"), ("x-served-by", "one")]);
    Reply::With(response)
}

pub(crate) fn ok() -> Reply {
    begun(ScriptedBody::over([data("world"), trailers(&[("grpc-status", "0")])]))
}

/// The reply after this number of milliseconds.
pub(crate) fn after(ms: u64, reply: Reply) -> Reply {
    Reply::After(Duration::from_millis(ms), Box::new(reply))
}
