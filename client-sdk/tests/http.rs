//! HTTP through both layers, over real sockets: reqwest and hyper as clients, axum as the server.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use bytes::Bytes;
use damper_sdk::http::{HttpClient, PathTemplate, RetryHint};
use damper_sdk::retry::Error;
use damper_sdk::{CallOptions, Context, Damper, Fate};
use http_body_util::Full;
use tokio::net::TcpListener;

/// Three attempts, 10 ms apart.
const RULE: &str = "
kind: Rule
key: { caller_service: shop, caller_cluster: '*', callee_service: '*', callee_method: '*' }
policy:
  mode: enforce
  retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } }
  retry_breaker: { enabled: false }
";

/// A server that answers with the next status of a script, and keeps the headers of all requests.
#[derive(Clone, Default)]
struct Script {
    statuses: Arc<Vec<u16>>,
    headers: &'static [(&'static str, &'static str)],
    seen: Arc<std::sync::Mutex<Vec<HeaderMap>>>,
}

impl Script {
    fn seen(&self) -> Vec<HeaderMap> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(State(script): State<Script>, headers: HeaderMap) -> impl IntoResponse {
    let mut seen = script.seen.lock().unwrap();
    let status = script.statuses.get(seen.len()).or(script.statuses.last()).copied().unwrap_or(200);
    seen.push(headers);
    let fields: HeaderMap = script
        .headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
        .collect();
    (StatusCode::from_u16(status).unwrap(), fields, "body")
}

/// Serves, and returns the address as `http://127.0.0.1:PORT`.
async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn scripted(statuses: &[u16], headers: &'static [(&'static str, &'static str)]) -> (String, Script) {
    let script = Script { statuses: Arc::new(statuses.to_vec()), headers, seen: Arc::default() };
    (serve(Router::new().fallback(any(answer)).with_state(script.clone())).await, script)
}

fn shop() -> Damper {
    Damper::fixed("shop", RULE).unwrap()
}

fn external(damper: &Damper) -> HttpClient<reqwest::Client> {
    damper.http_client("catalog").unwrap().layer(reqwest::Client::new())
}

fn internal(damper: &Damper) -> HttpClient<reqwest::Client> {
    damper.http_client("catalog").unwrap().internal().layer(reqwest::Client::new())
}

fn request(method: &str, url: &str) -> reqwest::Request {
    reqwest::Request::new(method.parse().unwrap(), url.parse().unwrap())
}

/// Returns routes with calls, attempts and the fates that occurred.
fn routes(damper: &Damper) -> Vec<(String, u64, u64, Vec<String>)> {
    let mut routes = Vec::new();
    damper.for_each_route(|_, method, counters| {
        let fates = counters.endings().filter(|(_, count)| *count > 0).map(|(ending, _)| ending.to_string());
        routes.push((method.to_owned(), counters.calls(), counters.attempts(), fates.collect()));
    });
    routes
}

#[tokio::test]
async fn request_is_retried_and_its_route_named_by_the_template() {
    let (url, script) = scripted(&[503, 429, 200], &[]).await;
    let damper = shop();
    let client = external(&damper).at("/orders/{id}");
    let response = client.send(request("GET", &format!("{url}/orders/7"))).await.unwrap();
    assert_eq!((response.status(), response.text().await.unwrap().as_str()), (StatusCode::OK, "body"));
    assert_eq!(script.seen().len(), 3);
    let expected = ("GET:/orders/{id}".to_owned(), 1, 3, vec!["ok_after_retry".to_owned()]);
    assert_eq!(routes(&damper), [expected]);
}

#[tokio::test]
async fn last_response_is_returned_when_the_attempts_are_used_up() {
    let (url, script) = scripted(&[503], &[]).await;
    let damper = shop();
    let response = external(&damper).send(request("GET", &url)).await.unwrap();
    assert_eq!((response.status().as_u16(), script.seen().len()), (503, 3));
    assert_eq!(routes(&damper)[0].3, ["attempts_exhausted"]);
}

#[tokio::test]
async fn only_requests_that_may_be_repeated_are_retried() {
    let table = [
        ("GET", 503, None, 3),
        ("HEAD", 503, None, 3),
        ("PUT", 503, None, 3),
        ("DELETE", 504, None, 3),
        ("POST", 503, None, 1),
        ("PATCH", 503, None, 1),
        ("POST", 503, Some("idempotency-key"), 3),
        // The answer of a callee that is alive, and a code that the rule does not retry.
        ("GET", 404, None, 1),
        ("GET", 500, None, 1),
        ("GET", 425, None, 1),
        ("GET", 425, Some("early-data"), 3),
    ];
    for (method, status, header, attempts) in table {
        let (url, script) = scripted(&[status], &[]).await;
        let mut request = request(method, &url);
        if let Some(header) = header {
            request.headers_mut().insert(header, "1".parse().unwrap());
        }
        let response = external(&shop()).send(request).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), script.seen().len()),
            (status, attempts),
            "{method} {status}"
        );
    }
}

#[tokio::test]
async fn post_is_retried_if_the_caller_declares_it_idempotent() {
    let (url, script) = scripted(&[503], &[]).await;
    let options = CallOptions::new().idempotent();
    external(&shop()).with_options(options).send(request("POST", &url)).await.unwrap();
    assert_eq!(script.seen().len(), 3);
    external(&shop()).with_options(options.max_attempts(2)).send(request("POST", &url)).await.unwrap();
    assert_eq!(script.seen().len(), 3 + 2);
    external(&shop()).with_options(options.no_retries()).send(request("GET", &url)).await.unwrap();
    assert_eq!(script.seen().len(), 3 + 2 + 1);
}

#[tokio::test]
async fn post_that_was_never_sent_is_retried() {
    // A port on which no process listens.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let damper = shop();
    let error =
        external(&damper).send(request("POST", &format!("http://127.0.0.1:{port}/"))).await.unwrap_err();
    let Error::Failed(failed) = error else { panic!("{error}") };
    assert!(failed.last.is_connect());
    assert_eq!((failed.attempts, failed.ending.fate), (3, Fate::AttemptsExhausted));
}

/// A server that receives requests and never answers; counts them.
async fn hanging() -> (String, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    let handler = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<StatusCode>()
    };
    (serve(Router::new().fallback(any(handler))).await, requests)
}

#[tokio::test]
async fn cut_request_is_retried_only_if_it_may_be() {
    let limits =
        "max_attempts: 3, per_attempt_timeout: 200ms, codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }";
    let rule = RULE.replace("max_attempts: 3", limits);
    for (method, header, attempts) in
        [("POST", None, 1), ("POST", Some("idempotency-key"), 3), ("GET", None, 3)]
    {
        let (url, requests) = hanging().await;
        let damper = Damper::fixed("shop", &rule).unwrap();
        let mut request = request(method, &url);
        if let Some(header) = header {
            request.headers_mut().insert(header, "1".parse().unwrap());
        }
        let error = external(&damper).send(request).await.unwrap_err();
        let expected = if attempts == 1 { Fate::NotRetryable } else { Fate::AttemptsExhausted };
        assert_eq!((error.attempts(), error.fate()), (attempts, Some(expected)), "{method} {header:?}");
        assert!(requests.load(Ordering::Relaxed) <= attempts);
    }
}

#[tokio::test]
async fn timeout_of_the_client_is_no_lost_connection() {
    let timed = reqwest::Client::builder().timeout(Duration::from_millis(200)).build().unwrap();
    let both = RULE
        .replace("max_attempts: 3", "max_attempts: 3, codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }");
    for (rule, method, attempts) in [(RULE, "GET", 1), (&both, "GET", 3), (&both, "POST", 1)] {
        let (url, _) = hanging().await;
        let damper = Damper::fixed("shop", rule).unwrap();
        let client = damper.http_client("catalog").unwrap().layer(timed.clone());
        let error = client.send(request(method, &url)).await.unwrap_err();
        assert!(error.last().unwrap().is_timeout());
        assert_eq!(error.attempts(), attempts, "{method}");
    }
}

#[tokio::test]
async fn errors_of_this_process_are_not_retried() {
    let redirect = || async { (StatusCode::FOUND, [("location", "/")]) };
    let url = serve(Router::new().fallback(any(redirect))).await;
    let error = external(&shop()).send(request("GET", &url)).await.unwrap_err();
    assert!(error.last().unwrap().is_redirect());
    assert_eq!((error.attempts(), error.fate()), (1, Some(Fate::NotRetryable)));
    let error = external(&shop()).send(request("GET", "ftp://127.0.0.1/")).await.unwrap_err();
    assert!(error.last().unwrap().is_builder());
    assert_eq!((error.attempts(), error.fate()), (1, Some(Fate::NotRetryable)));
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let dated =
        &[("retry-after", "Sun, 06 Nov 1994 08:49:38 GMT"), ("date", "Sun, 06 Nov 1994 08:49:37 GMT")];
    for headers in [&[("retry-after", "1")][..], dated] {
        let (url, script) = scripted(&[503, 200], headers).await;
        let began = Instant::now();
        assert_eq!(external(&shop()).send(request("GET", &url)).await.unwrap().status(), 200);
        assert_eq!(script.seen().len(), 2);
        let waited = began.elapsed();
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
    }
    let (url, script) = scripted(&[503], &[("retry-after", "3600")]).await;
    let damper = shop();
    assert_eq!(external(&damper).send(request("GET", &url)).await.unwrap().status(), 503);
    assert_eq!((script.seen().len(), routes(&damper)[0].3[0].as_str()), (1, "pushback"));
}

#[tokio::test]
async fn body_that_is_a_stream_is_sent_once() {
    let (url, script) = scripted(&[503], &[]).await;
    let damper = shop();
    let mut request = request("PUT", &url);
    *request.body_mut() = Some(reqwest::Body::wrap(Full::new(Bytes::from_static(b"a"))));
    assert_eq!(external(&damper).send(request).await.unwrap().status(), 503);
    assert_eq!((script.seen().len(), routes(&damper)[0].3[0].as_str()), (1, "not_replayable"));
}

#[tokio::test]
async fn flags_and_deadline_go_to_internal_callees_only() {
    for is_internal in [true, false] {
        let (url, script) = scripted(&[503], &[("damper-no-more-retry", "1")]).await;
        let damper = shop();
        let client = if is_internal { internal(&damper) } else { external(&damper) };
        client.send(request("GET", &url)).await.unwrap();
        let seen = script.seen();
        let attempts = if is_internal { 1 } else { 3 };
        assert_eq!(seen.len(), attempts, "an internal callee's flag ends the call");
        assert!(seen.iter().all(|headers| !headers.contains_key("damper-retry")));
    }
    let (url, script) = scripted(&[503], &[]).await;
    internal(&shop()).send(request("GET", &url)).await.unwrap();
    let flags: Vec<_> = script.seen().iter().map(|headers| headers.get("damper-retry").cloned()).collect();
    assert_eq!(flags, [None, Some("1".parse().unwrap()), Some("2".parse().unwrap())]);
}

#[tokio::test]
async fn headers_of_a_received_request_are_not_passed_on() {
    for is_internal in [true, false] {
        let (url, script) = scripted(&[200], &[]).await;
        let damper = shop();
        let client = if is_internal { internal(&damper) } else { external(&damper) };
        let mut request = request("GET", &url);
        for (name, value) in [("damper-retry", "1"), ("damper-timeout", "1S"), ("damper-call", "mine")] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        client.send(request).await.unwrap();
        let seen = &script.seen()[0];
        assert!(!seen.contains_key("damper-retry") && !seen.contains_key("damper-timeout"));
        assert_eq!(seen.get("damper-call").unwrap(), "mine", "an id of the application stays");
    }
}

#[tokio::test]
async fn vendor_header_decides_by_a_hook() {
    let table = [
        // A status that is retried, and one that is not.
        ("GET", 503, Some("false"), 1),
        ("GET", 409, Some("true"), 3),
        ("GET", 409, None, 1),
        ("GET", 503, None, 3),
        ("POST", 409, Some("true"), 1),
    ];
    for (method, status, header, attempts) in table {
        let headers: &'static [(&'static str, &'static str)] = match header {
            Some("true") => &[("x-should-retry", "true")],
            Some(_) => &[("x-should-retry", "false")],
            None => &[],
        };
        let (url, script) = scripted(&[status], headers).await;
        let layer = shop().http_client("catalog").unwrap().retry_hint(|head| {
            match head.headers.get("x-should-retry").map(|value| value.as_bytes()) {
                Some(b"true") => RetryHint::Retry,
                Some(_) => RetryHint::Never,
                None => RetryHint::ByStatus,
            }
        });
        let client = layer.layer(reqwest::Client::new());
        assert_eq!(client.send(request(method, &url)).await.unwrap().status(), status);
        assert_eq!(script.seen().len(), attempts, "{method} {status} {header:?}");
    }
}

fn hyper()
-> hyper_util::client::legacy::Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>> {
    hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http()
}

#[tokio::test]
async fn flags_cross_http2_in_both_directions() {
    let rule =
        RULE.replace("mode: enforce", "mode: enforce\n  timeout: 5s\n  chain: { propagate_baggage: true }");
    let damper = Damper::fixed("shop", &rule).unwrap();
    let builder = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<Full<Bytes>>();
    let client = damper.http_client("catalog").unwrap().internal().layer(builder);
    let (url, script) = scripted(&[503, 200], &[]).await;
    let put = |url: &str| http::Request::put(url).body(Full::new(Bytes::from_static(b"a"))).unwrap();
    let response = client.send(put(&url)).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
    let seen = script.seen();
    assert!(!seen[0].contains_key("damper-retry") && !seen[0].contains_key("baggage"));
    assert_eq!(seen[1].get("damper-retry").unwrap(), "1");
    assert!(seen[1].get("baggage").unwrap().to_str().unwrap().starts_with("damper.retry=1;until="));
    assert!(seen.iter().all(|headers| headers.contains_key("damper-timeout")));
    let (url, script) = scripted(&[503], &[("damper-no-more-retry", "1")]).await;
    client.send(put(&url)).await.unwrap();
    assert_eq!(script.seen().len(), 1, "a flag of the callee");
}

#[tokio::test]
async fn slow_request_is_hedged_if_it_may_be_repeated() {
    let rule =
        RULE.replace("mode: enforce", "mode: enforce\n  timeout: 1s\n  hedge: { delay: { fixed: 20ms } }");
    for (method, is_hedged) in [("GET", true), ("POST", false)] {
        let requests = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&requests);
        let first_hangs = move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            async move { if number == 0 { std::future::pending().await } else { StatusCode::OK } }
        };
        let url = serve(Router::new().fallback(any(first_hangs))).await;
        let damper = Damper::fixed("shop", &rule).unwrap();
        let result = external(&damper).send(request(method, &url)).await;
        assert_eq!(result.is_ok(), is_hedged, "{method}");
        let fate = if is_hedged { "ok_by_hedge" } else { "deadline" };
        assert_eq!(
            (routes(&damper)[0].2, routes(&damper)[0].3[0].as_str()),
            (1 + u64::from(is_hedged), fate)
        );
    }
}

#[tokio::test]
async fn extensions_of_a_request_are_read() {
    let (url, script) = scripted(&[503], &[]).await;
    let damper = shop();
    let client = damper.http_client("catalog").unwrap().internal().layer(hyper()).at("/orders");
    let put = || http::Request::put(&url).body(Full::new(Bytes::from_static(b"a"))).unwrap();
    let mut named = put();
    named.extensions_mut().insert(PathTemplate::new("/orders/{id}"));
    named.extensions_mut().insert(CallOptions::new().no_retries());
    client.send(named).await.unwrap();
    assert_eq!((script.seen().len(), routes(&damper)[0].0.as_str()), (1, "PUT:/orders/{id}"));

    // The context of a request that is a retry.
    let mut below = put();
    below.extensions_mut().insert(retried_context().await);
    client.send(below).await.unwrap();
    assert_eq!(script.seen().len(), 2, "the layer above retries");
}

/// Returns the context of a request that is a retry.
async fn retried_context() -> Context {
    let damper = shop();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let handler = move || {
        let sender = sender.clone();
        async move { sender.send(Context::current().unwrap()).await.unwrap() }
    };
    let url =
        serve(Router::new().route("/", get(handler)).layer(damper.http_server_layer().internal())).await;
    let mut request = request("GET", &url);
    request.headers_mut().insert("damper-retry", "1".parse().unwrap());
    reqwest::Client::new().execute(request).await.unwrap();
    receiver.recv().await.unwrap()
}

#[tokio::test]
async fn body_above_the_replay_limit_is_sent_once() {
    let rule = RULE.replace("mode: enforce", "mode: enforce\n  replay_limit_bytes: 4");
    for (body, attempts) in [(&b"four"[..], 3), (b"above", 1)] {
        let (url, script) = scripted(&[503], &[]).await;
        let damper = Damper::fixed("shop", &rule).unwrap();
        let mut with_reqwest = request("PUT", &url);
        *with_reqwest.body_mut() = Some(body.into());
        external(&damper).send(with_reqwest).await.unwrap();
        assert_eq!(script.seen().len(), attempts);
        let client = damper.http_client("catalog").unwrap().layer(hyper());
        client
            .send(http::Request::put(&url).body(Full::new(Bytes::from_static(body))).unwrap())
            .await
            .unwrap();
        assert_eq!(script.seen().len(), 2 * attempts);
    }
}

#[tokio::test]
async fn context_lasts_while_the_response_body_is_made() {
    let damper = shop();
    let handler = || async {
        let frames = futures_util::stream::once(async {
            let is_known = Context::current().is_some();
            Ok::<_, std::convert::Infallible>(if is_known { "known" } else { "lost" })
        });
        axum::body::Body::from_stream(frames)
    };
    let url = serve(Router::new().route("/", get(handler)).layer(damper.http_server_layer())).await;
    let response = reqwest::Client::new().execute(request("GET", &url)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "known");
}

#[tokio::test]
async fn internal_error_after_a_final_failure_has_the_flag() {
    for (status, is_flagged) in [(500, true), (503, true), (404, false), (501, false)] {
        let (below, _) = scripted(&[503], &[]).await;
        let damper = shop();
        let client = internal(&damper);
        let handler = move || {
            let (client, below) = (client.clone(), below.clone());
            async move {
                client.send(request("GET", &below)).await.unwrap();
                StatusCode::from_u16(status).unwrap()
            }
        };
        let router = Router::new().route("/", get(handler)).layer(damper.http_server_layer().internal());
        let response = reqwest::Client::new().execute(request("GET", &serve(router).await)).await.unwrap();
        assert_eq!(response.headers().contains_key("damper-no-more-retry"), is_flagged, "{status}");
    }
}

#[tokio::test]
async fn hyper_client_works_as_any_tower_service() {
    let (url, script) = scripted(&[503, 200], &[]).await;
    let mut client = shop().http_client("catalog").unwrap().layer(hyper());
    let request = http::Request::put(&url).body(Full::new(Bytes::from_static(b"a"))).unwrap();
    let response = tower::Service::call(&mut client, request).await.unwrap();
    assert_eq!((response.status().as_u16(), script.seen().len()), (200, 2));
    let (url, script) = scripted(&[503], &[]).await;
    let once = http::Request::put(&url).extension(CallOptions::new().no_retries());
    let request = once.body(Full::new(Bytes::from_static(b"a"))).unwrap();
    tower::Service::call(&mut client, request).await.unwrap();
    assert_eq!(script.seen().len(), 1);
}

/// A service between two others: serves HTTP and calls `below`.
async fn relay(damper: &Damper, below: String) -> (String, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let (client, counted) = (internal(damper), Arc::clone(&runs));
    let handler = move || {
        let (client, below, runs) = (client.clone(), below.clone(), Arc::clone(&counted));
        async move {
            runs.fetch_add(1, Ordering::Relaxed);
            assert!(Context::current().is_some());
            let response = client.send(request("GET", &below)).await.unwrap();
            (response.status(), "relayed")
        }
    };
    let router = Router::new().route("/", get(handler)).layer(damper.http_server_layer().internal());
    (serve(router).await, runs)
}

#[tokio::test]
async fn only_the_layer_nearest_the_fault_retries() {
    let (url, script) = scripted(&[503], &[]).await;
    let (lower, lower_runs) = relay(&shop(), url).await;
    let (upper, upper_runs) = relay(&shop(), lower).await;
    let damper = shop();
    let response = internal(&damper).send(request("GET", &upper)).await.unwrap();
    assert_eq!((response.status().as_u16(), script.seen().len()), (503, 3));
    assert_eq!((lower_runs.load(Ordering::Relaxed), upper_runs.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(routes(&damper)[0].3, ["chain_no_more_retry"]);
}

#[tokio::test]
async fn deadline_shrinks_along_the_chain() {
    let (url, script) = scripted(&[200], &[]).await;
    let (middle, _) = relay(&shop(), url).await;
    let rule = RULE.replace("mode: enforce", "mode: enforce\n  timeout: 5s");
    let top = Damper::fixed("shop", &rule).unwrap();
    internal(&top).send(request("GET", &middle)).await.unwrap();
    let seen = script.seen();
    let left = seen[0].get("damper-timeout").unwrap().to_str().unwrap();
    let left: u64 = left.strip_suffix('u').unwrap().parse().unwrap();
    assert!(left < 5_000_000, "{left}");
}

#[tokio::test]
async fn stranger_cannot_set_flag_or_deadline() {
    let damper = shop();
    let seen = Arc::new(std::sync::Mutex::new(None));
    let kept = Arc::clone(&seen);
    let handler = move |headers: HeaderMap| {
        let kept = Arc::clone(&kept);
        async move {
            let context = Context::current().unwrap();
            *kept.lock().unwrap() = Some((context.is_retry(), context.time_left(), headers.len()));
            (StatusCode::SERVICE_UNAVAILABLE, [("damper-no-more-retry", "1")])
        }
    };
    let url = serve(Router::new().route("/", get(handler)).layer(damper.http_server_layer())).await;
    let mut request = request("GET", &url);
    request.headers_mut().insert("damper-retry", "1".parse().unwrap());
    request.headers_mut().insert("damper-timeout", "1S".parse().unwrap());
    let response = reqwest::Client::new().execute(request).await.unwrap();
    assert!(!response.headers().contains_key("damper-no-more-retry"));
    let (is_retry, left, _) = seen.lock().unwrap().unwrap();
    assert_eq!((is_retry, left), (false, None));
}
