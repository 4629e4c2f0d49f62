//! Damper's counters in the text format of a service that has its own `/metrics`.
//!
//! A service that uses the `metrics` crate needs none of this: the feature `metrics` hands every series to
//! its recorder. `cargo run -p damper-sdk --example custom_metrics`

use std::fmt::Write as _;

use damper_sdk::Damper;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let damper = Damper::off();
    let (_reporter, stock) = tonic_health::server::health_reporter();
    let mut client = HealthClient::new(damper.client_layer("stock")?.layer(stock));
    client.check(HealthCheckRequest::default()).await?;

    let text = exposition(&damper)?;
    print!("{text}");
    assert!(text.contains(r#"calls_total{callee="stock",method="grpc.health.v1.Health/Check",fate="ok"} 1"#));
    Ok(())
}

/// Returns one line per route and counter: attempts, retries, hedges, and calls by fate.
fn exposition(damper: &Damper) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let mut written = Ok(());
    damper.for_each_route(|callee, method, counters| {
        let labels = format!(r#"callee="{callee}",method="{method}""#);
        for (name, value) in [
            ("attempts", counters.attempts()),
            ("retries", counters.retries()),
            ("hedges", counters.hedges()),
        ] {
            written = written.and(writeln!(text, "{name}_total{{{labels}}} {value}"));
        }
        for (ending, count) in counters.endings().filter(|(ending, count)| !ending.would && *count > 0) {
            let fate = ending.fate.name();
            written = written.and(writeln!(text, r#"calls_total{{{labels},fate="{fate}"}} {count}"#));
        }
    });
    written.map(|()| text)
}
