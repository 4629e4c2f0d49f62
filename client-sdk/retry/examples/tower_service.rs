//! A tower service whose calls are retried. The caller sees the error type of the service.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use damper_retry::{Backoff, Retry, RetryLayer};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let retry = Retry::named("stock/take")
        .backoff(Backoff::exponential(Duration::from_millis(2)))
        .attempt_timeout(Duration::from_secs(1))
        .build()?;
    let attempts = Arc::new(AtomicU32::new(0));
    let flaky = service_fn({
        let attempts = Arc::clone(&attempts);
        move |item: String| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            async move { if attempt == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(item.len()) } }
        }
    });
    let mut service = ServiceBuilder::new()
        .map_err(|error: damper_retry::Error<io::Error>| error.into_last(io::Error::other))
        .layer(RetryLayer::new(retry))
        .layer(ConcurrencyLimitLayer::new(100))
        .service(flaky);
    let length = service.ready().await?.call("screws".to_owned()).await?;
    println!("{length} letters after {} attempts", attempts.load(Ordering::Relaxed));
    assert_eq!((length, attempts.load(Ordering::Relaxed)), (6, 2));
    Ok(())
}
