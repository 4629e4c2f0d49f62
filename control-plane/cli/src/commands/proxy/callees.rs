//! The callees of a workload in its manifest: a listener of the proxy for each, and the line in the pod's
//! hosts file that leads the service there.
//!
//! The service keeps dialling the name that it knows. The proxy dials the whole name with a dot at its end,
//! which no line of the hosts file has, so that it finds the callee and not itself.
//!
//! All listeners of a pod share its ports: Linux refuses 127.0.0.11:P while 0.0.0.0:P is open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use damper_document::Value;
use serde_json::json;

/// End of the names of services.
const SUFFIX: &str = "svc.cluster.local";
/// The first host of a callee; each further one is one higher.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
/// Limit of hosts, so that the last number of the address is enough.
const MAX_HOSTS: usize = 200;
/// The first port that a process without privileges may listen on, unless the pod allows more.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// What a workload calls.
#[derive(Debug, Default)]
pub(super) struct Callees {
    /// `outbound` of the proxy's configuration.
    pub(super) outbound: Vec<Value>,
    /// `hostAliases` of the pod.
    pub(super) host_aliases: Vec<Value>,
    /// Ports of the listeners.
    pub(super) ports: BTreeSet<u16>,
}

impl Callees {
    /// Returns the callees, as the service dials them: `HOST:PORT`.
    ///
    /// # Errors
    /// The first that is no name of a service in the cluster, is there twice, or has one of the pod's ports.
    pub(super) fn read(
        dialled: &[String],
        namespace: Option<&str>,
        taken: &BTreeSet<u16>,
    ) -> Result<Self, String> {
        let mut ports = BTreeSet::new();
        let mut hosts: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
        let mut outbound = Vec::new();
        for callee in dialled {
            let fault = |problem: &str| format!("--callee {callee}: {problem}");
            let (host, port) = callee.rsplit_once(':').ok_or_else(|| fault("must be HOST:PORT"))?;
            let port = port.parse::<u16>().ok().filter(|port| *port > 0);
            let port = port.ok_or_else(|| fault("must have a port from 1 to 65535"))?;
            let (name, whole) = in_cluster(host, namespace).map_err(|problem| fault(&problem))?;
            if taken.contains(&port) {
                return Err(fault(&format!(
                    "the pod itself has port {port}, so the proxy cannot listen on it; use HTTP CONNECT for \
                     this callee (`connect` in docs/proxy.md)"
                )));
            }
            ports.insert(port);
            let last = u8::try_from(hosts.len()).ok().filter(|last| usize::from(*last) < MAX_HOSTS);
            let known = hosts.get(host).copied();
            let address = known.or_else(|| Some(Ipv4Addr::from_bits(FIRST.to_bits() + u32::from(last?))));
            let address = address.ok_or_else(|| {
                fault(&format!("too many callees: at most {MAX_HOSTS} different hosts are allowed"))
            })?;
            hosts.insert(host.to_owned(), address);
            let listener = json!({
                "callee": name,
                "listen": format!("{address}:{port}"),
                "to": format!("{whole}.:{port}"),
            });
            if outbound.contains(&listener) {
                return Err(fault("is there twice"));
            }
            outbound.push(listener);
        }
        let mut hosts: Vec<_> = hosts.into_iter().map(|(host, address)| (address, host)).collect();
        hosts.sort();
        let alias =
            |(address, host): (Ipv4Addr, String)| json!({ "ip": address.to_string(), "hostnames": [host] });
        Ok(Self { outbound, host_aliases: hosts.into_iter().map(alias).collect(), ports })
    }

    /// Returns true if only a privileged process may listen on all ports, by Linux's default.
    pub(super) fn need_privileges(&self) -> bool {
        self.ports.first().is_some_and(|port| *port < FIRST_UNPRIVILEGED)
    }
}

/// Returns the callee's name for a host in the cluster, and the whole name of the host.
fn in_cluster(host: &str, namespace: Option<&str>) -> Result<(String, String), String> {
    if host.ends_with('.') {
        return Err("has a dot at its end, so the hosts file cannot lead it to the proxy".to_owned());
    }
    let is_label = |label: &&str| {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(is_part) && label.bytes().any(|byte| byte.is_ascii_lowercase())
    };
    let short =
        host.strip_suffix(&format!(".{SUFFIX}")).or_else(|| host.strip_suffix(".svc")).unwrap_or(host);
    let labels: Vec<_> = short.split('.').collect();
    if !labels.iter().all(is_label) {
        return Err("must be the name of a Service in lower case".to_owned());
    }
    match (labels.as_slice(), namespace) {
        ([name], Some(own)) if short == host => Ok((name.to_string(), format!("{name}.{own}.{SUFFIX}"))),
        ([_], None) if short == host => {
            Err("has no namespace, and metadata.namespace of the workload is missing".to_owned())
        }
        ([name, of], own) if own == Some(*of) => Ok((name.to_string(), format!("{short}.{SUFFIX}"))),
        ([name, of], _) => Ok((format!("{name}.{of}"), format!("{short}.{SUFFIX}"))),
        _ => Err("must be NAME, NAME.NAMESPACE, or that with .svc or .svc.cluster.local".to_owned()),
    }
}
