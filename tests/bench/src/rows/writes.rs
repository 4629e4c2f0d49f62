//! Rules written through the admin API, one after the other and by many writers at once, beside the same bytes written to
//! the store by itself.
//!
//! What one rule becomes in etcd is watched once: the peer's transaction puts as many values of the same sizes, if a key
//! stands as it was read. Sled's peer inserts one value of all those bytes and flushes. Both sides have one connection
//! per writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use damper_proto::v1::{self, rules_client::RulesClient};
use damper_tests::etcd::Etcd;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, WatchOptions};

use super::Size;
use crate::figure::{Figure, Row, Target};
use crate::fleet::{Server, Settings, rule};
use crate::patience::{PATIENCE, within};
use crate::process::tethered;

/// Where the server is told to keep its keys, and how they begin then.
const PLACE: &str = "bench";
const PREFIX: &str = "/bench/";
const WRITERS: [usize; 2] = [1, 64];

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(1, 9, 15);
    let time = Duration::from_millis(size.pick(100, 700, 1_000));
    let etcd = Etcd::start_by(tethered).await;
    let over_etcd = Writers::of_server(Some(format!("etcd://{}/{PLACE}", etcd.endpoint()))).await?;
    let over_sled = Writers::of_server(None).await?;
    let values = values_of_a_write(&etcd, &over_etcd);
    let values = within(PATIENCE, "the watch event of a rule's write to etcd", values).await??;
    let bytes: usize = values.iter().map(Vec::len).sum();
    let raw_etcd = Writers::of_etcd(&etcd, &values).await?;
    let folder = tempfile::tempdir()?;
    let raw_sled = Writers::of_sled(folder.path(), bytes)?;
    let mut row = Row::new("writes", "Admin writes").note(format!(
        "A rule becomes {} values of {bytes} bytes together in one transaction. Without TLS; the server, etcd and the \
         writers share the cores, raw sled is in the writers' process.",
        values.len()
    ));
    for writers in WRITERS {
        let all = [&over_etcd, &raw_etcd, &over_sled, &raw_sled];
        let mut rates = all.map(|_| Vec::new());
        for _ in 0..rounds {
            for (side, rates) in all.iter().zip(&mut rates) {
                let what = format!("the writes of {writers} {}", side.name);
                rates.push(within(time + PATIENCE, &what, side.rate(writers, time)).await??);
            }
        }
        let [etcd, raw_etcd, sled, raw_sled] = &rates;
        let what = |store: &str| format!("rules written over {store}, {writers} at once");
        row = row
            .with(
                Figure::beside(what("etcd"), "/s", etcd, "etcd: transactions of the same size", raw_etcd)
                    .aim(Target::RatioAtLeast(0.5)),
            )
            .with(
                Figure::beside(what("sled"), "/s", sled, "sled: insert and flush of as many bytes", raw_sled)
                    .aim(Target::RatioAtLeast(0.5)),
            );
    }
    Ok((rounds, row))
}

/// Those who write, each over a connection of its own.
struct Writers {
    name: &'static str,
    _server: Option<Server>,
    all: Vec<Writer>,
    next: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Writer {
    Damper(Box<RulesClient<tonic::transport::Channel>>),
    Etcd(Box<Client>, Vec<Vec<u8>>),
    Sled(sled::Db, Vec<u8>),
}

impl Writers {
    async fn of_server(store: Option<String>) -> Result<Self> {
        let name = if store.is_some() { "users of etcd" } else { "users of sled" };
        let server = Server::start(Settings { store, plaintext: true, ..Settings::default() }).await?;
        let mut all = Vec::new();
        for _ in 0..most() {
            all.push(Writer::Damper(Box::new(RulesClient::new(server.door().channel().await?))));
        }
        Ok(Self { name, _server: Some(server), all, next: Arc::default() })
    }

    async fn of_etcd(etcd: &Etcd, values: &[Vec<u8>]) -> Result<Self> {
        let mut all = Vec::new();
        for _ in 0..most() {
            all.push(Writer::Etcd(Box::new(etcd.client().await), values.to_vec()));
        }
        Ok(Self { name: "clients of etcd", _server: None, all, next: Arc::default() })
    }

    fn of_sled(folder: &std::path::Path, bytes: usize) -> Result<Self> {
        let database = sled::Config::new().path(folder).flush_every_ms(None).open()?;
        let writer = Writer::Sled(database, vec![7; bytes]);
        Ok(Self { name: "threads with sled", _server: None, all: vec![writer; most()], next: Arc::default() })
    }

    /// How many writes a second so many writers make, each as soon as its last one is acknowledged.
    async fn rate(&self, writers: usize, time: Duration) -> Result<f64> {
        let begun = Instant::now();
        let until = begun + time;
        let tasks = self.all.iter().take(writers).cloned().map(|mut writer| {
            let next = Arc::clone(&self.next);
            tokio::spawn(async move {
                let mut written = 0_u32;
                while Instant::now() < until {
                    writer.write(next.fetch_add(1, Ordering::Relaxed)).await?;
                    written += 1;
                }
                Ok::<_, anyhow::Error>(written)
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut written = 0;
        for task in tasks {
            written += task.await??;
        }
        Ok(f64::from(written) / begun.elapsed().as_secs_f64())
    }
}

impl Writer {
    async fn write(&mut self, number: u64) -> Result<()> {
        // Rules are replaced, as people do; a table that grows would be another measurement.
        let place = number % 1_000;
        match self {
            Self::Damper(rules) => {
                let rule = rule("*", &format!("callee-{place}"))?;
                let options = v1::WriteOptions { author: "bench".to_owned(), ..Default::default() };
                let request =
                    v1::PutRuleRequest { rule: Some(rule), options: Some(options), ..Default::default() };
                rules.put_rule(request).await?;
            }
            Self::Etcd(client, values) => {
                let puts = values.iter().enumerate();
                let puts = puts
                    .map(|(index, value)| TxnOp::put(format!("raw/{place}/{index}"), value.clone(), None));
                let stands = Compare::version("never", CompareOp::Equal, 0);
                let answer = client.txn(Txn::new().when([stands]).and_then(puts.collect::<Vec<_>>())).await?;
                anyhow::ensure!(answer.succeeded(), "the transaction is carried out");
            }
            Self::Sled(database, value) => {
                database.insert(place.to_be_bytes(), value.as_slice())?;
                // As the server does it: where threads may wait.
                let database = database.clone();
                tokio::task::spawn_blocking(move || database.flush()).await??;
            }
        }
        Ok(())
    }
}

fn most() -> usize {
    WRITERS.into_iter().max().unwrap_or_default()
}

/// The values that one rule becomes, as etcd tells whoever watches.
async fn values_of_a_write(etcd: &Etcd, server: &Writers) -> Result<Vec<Vec<u8>>> {
    let mut writer = server.all.first().context("there is a writer")?.clone();
    // The first write may also set up what later ones find.
    writer.write(0).await?;
    let mut events = etcd.client().await.watch(PREFIX, Some(WatchOptions::new().with_prefix())).await?;
    // Etcd says that it watches before it says what it sees.
    events.message().await?;
    writer.write(0).await?;
    loop {
        let message = events.message().await?.context("the watch goes on")?;
        // A transaction's events come together; what is set up beside it has no such number of keys.
        let values: Vec<_> =
            message.events().iter().filter_map(|event| Some(event.kv()?.value().to_vec())).collect();
        if values.len() > 1 {
            return Ok(values);
        }
    }
}
