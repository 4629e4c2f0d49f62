//! What the tests share: a clock in milliseconds, and calls whose attempts follow a script.
#![allow(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test file uses a part"
)]

use std::sync::Mutex;
use std::time::Duration;

use damper_retry::{Backoff, Builder, Error, Handlers, Retry};
use tokio::time::Instant;

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Errors of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Io,
    Timeout,
    Business,
}

/// A handle that retries everything at once, without a limit on its calls together.
pub fn eager() -> Builder {
    Retry::named("test").backoff(Backoff::none()).budget(None)
}

/// Makes a call whose attempts end with the outcomes in turn, the last one again and again. Returns the start
/// of each attempt in milliseconds, and the result.
pub async fn play<T: Clone, E: Clone, P: Handlers<T, E>>(
    retry: &Retry<P>,
    outcomes: &[Result<T, E>],
) -> (Vec<u64>, Result<T, Error<E>>) {
    let began = Instant::now();
    let starts = Mutex::new(Vec::new());
    let result = retry
        .call(async |attempt| {
            starts.lock().unwrap().push(u64::try_from(began.elapsed().as_millis()).unwrap());
            let at = (attempt.number() as usize).min(outcomes.len()) - 1;
            outcomes[at].clone()
        })
        .await;
    (starts.into_inner().unwrap(), result)
}

/// Returns the waits of a call that fails until it ends.
pub async fn waits<P: Handlers<(), Fault>>(retry: &Retry<P>) -> Vec<u64> {
    let (starts, _) = play(retry, &[Err(Fault::Io)]).await;
    starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Returns the first waits in milliseconds, with the smallest and the largest random numbers.
pub fn bounds(backoff: &Backoff, count: usize) -> Vec<(u128, u128)> {
    let all = |random| backoff.preview(move || random).take(count).map(|wait| wait.as_millis());
    all(0).zip(all(u64::MAX)).collect()
}
