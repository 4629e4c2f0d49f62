//! A real PostgreSQL for tests: a cluster of its own, on a free port, with databases that share nothing.
//!
//! Its programs are in the folder `DAMPER_TEST_POSTGRES`, or on the path; without them a test fails, it is
//! never skipped. PostgreSQL refuses to run as root, so root runs it as the user `postgres`, which the Debian
//! package creates.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio_postgres::NoTls;

/// Time until a new cluster answers.
const START: Duration = Duration::from_secs(60);

/// Tries on other ports, since another process can take a free one first.
const TRIES: usize = 4;

/// A running cluster; ended and removed when dropped.
pub(crate) struct Cluster {
    folder: TempDir,
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
        let cluster = Arc::new(Self::start(&[]).await);
        *shared = Arc::downgrade(&cluster);
        cluster
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
        let init = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "--pgdata"];
        run(program("initdb").args(init).arg(&data).stdout(Stdio::null()));
        for (name, content) in files {
            let file = data.join(name);
            std::fs::write(&file, content).unwrap();
            run(Command::new("chmod").arg("600").arg(&file));
            if is_root() {
                run(Command::new("chown").arg("postgres").arg(&file));
            }
        }
        let mut cluster = Self { folder, port: 0, server: None, databases: AtomicU32::new(0) };
        for _ in 0..TRIES {
            cluster.port = free_port();
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
        command.args(["-c", "unix_socket_directories=", "-c", "max_connections=60"]);
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
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
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
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let driver = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        drop(client);
        driver.await.unwrap().unwrap();
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
    let folder = std::env::var_os("DAMPER_TEST_POSTGRES").map(PathBuf::from);
    let path = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
    if !is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command.current_dir("/");
    command
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
