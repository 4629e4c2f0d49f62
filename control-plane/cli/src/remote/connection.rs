//! Addresses and credentials of the control plane, and the connection to it.
//!
//! Flags and variables are those of services ([`damper_endpoint`]). Several addresses are tried in order.
//! Connecting has a timeout, TLS included, and pings detect a dead peer, so a missing server is an error
//! within five seconds. Secrets come from a file or a variable, never from a flag: flags are visible in the
//! process list.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use damper_core::Faults;
use damper_endpoint::{Access, AccessSettings, Opening, Speaker, Token, address};
use damper_sdk::Options;
use http::Uri;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::error::CliError;
use crate::remote::status::{self, Peer};

const DEFAULT_SERVER: &str = "http://127.0.0.1:7600";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Silence before a ping, and the time to answer it: together below five seconds.
pub(super) const PING_AFTER: Duration = Duration::from_secs(2);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Address and credentials of the control plane.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServerArgs {
    /// Control plane address; with several, separated by commas, the first reachable one is used
    /// [default: http://127.0.0.1:7600]
    #[arg(long, global = true, value_name = "URL", env = "DAMPER_SERVER", hide_env_values = true)]
    pub(crate) server: Option<String>,
    /// PEM file with the CA certificates that verify the server's certificate [env: DAMPER_CA_FILE]
    /// [default: the system's]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the client certificate [env: DAMPER_CERT_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate [env: DAMPER_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Expected name in the server's certificate [env: DAMPER_SERVER_NAME] [default: the address's host]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// File that contains the access token [env: DAMPER_TOKEN_FILE; DAMPER_TOKEN can hold the token itself]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A connection that adds the token to every call.
pub(crate) type Line = InterceptedService<Channel, Bearer>;

/// Adds the token, if any, to each call.
#[derive(Clone, Debug)]
pub(crate) struct Bearer(Option<Token>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Self(Some(token)) = self {
            request.metadata_mut().insert("authorization", token.bearer());
        }
        Ok(request)
    }
}

impl ServerArgs {
    /// Returns the options of this process as a service: the flags, else the variables of the SDK. The
    /// address has no default.
    pub(crate) fn service_options(&self) -> Options {
        let Self { server, ca_file, cert_file, key_file, server_name, token_file } = self.clone();
        let text = |file: Option<PathBuf>| file.map(|file| file.to_string_lossy().into_owned());
        let given = [
            ("DAMPER_CA_FILE", text(ca_file)),
            ("DAMPER_CERT_FILE", text(cert_file)),
            ("DAMPER_KEY_FILE", text(key_file)),
            ("DAMPER_SERVER_NAME", server_name),
            // A file replaces the token of the variable.
            ("DAMPER_TOKEN", token_file.is_some().then(String::new)),
            ("DAMPER_TOKEN_FILE", text(token_file)),
        ];
        let servers = server.filter(|server| !server.trim().is_empty());
        let servers = servers.map(|server| addresses(Some(&server))).unwrap_or_default();
        Options::new(servers).environment(move |name| {
            let flag = given.iter().find(|(variable, _)| *variable == name);
            flag.and_then(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
        })
    }
}

/// Connects to the first reachable server; errors if none is. After the loss of `lost` the servers behind it
/// come first and it comes last.
pub(crate) async fn connect(
    args: &ServerArgs,
    lost: Option<&Peer>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Peer, Line), CliError> {
    let (mut servers, access) = settle(args, env)?;
    if let Some(at) = lost.and_then(|lost| servers.iter().position(|uri| *uri == lost.uri)) {
        servers.rotate_left(at + 1);
    }
    let mut problems = Vec::new();
    for uri in servers {
        let address = uri.to_string().trim_end_matches('/').to_owned();
        let Opening { endpoint, token } =
            access.open(&uri).map_err(|problem| CliError::Config(vec![problem]))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true)
            .user_agent(concat!("damper/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| CliError::Defect(error.to_string()))?;
        let peer = Peer { address, access: access.clone(), uri };
        let begun = Instant::now();
        match endpoint.connect().await {
            Ok(channel) => return Ok((peer, InterceptedService::new(channel, Bearer(token)))),
            Err(error) => problems.push(status::looked_into(&peer, &error, begun).await),
        }
    }
    Err(status::unreachable(&problems))
}

/// Returns the servers in order and the credentials; errors with all faults.
fn settle(args: &ServerArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<(Vec<Uri>, Access), CliError> {
    let ServerArgs { server, ca_file, cert_file, key_file, server_name, token_file } = args.clone();
    let mut faults = Faults::none();
    let mut servers = Vec::new();
    for address in addresses(server.as_deref()) {
        match address::parse(&address) {
            Ok(uri) => servers.push(("--server".to_owned(), uri)),
            Err(problem) => faults.add("--server", not_an_address(&problem)),
        }
    }
    let given = AccessSettings {
        ca_file,
        cert_file,
        key_file,
        server_name,
        token: None,
        token_file,
        allow_plaintext: false,
    };
    let access = Access::resolve(given, Speaker::CommandLine, &servers, env, &mut faults);
    match faults.is_empty() {
        true => Ok((servers.into_iter().map(|(_, uri)| uri).collect(), access)),
        false => Err(CliError::Usage(lines(&faults))),
    }
}

fn lines(faults: &Faults) -> String {
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Returns the number of servers.
pub(crate) fn count(args: &ServerArgs) -> usize {
    addresses(args.server.as_deref()).len()
}

fn addresses(given: Option<&str>) -> Vec<String> {
    let given = given.unwrap_or_default().split(',').map(str::trim).filter(|given| !given.is_empty());
    let with_scheme =
        |given: &str| if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
    let mut addresses: Vec<_> = given.map(with_scheme).collect();
    if addresses.is_empty() {
        addresses.push(DEFAULT_SERVER.to_owned());
    }
    addresses
}

fn not_an_address(problem: &dyn Display) -> String {
    format!("not a control plane address: {problem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(server: &str, env: &[(&str, &str)]) -> Result<(Vec<Uri>, Access), CliError> {
        let args = ServerArgs { server: Some(server.to_owned()), ..ServerArgs::default() };
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        settle(&args, &find)
    }

    #[test]
    fn an_address_needs_no_scheme_and_has_a_default() {
        assert_eq!(addresses(None), [DEFAULT_SERVER]);
        assert_eq!(addresses(Some(" , ")), [DEFAULT_SERVER]);
        assert_eq!(addresses(Some("a:1, https://b ,")), ["http://a:1", "https://b"]);
        let (servers, _) = settled("[::1]:7600,http://host", &[]).unwrap();
        assert_eq!(servers, ["http://[::1]:7600", "http://host"]);
    }

    #[test]
    fn invalid_address_is_a_usage_error() {
        for bad in ["ftp://host", "http://", "http://a b", "http://host:port", "http://host/path"] {
            let error = settled(bad, &[]).unwrap_err();
            assert_eq!(error.code(), 64, "{bad}: {error}");
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn all_faults_come_at_once_and_no_secret_with_them() {
        let env = [("DAMPER_TOKEN", "very secret"), ("DAMPER_KEY_FILE", "k")];
        let error = settled("ftp://a,http://kim:pass@b", &env).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 4, "{error}");
        assert!(!error.contains("very secret") && !error.contains("pass@"), "{error}");
    }

    #[test]
    fn a_token_does_not_leave_the_machine_in_the_clear() {
        let env = [("DAMPER_TOKEN", "secret")];
        assert_eq!(settled("http://damper:1", &env).unwrap_err().code(), 64);
        assert!(settled("https://damper:1", &env).is_ok());
        assert!(settled("", &env).is_ok(), "loopback");
    }

    #[tokio::test]
    async fn a_file_that_is_missing_is_a_bad_setting() {
        let args = ServerArgs { token_file: Some("/no/such/token".into()), ..ServerArgs::default() };
        let error = connect(&args, None, &|_| None).await.unwrap_err();
        assert_eq!(error.code(), 78);
        assert!(error.to_string().contains("/no/such/token"), "{error}");
    }

    #[tokio::test]
    async fn every_unreachable_server_is_named() {
        let args = ServerArgs { server: Some("127.0.0.1:1,127.0.0.1:2".to_owned()), ..ServerArgs::default() };
        let error = connect(&args, None, &|_| None).await.unwrap_err();
        assert_eq!(error.code(), 69);
        let text = error.to_string();
        assert!(
            text.contains("reach http://127.0.0.1:1:") && text.contains("reach http://127.0.0.1:2:"),
            "{text}"
        );
    }
}
