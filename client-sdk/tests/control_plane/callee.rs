//! A service that always fails with a client under Damper's layer: the number of attempts shows the rule in
//! force. A service in Damper's server layer: the number of retries served shows the limit in force.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use damper_sdk::Damper;
use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer as _, ServiceExt as _};

/// Returns the attempts of one call of `callee`, all of which are UNAVAILABLE.
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

/// Sends this number of requests with these headers to a served method and returns how many were served.
pub(crate) async fn served(damper: &Damper, count: u32, headers: &[(&'static str, &'static str)]) -> u32 {
    let ran = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&ran);
    let handler = tower::service_fn(move |_: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    let service = damper.server_layer().layer(handler);
    for _ in 0..count {
        let request = Request::post("http://orders/a.B/Served").header("content-type", "application/grpc");
        let mut request = request.body(Body::empty()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, http::HeaderValue::from_static(value));
        }
        service.clone().oneshot(request).await.unwrap();
    }
    ran.load(Ordering::Relaxed)
}

/// A retry sent by a client layer of Damper.
pub(crate) const REPEAT: &[(&str, &str)] = &[("damper-retry", "1"), ("grpc-previous-rpc-attempts", "1")];
