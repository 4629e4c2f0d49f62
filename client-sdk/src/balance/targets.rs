//! Configuration of a callee's endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use damper_core::Faults;
use damper_core::endpoints::MAX_ENDPOINTS;
use damper_endpoint::{Access, AccessSettings, Speaker, address};
use tonic::transport::Uri;
use tower::discover::{Change, Discover};

/// A window cannot be smaller in HTTP/2 without shrinking that of the connection.
const STREAM_WINDOWS: RangeInclusive<u32> = 64 << 10..=64 << 20;

/// Endpoints of a callee and how to reach them.
///
/// A string is an address such as `http://stock.shop.svc:7702`, or `https://...` with the cargo feature
/// `tls`. The host is looked up every ten seconds, and each of its addresses is an endpoint.
///
/// ```
/// use damper_sdk::balance::{Target, Targets};
///
/// // Fixed endpoints; the authority of requests is still `stock`.
/// let targets = Targets::new("http://stock").at(["10.0.0.1:7702", "10.0.1.1:7702"]);
///
/// // Endpoints in the caller's zone are preferred.
/// let near = Target::new("10.0.0.1:7702").zone("a");
/// let far = Target::new("10.0.1.1:7702").zone("b");
/// let targets = Targets::new("http://stock").at([near, far]).zone("a");
/// # drop(targets);
/// ```
pub struct Targets {
    target: String,
    at: Option<Vec<Target>>,
    discover: Option<Changes>,
    zone: Option<String>,
    keeps_authority: bool,
    stream_window: Option<u32>,
    never: Option<SocketAddr>,
    tls: AccessSettings,
}

/// One address of a callee, as `host:port`. A host with several addresses is several endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host_and_port: String,
    zone: Option<Arc<str>>,
}

/// Address and zone of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) zone: Option<Arc<str>>,
}

/// Checked [`Targets`].
pub(super) struct Checked {
    /// Authority of requests, and the name that certificates must match.
    pub(super) target: Uri,
    /// Names to look up; may be IP addresses.
    pub(super) names: Vec<Name>,
    /// Stream of changes to the names.
    pub(super) changes: Option<Changes>,
    /// Zone of the caller.
    pub(super) zone: Option<Arc<str>>,
    pub(super) keeps_authority: bool,
    /// Receive window of a stream, in bytes.
    pub(super) stream_window: Option<u32>,
    /// Address that is no endpoint.
    pub(super) never: Option<SocketAddr>,
    pub(super) access: Arc<Access>,
}

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) zone: Option<Arc<str>>,
}

/// A `Discover` with its key type erased.
pub(super) type Changes = Pin<Box<dyn PollChanges>>;

pub(super) trait PollChanges: Send {
    /// Ready with all current names after a change.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<Name>, String>>>;
}

impl Targets {
    /// Returns targets for the callee at `target`.
    pub fn new(target: impl Into<String>) -> Self {
        let tls = AccessSettings::default();
        Self {
            target: target.into(),
            at: None,
            discover: None,
            zone: None,
            keeps_authority: false,
            stream_window: None,
            never: None,
            tls,
        }
    }

    /// Sets fixed endpoints, in place of the addresses of the target's host.
    #[must_use]
    pub fn at<T: Into<Target>>(self, targets: impl IntoIterator<Item = T>) -> Self {
        Self { at: Some(targets.into_iter().map(Into::into).collect()), ..self }
    }

    /// Takes the endpoints from a `Discover`. If it fails or ends, the last endpoints stay.
    #[must_use]
    pub fn discover<D>(self, discover: D) -> Self
    where
        D: Discover + Send + 'static,
        D::Key: Clone + Send,
        D::Service: Into<Target>,
        D::Error: fmt::Display,
    {
        let changes = Known { discover: Box::pin(discover), known: Vec::new() };
        Self { discover: Some(Box::pin(changes)), ..self }
    }

    /// Sets the zone of the caller. Endpoints of the same zone are preferred while available.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        Self { zone: Some(zone.into()), ..self }
    }

    /// Keeps the authority of requests that have one, as a proxy does. Default: that of the target.
    #[must_use]
    pub fn keep_authority(self) -> Self {
        Self { keeps_authority: true, ..self }
    }

    /// Bytes of a response that the endpoint may send before they are read, 64 KiB to 64 MiB; for all
    /// responses of a connection together 16 times as much. Default 2 MiB, and 5 MiB together.
    #[must_use]
    pub fn stream_window(self, bytes: u32) -> Self {
        Self { stream_window: Some(bytes), ..self }
    }

    /// Refuses an address as an endpoint: that of a proxy which forwards to these targets. A name that leads
    /// back there would send its calls in a circle.
    #[must_use]
    pub fn never_at(self, address: SocketAddr) -> Self {
        Self { never: Some(address), ..self }
    }

    /// PEM file with the authorities to trust for the endpoints' certificates. Default: those of the system.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca_file = Some(path.into());
        self
    }

    /// PEM files with the client certificate and its key.
    #[must_use]
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.cert_file = Some(certificate.into());
        self.tls.key_file = Some(key.into());
        self
    }

    /// Name that the endpoints' certificates must match. Default: the host of the target.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.server_name = Some(name.into());
        self
    }

    /// Returns `None` if a fault was added.
    pub(super) fn check(self, faults: &mut Faults) -> Option<Checked> {
        let target = address::parse(&self.target).map_err(|problem| faults.add("target", problem)).ok();
        let named: Vec<_> = target.iter().map(|uri| ("target".to_owned(), uri.clone())).collect();
        let access = Access::resolve(self.tls, Speaker::Code, &named, &|_| None, faults);
        let names = match (&self.at, &self.discover) {
            (Some(_), Some(_)) => {
                faults.add("discover", "conflicts with `at`; use one of them");
                Vec::new()
            }
            (Some(targets), None) => check_all(targets, faults),
            (None, Some(_)) => Vec::new(),
            (None, None) => target.iter().map(Name::of).collect(),
        };
        let Self { discover: changes, zone, keeps_authority, stream_window, never, .. } = self;
        if let Some(bytes) = stream_window.filter(|bytes| !STREAM_WINDOWS.contains(bytes)) {
            let (least, most) = (STREAM_WINDOWS.start(), STREAM_WINDOWS.end());
            faults.add("stream_window", format!("{bytes}; must be {least} to {most} bytes"));
        }
        let (zone, access) = (zone.map(Arc::from), Arc::new(access));
        Some(Checked { target: target?, names, changes, zone, keeps_authority, stream_window, never, access })
    }
}

fn check_all(targets: &[Target], faults: &mut Faults) -> Vec<Name> {
    if targets.is_empty() || targets.len() > MAX_ENDPOINTS {
        faults.add("at", format!("{} endpoints; must be 1 to {MAX_ENDPOINTS}", targets.len()));
        return Vec::new();
    }
    let mut names = Vec::with_capacity(targets.len());
    for (index, target) in targets.iter().enumerate() {
        match target.name() {
            Ok(name) => names.push(name),
            Err(problem) => faults.add(format!("at[{index}]"), problem),
        }
    }
    names
}

impl Target {
    /// Returns the endpoint at `host:port`.
    pub fn new(host_and_port: impl Into<String>) -> Self {
        Self { host_and_port: host_and_port.into(), zone: None }
    }

    /// Sets the zone of the endpoint.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        Self { zone: Some(Arc::from(zone.into())), ..self }
    }

    fn name(&self) -> Result<Name, String> {
        let text = &self.host_and_port;
        let uri = address::parse(&format!("http://{text}")).ok().filter(|uri| uri.port_u16().is_some());
        let uri = uri.ok_or_else(|| format!("{text:?} is not host:port"))?;
        Ok(Name { zone: self.zone.clone(), ..Name::of(&uri) })
    }
}

impl Name {
    fn of(uri: &Uri) -> Self {
        Self { host: address::host(uri).to_owned(), port: address::port(uri), zone: None }
    }
}

impl fmt::Debug for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Targets").field("target", &self.target).field("at", &self.at).finish_non_exhaustive()
    }
}

impl From<&str> for Targets {
    fn from(target: &str) -> Self {
        Self::new(target)
    }
}

impl From<String> for Targets {
    fn from(target: String) -> Self {
        Self::new(target)
    }
}

impl From<&str> for Target {
    fn from(host_and_port: &str) -> Self {
        Self::new(host_and_port)
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.to_string())
    }
}

/// The names known from a `Discover`.
struct Known<D: Discover> {
    discover: Pin<Box<D>>,
    known: Vec<(D::Key, Name)>,
}

// `discover` is pinned on the heap.
impl<D: Discover> Unpin for Known<D> {}

impl<D> PollChanges for Known<D>
where
    D: Discover + Send,
    D::Key: Clone + Send,
    D::Service: Into<Target>,
    D::Error: fmt::Display,
{
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<Name>, String>>> {
        let change = match std::task::ready!(self.discover.as_mut().poll_discover(cx)) {
            Some(Ok(change)) => change,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.to_string()))),
            None => return Poll::Ready(None),
        };
        match change {
            Change::Insert(key, target) => {
                let name = match target.into().name() {
                    Ok(name) => name,
                    Err(problem) => return Poll::Ready(Some(Err(problem))),
                };
                self.known.retain(|(known, _)| *known != key);
                self.known.push((key, name));
            }
            Change::Remove(key) => self.known.retain(|(known, _)| *known != key),
        }
        Poll::Ready(Some(Ok(self.known.iter().map(|(_, name)| name.clone()).collect())))
    }
}
