//! Makes one call without a runtime: everything is ready at once.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::Service;

/// Calls, and reads the answer to its end.
#[inline(never)]
pub(super) fn call<S, Q, B>(service: &mut S, request: Request<Q>)
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready(), "the service is ready");
    let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else {
        panic!("the service answers at once")
    };
    let mut body = pin!(response.into_body());
    let mut frames = 0;
    while let Poll::Ready(Some(Ok(_))) = body.as_mut().poll_frame(&mut cx) {
        frames += 1;
    }
    assert_eq!(frames, 2, "a message and the trailers");
}
