//! The `damper serve` that is measured: started for it and ended with it, and the ways in.
//!
//! Guarded as it is in use unless told otherwise: TLS with a certificate made for the run, tokens from its bootstrap
//! token. What limits one caller is set so high that one load can stand for many.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use damper_proto::v1::tokens_client::TokensClient;
use damper_proto::v1::{self, Role};
use damper_tests::binary;
use tempfile::TempDir;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::patience::{PATIENCE, within};
use crate::process::{Running, Usage, tethered};

/// One load stands for many callers.
const LIMITS: [(&str, &str); 12] = [
    ("DAMPER_LIMITS_MAX_CONNECTIONS", "100000"),
    ("DAMPER_LIMITS_MAX_CONNECTIONS_PER_IDENTITY", "100000"),
    ("DAMPER_LIMITS_MAX_NEW_CONNECTIONS_PER_ADDRESS", "100000"),
    ("DAMPER_LIMITS_MAX_OPEN_REQUESTS_PER_IDENTITY", "100000"),
    ("DAMPER_LIMITS_MAX_APPLY_BYTES", "256MiB"),
    ("DAMPER_LIMITS_MAX_RULES", "200000"),
    ("DAMPER_LIMITS_WRITES_PER_SECOND", "1000000"),
    ("DAMPER_LIMITS_WRITES_BURST", "1000000"),
    ("DAMPER_LIMITS_SUBMITS_PER_SECOND", "1000000"),
    ("DAMPER_LIMITS_SUBMITS_BURST", "1000000"),
    ("DAMPER_LIMITS_SUBMITTED_KIB_PER_SECOND", "4000000"),
    ("DAMPER_LIMITS_SUBMITTED_KIB_BURST", "4000000"),
];

/// Tokens for another process of this program.
const ADMIN: &str = "DAMPER_BENCH_ADMIN_TOKEN";
const AGENT: &str = "DAMPER_BENCH_AGENT_TOKEN";

const START: Duration = Duration::from_secs(30);
/// Thousands connect at once to a busy machine.
const CONNECT: Duration = Duration::from_secs(30);

/// How it is started.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where rules are kept; none = sled in a temporary folder.
    pub store: Option<String>,
    /// Without TLS and tokens.
    pub plaintext: bool,
    /// Where jobs are kept; none = in the folder of the rules.
    pub queues: Option<String>,
}

/// A running server; ended, and its store removed, when dropped.
#[derive(Debug)]
pub struct Server {
    running: Option<Running>,
    arguments: Vec<String>,
    door: Door,
    _folder: TempDir,
}

/// How to come in.
#[derive(Clone, Debug)]
pub struct Door {
    url: String,
    authority: Option<PathBuf>,
    endpoint: Endpoint,
    admin: Option<String>,
    agent: Option<String>,
}

impl Server {
    /// Starts one on a free port of loopback, and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn start(settings: Settings) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let sled = || format!("sled:{}", folder.path().join("store").display());
        let address = format!("127.0.0.1:{}", free_port()?);
        let scheme = if settings.plaintext { "http" } else { "https" };
        let mut door = Door::new(&format!("{scheme}://{address}"), None)?;
        let store = settings.store.unwrap_or_else(sled);
        let mut arguments: Vec<String> = ["serve", "--log-level", "warn"].map(str::to_owned).into();
        arguments.extend(["--listen".to_owned(), address, "--store".to_owned(), store]);
        arguments.extend(settings.queues.into_iter().flat_map(|queues| ["--queues".to_owned(), queues]));
        let bootstrap = folder.path().join("bootstrap-token");
        if !settings.plaintext {
            let certificate = certificate(folder.path())?;
            arguments.extend(guards(folder.path(), &certificate, &bootstrap));
            door = Door::new(&door.url, Some(certificate))?;
        }
        let mut server = Self { running: None, arguments, door, _folder: folder };
        server.restart().await?;
        if !settings.plaintext {
            server.door.authenticate(&bootstrap).await?;
        }
        Ok(server)
    }

    /// The ways in.
    #[must_use]
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        self.door.url()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it (again) on its store and port, and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn restart(&mut self) -> Result<()> {
        let mut command = tethered(binary::damper());
        command.args(&self.arguments).envs(LIMITS);
        let running = self.running.insert(Running::start("damper serve", command)?);
        let deadline = tokio::time::Instant::now() + START;
        while let Err(error) = self.door.channel().await {
            let is_late = tokio::time::Instant::now() > deadline;
            if is_late || running.ended()?.is_some() {
                bail!("no connection to damper serve ({error}): {}", running.complaint());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// It does not run.
    pub fn usage(&self) -> Result<Usage> {
        match &self.running {
            Some(running) => running.usage(),
            None => bail!("damper serve does not run"),
        }
    }
}

impl Door {
    /// To a server there; with the certificate of its authority if it has TLS.
    ///
    /// # Errors
    /// That is no URL, or no certificate.
    pub fn new(url: &str, authority: Option<PathBuf>) -> Result<Self> {
        let mut endpoint = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect_timeout(CONNECT);
        if let Some(authority) = &authority {
            let authority = Certificate::from_pem(std::fs::read(authority)?);
            let tls = ClientTlsConfig::new().ca_certificate(authority).domain_name("localhost");
            endpoint = endpoint.tls_config(tls)?;
        }
        Ok(Self { url: url.to_owned(), authority, endpoint, admin: None, agent: None })
    }

    /// The same with the tokens that [`Door::tokens`] of another process put into the environment.
    ///
    /// # Errors
    /// As [`Door::new`].
    pub fn told(url: &str, authority: Option<PathBuf>) -> Result<Self> {
        let [admin, agent] = [ADMIN, AGENT].map(|name| std::env::var(name).ok());
        Ok(Self { admin, agent, ..Self::new(url, authority)? })
    }

    /// The tokens, as another process is told them.
    pub fn tokens(&self) -> impl Iterator<Item = (&'static str, String)> {
        let tokens = [(ADMIN, self.admin.clone()), (AGENT, self.agent.clone())];
        tokens.into_iter().filter_map(|(name, token)| Some((name, token?)))
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of its authority; none without TLS.
    #[must_use]
    pub fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// The token of services; none where none is asked for.
    #[must_use]
    pub fn agent_token(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// A connection of its own.
    ///
    /// # Errors
    /// There is none.
    pub async fn channel(&self) -> std::result::Result<Channel, tonic::transport::Error> {
        self.endpoint.connect().await
    }

    /// A request of an operator who may do everything.
    pub fn admin<T>(&self, message: T) -> Request<T> {
        with(self.admin.as_deref(), message)
    }

    /// A request of a service.
    pub fn agent<T>(&self, message: T) -> Request<T> {
        with(self.agent.as_deref(), message)
    }

    async fn authenticate(&mut self, bootstrap: &Path) -> Result<()> {
        self.admin = Some(std::fs::read_to_string(bootstrap)?.trim().to_owned());
        let request = v1::CreateTokenRequest {
            name: "bench".to_owned(),
            role: Role::Agent.into(),
            ..Default::default()
        };
        let mut tokens = TokensClient::new(self.channel().await?);
        let made = within(PATIENCE, "a token", tokens.create_token(self.admin(request))).await??;
        self.agent = Some(made.into_inner().secret);
        Ok(())
    }
}

fn guards(folder: &Path, certificate: &Path, bootstrap: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    vec![
        "--tls-cert".to_owned(),
        path(certificate),
        "--tls-key".to_owned(),
        path(&key_in(folder)),
        "--auth".to_owned(),
        "tokens".to_owned(),
        "--bootstrap-token-file".to_owned(),
        path(bootstrap),
    ]
}

fn with<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let bearer = token.and_then(|token| format!("Bearer {token}").parse::<MetadataValue<Ascii>>().ok());
    if let Some(bearer) = bearer {
        request.metadata_mut().insert("authorization", bearer);
    }
    request
}

pub(super) fn certificate_in(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

pub(super) fn key_in(folder: &Path) -> PathBuf {
    folder.join("key.pem")
}

/// Writes a certificate that is its own authority, and its key.
pub(crate) fn certificate(folder: &Path) -> Result<PathBuf> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let path = certificate_in(folder);
    std::fs::write(&path, made.cert.pem())?;
    std::fs::write(key_in(folder), made.signing_key.serialize_pem())?;
    Ok(path)
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
