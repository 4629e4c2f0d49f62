//! What a control plane needs to serve many processes: memory, processor time, and how fast a change arrives.
//!
//! `load [--clients 0,1000,5000] [--rules 1000,10000] [--seconds 30] [--store URL] [--plaintext]` starts a `damper serve`
//! of its own for each pair, with TLS and tokens unless told otherwise, connects that many clients over connections of
//! their own, lets each report ten routes every 5 s, and prints a row of a Markdown table. The clients are not the
//! SDK but speak its protocol, so that thousands of them fit beside the server. `DAMPER_BINARY` names the binary.

mod client;
mod server;

use std::error::Error;
use std::time::{Duration, Instant};

use damper_proto::manifest::{self, Manifest};
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use tokio::sync::mpsc;

use client::{Client, Fleet};
use server::{Door, Figures, Server};

/// How many clients connect at the same time.
const CONNECTING: usize = 64;
/// How long clients get until all are connected, and a change until all have it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for what starting and connecting left behind to settle: a report of every client.
const SETTLE: Duration = Duration::from_secs(6);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is measured.
struct Plan {
    clients: Vec<usize>,
    rules: Vec<usize>,
    seconds: u64,
    store: Option<String>,
    plaintext: bool,
}

impl Plan {
    fn of(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut plan = Self {
            clients: vec![0, 1_000, 5_000],
            rules: vec![1_000, 10_000],
            seconds: 30,
            store: None,
            plaintext: false,
        };
        let numbers = |text: String| text.split(',').map(str::parse).collect::<std::result::Result<_, _>>();
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--clients" => plan.clients = numbers(value()?)?,
                "--rules" => plan.rules = numbers(value()?)?,
                "--seconds" => plan.seconds = value()?.parse()?,
                "--store" => plan.store = Some(value()?),
                "--plaintext" => plan.plaintext = true,
                other => return Err(format!("there is no {other}").into()),
            }
        }
        Ok(plan)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let plan = Plan::of(std::env::args().skip(1))?;
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
    let server = Server::start(store, plan.plaintext).await?;
    write_rules(&server.door, rules).await?;
    let begun = Instant::now();
    let fleet = connect(&server.door, clients).await?;
    let connected = if clients == 0 { "-".to_owned() } else { format!("{:.1?}", begun.elapsed()) };
    tokio::time::sleep(SETTLE).await;
    let before = server.figures()?;
    tokio::time::sleep(Duration::from_secs(plan.seconds)).await;
    let after = server.figures()?;
    let arrival = arrival(&server.door, &fleet, rules).await?;
    fleet.check()?;
    let share = after.processor_since(&before).as_secs_f64() / plan.seconds as f64;
    let Figures { memory, peak, .. } = after;
    Ok(format!(
        "| {clients} | {rules} | {memory} MiB | {peak} MiB | {share:.3} cores | {connected} | {arrival} |"
    ))
}

async fn connect(door: &Door, clients: usize) -> Result<Fleet> {
    let (fleet, mut connected) = Fleet::new(clients);
    let slots = std::sync::Arc::new(tokio::sync::Semaphore::new(CONNECTING));
    for place in 0..clients {
        let slot = slots.clone().acquire_owned().await?;
        let client = Client::new(place, door.clone(), &fleet);
        tokio::spawn(client.run(slot));
    }
    let all = tokio::time::timeout(PATIENCE, connected.wait_for(|connected| *connected >= clients)).await;
    if all.is_err() {
        let failure = fleet.check().err().map(|error| error.to_string()).unwrap_or_default();
        return Err(format!("{} of {clients} clients connected; {failure}", fleet.connected()).into());
    }
    Ok(fleet)
}

/// Rules for the services that the clients are, each client's share the same.
async fn write_rules(door: &Door, rules: usize) -> Result<()> {
    let puts = (0..rules)
        .map(|place| rule(&client::service_at(place), &client::callee_at(place / client::SERVICES)));
    apply(door, puts.collect::<Result<_>>()?).await
}

/// Writes a rule that concerns every client, and says how soon half, nearly all and all of them had it.
async fn arrival(door: &Door, fleet: &Fleet, rules: usize) -> Result<String> {
    let begun = Instant::now();
    let (told, mut told_at) = mpsc::unbounded_channel();
    fleet.tell(told);
    apply(door, vec![rule("*", &format!("late-{rules}"))?]).await?;
    let mut times = Vec::new();
    while times.len() < fleet.size() {
        let at = tokio::time::timeout(PATIENCE, told_at.recv()).await?.ok_or("the clients are gone")?;
        times.push(Instant::duration_since(&at, begun));
    }
    times.sort();
    let at = |share: f64| times.get(((times.len() as f64 * share).ceil() as usize).saturating_sub(1));
    let [half, nearly, all] = [0.5, 0.99, 1.0].map(|share| at(share).copied().unwrap_or_default());
    Ok(if times.is_empty() { "-".to_owned() } else { format!("{half:.0?}, {nearly:.0?}, {all:.0?}") })
}

/// A rule such as people write.
fn rule(caller: &str, callee: &str) -> Result<v1::Rule> {
    let text = format!(
        "kind: Rule
key: {{ caller_service: '{caller}', caller_cluster: '*', callee_service: {callee}, callee_method: '*' }}
policy: {{ mode: enforce, retry: {{ max_attempts: 3, codes: {{ allow: [UNAVAILABLE] }},
           backoff: {{ exponential: {{ base: 25ms, max: 250ms }} }} }}, retry_breaker: {{ ratio: 0.1 }} }}
"
    );
    match manifest::parse(&text)?.pop().map(|document| document.manifest) {
        Some(Manifest::Rule(rule)) => Ok(rule),
        other => Err(format!("not a rule: {other:?}").into()),
    }
}

async fn apply(door: &Door, rules: Vec<v1::Rule>) -> Result<()> {
    let options = v1::WriteOptions { author: "load".to_owned(), ..Default::default() };
    let changes = rules.into_iter().map(rule_change::Kind::Put).map(|kind| {
        apply_rules_request::Kind::Change(v1::RuleChange { kind: Some(kind), expected_revision: None })
    });
    let messages: Vec<_> = std::iter::once(apply_rules_request::Kind::Header(options))
        .chain(changes)
        .map(|kind| v1::ApplyRulesRequest { kind: Some(kind) })
        .collect();
    let request = door.admin(tokio_stream::iter(messages));
    RulesClient::new(door.channel().await?).apply_rules(request).await?;
    Ok(())
}
