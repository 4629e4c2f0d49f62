//! The report of a call: on its failure within the process, never outside.

use std::convert::Infallible;

use damper_core::policy::CircuitBreaker;
use damper_core::{CallOptions, Fate, MethodPart};
use tonic::Status;
use tower::service_fn;

use super::peer::{Peer, Reply, ScriptedBody, begun, data, trailers, trailers_only, unavailable};
use super::*;
use crate::{CallReport, Context, ServerLayer, fate};

const FOREIGN: (&str, &str) = ("damper-fate", "budget;attempts=9;us=9;final");

/// Returns the status that a tonic client makes of the response.
fn status(answer: &Answer) -> Status {
    let in_trailers = answer.trailers.as_ref().and_then(Status::from_header_map);
    in_trailers.or_else(|| Status::from_header_map(&answer.headers)).unwrap()
}

fn report(answer: &Answer) -> Option<(String, u32, Duration)> {
    fate(&status(answer)).map(|report| (report.ending.to_string(), report.attempts, report.elapsed))
}

async fn one_call(policy: impl Into<Option<Policy>>, script: impl IntoIterator<Item = Reply>) -> Answer {
    call(&mut governed(&engine(policy), Peer::new(script)), request()).await.unwrap()
}

fn unavailable_after(message: &'static str) -> Reply {
    begun(ScriptedBody::over([data(message), trailers(&[("grpc-status", "14"), FOREIGN])]))
}

#[tokio::test(start_paused = true)]
async fn failed_call_reports_fate_attempts_and_time() {
    let exhausted = Some(("attempts_exhausted".to_owned(), 3, ms(20)));
    let foreign = || trailers_only(&[("grpc-status", "14"), FOREIGN]);
    let answer = one_call(enforce(), [unavailable(), unavailable(), foreign()]).await;
    assert_eq!(report(&answer), exhausted);
    let answer = one_call(enforce(), [unavailable_after("x")]).await;
    assert_eq!(report(&answer), Some(("committed".to_owned(), 1, ms(0))));
    assert!(!answer.headers.contains_key("damper-fate"));
}

#[tokio::test(start_paused = true)]
async fn failure_made_by_the_layer_has_a_report() {
    let policy = Policy { timeout: Some(ms(30)), ..enforce() };
    let deadline = Some(("deadline".to_owned(), 1, ms(30)));
    assert_eq!(report(&one_call(policy.clone(), [Reply::Hang]).await), deadline);
    let stalls = begun(ScriptedBody::stalling([data("wor")]));
    assert_eq!(report(&one_call(policy, [stalls]).await), deadline);

    let breaker = CircuitBreaker { consecutive_failures: 1, ..CircuitBreaker::default() };
    let policy = Policy { circuit_breaker: Some(breaker), retry: None, ..enforce() };
    let mut client = governed(&engine(policy), Peer::new([unavailable()]));
    call(&mut client, request()).await.unwrap();
    let answer = call(&mut client, request()).await.unwrap();
    assert_eq!(report(&answer), Some(("circuit_open".to_owned(), 0, ms(0))));
}

#[tokio::test(start_paused = true)]
async fn error_of_the_transport_has_a_report() {
    let lost = || Reply::Error(Box::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
    let peer = Peer::new([lost(), lost(), lost()]);
    let error = call(&mut governed(&engine(enforce()), peer), request()).await.unwrap_err();
    let status = Status::from_error(error);
    let plain = Status::from_error(Box::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
    assert_eq!((status.code(), status.message()), (plain.code(), plain.message()));
    assert!(fate(&status).is_some());
    let cut = begun(ScriptedBody::over([data("wor"), Err(Status::data_loss("cut").into())]));
    let error = one_call(enforce(), [cut]).await.error.unwrap();
    assert_eq!(fate(&Status::from_error(error)).unwrap().ending.fate, Fate::NotRetryable);
}

#[tokio::test(start_paused = true)]
async fn held_response_has_the_report_in_its_trailers_or_extensions() {
    let mut pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    pattern.callee_method = MethodPart::Exact(METHOD.trim_start_matches('/').to_owned());
    let engine = engine(None);
    let policy = Policy { hold_unary: true, ..enforce() };
    engine.apply(Table::from_iter([Arc::new(Rule::new(pattern, policy, 1).unwrap())]));
    let message = "\0\0\0\0\u{1}x";
    let success = begun(ScriptedBody::over([data(message), trailers(&[("grpc-status", "0")])]));
    let script = (0..4).map(|_| unavailable_after(message)).chain([success]);
    let mut client = governed(&engine, Peer::new(script));
    let answer = call(&mut client, request()).await.unwrap();
    assert_eq!(report(&answer), Some(("attempts_exhausted".to_owned(), 3, ms(20))));
    assert!(!answer.headers.contains_key("damper-fate"));

    let response = client.call(request()).await.unwrap();
    let report: CallReport = *response.extensions().get().unwrap();
    assert_eq!((report.ending.fate, report.attempts, report.elapsed), (Fate::OkAfterRetry, 2, ms(10)));
    assert_eq!(read(response).await.trailers.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_added_without_an_enforced_rule_or_on_success() {
    for policy in [None, Some(observe())] {
        let answer = one_call(policy, [unavailable()]).await;
        assert_eq!(report(&answer), None);
    }
    let foreign = begun(ScriptedBody::over([data("x"), trailers(&[("grpc-status", "0"), FOREIGN])]));
    let answer = one_call(enforce(), [foreign]).await;
    assert_eq!(answer.trailers.unwrap().len(), 1);
}

/// Serves a request with this handler.
async fn served<F, Fut>(engine: &Arc<Runtime>, handler: F) -> Answer
where
    F: Fn() -> Fut,
    Fut: Future<Output = Status>,
{
    let handler = service_fn(|_: Request<Body>| {
        let status = handler();
        async { Ok::<_, Infallible>(status.await.into_http::<Body>()) }
    });
    let answer = call(&mut ServerLayer::new(Arc::clone(engine)).layer(handler), request()).await.unwrap();
    assert!(!answer.headers.contains_key("damper-fate"), "it stays in the process");
    answer
}

fn is_flagged(answer: &Answer) -> bool {
    answer.headers.contains_key("damper-no-more-retry")
}

/// Returns the failure of a call to a callee that always fails.
async fn failure(engine: &Arc<Runtime>, options: CallOptions) -> Status {
    let peer = Peer::new([unavailable(), unavailable(), unavailable()]);
    let mut request = request();
    request.extensions_mut().insert(options);
    status(&call(&mut governed(engine, peer), request).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn response_that_is_the_failure_of_a_call_has_the_flag_of_that_call() {
    let (engine, once) = (engine(enforce()), CallOptions::new().no_retries());
    assert!(is_flagged(&served(&engine, || failure(&engine, CallOptions::new())).await));
    let passes_other = served(&engine, || async {
        failure(&engine, CallOptions::new()).await;
        failure(&engine, once).await
    });
    assert!(!is_flagged(&passes_other.await), "the layer above may retry the second call");
    let makes_its_own = served(&engine, || async {
        failure(&engine, CallOptions::new()).await;
        Status::unavailable("no stock")
    });
    assert!(is_flagged(&makes_its_own.await), "its origin is unknown");
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_task_without_the_context_is_recognised() {
    let engine = engine(enforce());
    let answer = served(&engine, || async {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { failure(&engine, CallOptions::new()).await }).await.unwrap()
    });
    assert!(is_flagged(&answer.await));
}

#[tokio::test(start_paused = true)]
async fn handler_overrides_the_flag_of_a_failure() {
    let engine = engine(enforce());
    let forgets = served(&engine, || async {
        let status = failure(&engine, CallOptions::new()).await;
        Context::current().unwrap().forget_failures();
        status
    });
    assert!(!is_flagged(&forgets.await));
    let marks = served(&engine, || async {
        Context::current().unwrap().mark_final();
        failure(&engine, CallOptions::new().no_retries()).await
    });
    assert!(is_flagged(&marks.await));
}
