//! A service that always fails, and a client of it with Damper's layer: how many attempts a call makes shows
//! which rule is in force.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use damper_sdk::Damper;
use http::{Request, Response};
use tonic::body::Body;
use tower::ServiceExt as _;

/// Attempts that one call of `callee` makes when every one is UNAVAILABLE.
pub(crate) async fn attempts(damper: &Damper, callee: &str) -> u32 {
    let seen = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&seen);
    let failing = tower::service_fn(move |_request: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let answer =
            Response::builder().header("grpc-status", "14").header("content-type", "application/grpc");
        std::future::ready(Ok::<_, Infallible>(answer.body(Body::empty()).unwrap()))
    });
    let service = damper.client_layer(callee).unwrap().layer(failing);
    let request = Request::builder().method("POST").uri("http://callee/a.B/C").body(Body::empty()).unwrap();
    let answer = service.oneshot(request).await;
    assert_eq!(answer.unwrap().headers().get("grpc-status").unwrap(), "14");
    seen.load(Ordering::Relaxed)
}
