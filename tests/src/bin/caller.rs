//! A process that calls a hop again and again under the control plane's rules: one of a fleet.
//!
//! `caller CONTROL_PLANE CALLEE CALLS INTERVAL_MS` makes that many calls, one per interval, and prints how many
//! first sends and how many repeats that took.

use std::error::Error;
use std::time::Duration;

use damper_sdk::{Damper, Options};
use damper_tests::hop;
use tonic::Request;
use tonic::transport::Channel;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [control_plane, callee, calls, interval_ms] = arguments.as_slice() else {
        return Err("CONTROL_PLANE CALLEE CALLS INTERVAL_MS".into());
    };
    let damper = Damper::connect(Options::new([control_plane]).service("caller"))?;
    damper.ready(Duration::from_secs(30)).await?;
    let channel = Channel::from_shared(callee.clone())?.connect().await?;
    let channel = damper.client_layer("callee")?.layer(channel);
    let mut pace = tokio::time::interval(Duration::from_millis(interval_ms.parse()?));
    for _ in 0..calls.parse()? {
        pace.tick().await;
        drop(hop::call(channel.clone(), Request::new(String::new())).await);
    }
    damper.for_each_route(|_, _, counters| {
        println!("{} {}", counters.calls(), counters.attempts() - counters.calls());
    });
    Ok(())
}
