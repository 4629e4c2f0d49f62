//! HTTP calls of reqwest under rules. The lines that adopting it changes are marked.
//!
//! `cargo run -p damper-sdk --features manifest,reqwest --example http_call`

use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::StatusCode;
use axum::{Router, routing::get};
use damper_sdk::Damper;
use damper_sdk::http::HttpClient;
use reqwest::{Method, Request};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// In production the control plane delivers the rule.
const RULE: &str = r#"
kind: Rule
key: { caller_service: shop, caller_cluster: "*", callee_service: catalog, callee_method: "GET:/*" }
policy:
  mode: enforce
  retry: { max_attempts: 3 }
  retry_breaker: { enabled: false } # its credit is empty at the start
"#;

type Client = HttpClient<reqwest::Client>; // was: reqwest::Client

/// Returns a page of the catalog.
async fn page(client: &Client, catalog: &str, number: u32) -> Result<String> {
    let request = Request::new(Method::GET, format!("{catalog}/pages/{number}").parse()?);
    let response = client.at("/pages/{number}").send(request).await?; // was: client.execute(request).await?
    Ok(response.error_for_status()?.text().await?)
}

/// Fails for the first two requests.
async fn unsteady() -> (StatusCode, &'static str) {
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    match REQUESTS.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => (StatusCode::SERVICE_UNAVAILABLE, "restarting"),
        _ => (StatusCode::OK, "tea, 4.50"),
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let catalog = format!("http://{}", listener.local_addr()?);
    let router = Router::new().route("/pages/{number}", get(unsteady));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let damper = Damper::fixed("shop", RULE)?;
    let client = reqwest::Client::new();
    let client: Client = damper.http_client("catalog")?.layer(client); // new, once per process
    let text = page(&client, &catalog, 7).await?;
    let mut retries = 0;
    damper.for_each_route(|_, _, counters| retries += counters.retries());
    println!("{text} after {retries} retries");
    assert_eq!(retries, 2);
    Ok(())
}
