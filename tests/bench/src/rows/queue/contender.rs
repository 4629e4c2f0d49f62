//! Those who take part: Damper over its stores, these stores by themselves, and the peers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use damper_queue::store::postgres::{PostgresStore, Settings as PostgresSettings};
use damper_queue::store::redb::RedbStore;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::fleet::{Server, Settings};
use crate::process::{Conversation, sibling, tethered};
use crate::queue::{Keeper, Load, Order, Postgres, Raw, What, disk_kib, nats, peer, queue, redis};

/// Damper's stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Redb,
    Postgres,
}

impl Store {
    pub(super) const ALL: [Self; 2] = [Self::Redb, Self::Postgres];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redb => "redb",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// One of two.
    pub(super) fn pick<T>(self, redb: T, postgres: T) -> T {
        match self {
            Self::Redb => redb,
            Self::Postgres => postgres,
        }
    }
}

/// Where jobs are on the disk.
#[derive(Debug)]
pub(super) enum Place {
    Folder(TempDir),
    Database(Arc<Postgres>, String),
}

impl Place {
    async fn new(store: Store, cluster: &Arc<Postgres>, database: &str) -> Result<(Self, String)> {
        match store {
            Store::Redb => {
                let folder = tempfile::Builder::new().prefix("damper-bench-").tempdir()?;
                let url = format!("redb:{}", file(&folder).display());
                Ok((Self::Folder(folder), url))
            }
            Store::Postgres => {
                let url = cluster.database(database).await?;
                Ok((Self::Database(Arc::clone(cluster), database.to_owned()), url))
            }
        }
    }

    async fn disk_kib(&self) -> Result<f64> {
        match self {
            Self::Folder(folder) => disk_kib(folder.path()),
            Self::Database(cluster, name) => cluster.disk_kib(name).await,
        }
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("jobs.redb")
}

/// `damper serve` with a queue, and its submitters and worker.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) store: Store,
    server: Server,
    place: Place,
    pub(super) load: Load,
}

impl Ours {
    /// Ended jobs are kept for this time.
    pub(super) async fn start(
        store: Store,
        cluster: &Arc<Postgres>,
        database: &str,
        keep_done: &str,
    ) -> Result<Self> {
        let (place, url) = Place::new(store, cluster, database).await?;
        let settings = Settings { plaintext: true, queues: Some(url), ..Settings::default() };
        let server = Server::start(settings).await?;
        queue(&server, "bench", keep_done)?;
        let load = player(&server, &[]).await?;
        Ok(Self { store, server, place, load })
    }

    pub(super) fn memory_kib(&self) -> Result<f64> {
        Ok(self.server.usage()?.own_kib as f64)
    }

    pub(super) async fn disk_kib(&self) -> Result<f64> {
        self.place.disk_kib().await
    }

    /// Kills the server and its worker while a job becomes due; returns the seconds from the server's start
    /// until another worker has the job.
    pub(super) async fn reopen(&mut self) -> Result<f64> {
        let soon = Order { what: What::Soon, count: 1, submitters: 1, batch: 1, ..Order::default() };
        self.load.order(&soon).await?;
        self.server.kill();
        // It could take the job before the new worker is there.
        self.load.kill()?;
        sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        self.server.restart().await?;
        self.load = player(&self.server, &[]).await?;
        self.load.order(&Order { what: What::Wait, count: 1, ..Order::default() }).await?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Seconds from kill -9 of a worker until another one has its job.
    pub(super) async fn lose_worker(&self) -> Result<f64> {
        queue(&self.server, "lost", "1h")?;
        let mut first = player(&self.server, &["--queue", "lost", "--stuck"]).await?;
        first.order(&Order { what: What::Begin, ..Order::default() }).await?;
        let mut second = player(&self.server, &["--queue", "lost"]).await?;
        let begun = Instant::now();
        drop(first);
        second.order(&Order { what: What::Wait, count: 1, ..Order::default() }).await?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Processor time while nothing happens, in % of a core, and transactions in a second. PostgreSQL counts
    /// a transaction up to 10 s late: those from before are counted after the wait `before`.
    pub(super) async fn idle(&self, before: Duration, time: Duration) -> Result<(f64, Option<f64>)> {
        if self.store == Store::Postgres {
            sleep(before).await;
        }
        let (before, begun) = (self.server.usage()?, self.transactions().await?);
        sleep(time).await;
        let (after, ended) = (self.server.usage()?, self.transactions().await?);
        let share = after.processor_since(&before).as_secs_f64() / time.as_secs_f64() * 100.0;
        let transactions = begun.zip(ended).map(|(begun, ended)| (ended - begun) / time.as_secs_f64());
        Ok((share, transactions))
    }

    async fn transactions(&self) -> Result<Option<f64>> {
        match &self.place {
            Place::Folder(_) => Ok(None),
            Place::Database(cluster, name) => cluster.transactions(name).await.map(Some),
        }
    }
}

async fn player(server: &Server, arguments: &[&str]) -> Result<Load> {
    let mut command = tethered(sibling("bench"));
    command.args(["play-queue", "--url", server.url()]).args(arguments);
    Load::ready(Conversation::of("play-queue", command)?).await
}

/// The store by itself.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) store: Store,
    pub(super) load: Load,
    _place: Place,
}

impl Alone {
    pub(super) async fn start(store: Store, cluster: &Arc<Postgres>) -> Result<Self> {
        let (place, url) = Place::new(store, cluster, "alone").await?;
        let raw = match &place {
            Place::Folder(folder) => Raw::new(Arc::new(RedbStore::open(file(folder)).await?)).await?,
            Place::Database(..) => {
                let dead_after = Duration::from_secs(15);
                let settings = PostgresSettings { url, password: None, tls: None, dead_after };
                Raw::new(Arc::new(PostgresStore::open(settings).await?)).await?
            }
        };
        Ok(Self { store, load: Load::Raw(Box::new(raw)), _place: place })
    }
}

/// Another queue.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) load: Load,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Keeper(Keeper),
    Database(Place),
}

impl Peer {
    pub(super) const ALL: [&str; 3] = ["asynq on Redis", "River on PostgreSQL", "JetStream"];

    /// All of them.
    pub(super) async fn start(cluster: &Arc<Postgres>) -> Result<Vec<Self>> {
        let (redis, nats) = (redis().await?, nats().await?);
        let (river, url) = Place::new(Store::Postgres, cluster, "river").await?;
        let loads = [peer("asynq", redis.url())?, peer("river", &url)?, peer("jetstream", nats.url())?];
        let kept = [Kept::Keeper(redis), Kept::Database(river), Kept::Keeper(nats)];
        let mut all = Vec::new();
        for ((name, load), kept) in Self::ALL.into_iter().zip(loads).zip(kept) {
            all.push(Self { name, load: Load::ready(load).await.context(name)?, kept });
        }
        Ok(all)
    }

    /// What the process that keeps the jobs holds; none for a peer in a database.
    pub(super) fn memory_kib(&self) -> Result<Option<f64>> {
        match &self.kept {
            Kept::Keeper(keeper) => Ok(Some(keeper.usage()?.own_kib as f64)),
            Kept::Database(_) => Ok(None),
        }
    }

    pub(super) async fn disk_kib(&self) -> Result<f64> {
        match &self.kept {
            Kept::Keeper(keeper) => keeper.disk_kib(),
            Kept::Database(place) => place.disk_kib().await,
        }
    }
}
