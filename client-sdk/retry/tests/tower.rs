//! The layer for tower services.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use common::{Fault, eager, ms};
use damper_retry::{Error, Fate, Hedge, HedgeDelay, RetryLayer};
use tokio::time::{Instant, Sleep, sleep};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

/// Answers in turn; counts calls without a readiness before them.
#[derive(Clone)]
struct Scripted {
    outcomes: Arc<Mutex<VecDeque<Result<u32, Fault>>>>,
    not_ready: Arc<Mutex<u32>>,
    is_ready: bool,
}

impl Scripted {
    fn new(outcomes: &[Result<u32, Fault>]) -> Self {
        let outcomes = Arc::new(Mutex::new(outcomes.iter().copied().collect()));
        Self { outcomes, not_ready: Arc::default(), is_ready: false }
    }
}

impl Service<String> for Scripted {
    type Response = u32;
    type Error = Fault;
    type Future = std::future::Ready<Result<u32, Fault>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: String) -> Self::Future {
        assert_eq!(request, "request");
        *self.not_ready.lock().unwrap() += u32::from(!std::mem::take(&mut self.is_ready));
        std::future::ready(self.outcomes.lock().unwrap().pop_front().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn tower_layer_retries_and_obeys_readiness() {
    let service = Scripted::new(&[Err(Fault::Io), Err(Fault::Io), Ok(7)]);
    let not_ready = Arc::clone(&service.not_ready);
    let layer = RetryLayer::new(eager().retry_all().build().unwrap());
    let mut service = ServiceBuilder::new().layer(layer).service(service);
    assert_eq!(service.ready().await.unwrap().call("request".to_owned()).await.unwrap(), 7);
    assert_eq!(*not_ready.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn tower_layer_composes_in_a_builder() {
    let layer = RetryLayer::new(eager().retry_all().build().unwrap());
    let inner = Scripted::new(&[Err(Fault::Io), Ok(7)]);
    let service = ServiceBuilder::new()
        .map_err(|error: Error<Fault>| error.into_last(|_| Fault::Timeout))
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    assert_eq!(service.oneshot("request".to_owned()).await, Ok(7));
}

/// A request that does not implement `Clone`.
#[derive(Debug, PartialEq)]
struct Request(u32);

#[tokio::test(start_paused = true)]
async fn tower_layer_copies_requests_by_a_function() {
    let layer = RetryLayer::new(eager().retry_all().build().unwrap())
        .copy_with(|request: &Request| (request.0 > 0).then_some(Request(request.0)));
    let inner = service_fn(async |request: Request| Err::<(), _>(request.0));
    let service = ServiceBuilder::new().layer(layer).service(inner);
    let Err(Error::Failed(failed)) = service.clone().oneshot(Request(5)).await else { panic!("it fails") };
    assert_eq!((failed.last, failed.attempts, failed.ending.fate), (5, 3, Fate::AttemptsExhausted));
    let Err(Error::Failed(failed)) = service.oneshot(Request(0)).await else { panic!("it fails") };
    assert_eq!((failed.last, failed.attempts, failed.ending.fate), (0, 1, Fate::NotReplayable));
}

#[tokio::test(start_paused = true)]
async fn tower_layer_hedges() {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(100)), max_hedges: 1 };
    let layer = RetryLayer::new(eager().hedge(hedge).retry_all().build().unwrap());
    let calls = Arc::new(Mutex::new(0));
    let service = ServiceBuilder::new().layer(layer).service(service_fn(move |(): ()| {
        let number = {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        async move {
            sleep(if number == 1 { ms(1000) } else { ms(10) }).await;
            Ok::<_, Fault>(number)
        }
    }));
    let began = Instant::now();
    assert_eq!(service.oneshot(()).await.unwrap(), 2);
    assert_eq!(began.elapsed(), ms(110));
}

/// Not ready for a while after each clone.
struct Slow(Option<std::pin::Pin<Box<Sleep>>>);

impl Clone for Slow {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl Service<()> for Slow {
    type Response = ();
    type Error = Fault;
    type Future = std::future::Ready<Result<(), Fault>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.0.get_or_insert_with(|| Box::pin(sleep(ms(50)))).as_mut().poll(cx).map(Ok)
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(self.0.take().unwrap().is_elapsed());
        std::future::ready(Err(Fault::Io))
    }
}

#[tokio::test(start_paused = true)]
async fn tower_retries_wait_until_the_service_is_ready() {
    let layer = RetryLayer::new(eager().retry_all().build().unwrap());
    let began = Instant::now();
    let error = ServiceBuilder::new().layer(layer).service(Slow(None)).oneshot(()).await.unwrap_err();
    assert_eq!((error.attempts(), began.elapsed()), (3, ms(150)));
}

#[tokio::test(start_paused = true)]
async fn tower_error_of_readiness_is_not_an_attempt() {
    #[derive(Clone)]
    struct Closed;
    impl Service<()> for Closed {
        type Response = ();
        type Error = Fault;
        type Future = std::future::Ready<Result<(), Fault>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
            Poll::Ready(Err(Fault::Business))
        }
        fn call(&mut self, (): ()) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let layer = RetryLayer::new(eager().retry_all().build().unwrap());
    let error = ServiceBuilder::new().layer(layer).service(Closed).oneshot(()).await.unwrap_err();
    assert_eq!((error.attempts(), error.last()), (0, Some(&Fault::Business)));
}
