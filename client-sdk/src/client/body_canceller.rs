//! Cancels a request that is still being sent when its call ends.
//!
//! The transport sends a request body on its own. Dropping the response future does not stop it while the
//! body's source is idle, so the stream of an ended call would stay open. A request that is not buffered is
//! therefore sent through a [`CancellableBody`], and the end of the call resets the stream with CANCEL.
//!
//! Limit: while a chunk waits for the peer's flow-control window, hyper does not poll the body. Once the
//! response has begun it polls nothing else. Such a stream stays open until the window grows or the
//! connection closes.
//!
//! A call ends when it is dropped or finished before its response begins, or when it times out. An
//! application that drops a response may continue to send its request, as it could without this layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot::{self, Receiver, Sender};
use tonic::Status;
use tonic::body::Body;

use crate::routes::replay::cancelled;

/// The call's side.
#[derive(Debug, Default)]
pub(super) struct BodyCanceller(Option<Sender<()>>);

impl BodyCanceller {
    /// Wraps a body so that it can be cancelled.
    pub(super) fn line(body: Body) -> (Body, Self) {
        let (hang_up, hung_up) = oneshot::channel();
        (Body::new(CancellableBody { body, hung_up: Some(hung_up) }), Self(Some(hang_up)))
    }

    /// Cancels the request.
    pub(super) fn now(&mut self) {
        if let Some(hang_up) = self.0.take() {
            // The body may have ended already.
            _ = hang_up.send(());
        }
    }
}

/// A request body that ends with its call.
struct CancellableBody {
    body: Body,
    /// `None` once it cannot be cancelled any more.
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
                return Poll::Ready(Some(Err(cancelled())));
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
