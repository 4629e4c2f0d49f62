//! What a control plane needs to serve many processes: memory, processor time, and how fast a change arrives.
//!
//! Starts a `damper serve` of its own for each pair of numbers, with TLS and tokens unless told otherwise, connects that
//! many clients over connections of their own, lets each report ten routes every 5 s, and prints a row of a Markdown
//! table. `DAMPER_BINARY` names the binary.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use damper_bench::fleet::{Fleet, Server, Settings, put_late, write_rules};
use damper_bench::process;
use damper_tests::spread::quantile;

/// Time for what starting and connecting left behind to settle: a report of every client.
const SETTLE: Duration = Duration::from_secs(6);
/// What each client reports.
const ROUTES: usize = 10;

/// Measures what a control plane needs to serve many processes
#[derive(Debug, Parser)]
struct Plan {
    /// How many clients
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000, 5_000])]
    clients: Vec<usize>,
    /// How many rules
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    rules: Vec<usize>,
    /// How long processor time is measured
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Where rules are kept; a folder below for each pair
    #[arg(long)]
    store: Option<String>,
    /// Without TLS and tokens
    #[arg(long)]
    plaintext: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let plan = Plan::parse();
    process::raise_file_limit()?;
    println!(
        "| clients | rules | memory | at most | processor | connected within | a change arrives: half, 99 %, all |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for &rules in &plan.rules {
        for &clients in &plan.clients {
            println!("{}", measure(&plan, clients, rules).await?);
        }
    }
    Ok(())
}

/// One row.
async fn measure(plan: &Plan, clients: usize, rules: usize) -> Result<String> {
    let store = plan.store.as_ref().map(|store| format!("{store}/{clients}-{rules}"));
    let server = Server::start(Settings { store, plaintext: plan.plaintext, ..Settings::default() }).await?;
    write_rules(server.door(), rules).await?;
    let begun = Instant::now();
    let fleet = Fleet::connect(server.door(), clients, ROUTES).await?;
    let connected = if clients == 0 { "-".to_owned() } else { format!("{:.1?}", begun.elapsed()) };
    tokio::time::sleep(SETTLE).await;
    let before = server.usage()?;
    tokio::time::sleep(Duration::from_secs(plan.seconds)).await;
    let after = server.usage()?;
    let arrival = arrival(&fleet.arrival(async { put_late(server.door()).await.map(drop) }).await?);
    let share = after.processor_since(&before).as_secs_f64() / plan.seconds as f64;
    let (memory, peak) = (after.memory_kib / 1024, after.peak_kib / 1024);
    Ok(format!(
        "| {clients} | {rules} | {memory} MiB | {peak} MiB | {share:.3} cores | {connected} | {arrival} |"
    ))
}

/// How soon half, nearly all and all of them had it.
fn arrival(seconds: &[f64]) -> String {
    let at = |share| Duration::from_secs_f64(quantile(seconds, share));
    if seconds.is_empty() {
        "-".to_owned()
    } else {
        format!("{:.0?}, {:.0?}, {:.0?}", at(0.5), at(0.99), at(1.0))
    }
}
