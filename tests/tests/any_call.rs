//! A chain of protocols: gRPC to `a`, HTTP to `b`, gRPC to `c`, SQL to a database that is locked.
//!
//! Only the layer nearest the fault retries, deadlines shrink, and every hop is a route of the control plane.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use damper_proto::v1;
use damper_sdk::{Context, Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::hop::{Hop, METHOD, call};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

const READY: Duration = Duration::from_secs(10);
const REPORTED_WITHIN: Duration = Duration::from_secs(60);
/// Three attempts at once, no breaker, a deadline.
const POLICY: &str = "mode: enforce, timeout: 20s, retry: { max_attempts: 3, backoff: { none: {} } }, \
     retry_breaker: { enabled: false }";
const FLAGS_OFF: &str = "chain: { ignore_retry_flag: true, ignore_no_more_retry: true }";

fn rule(policy: &str) -> String {
    format!(
        "kind: Rule\nkey: {{ caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }}\npolicy: {{ {policy} }}\n"
    )
}

async fn damper(control_plane: &ControlPlane, service: &str) -> Damper {
    let damper = Damper::connect(Options::new([control_plane.url()]).service(service)).expect("good options");
    damper.ready(READY).await.expect("rules arrive");
    damper
}

/// A database that another writer has locked.
async fn locked_database(folder: &Path) -> SqlitePool {
    let file = SqliteConnectOptions::new().filename(folder.join("orders.db"));
    let options = file.create_if_missing(true).busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await.expect("a database");
    sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await.expect("a table");
    let mut other = pool.acquire().await.expect("a connection").detach();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.expect("a lock");
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(other);
    });
    pool
}

/// Counts the requests that reach a service, and the longest time that one was given.
#[derive(Clone, Default)]
struct Reached {
    requests: Arc<AtomicU64>,
    /// Those that were sent by a retry.
    retries: Arc<AtomicU64>,
    left: Arc<AtomicU64>,
}

impl Reached {
    fn note(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let context = Context::current().expect("a server layer");
        self.retries.fetch_add(u64::from(context.is_retry()), Ordering::Relaxed);
        let left = context.time_left().expect("a deadline");
        let left = u64::try_from(left.as_micros()).expect("a short time");
        self.left.fetch_max(left, Ordering::Relaxed);
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// `c`: a statement for each gRPC request.
async fn database_service(damper: Damper, pool: SqlitePool, reached: Reached, statements: Reached) -> Hop {
    let insert = damper.operation("orders-db", "orders/insert").expect("good names").retry_all();
    let layer = damper.server_layer();
    Hop::serve(Some(layer), move |_| {
        let (insert, pool, statements) = (insert.clone(), pool.clone(), statements.clone());
        let reached = reached.clone();
        async move {
            reached.note();
            let statement = insert.call(|_| async {
                statements.note();
                sqlx::query("INSERT INTO orders (item) VALUES ('tea')").execute(&pool).await
            });
            statement.await.map_err(|error| Status::unavailable(error.to_string()))?;
            Ok(Response::new(String::new()))
        }
    })
    .await
}

/// `b`: a gRPC call for each HTTP request.
async fn http_service(damper: &Damper, below: &Hop, reached: Reached) -> String {
    let channel = below.governed_channel(&damper.client_layer("c").expect("a good name")).await;
    let handler = move || {
        let (channel, reached) = (channel.clone(), reached.clone());
        async move {
            reached.note();
            match call(channel, Request::new(String::new())).await {
                Ok(_) => StatusCode::OK,
                Err(_) => StatusCode::SERVICE_UNAVAILABLE,
            }
        }
    };
    let router = axum::Router::new().route("/orders/{id}", axum::routing::put(handler));
    let router = router.layer(damper.http_server_layer().internal());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// `a`: an HTTP request for each gRPC request.
async fn top_service(damper: &Damper, below: String) -> Hop {
    let layer = damper.http_client("b").expect("a good name").internal();
    let client = layer.layer(reqwest::Client::new()).at("/orders/{id}");
    Hop::serve(Some(damper.server_layer()), move |_| {
        let (client, url) = (client.clone(), format!("{below}/orders/7"));
        async move {
            let request = reqwest::Request::new(reqwest::Method::PUT, url.parse().expect("a URL"));
            let response =
                client.send(request).await.map_err(|error| Status::unavailable(error.to_string()))?;
            if response.status().is_success() {
                return Ok(Response::new(String::new()));
            }
            Err(Status::unavailable(response.status().to_string()))
        }
    })
    .await
}

/// What one request from outside reached.
struct Outcome {
    /// Requests to `b` and `c`, and statements.
    reached: [u64; 3],
    /// Those of them that belong to a retry.
    retries: [u64; 3],
    /// The longest time left at each, in microseconds.
    left: [u64; 3],
}

/// `flag`: the request is sent once with this `damper-retry`, as by a service that retries it.
async fn one_request(control_plane: &ControlPlane, flag: Option<&'static str>) -> Outcome {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pool = locked_database(folder.path()).await;
    let (at_b, at_c, statements) = (Reached::default(), Reached::default(), Reached::default());
    let (a, b, c) = (
        damper(control_plane, "a").await,
        damper(control_plane, "b").await,
        damper(control_plane, "c").await,
    );
    let edge = damper(control_plane, "edge").await;
    let bottom = database_service(c.clone(), pool, at_c.clone(), statements.clone()).await;
    let middle = http_service(&b, &bottom, at_b.clone()).await;
    let top = top_service(&a, middle).await;
    let mut request = Request::new(String::new());
    let answer = if let Some(flag) = flag {
        request.metadata_mut().insert("damper-retry", flag.parse().expect("a number"));
        call(top.channel().await, request).await
    } else {
        let layer = edge.client_layer("a").expect("a good name");
        call(top.governed_channel(&layer).await, request).await
    };
    answer.expect_err("the database is locked");
    for damper in [edge, a, b, c] {
        damper.shutdown().await;
    }
    let all = [&at_b, &at_c, &statements];
    Outcome {
        reached: all.map(Reached::requests),
        retries: all.map(|reached| reached.retries.load(Ordering::Relaxed)),
        left: all.map(Reached::left),
    }
}

/// Returns caller, callee and method, calls and attempts of each route, once this number has been reported.
async fn routes(control_plane: &ControlPlane, count: usize) -> Vec<(String, String, u64, u64)> {
    let since = Instant::now();
    loop {
        let request = v1::ListRoutesRequest::default();
        let answer = control_plane.fleet().list_routes(request).await.expect("the fleet").into_inner();
        if answer.routes.len() >= count {
            let mut routes: Vec<_> = answer.routes.into_iter().map(named).collect();
            routes.sort();
            return routes;
        }
        assert!(since.elapsed() < REPORTED_WITHIN, "{:?}", answer.routes);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn named(route: v1::RouteStats) -> (String, String, u64, u64) {
    let key = route.key.expect("a key");
    let name = format!("{} {}", key.caller_service, key.callee_service);
    (name, key.callee_method, route.total_calls, route.total_attempts)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_operation_nearest_the_fault_is_retried_across_protocols() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rule(POLICY)).await;
    let outcome = one_request(&control_plane, None).await;
    assert_eq!(outcome.reached, [1, 1, 3]);
    let [at_b, at_c, at_database] = outcome.left;
    assert!(20_000_000 > at_b && at_b > at_c && at_c > at_database, "{:?}", outcome.left);
    assert!(at_database > 0);
    // The statement within an attempt of the operation belongs to a retry.
    assert_eq!(outcome.retries, [0, 0, 2]);
    let route = |callers: &str, method: &str, attempts| (callers.to_owned(), method.to_owned(), 1, attempts);
    assert_eq!(
        routes(&control_plane, 4).await,
        [
            route("a b", "PUT:/orders/{id}", 1),
            route("b c", METHOD, 1),
            route("c orders-db", "orders/insert", 3),
            route("edge a", METHOD, 1),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_from_above_is_sent_once_by_all_protocols() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rule(POLICY)).await;
    let outcome = one_request(&control_plane, Some("1")).await;
    assert_eq!((outcome.reached, outcome.retries), ([1, 1, 1], [1, 1, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_flags_attempts_multiply_across_protocols() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rule(&format!("{POLICY}, {FLAGS_OFF}"))).await;
    let outcome = one_request(&control_plane, None).await;
    assert_eq!(outcome.reached, [9, 27, 81]);
}
