//! Store of several servers: PostgreSQL 13 or later.
//!
//! Four connections: commits, one at a time; reads, which share one; notifications; cleaning up. Each is
//! opened again when it has failed, and a new one is checked like the first: durability, format, identity. A
//! transaction that was ended for another is repeated, at most 10 times.
//!
//! The database must be the queue's own, or the tables are in its schema `damper_queue`. Connections cannot
//! go through a pooler that shares sessions between clients.

mod check;
mod commit;
mod connection;
mod flow;
mod flush;
mod lease;
mod load;
mod notify;
mod pipeline;
mod reads;
mod schema;
mod servers;
mod vacuum;
mod workspace;

use std::future::Future;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use damper_core::job::Wall;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use self::connection::{Connection, Stop, Target};
use self::load::Loader;
use self::notify::Notifier;
use self::servers::{Beating, Observer};
use self::vacuum::Remains;
use super::batch::{Batch, Committed};
use super::error::Error;
use super::interface::{Beat, Burden, Filter, LaneCounts, Overdue, Page, Store};
use super::lanes::SharedLanes;
use super::record::{Body, JobId, Record, ServerId};

/// Tries of a batch that conflicts with those of other servers.
const TRIES: u32 = 10;

/// A commit ends within this, or its outcome is unknown.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);

/// Time after which a silent server counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Where the database is, and how its servers watch each other.
pub struct Settings {
    /// `postgres://USER@HOST/DATABASE?sslmode=require`
    pub url: String,
    /// The user's password, if the database asks for one.
    pub password: Option<String>,
    /// Roots and client certificate; `None`: no TLS.
    pub tls: Option<rustls::ClientConfig>,
    /// A server without a beat for this long is dead; 15 s but in tests.
    pub dead_after: Duration,
}

impl Settings {
    /// The settings of a server. With `sslmode=require` the database's certificate is verified with the
    /// authorities of the system; without it the connection is not encrypted.
    ///
    /// # Errors
    /// Why the URL is invalid.
    pub fn new(url: &str, password: Option<String>) -> Result<Self, String> {
        let tls = match read_url(url)?.get_ssl_mode() {
            SslMode::Require => Some(system_tls()?),
            _ => None,
        };
        Ok(Self { url: url.to_owned(), password, tls, dead_after: DEAD_AFTER })
    }
}

/// Reads a URL, which has no password: it is logged and shown.
fn read_url(url: &str) -> Result<Config, String> {
    let config = Config::from_str(url).map_err(|error| connection::text(&error))?;
    let (host, database) = (!config.get_hosts().is_empty(), config.get_dbname().is_some());
    match config.get_password() {
        Some(_) => Err("must not contain a password".to_owned()),
        None if !host || !database => Err("must name a host and a database".to_owned()),
        None => Ok(config),
    }
}

/// Errors if a URL is invalid.
///
/// # Errors
/// The reason.
pub fn check_url(url: &str) -> Result<(), String> {
    read_url(url).map(drop)
}

fn system_tls() -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
    id: u64,
}

struct Shared {
    target: Target,
    id: u64,
    lanes: SharedLanes,
    commits: Mutex<Option<Arc<Connection>>>,
    reads: Mutex<Option<Arc<Connection>>>,
    /// Number of this server.
    server: AtomicU64,
    /// Its numbers before: others took it for dead under them.
    former: SyncMutex<Vec<ServerId>>,
    observer: SyncMutex<Observer>,
    notifier: Notifier,
    remains: Remains,
}

impl PostgresStore {
    /// Connects, creates what is missing in the database, and registers this server.
    ///
    /// # Errors
    /// [`Error::Open`] if a setting of the database is not safe or its format too new, with the remedy;
    /// [`Error::Unavailable`] if there is no connection.
    pub async fn open(settings: Settings) -> Result<Self, Error> {
        let config = Config::from_str(&settings.url);
        let mut config = config.map_err(|error| Error::Open(connection::text(&error)))?;
        if let Some(password) = settings.password {
            config.password(password);
        }
        let target = Target { config, tls: settings.tls.map(MakeRustlsConnect::new) };
        let first = Connection::open(&target, |_| {}).await?;
        schema::check_settings(&first).await?;
        let id = schema::migrate(&first).await?;
        let lanes = SharedLanes::default();
        load::load_lanes(&first, &lanes).await?;
        let server = servers::register(&first).await?;
        let shared = Arc::new(Shared {
            target,
            id,
            lanes,
            commits: Mutex::new(Some(Arc::new(first.for_commits().await?))),
            reads: Mutex::default(),
            server: AtomicU64::new(server.0),
            former: SyncMutex::default(),
            observer: SyncMutex::new(Observer::new(settings.dead_after)),
            notifier: Notifier::default(),
            remains: Remains::default(),
        });
        let tasks = [tokio::spawn(notify::run(shared.clone())), tokio::spawn(vacuum::run(shared.clone()))];
        Ok(Self { shared, tasks, id })
    }
}

impl Shared {
    /// Opens a connection and checks it: after a failover it can lead to another database.
    async fn connect(&self, notified: impl FnMut(i32) + Send + 'static) -> Result<Connection, Stop> {
        let connection = Connection::open(&self.target, notified).await?;
        schema::check_settings(&connection).await?;
        if schema::identity(&connection).await? != self.id {
            let problem = "the database has another store than before; restart the server";
            return Err(Stop::Store(Error::Unavailable(problem.to_owned())));
        }
        Ok(connection)
    }

    fn loader(&self, connection: Arc<Connection>) -> Loader {
        Loader { connection, lanes: self.lanes.clone() }
    }

    fn server(&self) -> ServerId {
        ServerId(self.server.load(Ordering::Relaxed))
    }

    /// Returns the connection of the reads.
    async fn reader(&self) -> Result<Loader, Stop> {
        let mut held = self.reads.lock().await;
        let connection = match &*held {
            Some(connection) if !connection.is_closed() => connection.clone(),
            _ => held.insert(Arc::new(self.connect(|_| {}).await?)).clone(),
        };
        Ok(self.loader(connection))
    }

    /// Runs a transaction on the connection of the commits, again if it conflicts with another one or if its
    /// connection was lost before the commit.
    ///
    /// The connection is out of its place meanwhile: dropped in the middle, it takes its transaction with it.
    async fn transaction<T, F>(&self, work: impl Fn(Loader) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Stop>>,
    {
        let mut held = self.commits.lock().await;
        let trying = async {
            for _ in 0..TRIES {
                let connection = match held.take() {
                    Some(connection) if !connection.is_closed() => connection,
                    _ => Arc::new(self.connect(|_| {}).await?.for_commits().await?),
                };
                let result = work(self.loader(connection.clone())).await;
                if result.is_ok() || connection.batch("rollback").await.is_ok() {
                    *held = Some(connection);
                }
                match result {
                    Err(stop) if stop.is_temporary() => {}
                    result => return result,
                }
            }
            Err(Stop::Again)
        };
        let unknown = |_| Err(Stop::Store(Error::Unavailable(format!("no commit within {COMMIT_WITHIN:?}"))));
        Ok(tokio::time::timeout(COMMIT_WITHIN, trying).await.unwrap_or_else(unknown)?)
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, Error> {
        let server = self.server();
        self.check_current(&batch)?;
        let batch = &batch;
        let (committed, dead_rows) =
            self.transaction(|loader| async move { commit::commit(&loader, batch, server).await }).await?;
        self.remains.add(dead_rows);
        self.notifier.announce(committed.due.iter().map(|(_, at)| *at));
        Ok(committed)
    }

    /// Errors if a lease is for a former number of this server: no server would watch it.
    fn check_current(&self, batch: &Batch) -> Result<(), Error> {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        let requested = batch.leases.iter().map(|request| request.server);
        let mut servers = requested.chain(batch.claims.iter().map(|claim| claim.server));
        match servers.any(|server| former.contains(&server)) {
            true => Err(commit::taken_for_dead()),
            false => Ok(()),
        }
    }

    async fn beat(&self, published: &[u8]) -> Result<Beat, Error> {
        let reader = self.reader().await?.connection;
        let beat = match servers::beat(&reader, self.server(), published).await? {
            Some(beat) => Some(beat),
            None => {
                let new = servers::register(&reader).await?;
                tracing::warn!(
                    server = new.0,
                    "another server took this one for dead; it continues under a new id"
                );
                self.former.lock().unwrap_or_else(PoisonError::into_inner).push(self.server());
                self.server.store(new.0, Ordering::Relaxed);
                servers::beat(&reader, new, published).await?
            }
        };
        let me = self.server();
        let (all, now) = beat.ok_or_else(commit::taken_for_dead)?;
        let others: Vec<Beating> =
            all.iter().map(|(beating, _)| *beating).filter(|beating| beating.server != me).collect();
        self.notifier.set_peers(!others.is_empty());
        let dead =
            self.observer.lock().unwrap_or_else(PoisonError::into_inner).observe(&others, Instant::now());
        let mut adopted = Vec::new();
        for beating in &dead {
            match self.transaction(|loader| async move { servers::adopt(&loader, *beating, me).await }).await
            {
                Ok(leases) => {
                    tracing::warn!(
                        server = beating.server.0,
                        leases = leases.len(),
                        "took over the leases of a dead server"
                    );
                    adopted.extend(leases);
                }
                // The next beat tries again; leases that were moved all the same are found by `leases_of`.
                Err(error) => {
                    tracing::warn!(server = beating.server.0, %error, "cannot take over a dead server")
                }
            }
        }
        let live = all.into_iter().filter(|(beating, _)| !dead.contains(beating));
        let servers = live.map(|(beating, published)| (beating.server, published)).collect();
        Ok(Beat { server: me, servers, adopted, now: Wall(now) })
    }
}

/// Runs a read within the time of a commit.
async fn within<T>(read: impl Future<Output = Result<T, Stop>>) -> Result<T, Error> {
    let late = |_| Err(Stop::Store(Error::Unavailable(format!("no response within {COMMIT_WITHIN:?}"))));
    Ok(tokio::time::timeout(COMMIT_WITHIN, read).await.unwrap_or_else(late)?)
}

impl Store for PostgresStore {
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>> {
        async move { self.shared.commit(batch).await }.boxed()
    }

    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>> {
        let lanes = async {
            let lanes = self.shared.reader().await?.lanes().await?;
            self.shared.remains.set_jobs(lanes.iter().map(LaneCounts::jobs).sum());
            Ok(lanes)
        };
        within(lanes).boxed()
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>> {
        within(async move { self.shared.reader().await?.get(id).await }).boxed()
    }

    fn body(&self, id: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>> {
        within(async move { self.shared.reader().await?.body(id).await }).boxed()
    }

    fn list(&self, filter: Filter, after: Option<JobId>, limit: usize) -> BoxFuture<'_, Result<Page, Error>> {
        within(async move { self.shared.reader().await?.list(&filter, after, limit).await }).boxed()
    }

    fn leases_of(&self, server: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>> {
        within(async move { self.shared.reader().await?.leases_of(server).await }).boxed()
    }

    fn overdue(&self, asked: Vec<Overdue>, limit: usize) -> BoxFuture<'_, Result<Vec<Vec<JobId>>, Error>> {
        within(async move { self.shared.reader().await?.overdue(&asked, limit).await }).boxed()
    }

    fn beat(&self, published: Vec<u8>) -> BoxFuture<'_, Result<Beat, Error>> {
        async move { self.shared.beat(&published).await }.boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        self.shared.notifier.woken().boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.shared.transaction(|loader| async move { check::check(&loader).await }).boxed()
    }

    fn burden(&self) -> BoxFuture<'_, Result<Burden, Error>> {
        within(async { self.shared.reader().await?.burden().await }).boxed()
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
