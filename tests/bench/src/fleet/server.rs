//! The `damper serve` that is measured: started for it, asked for its figures where the system keeps them, and ended.
//!
//! Guarded as it is in use: TLS with a certificate made for the run, tokens from its bootstrap token. What limits one
//! caller is set so high that one load can stand for many.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use damper_proto::v1::tokens_client::TokensClient;
use damper_proto::v1::{self, Role};
use damper_tests::binary;
use tempfile::TempDir;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::Result;

/// What /proc counts processor time in, a hundredth of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);
const START: Duration = Duration::from_secs(20);

/// A running server; ended and its store removed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) door: Door,
    _folder: TempDir,
}

/// How to come in.
#[derive(Clone)]
pub(crate) struct Door {
    endpoint: Endpoint,
    admin: Option<MetadataValue<Ascii>>,
    agent: Option<MetadataValue<Ascii>>,
}

/// What a process has used so far.
pub(crate) struct Figures {
    /// In MiB: what it holds, and the most that it has held.
    pub(crate) memory: u64,
    pub(crate) peak: u64,
    processor: Duration,
}

impl Figures {
    pub(crate) fn processor_since(&self, before: &Self) -> Duration {
        self.processor - before.processor
    }
}

impl Server {
    pub(crate) async fn start(store: Option<String>, plaintext: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let store = store.unwrap_or_else(|| format!("sled:{}", folder.path().join("store").display()));
        let mut command = Command::new(binary::damper());
        let address = format!("127.0.0.1:{}", free_port()?);
        command.args(["serve", "--listen", &address, "--store", &store, "--log-level", "warn"]);
        let (bootstrap, mut endpoint) = (folder.path().join("bootstrap-token"), None);
        if !plaintext {
            let certificate = certificate(folder.path())?;
            command.arg("--tls-cert").arg(&certificate).arg("--tls-key").arg(folder.path().join("key.pem"));
            command.args(["--auth", "tokens", "--bootstrap-token-file"]).arg(&bootstrap);
            let authority = Certificate::from_pem(std::fs::read(&certificate)?);
            let tls = ClientTlsConfig::new().ca_certificate(authority).domain_name("localhost");
            endpoint = Some(Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?);
        }
        let endpoint = match endpoint {
            Some(endpoint) => endpoint,
            None => Endpoint::from_shared(format!("http://{address}"))?,
        };
        let child = command.stdin(Stdio::null()).spawn()?;
        let door = Door { endpoint, admin: None, agent: None };
        let mut server = Self { child, door, _folder: folder };
        server.until_it_answers().await?;
        if !plaintext {
            server.door.authenticate(&bootstrap).await?;
        }
        Ok(server)
    }

    async fn until_it_answers(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + START;
        while let Err(error) = self.door.channel().await {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("damper serve ended: {status}").into());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("damper serve does not answer: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// What it has used so far.
    pub(crate) fn figures(&self) -> Result<Figures> {
        let place = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = std::fs::read_to_string(place.join("status"))?;
        let mebibytes = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
            let kibibytes: u64 = line.trim_end_matches("kB").trim().parse()?;
            Ok(kibibytes / 1024)
        };
        let line = std::fs::read_to_string(place.join("stat"))?;
        let after_name = line.rsplit(") ").next().unwrap_or_default();
        // Fields 14 and 15 of proc_pid_stat(5), time in the program and in the system; the state is field 3.
        let ticks = after_name.split(' ').skip(11).take(2).map(str::parse::<u32>);
        let ticks = ticks.collect::<std::result::Result<Vec<u32>, _>>()?.iter().sum::<u32>();
        Ok(Figures { memory: mebibytes("VmRSS:")?, peak: mebibytes("VmHWM:")?, processor: TICK * ticks })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Door {
    /// A connection of its own.
    pub(crate) async fn channel(&self) -> std::result::Result<Channel, tonic::transport::Error> {
        self.endpoint.connect().await
    }

    /// A request of an operator who may do everything.
    pub(crate) fn admin<T>(&self, message: T) -> Request<T> {
        with(self.admin.as_ref(), message)
    }

    /// A request of a service.
    pub(crate) fn agent<T>(&self, message: T) -> Request<T> {
        with(self.agent.as_ref(), message)
    }

    async fn authenticate(&mut self, bootstrap: &Path) -> Result<()> {
        self.admin = Some(bearer(std::fs::read_to_string(bootstrap)?.trim())?);
        let request = v1::CreateTokenRequest {
            name: "load".to_owned(),
            role: Role::Agent.into(),
            ..Default::default()
        };
        let made = TokensClient::new(self.channel().await?).create_token(self.admin(request)).await?;
        self.agent = Some(bearer(&made.into_inner().secret)?);
        Ok(())
    }
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>> {
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse()?;
    value.set_sensitive(true);
    Ok(value)
}

fn with<T>(bearer: Option<&MetadataValue<Ascii>>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(bearer) = bearer {
        request.metadata_mut().insert("authorization", bearer.clone());
    }
    request
}

/// Writes a certificate that is its own authority, and its key.
fn certificate(folder: &Path) -> Result<PathBuf> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let path = folder.join("certificate.pem");
    std::fs::write(&path, made.cert.pem())?;
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem())?;
    Ok(path)
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
