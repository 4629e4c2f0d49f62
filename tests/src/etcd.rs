//! A real etcd for tests: one member on free ports in a folder of its own.
//!
//! The program is `DAMPER_TEST_ETCD` or `etcd` on the path; without it a test fails, it is never skipped. A
//! member can be ended and started again on the same data and ports, which is what reconnection tests need.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use damper_store::etcd::{self, EtcdConfig, EtcdStore};
use tempfile::TempDir;
use tonic::Code;

/// How long a member gets until it answers.
const START: Duration = Duration::from_secs(30);

/// How often a new member is tried on other ports, since another test can take a free one first.
const ATTEMPTS: usize = 4;

/// A running etcd; ended and removed when dropped.
pub struct Etcd {
    folder: TempDir,
    client_port: u16,
    peer_port: u16,
    member: Option<Child>,
    command: fn(PathBuf) -> Command,
    tls: Option<Tls>,
}

/// The files of a member that speaks TLS and asks for certificates. The same authority signs both sides.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority.
    pub ca: PathBuf,
    /// A certificate for 127.0.0.1, of the member and of its clients.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Etcd {
    /// Starts a member with an empty data folder and waits until it answers.
    pub async fn start() -> Self {
        Self::start_by(Command::new).await
    }

    /// The same by a command that is made of the program's path.
    pub async fn start_by(command: fn(PathBuf) -> Command) -> Self {
        Self::start_as(command, None).await
    }

    /// The same with TLS for clients, by the files that these are now.
    pub async fn start_with_tls(tls: Tls) -> Self {
        Self::start_as(Command::new, Some(tls)).await
    }

    async fn start_as(command: fn(PathBuf) -> Command, tls: Option<Tls>) -> Self {
        let folder = tempfile::Builder::new().prefix("damper-etcd-").tempdir().expect("a temporary folder");
        let mut etcd = Self { folder, client_port: 0, peer_port: 0, member: None, command, tls };
        for _ in 0..ATTEMPTS - 1 {
            (etcd.client_port, etcd.peer_port) = (free_port(), free_port());
            if etcd.launch().await.is_ok() {
                return etcd;
            }
            etcd.kill();
        }
        etcd.restart().await;
        etcd
    }

    /// `HOST:PORT` of the member.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Settings for a store below a prefix.
    #[must_use]
    pub fn settings(&self, prefix: &str) -> EtcdConfig {
        EtcdConfig {
            endpoints: vec![self.endpoint()],
            prefix: prefix.to_owned(),
            user: None,
            password: None,
            tls: self.tls.as_ref().map(|Tls { ca, cert, key }| etcd::EtcdTls {
                ca: Some(ca.clone()),
                cert: Some(cert.clone()),
                key: Some(key.clone()),
                domain: None,
            }),
        }
    }

    /// A store below a prefix; each call is a connection of its own, as another replica would have.
    #[must_use]
    pub fn store(&self, prefix: &str) -> EtcdStore {
        EtcdStore::open(self.settings(prefix)).expect("the settings are sound")
    }

    /// A client without Damper in between, to look at keys and to compact.
    pub async fn client(&self) -> etcd_client::Client {
        let Some(Tls { ca, cert, key }) = &self.tls else {
            return etcd_client::Client::connect([self.endpoint()], None).await.expect("the member runs");
        };
        let read = |path: &PathBuf| std::fs::read(path).expect("a file");
        let tls = etcd_client::TlsOptions::new()
            .ca_certificate(etcd_client::Certificate::from_pem(read(ca)))
            .identity(etcd_client::Identity::from_pem(read(cert), read(key)));
        let options = etcd_client::ConnectOptions::new().with_tls(tls);
        let place = format!("https://{}", self.endpoint());
        etcd_client::Client::connect([place], Some(options)).await.expect("the member runs")
    }

    /// Starts the member on its data and ports, and waits until it answers.
    pub async fn restart(&mut self) {
        if let Err(log) = self.launch().await {
            panic!("etcd does not answer on {}: {log}", self.endpoint());
        }
    }

    /// Starts the member that was ended on other data, which is moved to its folder.
    pub async fn restart_on(&mut self, data: &Path) {
        let own = self.folder.path().join("data");
        std::fs::remove_dir_all(&own).expect("the member has data");
        std::fs::rename(data, own).expect("both lie in temporary folders");
        self.restart().await;
    }

    async fn launch(&mut self) -> Result<(), String> {
        assert!(self.member.is_none(), "the member runs already");
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log file");
        let program = program();
        let member = (self.command)(program.clone())
            .args(["--name", "one", "--logger", "zap", "--data-dir"])
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .args(self.tls_arguments())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn();
        self.member = Some(member.unwrap_or_else(|error| {
            panic!(
                "etcd is needed and {} can not be started: {error}. Install the Debian package etcd-server, \
                 or name the program in DAMPER_TEST_ETCD",
                program.display()
            )
        }));
        self.wait_until_it_answers().await
    }

    fn tls_arguments(&self) -> Vec<OsString> {
        let Some(Tls { ca, cert, key }) = &self.tls else { return Vec::new() };
        let files = [("--trusted-ca-file", ca), ("--cert-file", cert), ("--key-file", key)];
        let files = files.into_iter().flat_map(|(name, file)| [name.into(), file.clone().into_os_string()]);
        files.chain(["--client-cert-auth".into()]).collect()
    }

    /// Ends the member at once, as a power loss would.
    pub fn kill(&mut self) {
        let mut member = self.member.take().expect("the member runs");
        member.kill().expect("the member is our child");
        member.wait().expect("the member is our child");
    }

    /// Ends the member in order.
    pub fn stop(&mut self) {
        self.signal("TERM");
        self.member.take().expect("the member runs").wait().expect("the member is our child");
    }

    /// Freezes the member: its port stays open, it does not answer.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen member go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let member = self.member.as_ref().expect("the member runs");
        let sent = Command::new("kill").args([&format!("-{name}"), &member.id().to_string()]).status();
        assert!(sent.expect("kill can be started").success(), "SIG{name} was not delivered");
    }

    async fn wait_until_it_answers(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START;
        loop {
            let attempt = async { self.client().await.get("ready", None).await };
            match tokio::time::timeout(Duration::from_secs(1), attempt).await {
                Ok(Ok(_)) => return Ok(()),
                // It has a leader and wants to know who asks.
                Ok(Err(etcd_client::Error::GRpcStatus(status))) if status.code() == Code::InvalidArgument => {
                    return Ok(());
                }
                _ => {}
            }
            let ended = self.member.as_mut().expect("just started").try_wait().expect("our child");
            if ended.is_some() || Instant::now() > deadline {
                return Err(std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut member) = self.member.take() {
            // Nothing is left to do for a test that is over.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// The program.
#[must_use]
pub fn program() -> PathBuf {
    std::env::var_os("DAMPER_TEST_ETCD").map_or_else(|| PathBuf::from("etcd"), PathBuf::from)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("it is bound").port()
}
