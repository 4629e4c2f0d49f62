//! Ends a request that the application is still sending when its call is over.
//!
//! The transport sends a request's body on its own: dropping the answer's future does not end it while its
//! source is silent, so the stream of a call that was cut would stay open. A request that is not kept is
//! therefore sent through a [`CancellableBody`], on which the call can hang up: the stream is reset with CANCEL.
//!
//! One case is out of reach: while a chunk waits for the peer's window hyper asks for no more of the body, and once the
//! answer has begun it listens to nothing else. Such a stream stays until window arrives or the connection ends.
//!
//! A call that is over is one that was dropped or ended before its answer began, or whose time is over. An
//! application that lets go of a begun answer may go on sending, as it may without this layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot::{self, Receiver, Sender};
use tonic::Status;
use tonic::body::Body;

/// The call's end of the line.
#[derive(Debug, Default)]
pub(super) struct BodyCanceller(Option<Sender<()>>);

impl BodyCanceller {
    /// A body that can be ended from here.
    pub(super) fn line(body: Body) -> (Body, Self) {
        let (hang_up, hung_up) = oneshot::channel();
        (Body::new(CancellableBody { body, hung_up: Some(hung_up) }), Self(Some(hang_up)))
    }

    /// The call is over.
    pub(super) fn now(&mut self) {
        if let Some(hang_up) = self.0.take() {
            // The body may have ended long ago.
            _ = hang_up.send(());
        }
    }
}

/// A request body that ends when the call does.
struct CancellableBody {
    body: Body,
    /// None once nobody can hang up any more.
    hung_up: Option<Receiver<()>>,
}

impl http_body::Body for CancellableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(hung_up) = &mut self.hung_up
            && let Poll::Ready(hung_up) = Pin::new(hung_up).poll(cx)
        {
            self.hung_up = None;
            if hung_up.is_ok() {
                // The transport resets the stream with the reason that it finds in the error.
                let error = h2::Error::from(h2::Reason::CANCEL);
                return Poll::Ready(Some(Err(Status::from_error(Box::new(error)))));
            }
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
