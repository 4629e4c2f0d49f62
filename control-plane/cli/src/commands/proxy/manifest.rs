//! `damper proxy manifest`: the configuration and the patches that put a proxy next to a Kubernetes workload.
//!
//! The proxy becomes a native sidecar: it starts before the service and ends after it. Its preStop hook runs
//! when the pod begins to end, and sends callers away while the service still runs. Probes are commands,
//! because the admin port is on loopback.
//!
//! A ClusterIP Service gets the proxy's port as its target. Callers of a headless Service dial the port of
//! the pod, so there the proxy takes it and the service must move to another. All listeners of the pod have
//! different ports.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use damper_document::{Document, Value, parse, to_yaml};
use damper_endpoint::address;
use serde_json::json;

use super::ADMIN_PORT;
use super::callees::Callees;
use crate::error::{CliError, print_message};
use crate::output;

/// Kinds of workloads whose pods get a proxy.
const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];
/// Name of the proxy's port: Services refer to it.
const PORT_NAME: &str = "damper-grpc";
const FOLDER: &str = "/etc/damper";
/// Name of the proxy's container and volume.
const NAME: &str = "damper-proxy";
/// Setting of a pod: the first port that needs no privileges.
const UNPRIVILEGED: &str = "net.ipv4.ip_unprivileged_port_start";
/// Time in which callers learn that the pod ends, before its service does.
const SLEEP_SECONDS: u32 = 5;

/// Arguments of `damper proxy manifest`.
#[derive(Args, Debug)]
pub(super) struct ManifestArgs {
    /// Manifest of one Deployment, StatefulSet or DaemonSet, and of its Services
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Container of the service; default: the first
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// Port on which the service serves gRPC; default: the only port of the container
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address of a called service, exactly as the workload dials it; the printed patch adds an entry to the
    /// pod's hosts file that directs these calls to the proxy. Repeatable
    #[arg(long = "callee", value_name = "HOST:PORT")]
    callees: Vec<String>,
    /// Image of the proxy, which has `/damper-proxy`
    #[arg(long, default_value = concat!("damper-proxy:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Control plane that the pods connect to
    #[arg(long, value_name = "URL", env = "DAMPER_SERVER", default_value = "https://damper.damper.svc:7600")]
    server: String,
    /// Print this part alone: a resource to apply, or a patch
    #[arg(long, value_enum, value_name = "PART")]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The ConfigMap with the proxy's configuration
    Config,
    /// The patch of the workload
    Workload,
    /// The patches of its Services
    Services,
}

impl Part {
    fn of(document: &Value) -> Self {
        match document["kind"].as_str() {
            Some("ConfigMap") => Self::Config,
            Some("Service") => Self::Services,
            _ => Self::Workload,
        }
    }
}

/// Prints the documents on stdout, and what they cannot change on stderr.
pub(super) fn run(args: &ManifestArgs) -> Result<(), CliError> {
    let text = std::fs::read_to_string(&args.file).map_err(CliError::io(args.file.display()))?;
    let fault = |problem: String| format!("{}: {problem}", args.file.display());
    let documents = parse(&text, |value, _| Some(value)).map_err(|error| {
        CliError::Data(error.to_string().lines().map(|line| fault(line.into())).collect())
    })?;
    let printed = documents_for(&documents, args).map_err(|problem| CliError::Data(vec![fault(problem)]))?;
    let is_wanted = |document: &&Value| args.part.is_none_or(|part| Part::of(document) == part);
    let texts: Vec<_> = printed.documents.iter().filter(is_wanted).map(to_yaml).collect();
    if texts.is_empty() {
        return Err(CliError::Data(vec![fault("no Service needs a patch".to_owned())]));
    }
    output::data(&texts.join("---\n"))?;
    printed.notes.into_iter().for_each(print_message);
    Ok(())
}

struct Printed {
    documents: Vec<Value>,
    /// What the operator has to do.
    notes: Vec<String>,
}

/// A workload, and the container in it that serves.
struct Workload<'a> {
    whole: &'a Value,
    name: &'a str,
    container: &'a Value,
    /// Port of the service, as callers dial it now.
    port: u16,
    /// Ports of all containers of the pod.
    taken: BTreeSet<u16>,
}

fn documents_for(documents: &[Document<Value>], args: &ManifestArgs) -> Result<Printed, String> {
    let workload = Workload::find(documents, args)?;
    let services: Vec<_> = documents
        .iter()
        .map(|document| &document.content)
        .filter(|known| workload.is_behind(known))
        .collect();
    let is_headless =
        services.iter().any(|service| service.pointer("/spec/clusterIP") == Some(&json!("None")));
    let namespace = text(workload.whole, "/metadata/namespace");
    let callees = Callees::read(&args.callees, namespace, &workload.taken)?;
    let other = workload.free_port(&callees)?;
    let (listen, to) = if is_headless { (workload.port, other) } else { (other, workload.port) };
    let mut notes = Vec::new();
    // Such as the end of `kubectl port-forward`.
    if args.server.parse().is_ok_and(|server| address::is_loopback(&server)) {
        notes.push(format!(
            "{} is the pod itself: set --server to the address of the control plane",
            args.server
        ));
    }
    if callees.outbound.is_empty() {
        notes.push(format!("name the callees of {} with --callee, or add them to `outbound`", workload.name));
    }
    if is_headless {
        notes.push(format!("a Service is headless: {} must listen on 127.0.0.1:{to}", workload.name));
    } else {
        notes.push(format!("apply the patch of the Service after the rollout of {}", workload.name));
        notes.push(format!(
            "once all callers use the proxy, let {} listen on 127.0.0.1:{to} only; its probes of that port must then \
             be commands, or use port {listen}",
            workload.name
        ));
        if services.is_empty() {
            notes.push(format!("no Service selects the pods: set its targetPort to {PORT_NAME}"));
        }
    }
    let mut printed = vec![workload.config_map(listen, to, &callees), workload.patch(listen, args, &callees)];
    if !is_headless {
        printed.extend(services.iter().filter_map(|service| workload.service_patch(service)));
    }
    Ok(Printed { documents: printed, notes })
}

impl<'a> Workload<'a> {
    fn find(documents: &'a [Document<Value>], args: &ManifestArgs) -> Result<Self, String> {
        let is_workload = |value: &&Value| text(value, "/kind").is_some_and(|kind| WORKLOADS.contains(&kind));
        let mut found = documents.iter().map(|document| &document.content).filter(is_workload);
        let (Some(whole), None) = (found.next(), found.next()) else {
            return Err(format!("must contain one {}", WORKLOADS.join(", ")));
        };
        let name = text(whole, "/metadata/name").ok_or("metadata.name: required")?;
        let containers = whole.pointer("/spec/template/spec/containers").and_then(Value::as_array);
        let containers = containers.ok_or("spec.template.spec.containers: required")?;
        let is_it = |container: &&Value| {
            args.container.as_deref().is_none_or(|name| text(container, "/name") == Some(name))
        };
        let container = containers.iter().find(is_it).ok_or("no such container")?;
        let ports = || ports_of(container);
        let port = match (args.port, ports().next(), ports().nth(1)) {
            (Some(port), ..) | (None, Some(port), None) => port,
            (None, None, _) => return Err("the container has no port: name it with --port".to_owned()),
            (None, Some(_), Some(_)) => {
                return Err("the container has several ports: name that of gRPC with --port".to_owned());
            }
        };
        let before = whole.pointer("/spec/template/spec/initContainers").and_then(Value::as_array);
        // A workload that has the proxy already gets the same ports again.
        let is_sidecar = |container: &&Value| {
            text(container, "/restartPolicy") == Some("Always") && text(container, "/name") != Some(NAME)
        };
        let all = containers.iter().chain(before.into_iter().flatten().filter(is_sidecar));
        let taken: BTreeSet<_> = all.flat_map(ports_of).chain([port]).collect();
        if taken.contains(&ADMIN_PORT) {
            return Err(format!(
                "a container has port {ADMIN_PORT}, which the proxy needs: move it to another"
            ));
        }
        Ok(Self { whole, name, container, port, taken })
    }

    /// Returns a port that neither a container of the pod nor the proxy has.
    fn free_port(&self, callees: &Callees) -> Result<u16, String> {
        let is_free =
            |port: &u16| *port != ADMIN_PORT && !self.taken.contains(port) && !callees.ports.contains(port);
        let free = (self.port..u16::MAX).map(|port| port + 1).find(is_free);
        free.ok_or_else(|| format!("no port above {} is free", self.port))
    }

    /// Returns true for a Service whose selector has the pods.
    fn is_behind(&self, service: &Value) -> bool {
        let namespace = |value| text(value, "/metadata/namespace");
        let selector = service.pointer("/spec/selector").and_then(Value::as_object);
        let label = |name: &str| self.whole.pointer("/spec/template/metadata/labels")?.get(name);
        text(service, "/kind") == Some("Service")
            && namespace(service) == namespace(self.whole)
            && selector.is_some_and(|selector| {
                !selector.is_empty() && selector.iter().all(|(name, value)| label(name) == Some(value))
            })
    }

    fn config_map(&self, listen: u16, to: u16, callees: &Callees) -> Value {
        let proxy = json!({
            "service": self.name,
            "inbound": { "listen": format!("0.0.0.0:{listen}"), "to": format!("127.0.0.1:{to}") },
            "outbound": callees.outbound,
        });
        let data = json!({ "proxy.yaml": to_yaml(&proxy) });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(&self.config_name()), "data": data })
    }

    fn patch(&self, listen: u16, args: &ManifestArgs, callees: &Callees) -> Value {
        let exec = |command: &str| json!({ "exec": { "command": ["/damper-proxy", command] } });
        let mut probe = exec("ready");
        probe["periodSeconds"] = json!(5);
        let proxy = json!({
            "name": NAME,
            "image": args.image,
            "restartPolicy": "Always",
            "args": ["-f", format!("{FOLDER}/proxy.yaml")],
            "env": [{ "name": "DAMPER_SERVER", "value": args.server }],
            "ports": [{ "name": PORT_NAME, "containerPort": listen }],
            "readinessProbe": probe,
            "lifecycle": { "preStop": exec("drain") },
            "securityContext": { "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true },
            "volumeMounts": [{ "name": NAME, "mountPath": FOLDER, "readOnly": true }],
        });
        let mut pod = json!({
            "initContainers": [proxy],
            "volumes": [{ "name": NAME, "configMap": { "name": self.config_name() } }],
        });
        if !callees.host_aliases.is_empty() {
            pod["hostAliases"] = json!(callees.host_aliases);
        }
        if callees.need_privileges() {
            pod["securityContext"] = json!({ "sysctls": self.sysctls() });
        }
        if self.container.pointer("/lifecycle/preStop").is_none() {
            let sleep = json!({ "preStop": { "sleep": { "seconds": SLEEP_SECONDS } } });
            pod["containers"] = json!([{ "name": self.container["name"], "lifecycle": sleep }]);
        }
        json!({
            "apiVersion": self.whole["apiVersion"],
            "kind": self.whole["kind"],
            "metadata": self.metadata(self.name),
            "spec": { "template": { "spec": pod } },
        })
    }

    /// Returns the settings of the pod, and one by which the image's user may listen on any port.
    /// A patch replaces the whole list.
    fn sysctls(&self) -> Vec<Value> {
        let own = self.whole.pointer("/spec/template/spec/securityContext/sysctls").and_then(Value::as_array);
        let others = own.into_iter().flatten().filter(|known| text(known, "/name") != Some(UNPRIVILEGED));
        others.cloned().chain([json!({ "name": UNPRIVILEGED, "value": "0" })]).collect()
    }

    /// Returns the patch of the ports that lead to the service; `None` if none does.
    fn service_patch(&self, service: &Value) -> Option<Value> {
        let name = text(service, "/metadata/name")?;
        let ports: Vec<_> = service.pointer("/spec/ports")?.as_array()?.iter().collect();
        let ports: Vec<_> = ports
            .into_iter()
            .filter(|port| self.is_target(port))
            .map(|port| json!({ "port": port["port"], "targetPort": PORT_NAME }))
            .collect();
        (!ports.is_empty()).then(|| {
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": self.metadata(name),
                "spec": { "ports": ports },
            })
        })
    }

    /// Returns true for a port of a Service that leads to the service, by number or by name.
    fn is_target(&self, port: &Value) -> bool {
        let target = port.get("targetPort").unwrap_or(&port["port"]);
        let ports = self.container.get("ports").and_then(Value::as_array).into_iter().flatten();
        let mut named = ports.filter(|own| own["containerPort"] == json!(self.port));
        *target == json!(self.port) || named.any(|own| own.get("name") == Some(target))
    }

    fn config_name(&self) -> String {
        format!("{}-{NAME}", self.name)
    }

    fn metadata(&self, name: &str) -> Value {
        match text(self.whole, "/metadata/namespace") {
            Some(namespace) => json!({ "name": name, "namespace": namespace }),
            None => json!({ "name": name }),
        }
    }
}

fn ports_of(container: &Value) -> impl Iterator<Item = u16> {
    let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| port.get("containerPort")?.as_u64()).filter_map(|port| port.try_into().ok())
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}
