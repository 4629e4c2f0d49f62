//! A real PostgreSQL for tests: a cluster of its own, on a free port, with databases that share nothing.
//!
//! Its programs are in the folder `DAMPER_TEST_POSTGRES`, where the Debian package puts them, or on the path;
//! without them a test fails, it is never skipped. PostgreSQL refuses to run as root, so root runs it as the
//! user `postgres`, which the package creates.
//!
//! `DAMPER_TEST_POSTGRES` can also be the URL of a running server, which has no TLS and lets its user create
//! databases. Tests that end a server or change its settings start their own all the same.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

/// Time until a new cluster answers.
const START: Duration = Duration::from_secs(60);

/// Tries on other ports, since another process can take a free one first.
const TRIES: usize = 4;

/// Where the Debian package puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A running cluster; ended and removed when dropped, if the tests have started it.
pub(crate) struct Cluster {
    folder: TempDir,
    /// `postgres://USER@HOST:PORT`
    base: String,
    port: u16,
    server: Option<Child>,
    databases: AtomicU32,
}

static SHARED: Mutex<Weak<Cluster>> = Mutex::const_new(Weak::new());

impl Cluster {
    /// Returns a cluster that the tests running at the same time share; the last one ends it.
    pub(crate) async fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().await;
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(match variable().filter(|value| value.contains("://")) {
            Some(url) => Self::running(url.trim_end_matches('/')),
            None => Self::start(&[]).await,
        });
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// A cluster that a developer has started.
    fn running(base: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Not the names of an earlier run.
        let databases = AtomicU32::new(std::process::id() << 8);
        Self { folder, base: base.to_owned(), port: 0, server: None, databases }
    }

    /// Starts a cluster with these further settings, each `name=value`.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, &[]).await
    }

    /// Starts a cluster with TLS.
    pub(crate) async fn start_with_tls(certificate: &str, key: &str) -> Self {
        let settings = ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"];
        Self::start_with(&settings, &[("server.crt", certificate), ("server.key", key)]).await
    }

    /// The same with these files in its data folder.
    async fn start_with(settings: &[&str], files: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("damper-postgres-").tempdir().unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let data = folder.path().join("data");
        let init =
            ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "--no-sync", "--pgdata"];
        run(program("initdb").args(init).arg(&data).stdout(Stdio::null()));
        for (name, content) in files {
            let file = data.join(name);
            std::fs::write(&file, content).unwrap();
            run(Command::new("chmod").arg("600").arg(&file));
            if is_root() {
                run(Command::new("chown").arg("postgres").arg(&file));
            }
        }
        let base = String::new();
        let mut cluster = Self { folder, base, port: 0, server: None, databases: AtomicU32::new(0) };
        for _ in 0..TRIES {
            cluster.port = free_port();
            cluster.base = format!("postgres://postgres@127.0.0.1:{}", cluster.port);
            cluster.launch(settings);
            if cluster.answers().await {
                return cluster;
            }
            cluster.kill();
        }
        let log = std::fs::read_to_string(cluster.folder.path().join("log")).unwrap_or_default();
        panic!("PostgreSQL does not answer on port {}: {log}", cluster.port);
    }

    fn launch(&mut self, settings: &[&str]) {
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = program("postgres");
        command.arg("-D").arg(self.folder.path().join("data"));
        command.args(["-c", &format!("port={}", self.port), "-c", "listen_addresses=127.0.0.1"]);
        command.args(["-c", "unix_socket_directories=", "-c", "max_connections=200"]);
        for setting in settings {
            command.args(["-c", setting]);
        }
        let server = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        self.server = Some(server.unwrap_or_else(|error| missing("postgres", &error)));
    }

    /// Waits until the cluster answers; false if it has ended.
    async fn answers(&mut self) -> bool {
        let deadline = Instant::now() + START;
        loop {
            if tokio_postgres::connect(&self.url("postgres"), NoTls).await.is_ok() {
                return true;
            }
            let has_ended = self.server.as_mut().unwrap().try_wait().unwrap().is_some();
            if has_ended || Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn url(&self, database: &str) -> String {
        format!("{}/{database}", self.base)
    }

    /// Creates an empty database and returns its URL.
    pub(crate) async fn database(&self) -> String {
        let name = format!("queue_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("create database {name}")).await;
        self.url(&name)
    }

    /// Runs a statement in the database of this name or URL.
    pub(crate) async fn execute(&self, database: &str, sql: &str) {
        let url = if database.contains("://") { database.to_owned() } else { self.url(database) };
        Session::open(&url).await.run(sql).await;
    }

    /// Ends the cluster at once, as kill -9 would, and starts it on its data and port.
    pub(crate) async fn restart(&mut self, settings: &[&str]) {
        self.kill();
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            self.launch(settings);
            if self.answers().await {
                return;
            }
            // It does not start before the processes of its old connections have ended.
            self.kill();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("PostgreSQL does not answer after its end");
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

/// A further session in a database.
pub(crate) struct Session {
    client: Client,
    process: i32,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        // Ends with the client.
        tokio::spawn(connection);
        let process = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        Self { client, process }
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// Waits until another session waits for a lock of this one.
    pub(crate) async fn blocks_another(&self) {
        let sql = "select count(*) > 0 from pg_locks where not granted and $1 = any(pg_blocking_pids(pid))";
        self.until(sql, self.process).await;
    }

    /// Waits until the other session waits for a lock.
    pub(crate) async fn sees_waiting(&self, other: &Self) {
        self.until("select cardinality(pg_blocking_pids($1)) > 0", other.process).await;
    }

    /// Waits until a statement with this parameter returns true.
    pub(crate) async fn until(&self, sql: &str, parameter: i32) {
        let deadline = Instant::now() + START;
        while !self.client.query_one(sql, &[&parameter]).await.unwrap().get::<_, bool>(0) {
            assert!(Instant::now() < deadline, "never true for {parameter}: {sql}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // Fast shutdown: its processes end too, before the folder is removed.
            let id = server.id().to_string();
            let sent = Command::new("kill").args(["-INT", &id]).status();
            let mut server = server;
            if sent.is_ok() {
                let _ = server.wait();
            }
        }
    }
}

/// Returns a program of PostgreSQL, run as the user that may run it.
fn program(name: &str) -> Command {
    let folder = variable().filter(|value| !value.contains("://")).map(PathBuf::from);
    let folder = folder.or_else(|| newest(Path::new(VERSIONS)));
    let path = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
    if !is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command.current_dir("/");
    command
}

fn variable() -> Option<String> {
    std::env::var("DAMPER_TEST_POSTGRES").ok()
}

/// Returns the programs of the highest version, in `VERSION/bin`.
fn newest(versions: &Path) -> Option<PathBuf> {
    let versions =
        std::fs::read_dir(versions).ok()?.filter_map(Result::ok).map(|entry| entry.path().join("bin"));
    let number = |folder: &PathBuf| folder.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    versions.filter(|folder| folder.join("initdb").is_file()).max_by_key(number)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| missing(&format!("{command:?}"), &error));
    assert!(status.success(), "{command:?}: {status}");
}

fn missing(program: &str, error: &std::io::Error) -> ! {
    panic!(
        "PostgreSQL is needed and {program} cannot be started: {error}. Install the Debian package postgresql, or \
         name the folder of its programs in DAMPER_TEST_POSTGRES"
    )
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
