//! Options of a service, and the settings that result.
//!
//! Setters cannot fail. [`Damper::connect`](crate::Damper::connect) checks everything and reports all faults
//! together, each under its option or variable.

#[cfg(feature = "queue")]
pub(crate) mod body_keys;
pub(crate) mod identity;
pub(crate) mod mode_override;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use damper_core::{Faults, Mode};
use damper_endpoint::{Access, Speaker, address};
use tonic::transport::Uri;

use crate::metrics::Detail;
use crate::options::identity::{CodeIdentity, Identity};

/// Variable with the addresses of the control plane, separated by commas.
const SERVER_VARIABLE: &str = "DAMPER_SERVER";
/// Variable with the path of the state folder.
const STATE_VARIABLE: &str = "DAMPER_STATE_DIR";

type Environment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Options of a service.
///
/// A control plane on another machine requires TLS and a token or client certificate. The files are read
/// again for every connection, so renewed ones need no restart. A missing or invalid file is a problem of
/// that connection, reported in [`Status`](crate::Status) and the log, and no fault of `connect`.
///
/// ```no_run
/// # async fn start() -> Result<(), damper_sdk::Faults> {
/// use damper_sdk::{Damper, Options};
///
/// let options = Options::new(["http://damper-1:7600", "http://damper-2:7600"])
///     .service("orders")
///     .state_dir("/var/lib/orders");
/// let damper = Damper::connect(options)?;
/// # Ok(())
/// # }
/// ```
///
/// ```no_run
/// # async fn start() -> Result<(), damper_sdk::Faults> {
/// use damper_sdk::{Damper, Options};
///
/// let options = Options::new(["https://damper-1:7600", "https://damper-2:7600"])
///     .service("orders")
///     .ca_file("/etc/damper/ca.pem")
///     .token_file("/run/secrets/damper-token");
/// let damper = Damper::connect(options)?;
/// // The same, from DAMPER_SERVER, DAMPER_SERVICE, DAMPER_CA_FILE and DAMPER_TOKEN_FILE:
/// let damper = Damper::connect(Options::from_env())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    endpoints: Vec<String>,
    identity: CodeIdentity,
    access: damper_endpoint::AccessSettings,
    state_dir: Option<PathBuf>,
    override_file: Option<PathBuf>,
    detail: Detail,
    is_proxy: bool,
    #[cfg(feature = "queue")]
    body_keys: Option<body_keys::BodyKeys>,
    environment: Arc<Environment>,
}

/// Checked options.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) endpoints: Vec<Uri>,
    pub(crate) access: Access,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) override_file: Option<PathBuf>,
    /// Mode of `DAMPER_MODE`.
    pub(crate) mode: Option<Mode>,
    pub(crate) detail: Detail,
    /// This process is a proxy next to the service.
    pub(crate) is_proxy: bool,
    #[cfg(feature = "queue")]
    pub(crate) body_keys: Option<body_keys::BodyKeys>,
}

impl Options {
    /// Sets the replicas of the control plane, as `https://host:port` (with the feature `tls`) or
    /// `http://host:port`. Default: `DAMPER_SERVER`, separated by commas. Each address of a name is a
    /// replica.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            identity: CodeIdentity::default(),
            access: damper_endpoint::AccessSettings::default(),
            state_dir: None,
            override_file: None,
            detail: Detail::default(),
            is_proxy: false,
            #[cfg(feature = "queue")]
            body_keys: None,
            environment: Arc::new(|name| std::env::var(name).ok()),
        }
    }

    /// Takes everything from variables: the replicas from `DAMPER_SERVER`, all else as documented at its
    /// setter.
    #[must_use]
    pub fn from_env() -> Self {
        Self::new(std::iter::empty::<String>())
    }

    /// Name of this service. Default: `DAMPER_SERVICE`, `OTEL_SERVICE_NAME`, or `service.name` in
    /// `OTEL_RESOURCE_ATTRIBUTES`. Required.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.identity.service = Some(name.into());
        self
    }

    /// Deployment group of this process (online, batch, canary). Default: `DAMPER_CLUSTER`, or `default`.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.identity.cluster = Some(name.into());
        self
    }

    /// Id of this process within the service. Default: `service.instance.id` in `OTEL_RESOURCE_ATTRIBUTES`,
    /// or the host name with a random suffix.
    #[must_use]
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.identity.instance = Some(id.into());
        self
    }

    /// Folder of the state file, from which a process that starts while the control plane is unavailable
    /// takes the last rules. Default: `DAMPER_STATE_DIR`, or none: such a process does not retry.
    #[must_use]
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(folder.into());
        self
    }

    /// File with one word, `off` or `observe`, that reduces the mode of all rules, with or without the
    /// control plane. Read every 5 s. Default: `DAMPER_MODE_FILE`, or none.
    #[must_use]
    pub fn override_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.override_file = Some(path.into());
        self
    }

    /// PEM file with the authorities to trust for the control plane's certificate, and no others. Default:
    /// `DAMPER_CA_FILE`, or those of the system.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.ca_file = Some(path.into());
        self
    }

    /// PEM files with this process's certificate chain and its unencrypted private key, for a control plane
    /// that requests one. Default: `DAMPER_CERT_FILE` and `DAMPER_KEY_FILE`, or none.
    #[must_use]
    pub fn client_certificate(mut self, cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        self.access.cert_file = Some(cert_file.into());
        self.access.key_file = Some(key_file.into());
        self
    }

    /// Name that the control plane's certificate must match. Default: `DAMPER_SERVER_NAME`, or the host of
    /// the endpoint.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.access.server_name = Some(name.into());
        self
    }

    /// Token for the control plane; never printed. A [file](Self::token_file) can be renewed without a
    /// restart. Default: `DAMPER_TOKEN` or `DAMPER_TOKEN_FILE`, or none.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.access.token = Some(token.into());
        self
    }

    /// File with the token for the control plane. Default: see [`token`](Self::token).
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.token_file = Some(path.into());
        self
    }

    /// Allows to send the token over `http://` to other machines, where the network can read it. Use only if
    /// the network itself encrypts. Default: `DAMPER_INSECURE_ALLOW_PLAINTEXT=true`, otherwise that is a
    /// fault.
    #[must_use]
    pub fn allow_plaintext(mut self) -> Self {
        self.access.allow_plaintext = true;
        self
    }

    /// Histograms per route instead of per callee; see [`metrics`](crate::metrics). Default: per callee.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn histograms_per_route(mut self) -> Self {
        self.detail.per_route = true;
        self
    }

    /// Marks this process as a proxy next to the service, which operators then see at the client.
    #[must_use]
    pub fn as_proxy(mut self) -> Self {
        self.is_proxy = true;
        self
    }

    /// Keys under which the bodies of jobs are encrypted, those of hand-overs included, and decrypted by
    /// workers. The control plane has no key: it can neither read a body nor exchange it for another.
    /// Default: bodies are not encrypted.
    #[cfg(feature = "queue")]
    #[must_use]
    pub fn body_keys(mut self, keys: body_keys::BodyKeys) -> Self {
        self.body_keys = Some(keys);
        self
    }

    /// Function that looks up variables. Default: the environment of the process.
    #[must_use]
    pub fn environment(mut self, find: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.environment = Arc::new(find);
        self
    }

    /// Checks the options.
    ///
    /// # Errors
    /// All faults together.
    pub(crate) fn resolve(self) -> Result<Settings, Faults> {
        let mut faults = Faults::none();
        let env = |name: &str| (self.environment)(name).filter(|value| !value.is_empty());
        let endpoints = endpoints(&self.endpoints, env(SERVER_VARIABLE), &mut faults);
        let access = Access::resolve(self.access, Speaker::Code, &endpoints, &env, &mut faults);
        let endpoints = endpoints.into_iter().map(|(_, uri)| uri).collect();
        let identity = Identity::resolve(&self.identity, &env, &mut faults);
        let mode = imposed(&env(mode_override::MODE_VARIABLE).unwrap_or_default());
        let override_file =
            self.override_file.or_else(|| env(mode_override::FILE_VARIABLE).map(PathBuf::from));
        let state_dir = self.state_dir.or_else(|| env(STATE_VARIABLE).map(PathBuf::from));
        faults.or(Settings {
            identity,
            endpoints,
            access,
            state_dir,
            override_file,
            mode,
            detail: self.detail,
            is_proxy: self.is_proxy,
            #[cfg(feature = "queue")]
            body_keys: self.body_keys,
        })
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, identity, access, state_dir, override_file, detail, .. } = self;
        f.debug_struct("Options")
            .field("endpoints", endpoints)
            .field("identity", identity)
            .field("access", access)
            .field("state_dir", state_dir)
            .field("override_file", override_file)
            .field("detail", detail)
            .finish_non_exhaustive()
    }
}

/// Returns the mode of `DAMPER_MODE`. An unknown mode is `off`: the variable is set in emergencies to reduce
/// the mode of rules, and a service that fails to start would make the emergency worse.
fn imposed(text: &str) -> Option<Mode> {
    mode_override::parse(text).unwrap_or_else(|problem| {
        tracing::error!(variable = mode_override::MODE_VARIABLE, problem, "unknown mode; using off");
        Some(Mode::Off)
    })
}

fn endpoints(given: &[String], variable: Option<String>, faults: &mut Faults) -> Vec<(String, Uri)> {
    let listed: Vec<(String, String)> = if given.is_empty() {
        let variable = variable.unwrap_or_default();
        let all = variable.split(',').map(str::trim).filter(|url| !url.is_empty());
        all.map(|url| (SERVER_VARIABLE.to_owned(), url.to_owned())).collect()
    } else {
        let all = given.iter().enumerate();
        all.map(|(i, url)| (format!("endpoints[{i}]"), url.clone())).collect()
    };
    if listed.is_empty() {
        faults.add("endpoints", format!("required; set {SERVER_VARIABLE}, or pass them to Options::new"));
    }
    let mut uris = Vec::with_capacity(listed.len());
    for (path, url) in listed {
        match address::parse(&url) {
            Ok(uri) => uris.push((path, uri)),
            Err(problem) => faults.add(path, problem),
        }
    }
    uris
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> + Send + Sync {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn paths(faults: &Faults) -> Vec<&str> {
        faults.iter().map(|fault| fault.path.as_str()).collect()
    }

    #[test]
    fn all_faults_are_reported_together() {
        let bad = ["127.0.0.1:7600", "ftp://a:1", "http://a:1/path", "http://", "http://ok:7600", "no url"];
        let variables = &[("DAMPER_MODE", "of"), ("DAMPER_TOKEN", "two words"), ("DAMPER_KEY_FILE", "k")];
        let options = Options::new(bad).service("two words").instance_id("").environment(env(variables));
        let faults = options.resolve().unwrap_err();
        assert_eq!(
            paths(&faults),
            [
                "endpoints[0]",
                "endpoints[1]",
                "endpoints[2]",
                "endpoints[3]",
                "endpoints[5]",
                "DAMPER_TOKEN",
                "endpoints[4]",
                "DAMPER_CERT_FILE",
                "service",
                "instance_id"
            ]
        );
    }

    #[test]
    fn variables_fill_options_that_are_not_set() {
        let pairs = &[
            ("DAMPER_SERVER", "http://a:1, http://b:2"),
            ("DAMPER_SERVICE", "orders"),
            ("DAMPER_MODE", "observe"),
            ("DAMPER_MODE_FILE", "/etc/damper/mode"),
        ];
        let settings = Options::new([""; 0]).environment(env(pairs)).resolve().unwrap();
        assert_eq!(settings.endpoints, ["http://a:1/", "http://b:2/"]);
        assert_eq!(settings.identity.service, "orders");
        assert_eq!(settings.mode, Some(Mode::Observe));
        assert_eq!(settings.override_file.as_deref(), Some(std::path::Path::new("/etc/damper/mode")));
        let set =
            Options::new(["http://c:3"]).override_file("here").environment(env(pairs)).resolve().unwrap();
        assert_eq!(set.endpoints, ["http://c:3/"]);
        assert_eq!(set.override_file, Some(PathBuf::from("here")));
    }

    #[test]
    fn an_unknown_mode_in_the_variable_is_off() {
        for word in ["disabled", "OFF", "0", "enforced"] {
            let environment = move |name: &str| (name == "DAMPER_MODE").then(|| word.to_owned());
            let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(environment);
            assert_eq!(options.resolve().unwrap().mode, Some(Mode::Off), "{word}");
        }
    }

    #[test]
    fn the_state_folder_comes_from_its_variable_unless_set_in_code() {
        let environment = env(&[("DAMPER_STATE_DIR", "/var/lib/orders")]);
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").environment(environment);
        assert_eq!(options.clone().resolve().unwrap().state_dir, Some(PathBuf::from("/var/lib/orders")));
        assert_eq!(options.state_dir("here").resolve().unwrap().state_dir, Some(PathBuf::from("here")));
    }

    #[test]
    fn debug_of_faults_is_readable() {
        let faults = Options::new([""; 0]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(format!("{faults:?}"), faults.to_string());
    }

    #[test]
    fn everything_can_come_from_variables() {
        let pairs = &[
            ("DAMPER_SERVER", "http://127.0.0.1:1"),
            ("DAMPER_SERVICE", "orders"),
            ("DAMPER_TOKEN_FILE", "/run/token"),
            ("DAMPER_CA_FILE", "/run/ca"),
        ];
        let settings = Options::from_env().environment(env(pairs)).resolve().unwrap();
        assert!(settings.access.has_token());
        assert!(!settings.access.has_certificate());
    }

    #[test]
    fn a_token_is_not_printed() {
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").token("verysecret");
        let shown = format!("{options:?} {:?}", options.clone().resolve().unwrap());
        assert!(!shown.contains("verysecret"), "{shown}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn https_without_the_tls_feature_is_a_fault() {
        let faults =
            Options::new(["https://a:1"]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(paths(&faults), ["endpoints[0]"]);
        assert!(faults.to_string().contains("feature `tls`"));
    }

    #[test]
    fn the_fault_for_missing_endpoints_names_the_variable() {
        let faults = Options::new([""; 0]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(paths(&faults), ["endpoints"]);
        assert!(faults.to_string().contains(SERVER_VARIABLE));
    }
}
