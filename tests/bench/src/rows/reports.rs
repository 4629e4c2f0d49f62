//! What reports cost the control plane, and whether they delay a change.
//!
//! Every client reports as an SDK does whose routes are all called: every 5 s, with each of its routes. Rounds without
//! reports and rounds with them take turns on the same connections.

use std::time::Duration;

use anyhow::Result;
use damper_tests::spread::{Spread, quantile};

use super::Size;
use crate::figure::{Figure, Row, Target};
use crate::fleet::{HeldFleet, Server, Settings, write_rules};

const ROUTES: usize = 20;
const RULES: usize = 1_000;
/// Long enough for every client to report.
const INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let clients = size.pick(20, 1_000, 1_000);
    let rounds = size.pick(1, 3, 5);
    let changes = size.pick(1, 10, 20);
    let time = size.pick(Duration::from_millis(500), INTERVAL, 2 * INTERVAL);
    let server = Server::start(Settings::default()).await?;
    write_rules(server.door(), size.pick(10, RULES, RULES)).await?;
    let mut fleet = HeldFleet::start(server.door(), false, clients).await?;
    let mut shares = [Vec::new(), Vec::new()];
    let mut p99_ms = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (routes, (shares, p99_ms)) in [0, ROUTES].into_iter().zip(shares.iter_mut().zip(&mut p99_ms)) {
            fleet.report(routes).await?;
            // What the round before asked for is still on its way.
            tokio::time::sleep(time.min(INTERVAL)).await;
            let before = server.usage()?;
            tokio::time::sleep(time).await;
            shares.push(server.usage()?.processor_since(&before).as_secs_f64() / time.as_secs_f64());
            let mut slowest = Vec::new();
            for _ in 0..changes {
                let arrived = fleet.change().await?;
                slowest.push(quantile(&arrived, 0.99) * 1e3);
            }
            p99_ms.push(Spread::of(slowest).median);
        }
    }
    let [idle, reporting] = &shares;
    let [p99_idle, p99_reporting] = &p99_ms;
    let percent = |shares: &[f64], factor: f64| Spread::of(shares.iter().map(|share| share * 100.0 * factor));
    let unit = "% of a core";
    let extrapolated = 10_000.0 / clients as f64;
    let row = Row::new("reports", "Reports of many clients")
        .note(format!(
            "{clients} clients, each reporting {ROUTES} called routes every 5 s; TLS and tokens, sled. For 10,000 clients the \
             figure is multiplied.",
        ))
        .with(Figure::new("processor without reports", unit, percent(idle, 1.0)))
        .with(Figure::new("processor with reports", unit, percent(reporting, 1.0)))
        .with(
            Figure::new("the same, extrapolated to 10,000 clients", unit, percent(reporting, extrapolated))
                .aim(Target::AtMost(100.0)),
        )
        .with(
            Figure::beside("p99 from change to answer", "ms", p99_reporting, "the same without reports", p99_idle)
                .aim(Target::RatioAtMost(1.2)),
        );
    Ok((rounds, row))
}
