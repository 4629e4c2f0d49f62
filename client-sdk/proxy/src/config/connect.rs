//! The part of a configuration about HTTP CONNECT: which hosts are callees, and by which name.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::{Callee, Check, MAX_CALLEES, Tls};

/// End of the names of services, unless the cluster has another.
const SUFFIX: &str = "svc.cluster.local";

/// A listener for HTTP CONNECT, and which of its connections are governed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Address in the variable of the service.
    pub listen: SocketAddr,
    /// Namespace of the service: a callee in it is called by its name alone.
    pub namespace: Option<String>,
    /// End of all names of services in the cluster.
    pub suffix: String,
    /// Hosts outside the cluster, or with settings of their own.
    pub callees: Vec<ConnectHost>,
}

/// A host that calls name in CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectHost {
    /// `HOST:PORT`, as the service dials it.
    pub host: String,
    /// The callee behind it.
    pub callee: Callee,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConnectFile {
    listen: String,
    namespace: Option<String>,
    suffix: Option<String>,
    callees: Vec<ConnectHostFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConnectHostFile {
    host: String,
    callee: Option<String>,
    to: Option<String>,
    external: Option<bool>,
    tls: Option<Tls>,
}

impl Check {
    pub(super) fn connect(&mut self, file: ConnectFile) -> Option<Connect> {
        let listen = self.listener("connect.listen", &file.listen, false);
        let suffix = file.suffix.unwrap_or_else(|| SUFFIX.to_owned());
        for (path, name) in [("namespace", &file.namespace), ("suffix", &Some(suffix.clone()))] {
            if name
                .as_ref()
                .is_some_and(|name| name.is_empty() || name.starts_with('.') || name.ends_with('.'))
            {
                self.faults.add(format!("connect.{path}"), "must be a name without dots at its ends");
            }
        }
        if file.callees.len() > MAX_CALLEES {
            let problem = format!("{} callees; must be at most {MAX_CALLEES}", file.callees.len());
            self.faults.add("connect.callees", problem);
        }
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let listen_or = listen.unwrap_or(nowhere);
        let mut connect =
            Connect { listen: listen_or, namespace: file.namespace, suffix, callees: Vec::new() };
        let mut hosts = BTreeSet::new();
        for (index, host) in file.callees.into_iter().enumerate() {
            let path = format!("connect.callees[{index}]");
            self.host_and_port(&format!("{path}.host"), &host.host);
            if !hosts.insert(normal(&host.host)) {
                self.faults.add(format!("{path}.host"), format!("{:?} is there twice", host.host));
            }
            let name = host.host.rsplit_once(':').map_or("", |(name, _)| name);
            let in_cluster = connect.name_in_cluster(name);
            let first_label = || name.split('.').next().unwrap_or_default().to_owned();
            let callee = Callee {
                // Outside the cluster another owner is likely, who knows nothing of the flags.
                external: host.external.unwrap_or(in_cluster.is_none()),
                name: host.callee.or(in_cluster).unwrap_or_else(first_label),
                to: host.to.unwrap_or_else(|| host.host.clone()),
                tls: host.tls,
            };
            self.callee(&path, &callee);
            connect.callees.push(ConnectHost { host: normal(&host.host), callee });
        }
        listen.map(|_| connect)
    }
}

/// Returns `HOST:PORT` as all ways of writing the host have it: in lower case, without a dot at the end.
pub(crate) fn normal(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match host.rsplit_once(':') {
        Some((name, port)) => format!("{}:{port}", name.trim_end_matches('.')),
        None => host,
    }
}

impl Connect {
    /// Returns the callee's name for a host within the cluster: `NAME` in the namespace of the service,
    /// `NAME.NAMESPACE` in others. `None` for all other hosts.
    pub(crate) fn name_in_cluster(&self, host: &str) -> Option<String> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host == "localhost" || host.is_empty() || host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
            return None;
        }
        // Resolvers read such a name as an address.
        if host.starts_with(|first: char| first.is_ascii_digit()) && !host.contains('.') {
            return None;
        }
        if !host.contains('.') {
            return Some(host);
        }
        let suffix = self.suffix.to_ascii_lowercase();
        let inner = [suffix.as_str(), "svc"].into_iter().find_map(|suffix| host.strip_suffix(suffix))?;
        let inner = inner.strip_suffix('.')?;
        // A pod of a headless service has its own name before that of the service.
        let mut labels = inner.rsplit('.');
        let (namespace, name) = (labels.next()?, labels.next()?);
        let is_own = self.namespace.as_deref() == Some(namespace);
        Some(if is_own { name.to_owned() } else { format!("{name}.{namespace}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_within_the_cluster_are_governed() {
        let connect = Connect {
            listen: ([127, 0, 0, 1], 0).into(),
            namespace: Some("shop".to_owned()),
            suffix: "svc.cluster.local".to_owned(),
            callees: Vec::new(),
        };
        for (host, name) in [
            ("inventory", Some("inventory")),
            ("Inventory.shop.svc.cluster.local.", Some("inventory")),
            ("stock-0.stock.depot.svc.cluster.local", Some("stock.depot")),
            ("inventory.depot.svc", Some("inventory.depot")),
            ("inventory.shop", None),
            ("svc.cluster.local", None),
            ("evilsvc.cluster.local", None),
            ("payments.example", None),
            ("localhost", None),
            ("2130706433", None),
            ("0x7f000001", None),
            ("127.0.0.1", None),
            ("[::1]", None),
        ] {
            assert_eq!(connect.name_in_cluster(host).as_deref(), name, "{host}");
        }
    }
}
