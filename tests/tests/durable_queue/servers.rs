//! Control planes with a job store, as processes: one on a file, or three on one PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use damper_queue::store::Store;
use damper_queue::store::postgres::{PostgresStore, Settings};
use damper_queue::store::redb::RedbStore;
use damper_tests::binary::{Served, run};
use damper_tests::etcd::Etcd;
use tempfile::TempDir;

use crate::cluster::Cluster;

const REPLICAS: usize = 3;
/// On a host of these servers: no other socket takes a port while its server is down.
const LISTEN: &str = "127.0.77.50:0";

/// The servers, and what they keep their state in.
pub(crate) struct Servers {
    folder: TempDir,
    shared: Option<Shared>,
    /// Arguments of a server, without its address.
    arguments: Vec<String>,
    running: Vec<Served>,
}

/// Stores that several servers share.
struct Shared {
    _etcd: Etcd,
    cluster: Cluster,
    database: String,
}

impl Servers {
    /// Starts one server, whose stores are files.
    pub(crate) fn with_redb() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sled:{}", folder.path().join("store").display());
        Self::start(folder, None, vec!["--store".to_owned(), store], 1)
    }

    /// Starts three servers on one PostgreSQL and one etcd.
    pub(crate) async fn with_postgres() -> Self {
        let (etcd, cluster) = (Etcd::start().await, Cluster::start(&[]).await);
        let database = cluster.database().await;
        let store = format!("etcd://{}", etcd.endpoint());
        let arguments = ["--store", &store, "--queues", &database].map(str::to_owned).to_vec();
        let shared = Shared { _etcd: etcd, cluster, database };
        Self::start(tempfile::tempdir().unwrap(), Some(shared), arguments, REPLICAS)
    }

    fn start(folder: TempDir, shared: Option<Shared>, arguments: Vec<String>, count: usize) -> Self {
        let mut servers = Self { folder, shared, arguments, running: Vec::new() };
        for _ in 0..count {
            let server = servers.serve(LISTEN);
            servers.running.push(server);
        }
        servers
    }

    fn serve(&self, listen: &str) -> Served {
        let mut arguments = vec!["--listen", listen];
        arguments.extend(self.arguments.iter().map(String::as_str));
        Served::start_with(&arguments)
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// Returns the URL of a server.
    pub(crate) fn url(&self, number: usize) -> &str {
        self.running[number].url()
    }

    /// Writes a manifest.
    pub(crate) fn apply(&self, manifest: &str) {
        let file = self.folder.path().join("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        let applied = run(self.url(0), &["apply", "-f", file.to_str().unwrap()]);
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    }

    /// Kills a server with SIGKILL and starts it again on its address.
    pub(crate) fn restart(&mut self, number: usize) {
        let listen = self.running[number].address().to_owned();
        self.running[number].kill();
        self.running[number] = self.serve(&listen);
    }

    /// Returns true if the jobs are in a database, which can be killed.
    pub(crate) fn has_database(&self) -> bool {
        self.shared.is_some()
    }

    /// Kills the postmaster with SIGKILL and starts it again.
    pub(crate) async fn restart_database(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.cluster.restart(&[]).await;
        }
    }

    /// Kills all servers and returns the faults of the job store.
    pub(crate) async fn end(mut self) -> Vec<String> {
        self.running.iter_mut().for_each(Served::kill);
        let store: Arc<dyn Store> = match &self.shared {
            None => Arc::new(RedbStore::open(self.folder.path().join("store/jobs.redb")).await.unwrap()),
            Some(shared) => {
                let url = shared.database.clone();
                let dead_after = Duration::from_secs(15);
                let settings = Settings { url, password: None, tls: None, dead_after };
                Arc::new(PostgresStore::open(settings).await.unwrap())
            }
        };
        store.check().await.unwrap()
    }
}
