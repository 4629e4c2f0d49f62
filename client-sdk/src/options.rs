//! What a service says when it connects, and the settings that come of it.
//!
//! Setters cannot fail. Everything is checked at once by [`Damper::connect`](crate::Damper::connect), which
//! reports all faults together, each under the argument or variable it came from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use damper_core::{Faults, Mode};
use damper_endpoint::{Access, Speaker, address};
use tonic::transport::Uri;

use crate::control::overrides;
use crate::identity::{Identity, Said};
use crate::metrics::Detail;

/// The variable that holds the control plane's addresses, separated by commas.
const SERVER_VARIABLE: &str = "DAMPER_SERVER";
/// The variable that holds the path of the folder for the rules.
const STATE_VARIABLE: &str = "DAMPER_STATE_DIR";

type Environment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What a service says when it connects.
///
/// A control plane beyond this machine is reached by TLS, and shown a token or a client certificate. Their files are
/// read again at every connection, so that renewed ones are used without a restart; one that is missing or of no use
/// is a problem of that connection, told in [`Status`](crate::Status) and the log, and no fault of `connect`.
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
    said: Said,
    access: damper_endpoint::Said,
    state_dir: Option<PathBuf>,
    override_file: Option<PathBuf>,
    detail: Detail,
    environment: Arc<Environment>,
}

/// What was said, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) endpoints: Vec<Uri>,
    pub(crate) access: Access,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) override_file: Option<PathBuf>,
    /// What `DAMPER_MODE` says.
    pub(crate) mode: Option<Mode>,
    pub(crate) detail: Detail,
}

impl Options {
    /// Replicas of the control plane, as `https://host:port` (with the feature `tls`) or `http://host:port`. With
    /// none `DAMPER_SERVER` names them, separated by commas. Each address of a name is a replica.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            said: Said::default(),
            access: damper_endpoint::Said::default(),
            state_dir: None,
            override_file: None,
            detail: Detail::default(),
            environment: Arc::new(|name| std::env::var(name).ok()),
        }
    }

    /// Everything from variables: the replicas from `DAMPER_SERVER`, and all else as its setter says.
    #[must_use]
    pub fn from_env() -> Self {
        Self::new(std::iter::empty::<String>())
    }

    /// The name of this service. Unless said: `DAMPER_SERVICE`, `OTEL_SERVICE_NAME`, or `service.name` in
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.said.service = Some(name.into());
        self
    }

    /// The deployment group of this process (online, batch, canary). Unless said: `DAMPER_CLUSTER`, else
    /// `default`.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.said.cluster = Some(name.into());
        self
    }

    /// Which process of the service this is. Unless said: `service.instance.id` in
    /// `OTEL_RESOURCE_ATTRIBUTES`, else the host's name with a random part.
    #[must_use]
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.said.instance = Some(id.into());
        self
    }

    /// A folder in which the rules are kept, so that a process that starts while the control plane is away
    /// has the last ones. Default: `DAMPER_STATE_DIR`; without it they are not kept, and such a process does not retry.
    #[must_use]
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(folder.into());
        self
    }

    /// A file whose one word, `off` or `observe`, reduces what rules do, with or without the control plane; it
    /// is read every 5 s. Unless said: `DAMPER_MODE_FILE`, else none.
    #[must_use]
    pub fn override_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.override_file = Some(path.into());
        self
    }

    /// A PEM file with the authorities that may have issued the control plane's certificate; no others are trusted
    /// then. Unless said: `DAMPER_CA_FILE`, else those of the system.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.ca_file = Some(path.into());
        self
    }

    /// PEM files with this process's certificate (and those between it and its authority) and its private key,
    /// unencrypted; shown to a control plane that asks for one. Unless said: `DAMPER_CERT_FILE` and
    /// `DAMPER_KEY_FILE`, else none.
    #[must_use]
    pub fn client_certificate(mut self, cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        self.access.cert_file = Some(cert_file.into());
        self.access.key_file = Some(key_file.into());
        self
    }

    /// The name that the control plane's certificate must be for, where that is not the host it is reached by.
    /// Unless said: `DAMPER_SERVER_NAME`, else the host.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.access.server_name = Some(name.into());
        self
    }

    /// The token to show; nothing prints it. A [file](Self::token_file) can be renewed without a restart. Unless
    /// said: `DAMPER_TOKEN` or `DAMPER_TOKEN_FILE`, else none.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.access.token = Some(token.into());
        self
    }

    /// A file with the token to show. Unless said: see [`token`](Self::token).
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.token_file = Some(path.into());
        self
    }

    /// Lets the token go over `http://` to other machines, where everybody on the way can read it: only where the
    /// network itself encrypts. Unless said: `DAMPER_INSECURE_ALLOW_PLAINTEXT=true`, else that is a fault.
    #[must_use]
    pub fn allow_plaintext(mut self) -> Self {
        self.access.allow_plaintext = true;
        self
    }

    /// Histograms of each route, in place of those of each callee; see [`metrics`](crate::metrics). Unless said
    /// those of callees.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn histograms_per_route(mut self) -> Self {
        self.detail.per_route = true;
        self
    }

    /// Where variables are looked up. Unless said: the environment of the process.
    #[must_use]
    pub fn environment(mut self, find: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.environment = Arc::new(find);
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn resolve(self) -> Result<Settings, Faults> {
        let mut faults = Faults::none();
        let env = |name: &str| (self.environment)(name).filter(|value| !value.is_empty());
        let endpoints = endpoints(&self.endpoints, env(SERVER_VARIABLE), &mut faults);
        let access = Access::resolve(self.access, Speaker::Code, &endpoints, &env, &mut faults);
        let endpoints = endpoints.into_iter().map(|(_, uri)| uri).collect();
        let identity = Identity::resolve(&self.said, &env, &mut faults);
        let mode = imposed(&env(overrides::MODE_VARIABLE).unwrap_or_default());
        let override_file = self.override_file.or_else(|| env(overrides::FILE_VARIABLE).map(PathBuf::from));
        let state_dir = self.state_dir.or_else(|| env(STATE_VARIABLE).map(PathBuf::from));
        let detail = self.detail;
        faults.or(Settings { identity, endpoints, access, state_dir, override_file, mode, detail })
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, said, access, state_dir, override_file, detail, environment: _ } = self;
        f.debug_struct("Options")
            .field("endpoints", endpoints)
            .field("said", said)
            .field("access", access)
            .field("state_dir", state_dir)
            .field("override_file", override_file)
            .field("detail", detail)
            .finish_non_exhaustive()
    }
}

/// What `DAMPER_MODE` asks for. A word that is not known is `off`: the variable is set in an emergency, to reduce what
/// rules do, and a service that does not start because of it makes the emergency worse.
fn imposed(text: &str) -> Option<Mode> {
    overrides::parse(text).unwrap_or_else(|problem| {
        tracing::error!(variable = overrides::MODE_VARIABLE, problem, "an unknown mode is taken as off");
        Some(Mode::Off)
    })
}

fn endpoints(said: &[String], variable: Option<String>, faults: &mut Faults) -> Vec<(String, Uri)> {
    let listed: Vec<(String, String)> = if said.is_empty() {
        let variable = variable.unwrap_or_default();
        let all = variable.split(',').map(str::trim).filter(|url| !url.is_empty());
        all.map(|url| (SERVER_VARIABLE.to_owned(), url.to_owned())).collect()
    } else {
        let all = said.iter().enumerate();
        all.map(|(i, url)| (format!("endpoints[{i}]"), url.clone())).collect()
    };
    if listed.is_empty() {
        faults.add("endpoints", format!("none is given: pass them to Options::new or set {SERVER_VARIABLE}"));
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
    fn all_faults_come_out_at_once() {
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
    fn the_environment_fills_what_was_not_said() {
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
        let said =
            Options::new(["http://c:3"]).override_file("here").environment(env(pairs)).resolve().unwrap();
        assert_eq!(said.endpoints, ["http://c:3/"]);
        assert_eq!(said.override_file, Some(PathBuf::from("here")));
    }

    #[test]
    fn an_unknown_word_in_the_emergency_switch_is_off() {
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
    fn faults_that_main_prints_can_be_read() {
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
    fn tls_that_is_not_built_in_is_a_fault_that_names_the_feature() {
        let faults =
            Options::new(["https://a:1"]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(paths(&faults), ["endpoints[0]"]);
        assert!(faults.to_string().contains("feature `tls`"));
    }

    #[test]
    fn a_process_without_a_server_is_told_how_to_name_one() {
        let faults = Options::new([""; 0]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(paths(&faults), ["endpoints"]);
        assert!(faults.to_string().contains(SERVER_VARIABLE));
    }
}
