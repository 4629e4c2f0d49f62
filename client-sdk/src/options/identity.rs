//! Identity of this process: service, cluster, instance.
//!
//! A name set in code has priority over `DAMPER_*` variables, and those over OpenTelemetry's, which most
//! services set. A service without a name is an error: a guess could apply another service's rules. The
//! environment is passed as a function, so that tests do not depend on process variables.
//!
//! Source of the variables: OpenTelemetry's specification of SDK environment variables and of the resource
//! attributes `service.name` and `service.instance.id`.

use damper_core::{Faults, key};
use damper_proto::v1;

const SERVICE: &str = "DAMPER_SERVICE";
const CLUSTER: &str = "DAMPER_CLUSTER";
const OTEL_SERVICE: &str = "OTEL_SERVICE_NAME";
const OTEL_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// Cluster of processes that set none.
pub(crate) const DEFAULT_CLUSTER: &str = "default";

/// Identity of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) service: String,
    pub(crate) cluster: String,
    /// Unique among the processes of the service.
    pub(crate) instance: String,
}

/// Names set in code.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeIdentity {
    pub(crate) service: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) instance: Option<String>,
}

impl Identity {
    /// Takes each name from the first source that has one. Faults are added under the name of the source; the
    /// result is then meaningless.
    pub(crate) fn resolve(
        names: &CodeIdentity,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Self {
        let attribute = |name| attribute(&env(OTEL_ATTRIBUTES)?, name);
        let service = given("service", names.service.as_deref())
            .or_else(|| variable(SERVICE, env))
            .or_else(|| variable(OTEL_SERVICE, env))
            .or_else(|| Some((format!("{OTEL_ATTRIBUTES} service.name"), attribute("service.name")?)));
        let cluster = given("cluster", names.cluster.as_deref())
            .or_else(|| variable(CLUSTER, env))
            .unwrap_or_else(|| ("cluster".to_owned(), DEFAULT_CLUSTER.to_owned()));
        let instance = given("instance_id", names.instance.as_deref()).or_else(|| {
            let path = format!("{OTEL_ATTRIBUTES} service.instance.id");
            Some((path, attribute("service.instance.id")?))
        });
        let instance = instance.unwrap_or_else(|| ("instance_id".to_owned(), host_and_random(env)));
        let service = service.unwrap_or_else(|| {
            faults.add("service", no_service());
            (String::new(), String::new())
        });
        for (path, name) in [&service, &cluster, &instance] {
            if !path.is_empty() {
                key::check_name(path, name, faults);
            }
        }
        Self { service: service.1, cluster: cluster.1, instance: instance.1 }
    }
}

impl From<&Identity> for v1::Identity {
    fn from(identity: &Identity) -> Self {
        Self {
            service: identity.service.clone(),
            cluster: identity.cluster.clone(),
            instance: identity.instance.clone(),
        }
    }
}

fn no_service() -> String {
    format!(
        "required; set {SERVICE}, {OTEL_SERVICE} or service.name in {OTEL_ATTRIBUTES}, or call \
         Options::service"
    )
}

/// Returns a name with its source; an empty name set in code is an error.
fn given(path: &str, name: Option<&str>) -> Option<(String, String)> {
    Some((path.to_owned(), name?.to_owned()))
}

/// Returns a variable; an empty one counts as not set.
fn variable(name: &str, env: &dyn Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let value = env(name).filter(|value| !value.is_empty())?;
    Some((name.to_owned(), value))
}

/// Returns a percent-encoded value of `key=value,key=value`.
fn attribute(attributes: &str, name: &str) -> Option<String> {
    let pairs = attributes.split(',').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| key.trim() == name)?;
    Some(percent_decoded(value.trim())).filter(|value| !value.is_empty())
}

/// Decodes escapes. Returns the text unchanged if the result is not UTF-8.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

fn host_and_random(env: &dyn Fn(&str) -> Option<String>) -> String {
    // Reading /proc does not block.
    let host = env("HOSTNAME")
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|host| host.trim().to_owned())
        .filter(|host| is_name(host) && host.len() <= 200)
        .unwrap_or_else(|| "host".to_owned());
    format!("{host}-{:08x}", fastrand::u32(..))
}

fn is_name(name: &str) -> bool {
    let mut faults = Faults::none();
    key::check_name("", name, &mut faults);
    faults.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(names: &CodeIdentity, env: &[(&str, &str)]) -> Result<Identity, Faults> {
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let mut faults = Faults::none();
        let identity = Identity::resolve(names, &find, &mut faults);
        faults.or(identity)
    }

    fn service(names: Option<&str>, env: &[(&str, &str)]) -> String {
        let names = CodeIdentity { service: names.map(str::to_owned), ..CodeIdentity::default() };
        resolved(&names, env).unwrap().service
    }

    #[test]
    fn the_first_source_of_a_service_name_wins() {
        let mut env = vec![
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=of%2Dattributes"),
            ("OTEL_SERVICE_NAME", "of-otel"),
            ("DAMPER_SERVICE", "of-damper"),
        ];
        assert_eq!(service(Some("names"), &env), "names");
        assert_eq!(service(None, &env), "of-damper");
        env.pop();
        assert_eq!(service(None, &env), "of-otel");
        env.pop();
        assert_eq!(service(None, &env), "of-attributes");
        assert_eq!(
            service(None, &[("DAMPER_SERVICE", ""), ("OTEL_SERVICE_NAME", "x")]),
            "x",
            "empty is unset"
        );
    }

    #[test]
    fn the_error_for_a_missing_service_lists_every_source() {
        let text = resolved(&CodeIdentity::default(), &[]).unwrap_err().to_string();
        for way in ["Options::service", SERVICE, OTEL_SERVICE, OTEL_ATTRIBUTES] {
            assert!(text.contains(way), "{text}");
        }
    }

    #[test]
    fn all_invalid_names_are_reported_with_their_source() {
        let names = CodeIdentity { cluster: Some(String::new()), ..CodeIdentity::default() };
        let env =
            [("OTEL_SERVICE_NAME", "two words"), ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a*b")];
        let faults = resolved(&names, &env).unwrap_err();
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["OTEL_SERVICE_NAME", "cluster", "OTEL_RESOURCE_ATTRIBUTES service.instance.id"]);
    }

    #[test]
    fn the_cluster_is_default_unless_set() {
        let names = CodeIdentity { service: Some("orders".to_owned()), ..CodeIdentity::default() };
        assert_eq!(resolved(&names, &[]).unwrap().cluster, "default");
        assert_eq!(resolved(&names, &[("DAMPER_CLUSTER", "batch")]).unwrap().cluster, "batch");
    }

    #[test]
    fn instances_on_one_host_differ_and_a_given_id_is_kept() {
        let names = CodeIdentity { service: Some("orders".to_owned()), ..CodeIdentity::default() };
        let env = [("HOSTNAME", "box")];
        let (one, two) = (resolved(&names, &env).unwrap(), resolved(&names, &env).unwrap());
        assert!(one.instance.starts_with("box-"), "{}", one.instance);
        assert_ne!(one.instance, two.instance);
        let env = [("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=7f%3a")];
        assert_eq!(resolved(&names, &env).unwrap().instance, "7f:");
    }
}
