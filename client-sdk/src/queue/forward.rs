//! Sends deliveries as the gRPC calls that they were made of.
//!
//! The message goes out byte for byte as it was kept, in a frame of its own, with the metadata kept with it.
//! The call runs through the client layer: its kills, budget, limits, spans and statistics apply.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use damper_core::Code;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use tonic::body::Body;
use tower_service::Service;

use super::deliveries::{Delivery, Handled};
use super::dial::Boxed;
use super::worker::Limits;
use crate::client::{ClientService, Redelivery, SeenCall};
use crate::headers;
use crate::outcome::BoxError;

/// Time for which a worker gets no jobs that it cannot forward: other workers may.
const NO_CHANNEL_WAIT: Duration = Duration::from_secs(60);

/// Sends deliveries to one callee.
pub(super) type Forward = Arc<dyn Fn(Delivery, Limits) -> Boxed<'static, Handled> + Send + Sync>;

/// Returns the handler that forwards to these callees, by name.
pub(super) fn handler(callees: HashMap<String, Forward>) -> Forward {
    Arc::new(move |delivery, limits| match callees.get(delivery.callee_service()) {
        Some(forward) => forward(delivery, limits),
        None => {
            Box::pin(async { Handled::Released { why: "no_channel", not_before: Some(NO_CHANNEL_WAIT) } })
        }
    })
}

/// Forwards through this service of the client layer.
pub(super) fn through<S, B>(service: ClientService<S>) -> Forward
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Arc::new(move |delivery, limits| {
        let mut service = service.clone();
        Box::pin(async move {
            let Some(request) = request(&delivery) else {
                return Handled::Dead("the method is no path of a request".to_owned());
            };
            let seen = Arc::new(Mutex::new(SeenCall::default()));
            let redelivery = Redelivery { sends_before: delivery.attempts_before(), seen: Arc::clone(&seen) };
            // The layer marks the call as a retry, so the context has only the deadline.
            let context = limits.context(None);
            let call = async {
                if let Ok(response) = service.deliver(request, redelivery.clone()).await {
                    let mut body = pin!(response.into_body());
                    // The response is dropped; the layer notes how it ended.
                    while let Some(Ok(_)) = body.frame().await {}
                }
            };
            context.scope(call).await;
            let seen = redelivery.seen().clone();
            handled(seen)
        })
    })
}

fn handled(seen: SeenCall) -> Handled {
    let SeenCall { failure, detail, ending, sends } = seen;
    match (ending, failure) {
        (Some(ending), _) if ending.fate.is_ok() => Handled::Done,
        (Some(ending), _) if sends == 0 => Handled::Released { why: ending.fate.name(), not_before: None },
        (_, Some(failure)) => Handled::Failed { failure, detail: detail.into_owned() },
        // The layer ended it without an attempt that failed.
        (_, None) => Handled::failed(Code::DeadlineExceeded, "no response within its time limit"),
    }
}

/// Returns the request of a delivery; `None` if its method is no path.
fn request(delivery: &Delivery) -> Option<Request<Body>> {
    let path = Uri::try_from(format!("/{}", delivery.callee_method())).ok()?;
    let mut request = Request::new(Body::new(Full::new(framed(delivery.body()))));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = metadata(delivery);
    Some(request)
}

fn metadata(delivery: &Delivery) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in &delivery.wire.metadata {
        // The server checked them when the job was submitted.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            fields.insert(name, value);
        }
    }
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    fields.insert(http::header::TE, HeaderValue::from_static("trailers"));
    for (name, id) in [(&headers::JOB, delivery.job_id()), (&headers::CALL_ID, delivery.call_id())] {
        if let Ok(id) = HeaderValue::try_from(id) {
            fields.insert(name, id);
        }
    }
    fields
}

/// Puts a message into its frame: one byte of flags, four of length.
fn framed(message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    // Messages of jobs are shorter than 1 MiB.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(message);
    frame.freeze()
}
