//! Fetches pages from a server that fails now and then. All calls share one handle, so that its budget bounds
//! the retries of the whole program.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use damper_retry::{Backoff, Jitter, LogRetries, Retry};

/// Stands for an HTTP client: every third request loses its connection.
#[derive(Default)]
struct Client {
    requests: AtomicU32,
}

impl Client {
    async fn get(&self, url: &str) -> io::Result<String> {
        match self.requests.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(format!("page of {url}")),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::default();
    let fetch = Retry::named("pages/fetch")
        .max_attempts(4)
        .backoff(Backoff::exponential(Duration::from_millis(2)).jitter(Jitter::Full))
        .attempt_timeout(Duration::from_secs(1))
        .timeout(Duration::from_secs(5))
        .listener(LogRetries)
        .build()?;
    for number in 0..9 {
        let url = format!("https://shop.example/{number}");
        let page = fetch.call(async |_| client.get(&url).await).await?;
        println!("{page}");
    }
    let stats = fetch.stats();
    println!("{} pages at once, {} after a retry", stats.succeeded_without_retry, stats.succeeded_with_retry);
    assert_eq!(stats.succeeded_without_retry + stats.succeeded_with_retry, 9);
    Ok(())
}
