//! What the files in deploy/ say of Damper is so: the settings are ones that this binary takes, and ports, names, labels,
//! paths, users and times agree with each other.
//!
//! That the manifests are good Kubernetes is checked by deploy/check; here is what they mean.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use damper_tests::binary::{self, Served};
use serde_json::Value;
use tempfile::TempDir;

const GOOD: i32 = 0;
const BAD_SETTINGS: i32 = 78;
const UNAVAILABLE: i32 = 69;
const USER: u64 = 65532;
/// What closing the store may take after the drain.
const TO_SPARE: Duration = Duration::from_secs(5);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(path: &str) -> String {
    fs::read_to_string(deploy().join(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

/// The lines of the Containerfile after this `FROM`, up to the next.
fn stage(from: &str) -> String {
    let container = text("container/Containerfile");
    let stages = container.split("\nFROM ").filter_map(|stage| stage.split_once('\n'));
    let mut found = stages.filter(|(base, _)| *base == from).map(|(_, lines)| format!("\n{lines}\n"));
    found.next().unwrap_or_else(|| panic!("no FROM {from}"))
}

/// One way of running in Kubernetes.
struct Variant {
    name: &'static str,
    workload: Value,
    settings: Value,
    policies: [Value; 2],
}

impl Variant {
    fn all() -> [Self; 2] {
        let variant = |name: &'static str, workload: &str| Self {
            name,
            workload: yaml(&format!("kubernetes/{name}/{workload}.yaml")),
            settings: yaml(&format!("kubernetes/{name}/damper.yaml")),
            policies: [
                yaml("kubernetes/base/network-policy.yaml"),
                yaml(&format!("kubernetes/{name}/network-policy.yaml")),
            ],
        };
        [variant("sled", "stateful-set"), variant("etcd", "deployment")]
    }

    fn pod(&self) -> &Value {
        &self.workload["spec"]["template"]
    }

    fn container(&self) -> &Value {
        let containers = list(&self.pod()["spec"]["containers"]);
        assert_eq!(containers.len(), 1, "{}", self.name);
        &containers[0]
    }

    /// The number of a named port.
    fn port(&self, name: &str) -> u64 {
        let ports = list(&self.container()["ports"]);
        let port = ports.iter().find(|port| port["name"] == name);
        number(&port.unwrap_or_else(|| panic!("{}: no port {name}", self.name))["containerPort"])
    }

    fn labels(&self) -> BTreeMap<String, Value> {
        labels(&self.pod()["metadata"]["labels"])
    }

    /// What the container mounts, by path: the volume, and whether it may be written to.
    fn mounts(&self) -> Vec<(String, &Value, bool)> {
        let volumes = list(&self.pod()["spec"]["volumes"]);
        let mounts = list(&self.container()["volumeMounts"]).iter();
        mounts
            .map(|mount| {
                let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
                let volume = volume.unwrap_or_else(|| panic!("{}: no volume for {mount}", self.name));
                (string(&mount["mountPath"]), volume, mount["readOnly"] != true)
            })
            .collect()
    }

    /// The variables that the container is given, as a pod with this address sees them.
    fn environment(&self) -> Vec<(String, String)> {
        let given = self.container()["env"].as_array().cloned().unwrap_or_default();
        let plain = given.iter().filter_map(|variable| {
            let value = variable["value"].as_str()?;
            Some((string(&variable["name"]), value.replace("$(POD_IP)", "10.1.2.3")))
        });
        plain.collect()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn labels(value: &Value) -> BTreeMap<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no labels: {value}")).clone().into_iter().collect()
}

fn duration(value: &Value) -> Duration {
    let seconds = string(value);
    let seconds = seconds.strip_suffix('s').unwrap_or_else(|| panic!("{seconds} is in seconds"));
    Duration::from_secs(seconds.parse().expect("a number"))
}

/// The folders that settings name, made anew below a folder with a certificate, an authority, tokens and passwords.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["damper.damper.svc".to_owned()]).unwrap();
        for (place, content) in [
            ("tls/tls.crt", made.cert.pem()),
            ("tls/tls.key", made.signing_key.serialize_pem()),
            ("tls/ca.crt", made.cert.pem()),
            ("etcd-tls/tls.crt", made.cert.pem()),
            ("etcd-tls/tls.key", made.signing_key.serialize_pem()),
            ("etcd-tls/ca.crt", made.cert.pem()),
            ("etc/damper/tls/tls.crt", made.cert.pem()),
            ("etc/damper/tls/tls.key", made.signing_key.serialize_pem()),
            ("etc/damper/etcd.crt", made.cert.pem()),
            ("etc/damper/etcd-ca.crt", made.cert.pem()),
            ("credentials/etcd-key", made.signing_key.serialize_pem()),
            ("credentials/etcd-password", "secret\n".to_owned()),
        ] {
            let path = folder.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Self { folder }
    }

    /// The text with every path in it below this place.
    fn moved(&self, text: &str) -> String {
        let root = self.folder.path().display().to_string();
        let text = text.replace("sled:/", &format!("sled:{root}/"));
        ["/tls/", "/etcd-tls/", "/bootstrap/", "/etc/damper/", "/var/lib/damper/"].iter().fold(
            text,
            |text, path| {
                [" ", "="].iter().fold(text, |text, before| {
                    text.replace(&format!("{before}{path}"), &format!("{before}{root}{path}"))
                })
            },
        )
    }

    /// Lets the binary judge settings without starting anything.
    fn check(&self, settings: &str, environment: &[(String, String)]) -> Output {
        let path = self.folder.path().join("damper.yaml");
        fs::write(&path, self.moved(settings)).unwrap();
        let environment = environment.iter().map(|(name, value)| (name, self.moved(value)));
        let mut command = Command::new(binary::damper());
        command.args(["serve", "--check", "--config"]).arg(path).envs(environment);
        command.output().unwrap()
    }

    #[track_caller]
    fn accepts(&self, what: &str, settings: &str, environment: &[(String, String)]) {
        let output = self.check(settings, environment);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(GOOD), "{what}: {said}");
    }
}

/// The variables of a systemd drop-in.
fn variables(unit: &str) -> Vec<(String, String)> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
    let pairs = lines.map(|line| line.split_once('=').expect("NAME=VALUE"));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_binary_takes_all_settings() {
    let place = Place::new();
    for variant in Variant::all() {
        let settings = text(&format!("kubernetes/{}/damper.yaml", variant.name));
        place.accepts(variant.name, &settings, &variant.environment());
        let misspelt = place.check(&settings.replace("tls_key:", "tls_kye:"), &variant.environment());
        assert_eq!(misspelt.status.code(), Some(BAD_SETTINGS), "this test can tell");
        assert!(String::from_utf8_lossy(&misspelt.stderr).contains("tls_kye"));
    }
    let settings = text("systemd/damper.yaml");
    place.accepts("systemd", &settings, &[]);
    let credentials = place.folder.path().join("credentials").display().to_string();
    let mut environment = variables(&text("systemd/etcd.conf"));
    for (_, value) in &mut environment {
        *value = value.replace("%d", &credentials).replace("%H", "damper-0");
    }
    assert_eq!(environment.len(), 5, "{environment:?}");
    place.accepts("systemd with etcd", &settings, &environment);
}

#[test]
fn the_binary_knows_every_variable_that_it_is_given() {
    let help = binary::run("", &["serve", "--help"]);
    // As it is wrapped, a name may stand on a line of its own.
    let help = String::from_utf8(help.stdout).unwrap();
    let known: Vec<&str> =
        help.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_')).collect();
    let given = Variant::all().iter().flat_map(Variant::environment).collect::<Vec<_>>();
    let names = given.into_iter().chain(variables(&text("systemd/etcd.conf"))).map(|(name, _)| name);
    let names: Vec<String> = names.collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert!(known.contains(&name.as_str()), "{name} is not in\n{help}");
    }
}

#[test]
fn the_settings_are_where_the_binary_is_told_to_look() {
    for variant in Variant::all() {
        let arguments: Vec<String> = list(&variant.container()["args"]).iter().map(string).collect();
        assert_eq!(arguments, ["serve", "--config", "/etc/damper/damper.yaml"], "{}", variant.name);
        let mounts = variant.mounts();
        let settings =
            mounts.iter().find(|(path, ..)| path == "/etc/damper").expect("the settings are mounted");
        let kustomization = yaml(&format!("kubernetes/{}/kustomization.yaml", variant.name));
        let generated = &list(&kustomization["configMapGenerator"])[0];
        assert_eq!(settings.1["configMap"]["name"], generated["name"]);
        assert_eq!(list(&generated["files"]), ["damper.yaml"]);
    }
    let unit = text("systemd/damper.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/damper serve --config /etc/damper/damper.yaml\n"));
}

#[test]
fn every_path_in_the_settings_is_mounted_and_only_the_store_can_be_written_to() {
    for variant in Variant::all() {
        let mounts = variant.mounts();
        let settings = variant.settings.as_object().expect("settings").values().filter_map(Value::as_str);
        let words =
            settings.flat_map(|value| value.split([':', '=', '&', '?'])).filter(|word| word.starts_with('/'));
        let paths: Vec<&str> =
            words.filter(|path| !path.starts_with("//") && path.matches('/').count() > 1).collect();
        assert!(paths.len() >= 4, "{paths:?}");
        for path in &paths {
            let within = |(mount, ..): &&(String, _, _)| path.starts_with(&format!("{mount}/"));
            assert!(mounts.iter().any(|mount| within(&mount)), "{}: {path} is not mounted", variant.name);
        }
        let writable: Vec<&str> =
            mounts.iter().filter(|(.., writable)| *writable).map(|(path, ..)| path.as_str()).collect();
        let store = string(&variant.settings["store"]);
        let needed: &[&str] = if store.starts_with("sled:/data/") { &["/data"] } else { &[] };
        assert_eq!(writable, needed, "{}", variant.name);
    }
    let unit = text("systemd/damper.service");
    assert!(unit.contains("\nStateDirectory=damper\n") && unit.contains("\nConfigurationDirectory=damper\n"));
}

#[test]
fn ports_agree_everywhere() {
    let container = text("container/Containerfile");
    let service = yaml("kubernetes/base/service.yaml");
    let monitor = yaml("kubernetes/examples/pod-monitor.yaml");
    for variant in Variant::all() {
        for (setting, name) in [("listen", "grpc"), ("metrics_listen", "metrics")] {
            let address = string(&variant.settings[setting]);
            assert_eq!(address, format!("0.0.0.0:{}", variant.port(name)), "{}", variant.name);
        }
        let (grpc, metrics) = (variant.port("grpc"), variant.port("metrics"));
        assert!(container.contains(&format!("EXPOSE {grpc} {metrics}\n")));
        for (_, value) in variant.environment().iter().filter(|(name, _)| name == "DAMPER_ADVERTISE") {
            assert_eq!(value, &format!("https://10.1.2.3:{grpc}"));
        }
        let service = &list(&service["spec"]["ports"])[0];
        assert_eq!((number(&service["port"]), &service["targetPort"]), (grpc, &Value::from("grpc")));
        for (probe, path) in
            [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]
        {
            let asked = &variant.container()[probe]["httpGet"];
            assert_eq!(asked["port"], "metrics", "{probe}");
            assert_eq!(asked["path"], path, "{probe}");
            assert_eq!(asked["scheme"], "HTTPS", "{probe}");
        }
        assert_eq!(list(&monitor["spec"]["podMetricsEndpoints"])[0]["port"], "metrics");
        let rules = list(&variant.policies[0]["spec"]["ingress"]);
        let open: Vec<&Value> =
            rules.iter().flat_map(|rule| list(&rule["ports"])).map(|port| &port["port"]).collect();
        assert_eq!(open, ["grpc", "metrics"]);
    }
}

#[test]
fn selectors_mean_the_pods() {
    let service = yaml("kubernetes/base/service.yaml");
    let budget = yaml("kubernetes/etcd/disruption-budget.yaml");
    let monitor = yaml("kubernetes/examples/pod-monitor.yaml");
    for variant in Variant::all() {
        let pod = variant.labels();
        let spreads =
            variant.pod()["spec"]["topologySpreadConstraints"].as_array().cloned().unwrap_or_default();
        let mut selectors = vec![
            &service["spec"]["selector"],
            &variant.workload["spec"]["selector"]["matchLabels"],
            &budget["spec"]["selector"]["matchLabels"],
            &monitor["spec"]["selector"]["matchLabels"],
        ];
        selectors.extend(variant.policies.iter().map(|policy| &policy["spec"]["podSelector"]["matchLabels"]));
        selectors.extend(spreads.iter().map(|spread| &spread["labelSelector"]["matchLabels"]));
        for selector in selectors {
            let selector = labels(selector);
            assert!(!selector.is_empty());
            assert!(
                selector.iter().all(|(name, value)| pod.get(name) == Some(value)),
                "{selector:?} of {pod:?}"
            );
        }
        assert_eq!(
            variant.pod()["spec"]["serviceAccountName"],
            yaml("kubernetes/base/service-account.yaml")["metadata"]["name"]
        );
    }
}

/// Of the standard of that name: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>.
#[test]
fn pods_are_as_restricted_as_can_be() {
    for variant in Variant::all() {
        let (pod, container) = (&variant.pod()["spec"], variant.container());
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for user in ["runAsUser", "runAsGroup", "fsGroup"] {
            assert_eq!(pod["securityContext"][user], USER, "{user}");
        }
        for host in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod[host].is_null(), "{host}");
        }
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], serde_json::json!(["ALL"]));
        let resources = &container["resources"];
        assert!(resources["requests"]["memory"].is_string() && resources["limits"]["memory"].is_string());
    }
    let account = yaml("kubernetes/base/service-account.yaml");
    assert_eq!(account["automountServiceAccountToken"], false);
    for image in [stage("scratch"), stage("scratch AS proxy")] {
        assert!(image.contains(&format!("\nUSER {USER}:{USER}\n")), "{image}");
    }
    let unit = text("systemd/damper.service");
    for line in ["CapabilityBoundingSet=", "NoNewPrivileges=yes", "ProtectSystem=strict", "User=damper"] {
        assert!(unit.lines().any(|known| known == line), "{line}");
    }
}

#[test]
fn images_have_this_version_and_no_registry() {
    let version = env!("CARGO_PKG_VERSION");
    for variant in Variant::all() {
        assert_eq!(variant.container()["image"], format!("damper:{version}"));
        let kustomization = yaml(&format!("kubernetes/{}/kustomization.yaml", variant.name));
        assert_eq!(list(&kustomization["images"])[0]["newTag"], version);
    }
    let container = text("container/Containerfile");
    let bases: Vec<&str> = container.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases.len(), 6);
    for base in bases {
        let image = base.split(' ').next().unwrap();
        assert!(!image.contains('/'), "{image} is an official image");
    }
}

#[test]
fn image_of_the_proxy_has_that_program_alone() {
    let container = text("container/Containerfile");
    assert!(container.trim_end().ends_with(stage("scratch").trim_end()), "the default is the server's");
    let image = stage("scratch AS proxy");
    let copied: Vec<&str> = image.lines().filter_map(|line| line.strip_prefix("COPY ")).collect();
    assert_eq!(copied, ["--from=binary /damper-proxy /damper-proxy"]);
    assert!(image.contains("\nENTRYPOINT [\"/damper-proxy\"]\n"));
    for source in ["rust:1.95-bookworm AS built", "scratch AS prebuilt"] {
        let lines = stage(source);
        assert!(lines.contains("damper damper-proxy /"), "{lines}");
    }
}

#[test]
fn what_ends_them_waits_until_streams_had_their_goodbye() {
    for variant in Variant::all() {
        let grace = Duration::from_secs(number(&variant.pod()["spec"]["terminationGracePeriodSeconds"]));
        let pause = number(&variant.container()["lifecycle"]["preStop"]["sleep"]["seconds"]);
        let drain = duration(&variant.settings["drain"]);
        assert!(grace >= Duration::from_secs(pause) + drain + TO_SPARE, "{}: {grace:?}", variant.name);
    }
    let unit = text("systemd/damper.service");
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("a time to stop");
    let drain = duration(&yaml("systemd/damper.yaml")["drain"]);
    assert!(Duration::from_secs(stop.parse().unwrap()) >= drain + TO_SPARE);
}

#[test]
fn settings_that_can_not_work_are_not_tried_again() {
    let unit = text("systemd/damper.service");
    let statuses = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
    let output =
        Command::new(binary::damper()).args(["serve", "--config", "/no/such/file"]).output().unwrap();
    let status = output.status.code().unwrap().to_string();
    assert!(statuses.split(' ').any(|known| known == status), "{status} of {statuses}");
}

#[test]
fn a_second_server_on_the_volume_is_refused_and_says_why() {
    let [sled, etcd] = Variant::all();
    assert_eq!(number(&sled.workload["spec"]["replicas"]), 1);
    // A template of claims would give the second one a volume of its own.
    assert!(sled.workload["spec"]["volumeClaimTemplates"].is_null());
    let claim = yaml("kubernetes/sled/volume-claim.yaml");
    let mounts = sled.mounts();
    let data = mounts.iter().find(|(path, ..)| path == "/data").expect("a volume");
    assert_eq!(data.1["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"]);
    assert!(list(&claim["spec"]["accessModes"]).iter().all(|mode| mode != "ReadWriteMany"));

    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("store").display());
    let _first = Served::start(&store);
    let second = binary::run("", &["serve", "--listen", "127.0.0.1:0", "--store", &store]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(UNAVAILABLE), "{said}");
    assert!(said.contains("another process"), "{said}");

    assert!(number(&etcd.workload["spec"]["replicas"]) >= 2);
    let rolling = &etcd.workload["spec"]["strategy"]["rollingUpdate"];
    assert_eq!(rolling["maxUnavailable"], 0, "an old one goes when a new one is ready");
}
