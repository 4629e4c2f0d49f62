//! The configuration of a proxy, read from YAML.
//!
//! All faults at once, each with line and path. Nothing is clamped. Listeners and the service are on
//! loopback, since the connections between service and proxy are not encrypted; another address is a fault
//! unless it is allowed. Files of certificates are read when the proxy starts, and by
//! [`check_files`](Config::check_files).

mod connect;
mod tls;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use damper_sdk::document;
use damper_sdk::{Faults, check_name};
use http::uri::Authority;
use serde::Deserialize;

use self::connect::ConnectFile;
pub(crate) use self::connect::normal;
pub use self::connect::{Connect, ConnectHost};
use self::tls::InboundTlsFile;
pub use self::tls::{InboundTls, Peer, Tls};

/// All faults of a configuration, with their lines.
pub type ConfigError = document::Error;

const ADMIN: &str = "127.0.0.1:7801";
const DRAIN: Duration = Duration::from_secs(30);
const MAX_DRAIN: Duration = Duration::from_secs(3600);
/// Limit of callees in the configuration.
const MAX_CALLEES: usize = 1_000;

/// How a configuration is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadConfig {
    /// Allows listeners and a service that are not on loopback, where the network can read and use them.
    pub allow_remote: bool,
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the service; `None`: from the variables of the SDK.
    pub service: Option<String>,
    /// Where requests to the service arrive.
    pub inbound: Option<Inbound>,
    /// A listener for each callee.
    pub outbound: Vec<Outbound>,
    /// A listener for HTTP CONNECT.
    pub connect: Option<Connect>,
    /// Address of `/livez`, `/readyz`, `/metrics` and `/drain`.
    pub admin: SocketAddr,
    /// Time for open requests to end at shutdown.
    pub drain: Duration,
}

/// Where requests to the service arrive, and where the service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Address that callers dial.
    pub listen: SocketAddr,
    /// Address of the service.
    pub to: SocketAddr,
    /// Flags of requests are dropped: callers are not trusted.
    pub edge: bool,
    /// TLS from callers.
    pub tls: Option<InboundTls>,
}

/// A listener for the calls to one callee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Address that the service dials.
    pub listen: SocketAddr,
    /// The callee behind it.
    pub callee: Callee,
}

/// A callee and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// The name by which the callee calls itself.
    pub name: String,
    /// `host:port`; each address of the host is an endpoint.
    pub to: String,
    /// No flags are sent to the callee, and none of its flags are obeyed.
    pub external: bool,
    /// TLS to the endpoints.
    pub tls: Option<Tls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    service: Option<String>,
    inbound: Option<InboundFile>,
    outbound: Vec<OutboundFile>,
    connect: Option<ConnectFile>,
    admin: Option<String>,
    drain: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct InboundFile {
    listen: String,
    to: String,
    edge: bool,
    tls: Option<InboundTlsFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OutboundFile {
    callee: String,
    listen: String,
    to: String,
    external: bool,
    tls: Option<Tls>,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// All faults together.
    pub fn read(text: &str, how: ReadConfig) -> Result<Self, ConfigError> {
        document::parse_one(text, |value, faults| document::read(value, |file| checked(file, how), faults))
    }

    /// Checks the files of certificates that a start reads. Blocks.
    ///
    /// # Errors
    /// All faults together.
    pub fn check_files(&self) -> Result<(), Faults> {
        let tls = self.inbound.as_ref().and_then(|inbound| inbound.tls.as_ref());
        tls.map_or(Ok(()), |tls| tls.load(None).map(|_| ()))
    }
}

fn checked(file: File, how: ReadConfig) -> Result<Config, Faults> {
    let mut check = Check { faults: Faults::none(), how, used: BTreeSet::new() };
    let inbound = file.inbound.map(|inbound| check.inbound(inbound));
    if file.outbound.len() > MAX_CALLEES {
        check
            .faults
            .add("outbound", format!("{} callees; must be at most {MAX_CALLEES}", file.outbound.len()));
    }
    let listeners = file.outbound.into_iter().enumerate();
    let outbound: Vec<_> = listeners.map(|(index, listener)| check.outbound(index, listener)).collect();
    let connect = file.connect.map(|connect| check.connect(connect));
    if inbound.is_none() && outbound.is_empty() && connect.is_none() {
        check.faults.add("inbound", "required, or outbound or connect");
    }
    let admin = check.listener("admin", file.admin.as_deref().unwrap_or(ADMIN), false);
    let drain = file.drain.map_or(Some(DRAIN), |text| check.drain(&text));
    let service = file.service;
    if let Some(name) = &service {
        check.name("service", name);
    }
    let Check { faults, .. } = check;
    let whole = || {
        Some(Config {
            service,
            inbound: inbound.map_or(Some(None), |inbound| inbound.map(Some))?,
            outbound: outbound.into_iter().collect::<Option<_>>()?,
            connect: connect.map_or(Some(None), |connect| connect.map(Some))?,
            admin: admin?,
            drain: drain?,
        })
    };
    whole().filter(|_| faults.is_empty()).ok_or(faults)
}

/// The check of one configuration.
struct Check {
    faults: Faults,
    how: ReadConfig,
    /// Addresses of listeners so far.
    used: BTreeSet<SocketAddr>,
}

impl Check {
    fn inbound(&mut self, file: InboundFile) -> Option<Inbound> {
        let listen = self.listener("inbound.listen", &file.listen, true);
        let to = self.address("inbound.to", &file.to);
        if let Some(to) = to {
            if !to.ip().is_loopback() && !self.how.allow_remote {
                self.faults.add("inbound.to", format!("{to} is not on loopback, {REMOTE}"));
            }
            if Some(to) == listen {
                self.faults.add("inbound.to", format!("{to} is the address of the listener itself"));
            }
        }
        let tls = file.tls.map(|tls| self.inbound_tls(tls));
        let tls = tls.map_or(Some(None), |tls| tls.map(Some));
        Some(Inbound { listen: listen?, to: to?, edge: file.edge, tls: tls? })
    }

    fn outbound(&mut self, index: usize, file: OutboundFile) -> Option<Outbound> {
        let path = format!("outbound[{index}]");
        let listen = self.listener(&format!("{path}.listen"), &file.listen, false);
        let callee = Callee { name: file.callee, to: file.to, external: file.external, tls: file.tls };
        self.callee(&path, &callee);
        if listen.is_some_and(|listen| callee.to.parse() == Ok(listen)) {
            self.faults
                .add(format!("{path}.to"), format!("{} is the address of the listener itself", callee.to));
        }
        Some(Outbound { listen: listen?, callee })
    }

    fn callee(&mut self, path: &str, callee: &Callee) {
        self.name(&format!("{path}.callee"), &callee.name);
        self.host_and_port(&format!("{path}.to"), &callee.to);
        if let Some(tls) = &callee.tls
            && tls.cert_file.is_some() != tls.key_file.is_some()
        {
            self.faults.add(format!("{path}.tls"), "cert_file and key_file belong together");
        }
    }

    /// Reads the address of a listener. Only callers of the service come from other machines.
    fn listener(&mut self, path: &str, text: &str, open: bool) -> Option<SocketAddr> {
        let address = self.address(path, text)?;
        if !open && !address.ip().is_loopback() && !self.how.allow_remote {
            self.faults.add(path, format!("{address} is not on loopback, {REMOTE}"));
        }
        if address.port() != 0 && !self.used.insert(address) {
            self.faults.add(path, format!("{address} is the address of another listener"));
        }
        Some(address)
    }

    fn address(&mut self, path: &str, text: &str) -> Option<SocketAddr> {
        if text.is_empty() {
            self.faults.add(path, "required");
            return None;
        }
        text.parse().map_err(|_| self.faults.add(path, format!("{text:?} must be ADDRESS:PORT"))).ok()
    }

    fn host_and_port(&mut self, path: &str, text: &str) {
        let authority = text.parse::<Authority>().ok();
        let port = authority.as_ref().and_then(Authority::port_u16).filter(|port| *port != 0);
        let is_host = |authority: &Authority| !authority.host().is_empty() && !text.contains('@');
        match text {
            "" => self.faults.add(path, "required"),
            _ if port.is_some() && authority.as_ref().is_some_and(is_host) => {}
            _ => self.faults.add(path, format!("{text:?} must be HOST:PORT, with a port from 1 to 65535")),
        }
    }

    /// Checks the name of a service as the SDK does.
    fn name(&mut self, path: &str, name: &str) {
        if name.is_empty() {
            self.faults.add(path, "required");
        } else {
            check_name(path, name, &mut self.faults);
        }
    }

    fn drain(&mut self, text: &str) -> Option<Duration> {
        let problem = match humantime::parse_duration(text) {
            Ok(time) if time <= MAX_DRAIN => return Some(time),
            Ok(_) => format!("{text:?} must be at most 1h"),
            Err(_) => format!("{text:?} must be a duration such as 30s"),
        };
        self.faults.add("drain", problem);
        None
    }
}

const REMOTE: &str = "where others on the network can use it; allow it with --insecure-allow-remote";

#[cfg(test)]
mod tests;
