//! Allocations per call. A call that succeeds at its first attempt allocates nothing; one that waits under a
//! limit of time allocates its timer.
//!
//! A single test in its own binary without a harness, whose threads would allocate during the test: the
//! counting allocator counts the whole process.
#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::future::ready;
use std::io;
use std::task::{Context, Waker};
use std::time::Duration;

use damper_retry::{AttemptEnded, Backoff, Budget, CircuitBreaker, Listener, Ratio, Retry, RetryBreaker};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::task::yield_now;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Silent;

impl<T, E> Listener<T, E> for Silent {
    fn success(&self, _: &AttemptEnded<'_, T, E>, _: &T) {}
}

/// Returns the allocations of a call, made often enough before.
async fn cost<T, E>(mut call: impl AsyncFnMut() -> Result<T, E>) -> usize {
    for _ in 0..10 {
        assert!(call().await.is_ok());
    }
    let region = Region::new(ALLOCATOR);
    assert!(call().await.is_ok());
    let change = region.change();
    change.allocations + change.reallocations
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(check_allocations());
    println!("allocations per call are within their limits");
}

/// The buffer of events is made for the first receiver.
fn handle_is_small() {
    let region = Region::new(ALLOCATOR);
    let handle = Retry::named("small").build().unwrap();
    let bytes = region.change().bytes_allocated;
    assert!(bytes <= 8 << 10, "a handle has {bytes} bytes");
    let region = Region::new(ALLOCATOR);
    drop(handle.events());
    assert!(region.change().bytes_allocated > 8 << 10);
}

/// A call that waits for its retry, with its future and its timer.
fn waiting_call_is_small() {
    const CALLS: usize = 1_000;
    let retry = Retry::named("waiting").retry_all().budget(None).timeout(Duration::from_secs(60));
    let retry = retry.backoff(Backoff::fixed(Duration::from_secs(30))).build().unwrap();
    let mut waiting = Vec::with_capacity(CALLS);
    let region = Region::new(ALLOCATOR);
    for _ in 0..CALLS {
        let mut call = Box::pin(retry.call(|_| ready(Err::<(), _>(0))));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiting.push(call);
    }
    let change = region.change();
    let bytes = (change.bytes_allocated - change.bytes_deallocated) / CALLS;
    println!("a waiting call has {bytes} bytes");
    assert!(bytes <= 1 << 10, "{bytes}");
}

async fn check_allocations() {
    waiting_call_is_small();
    handle_is_small();
    let plain = Retry::named("plain").build().unwrap();
    let yielding = async |_| {
        yield_now().await;
        Ok::<_, io::Error>(1)
    };
    assert_eq!(cost(async || plain.call(async |_| Ok::<_, io::Error>(1)).await).await, 0);
    assert_eq!(cost(async || plain.call(yielding).await).await, 0);
    assert_eq!(cost(async || plain.call_hedged(yielding).await).await, 0);
    assert_eq!(cost(async || plain.call_mut(yielding).await).await, 0);
    assert_eq!(cost(async || plain.call_blocking(|_| Ok::<_, io::Error>(1))).await, 0);
    assert_eq!(cost(async || damper_retry::retry(yielding).retry_all().await).await, 0);

    let full = Retry::named("full")
        .budget(Budget { ratio: Ratio::from_bp(1_000), min_per_second: 1 })
        .retry_breaker(RetryBreaker::default())
        .circuit_breaker(CircuitBreaker::default())
        .timeout(Duration::from_secs(10))
        .retry_if(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut)
        .listener(Silent)
        .build()
        .unwrap();
    assert_eq!(cost(async || full.call(async |_| Ok(1)).await).await, 0, "ready at once");
    assert_eq!(cost(async || full.call(yielding).await).await, 1, "the timer of its limit");

    let failing = Retry::named("failing").retry_all().backoff(Backoff::none()).build().unwrap();
    let retried = async || {
        failing.call(async |attempt| if attempt.is_retry() { Ok(()) } else { Err(0) }).await.map_err(drop)
    };
    assert_eq!(cost(retried).await, 0, "a retry without a wait");
}
