//! What a service says when it connects, and the settings that come of it.
//!
//! Setters cannot fail. Everything is checked at once by [`Damper::connect`](crate::Damper::connect), which
//! reports all faults together, each under the argument or variable it came from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use damper_core::{Faults, Mode};
use tonic::transport::Uri;

use crate::control::overrides;
use crate::identity::{Identity, Said};
use crate::metrics::Detail;

/// The variable that holds the control plane's addresses, separated by commas.
const SERVER_VARIABLE: &str = "DAMPER_SERVER";

type Environment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What a service says when it connects.
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
#[derive(Clone)]
pub struct Options {
    endpoints: Vec<String>,
    said: Said,
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
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) override_file: Option<PathBuf>,
    /// What `DAMPER_MODE` says.
    pub(crate) mode: Option<Mode>,
    pub(crate) detail: Detail,
}

impl Options {
    /// Replicas of the control plane, as `http://host:port`. With none `DAMPER_SERVER` names them, separated
    /// by commas.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            said: Said::default(),
            state_dir: None,
            override_file: None,
            detail: Detail::default(),
            environment: Arc::new(|name| std::env::var(name).ok()),
        }
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
    /// has the last ones. Unless said they are not kept, and such a process does not retry.
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
        let identity = Identity::resolve(&self.said, &env, &mut faults);
        let mode = overrides::parse(&env(overrides::MODE_VARIABLE).unwrap_or_default());
        let mode = mode.unwrap_or_else(|problem| {
            faults.add(overrides::MODE_VARIABLE, problem);
            None
        });
        let override_file = self.override_file.or_else(|| env(overrides::FILE_VARIABLE).map(PathBuf::from));
        let (state_dir, detail) = (self.state_dir, self.detail);
        faults.or(Settings { identity, endpoints, state_dir, override_file, mode, detail })
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, said, state_dir, override_file, detail, environment: _ } = self;
        f.debug_struct("Options")
            .field("endpoints", endpoints)
            .field("said", said)
            .field("state_dir", state_dir)
            .field("override_file", override_file)
            .field("detail", detail)
            .finish_non_exhaustive()
    }
}

fn endpoints(said: &[String], variable: Option<String>, faults: &mut Faults) -> Vec<Uri> {
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
        match endpoint(&url) {
            Ok(uri) => uris.push(uri),
            Err(problem) => faults.add(path, problem),
        }
    }
    uris
}

fn endpoint(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(format!("{url:?} asks for TLS, which this SDK cannot speak yet; use http://"));
        }
        _ => return Err(format!("{url:?} does not begin with http://")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(format!("{url:?} names no host"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(format!("{url:?} has a path; only http://host:port is understood"));
    }
    Ok(uri)
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
        let bad = ["127.0.0.1:7600", "https://a:1", "http://a:1/path", "http://", "http://ok:7600", "no url"];
        let options =
            Options::new(bad).service("two words").instance_id("").environment(env(&[("DAMPER_MODE", "of")]));
        let faults = options.resolve().unwrap_err();
        assert_eq!(
            paths(&faults),
            [
                "endpoints[0]",
                "endpoints[1]",
                "endpoints[2]",
                "endpoints[3]",
                "endpoints[5]",
                "service",
                "instance_id",
                "DAMPER_MODE"
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
    fn a_process_without_a_server_is_told_how_to_name_one() {
        let faults = Options::new([""; 0]).service("orders").environment(env(&[])).resolve().unwrap_err();
        assert_eq!(paths(&faults), ["endpoints"]);
        assert!(faults.to_string().contains(SERVER_VARIABLE));
    }
}
