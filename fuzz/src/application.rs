//! What an application does with a call: reads its answer as far as it likes, or gives up.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use damper_sdk::BoxError;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tower_service::Service;

/// Longer than all waits of any call together; reaching it is as good as never.
const NEVER: Duration = Duration::from_secs(400 * 24 * 3600);
/// Where the callee may hang for ever, the application waits no longer. In all this time a hedge that is refused
/// is asked for again and again, so it can not be as long as the other.
pub(crate) const HUNG: Duration = Duration::from_secs(30);
/// An application reads no more frames of one answer.
pub(crate) const MOST_FRAMES: u32 = 2_000;

/// How far an application goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// To the end.
    Patient,
    /// It drops the call after so long, wherever that is.
    DropsAfter(Duration),
    /// It drops the answer after so many frames.
    Reads(u32),
}

/// What an application saw.
#[derive(Debug)]
pub(crate) struct Saw {
    pub(crate) headers: Option<(u16, HeaderMap)>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) error: bool,
    pub(crate) data: Vec<u8>,
    pub(crate) end: End,
    pub(crate) took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// The answer was read to its end.
    Whole,
    /// The application gave up.
    GivenUp,
    /// Nothing more came, for ever.
    Never,
}

impl Manner {
    pub(crate) fn any(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=9)? {
            0 => Self::DropsAfter(Duration::ZERO),
            1 => Self::DropsAfter(Duration::from_micros(u.int_in_range(0..=500_000)?)),
            2 => Self::Reads(u.int_in_range(0..=4)?),
            _ => Self::Patient,
        })
    }
}

impl Saw {
    /// The status that the answer ends with, where it says one.
    pub(crate) fn status(&self) -> Option<&[u8]> {
        let of = |fields: &HeaderMap| fields.get("grpc-status").is_some();
        let headers = self.headers.as_ref().map(|(_, headers)| headers).filter(|headers| of(headers));
        let fields = headers.or(self.trailers.as_ref())?;
        fields.get("grpc-status").map(|value| value.as_bytes())
    }
}

/// One call; `may_hang` says whether the callee may leave it without an end.
pub(crate) async fn call<S, B>(service: &mut S, request: Request<Body>, manner: Manner, may_hang: bool) -> Saw
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes>,
    S::Error: Into<BoxError>,
{
    let begun = Instant::now();
    let (patience, end) = match manner {
        Manner::DropsAfter(after) => (after, End::GivenUp),
        Manner::Patient | Manner::Reads(_) => (if may_hang { HUNG } else { NEVER }, End::Never),
    };
    let frames = if let Manner::Reads(frames) = manner { frames } else { MOST_FRAMES };
    let mut saw =
        Saw { headers: None, trailers: None, error: false, data: Vec::new(), end, took: Duration::ZERO };
    let whole = timeout(patience, read(service, request, frames, &mut saw)).await;
    saw.end = whole.unwrap_or(end);
    saw.took = begun.elapsed();
    saw
}

async fn read<S, B>(service: &mut S, request: Request<Body>, frames: u32, saw: &mut Saw) -> End
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes>,
    S::Error: Into<BoxError>,
{
    if std::future::poll_fn(|cx| service.poll_ready(cx)).await.is_err() {
        saw.error = true;
        return End::Whole;
    }
    let Ok(response) = service.call(request).await else {
        saw.error = true;
        return End::Whole;
    };
    let (head, body) = response.into_parts();
    saw.headers = Some((head.status.as_u16(), head.headers));
    let mut body = std::pin::pin!(body);
    for _ in 0..frames {
        match body.frame().await {
            None => return End::Whole,
            Some(Err(_)) => {
                saw.error = true;
                return End::Whole;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => saw.data.extend_from_slice(&data[..data.len().min(1_000)]),
                // As gRPC does: nothing comes after trailers.
                Err(frame) => {
                    saw.trailers = frame.into_trailers().ok();
                    return End::Whole;
                }
            },
        }
        if body.is_end_stream() {
            return End::Whole;
        }
    }
    End::GivenUp
}
