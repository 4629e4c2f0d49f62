//! What keeps the jobs: PostgreSQL, Redis and nats-server, each started for a run; and the peers' processes.
//!
//! `cargo xtask bench` names the programs: PostgreSQL's folder in `DAMPER_TEST_POSTGRES`, Redis in
//! `DAMPER_BENCH_REDIS`, the peers in `DAMPER_BENCH_GO`. All of them sync a job before they acknowledge it.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::fleet::Server;
use crate::patience::PATIENCE;
use crate::process::{Conversation, Running, Usage, output, tethered};

/// The queue of the measurements. Its jobs are never held, and all slots of the worker are used.
const QUEUE: &str = "
kind: Queue
policy: { mode: enforce, retry: { max_attempts: 25 } }
workers: [bench]
max_in_flight: 10000
max_jobs: 10000000
max_bytes: 68719476736
max_submitter_share: 1
";

/// Writes a queue into a server; ended jobs are kept for this time.
///
/// # Errors
/// It is refused.
pub fn queue(server: &Server, name: &str, keep_done: &str) -> Result<()> {
    let mut manifest = tempfile::NamedTempFile::with_suffix(".yaml")?;
    std::io::Write::write_all(
        &mut manifest,
        format!("{}name: {name}\nkeep_done: {keep_done}\n", QUEUE.trim_start()).as_bytes(),
    )?;
    let path = manifest.path().to_str().context("a temporary file has a name in UTF-8")?;
    let applied = damper_tests::binary::run(server.url(), &["apply", "-f", path]);
    ensure!(applied.status.success(), "the queue: {}", String::from_utf8_lossy(&applied.stderr));
    Ok(())
}

/// KiB that a folder or a file takes on the disk.
///
/// # Errors
/// It cannot be read.
pub fn disk_kib(place: &Path) -> Result<f64> {
    let status = std::fs::metadata(place)?;
    // Blocks are of 512 bytes.
    let mut kib = status.blocks() as f64 / 2.0;
    if status.is_dir() {
        for entry in std::fs::read_dir(place)? {
            kib += disk_kib(&entry?.path())?;
        }
    }
    Ok(kib)
}

/// A process that keeps jobs in a folder.
#[derive(Debug)]
pub struct Keeper {
    url: String,
    running: Running,
    folder: TempDir,
}

impl Keeper {
    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> Result<Usage> {
        self.running.usage()
    }

    /// KiB of its folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn disk_kib(&self) -> Result<f64> {
        disk_kib(self.folder.path())
    }

    /// Waits until something listens on the port.
    async fn listens(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if Instant::now() > deadline || self.running.ended()?.is_some() {
                bail!("no connection to {}: {}", self.url, self.running.complaint());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Redis, which syncs each command before it answers.
///
/// # Errors
/// It does not start.
pub async fn redis() -> Result<Keeper> {
    let (folder, port) = (folder()?, free_port()?);
    let mut command = tethered(program("DAMPER_BENCH_REDIS", "the Debian package redis-server")?);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
    command.args(["--appendfsync", "always", "--dir"]).arg(folder.path());
    let running = Running::start("redis-server", command)?;
    let mut redis = Keeper { url: format!("redis://127.0.0.1:{port}"), running, folder };
    redis.listens(port).await?;
    Ok(redis)
}

/// JetStream, which syncs each message before it acknowledges it.
///
/// # Errors
/// It does not start.
pub async fn nats() -> Result<Keeper> {
    let (folder, port) = (folder()?, free_port()?);
    let mut command = tethered(program("DAMPER_BENCH_GO", "Go")?);
    command.arg("nats-server").arg(folder.path()).arg(port.to_string());
    let running = Running::start("nats-server", command)?;
    let mut nats = Keeper { url: format!("nats://127.0.0.1:{port}"), running, folder };
    nats.listens(port).await?;
    Ok(nats)
}

/// A peer's submitters and worker.
///
/// # Errors
/// It cannot be started.
pub fn peer(name: &str, url: &str) -> Result<Conversation> {
    go(name, &[url])
}

/// The program of the peers in Go, in a role.
///
/// # Errors
/// It cannot be started.
pub fn go(role: &str, arguments: &[&str]) -> Result<Conversation> {
    let mut command = tethered(program("DAMPER_BENCH_GO", "Go")?);
    command.arg(role).args(arguments);
    Conversation::of(role, command)
}

/// A cluster of PostgreSQL as its package sets it up.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    port: u16,
    running: Running,
    _folder: TempDir,
}

/// Starts a cluster. PostgreSQL refuses to run as root, so root runs it as the user that its package makes.
///
/// # Errors
/// It does not start.
pub async fn postgres() -> Result<Postgres> {
    let programs = program("DAMPER_TEST_POSTGRES", "the Debian package postgresql")?;
    let (folder, port) = (folder()?, free_port()?);
    let is_root = std::fs::metadata(folder.path())?.uid() == 0;
    if is_root {
        let user = format!("the user {USER}");
        let mut chown = Command::new("chown");
        chown.arg(USER).arg(folder.path());
        output(&user, chown, PATIENCE).await?;
    }
    let data = folder.path().join("data");
    let mut init = as_user(Command::new(programs.join("initdb")), is_root);
    init.args([
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--username=postgres",
        "--no-sync",
        "--pgdata",
    ]);
    init.arg(&data);
    output("initdb", init, PATIENCE).await?;
    let mut command = if is_root {
        as_user(Command::new(programs.join("postgres")), is_root)
    } else {
        tethered(programs.join("postgres"))
    };
    command.arg("-D").arg(&data).args(["-c", &format!("port={port}"), "-c", "listen_addresses=127.0.0.1"]);
    command.args(["-c", "unix_socket_directories=", "-c", "max_connections=200"]);
    let running = Running::start("postgres", command)?;
    let mut postgres = Postgres { programs, port, running, _folder: folder };
    postgres.answers().await?;
    Ok(postgres)
}

impl Postgres {
    /// Creates an empty database; returns its URL.
    ///
    /// # Errors
    /// It fails.
    pub async fn database(&self, name: &str) -> Result<String> {
        self.ask("postgres", &format!("create database {name}")).await?;
        Ok(format!("postgres://{USER}@127.0.0.1:{}/{name}", self.port))
    }

    /// KiB of a database on the disk.
    ///
    /// # Errors
    /// There is none.
    pub async fn disk_kib(&self, database: &str) -> Result<f64> {
        self.number(&format!("select pg_database_size('{database}')")).await.map(|bytes| bytes / 1024.0)
    }

    /// Transactions of a database so far.
    ///
    /// # Errors
    /// There is none.
    pub async fn transactions(&self, database: &str) -> Result<f64> {
        let counted = "select xact_commit + xact_rollback from pg_stat_database where datname";
        self.number(&format!("{counted} = '{database}'")).await
    }

    async fn number(&self, sql: &str) -> Result<f64> {
        Ok(self.ask("postgres", sql).await?.trim().parse()?)
    }

    async fn ask(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-d", database]);
        psql.args(["--no-psqlrc", "-At", "-c", sql]).stdin(Stdio::null());
        output(sql, psql, PATIENCE).await
    }

    async fn answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.ask("postgres", "select 1").await {
            if Instant::now() > deadline || self.running.ended()?.is_some() {
                bail!("{error:#}: {}", self.running.complaint());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// The user that the Debian package makes.
const USER: &str = "postgres";

/// The command run by the user of PostgreSQL, with the end of this process as its end.
fn as_user(command: Command, is_root: bool) -> Command {
    if !is_root {
        return command;
    }
    let mut as_user = Command::new("setpriv");
    // As the role `tethered` asks Linux for, which a change of the user clears.
    as_user.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--pdeathsig", "KILL"]);
    as_user.arg(command.get_program()).args(command.get_args()).current_dir("/");
    as_user
}

fn program(variable: &str, needed: &str) -> Result<PathBuf> {
    let program = std::env::var_os(variable).with_context(|| {
        format!("{variable} is not set: run `cargo xtask bench`, or name what {needed} installs in it")
    })?;
    Ok(PathBuf::from(program))
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("damper-bench-").tempdir()?)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
