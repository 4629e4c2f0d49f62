//! Who this process says it is: service, cluster, instance.
//!
//! A name given in code wins over `DAMPER_*` variables, and those over OpenTelemetry's, which most services
//! set already. Nothing is guessed where a wrong guess would put a process under another's rules: a service
//! without a name is refused. The environment comes in as a function, so that nothing here depends on
//! variables of the whole process.
//!
//! Source of the variables: OpenTelemetry's specification of SDK environment variables and of the resource
//! attributes `service.name` and `service.instance.id`.

use damper_core::{Faults, key};
use damper_proto::v1;

const SERVICE: &str = "DAMPER_SERVICE";
const CLUSTER: &str = "DAMPER_CLUSTER";
const OTEL_SERVICE: &str = "OTEL_SERVICE_NAME";
const OTEL_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// The cluster of processes that do not say theirs.
pub(crate) const DEFAULT_CLUSTER: &str = "default";

/// Who this process says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) service: String,
    pub(crate) cluster: String,
    /// This process, among all of its service.
    pub(crate) instance: String,
}

/// What was said in code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) service: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) instance: Option<String>,
}

impl Identity {
    /// Decides each name by the first source that has one. What is wrong is noted under the name of the
    /// source it came from; the result is meaningless then.
    pub(crate) fn resolve(said: &Said, env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> Self {
        let attribute = |name| attribute(&env(OTEL_ATTRIBUTES)?, name);
        let service = given("service", said.service.as_deref())
            .or_else(|| variable(SERVICE, env))
            .or_else(|| variable(OTEL_SERVICE, env))
            .or_else(|| Some((format!("{OTEL_ATTRIBUTES} service.name"), attribute("service.name")?)));
        let cluster = given("cluster", said.cluster.as_deref())
            .or_else(|| variable(CLUSTER, env))
            .unwrap_or_else(|| ("cluster".to_owned(), DEFAULT_CLUSTER.to_owned()));
        let instance = given("instance_id", said.instance.as_deref()).or_else(|| {
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
        "is not known: pass it to Options::service, or set {SERVICE}, {OTEL_SERVICE} or service.name in \
         {OTEL_ATTRIBUTES}"
    )
}

/// A name with the place it came from; an empty one given in code is a mistake, not an absence.
fn given(path: &str, name: Option<&str>) -> Option<(String, String)> {
    Some((path.to_owned(), name?.to_owned()))
}

/// A variable that is set to nothing is not set.
fn variable(name: &str, env: &dyn Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let value = env(name).filter(|value| !value.is_empty())?;
    Some((name.to_owned(), value))
}

/// One of `key=value,key=value`; values are percent-encoded.
fn attribute(attributes: &str, name: &str) -> Option<String> {
    let pairs = attributes.split(',').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| key.trim() == name)?;
    Some(percent_decoded(value.trim())).filter(|value| !value.is_empty())
}

/// What is no proper escape, or not UTF-8, stays as it is written.
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
    // The kernel's answer is not blocking I/O: /proc is memory.
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

    fn resolved(said: &Said, env: &[(&str, &str)]) -> Result<Identity, Faults> {
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let mut faults = Faults::none();
        let identity = Identity::resolve(said, &find, &mut faults);
        faults.or(identity)
    }

    fn service(said: Option<&str>, env: &[(&str, &str)]) -> String {
        let said = Said { service: said.map(str::to_owned), ..Said::default() };
        resolved(&said, env).unwrap().service
    }

    #[test]
    fn the_first_source_that_names_the_service_wins() {
        let mut env = vec![
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=of%2Dattributes"),
            ("OTEL_SERVICE_NAME", "of-otel"),
            ("DAMPER_SERVICE", "of-damper"),
        ];
        assert_eq!(service(Some("said"), &env), "said");
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
    fn a_service_without_a_name_is_told_every_way_to_give_one() {
        let text = resolved(&Said::default(), &[]).unwrap_err().to_string();
        for way in ["Options::service", SERVICE, OTEL_SERVICE, OTEL_ATTRIBUTES] {
            assert!(text.contains(way), "{text}");
        }
    }

    #[test]
    fn all_bad_names_are_reported_by_where_they_came_from() {
        let said = Said { cluster: Some(String::new()), ..Said::default() };
        let env =
            [("OTEL_SERVICE_NAME", "two words"), ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a*b")];
        let faults = resolved(&said, &env).unwrap_err();
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["OTEL_SERVICE_NAME", "cluster", "OTEL_RESOURCE_ATTRIBUTES service.instance.id"]);
    }

    #[test]
    fn the_cluster_is_default_unless_said() {
        let said = Said { service: Some("orders".to_owned()), ..Said::default() };
        assert_eq!(resolved(&said, &[]).unwrap().cluster, "default");
        assert_eq!(resolved(&said, &[("DAMPER_CLUSTER", "batch")]).unwrap().cluster, "batch");
    }

    #[test]
    fn instances_on_one_host_differ_and_a_given_id_is_kept() {
        let said = Said { service: Some("orders".to_owned()), ..Said::default() };
        let env = [("HOSTNAME", "box")];
        let (one, two) = (resolved(&said, &env).unwrap(), resolved(&said, &env).unwrap());
        assert!(one.instance.starts_with("box-"), "{}", one.instance);
        assert_ne!(one.instance, two.instance);
        let env = [("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=7f%3a")];
        assert_eq!(resolved(&said, &env).unwrap().instance, "7f:");
    }
}
