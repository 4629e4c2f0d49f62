//! A chain of services in several languages: Rust, Go, Java, Node, Python, Rust.
//!
//! The first and the last have the SDK. Those between have OpenTelemetry and nothing of Damper, each with its
//! proxy or with the retries of its own gRPC client. A request is a number, and the last service counts the
//! arrivals of each. The tests of the languages and the lab run the same chain.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use damper_sdk::{Damper, Options};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::{Habit, Language, Process, free_address};
use crate::control_plane::ControlPlane;
use crate::hop::{Hop, call};
use crate::lab::layer::Arrivals;

/// The services between, from the first to the last.
pub const LANGUAGES: [Language; 4] = [Language::Go, Language::Java, Language::Node, Language::Python];
/// How long rules may take to arrive.
const READY: Duration = Duration::from_secs(60);
/// The answer that the service in Node returns late, by 3 s.
const SLOW: &str = "slow";

/// The fields of a rule's `retry_breaker` with which the flags alone bound the attempts.
pub const NO_BREAKER: &str = "enabled: false";

/// How the services of a chain retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The gRPC client of each language retries; no proxies.
    OwnRetries,
    /// Proxies; the service in Go propagates nothing.
    Gap,
    /// Proxies; all services propagate.
    Proxies,
}

/// What is wrong below the first service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The last service refuses everything.
    Errors,
    /// The last service never answers.
    Lost,
    /// The service in Node returns each answer late, by 3 s.
    Slow,
}

/// Times that services wait for an attempt, or for a call without a proxy. The others wait without limit.
pub type Timeouts<'a> = &'a [(Language, Duration)];

/// A running chain; its processes end when it is dropped.
#[derive(Debug)]
pub struct Chain {
    front: Hop,
    channel: Channel,
    bottom: Bottom,
    _processes: Vec<Process>,
    _folders: Vec<TempDir>,
}

impl Chain {
    /// Starts it under the rules of a control plane, from the last service to the first. The timeouts are
    /// for retries of gRPC's clients alone: proxies have theirs from rules. `hosts` are those of
    /// [`free_address`].
    pub async fn start(
        control_plane: &ControlPlane,
        way: Way,
        timeouts: Timeouts<'_>,
        hosts: [u8; 4],
    ) -> Self {
        let bottom = Bottom::serve(control_plane).await;
        let (mut processes, mut folders) = (Vec::new(), Vec::new());
        let mut callee = ("bottom".to_owned(), bottom.hop.address());
        for (language, host) in LANGUAGES.into_iter().zip(hosts).rev() {
            let own = free_address(host);
            let habit = way.habit(language, timeouts);
            if way == Way::OwnRetries {
                processes.push(Process::service(language, own, callee.1, habit));
                callee = (name(language), own);
                continue;
            }
            let folder = tempfile::tempdir().expect("a temporary folder");
            let config = proxy_config(language, own, &callee);
            let (proxy, addresses) = Process::proxy(control_plane.url(), &config, folder.path());
            processes.extend([proxy, Process::service(language, own, addresses.outbound(), habit)]);
            folders.push(folder);
            callee = (name(language), addresses.inbound());
        }
        let front = front(control_plane, &callee.0, callee.1).await;
        let channel = front.channel().await;
        let chain = Self { front, channel, bottom, _processes: processes, _folders: folders };
        control_plane.acknowledged_by(&way.governed()).await;
        chain
    }

    /// Returns where the first service listens.
    pub fn address(&self) -> SocketAddr {
        self.front.address()
    }

    /// Sends one request.
    ///
    /// # Errors
    /// The status that it ended with.
    pub async fn request(&self, number: usize) -> Result<String, Status> {
        call(self.channel.clone(), Request::new(number.to_string())).await.map(Response::into_inner)
    }

    /// Makes requests fail from now on, or heals the chain.
    pub fn set(&self, fault: Fault) {
        *self.bottom.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Returns the number of requests that have reached the last service.
    pub fn handled(&self) -> u64 {
        self.bottom.hop.handled()
    }

    /// Returns the same by the number of the request.
    pub fn arrivals(&self) -> Vec<u32> {
        self.bottom.arrivals.all()
    }
}

impl Way {
    /// Returns the services that get rules.
    pub fn governed(self) -> Vec<String> {
        let proxies = LANGUAGES.map(name).into_iter().filter(|_| self != Self::OwnRetries);
        proxies.chain(["front".to_owned()]).collect()
    }

    fn habit(self, language: Language, timeouts: Timeouts<'_>) -> Habit {
        let timeout = timeouts.iter().find(|(of, _)| *of == language).map(|(_, timeout)| *timeout);
        match self {
            Self::OwnRetries => Habit::OwnRetries(timeout),
            Self::Gap if language == Language::Go => Habit::PropagatesNothing,
            Self::Gap | Self::Proxies => Habit::Propagates,
        }
    }
}

/// The last service, in Rust with the SDK.
#[derive(Debug)]
struct Bottom {
    hop: Hop,
    fault: Arc<Mutex<Fault>>,
    arrivals: Arc<Arrivals>,
}

impl Bottom {
    async fn serve(control_plane: &ControlPlane) -> Self {
        let damper = damper(control_plane, "bottom").await;
        let (fault, arrivals) = (Arc::<Mutex<Fault>>::default(), Arc::<Arrivals>::default());
        let (now, count) = (Arc::clone(&fault), Arc::clone(&arrivals));
        let hop = Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
            let _connected = &damper;
            let booked = count.book(request.get_ref());
            let fault = *now.lock().unwrap_or_else(PoisonError::into_inner);
            async move {
                booked?;
                match fault {
                    Fault::None => Ok(Response::new(format!("{} taken", request.into_inner()))),
                    Fault::Errors => Err(Status::unavailable("out of stock")),
                    Fault::Lost => std::future::pending().await,
                    Fault::Slow => Ok(Response::new(SLOW.to_owned())),
                }
            }
        });
        Self { hop: hop.await, fault, arrivals }
    }
}

/// The first service, in Rust with the SDK.
async fn front(control_plane: &ControlPlane, callee: &str, address: SocketAddr) -> Hop {
    let damper = damper(control_plane, "front").await;
    let layer = damper.client_layer(callee).expect("a good name");
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("a URL");
    let channel = layer.layer(endpoint.connect().await.expect("the service listens"));
    Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
        let _connected = &damper;
        call(channel.clone(), Request::new(request.into_inner()))
    })
    .await
}

async fn damper(control_plane: &ControlPlane, service: &str) -> Damper {
    let options = Options::new([control_plane.url()]).service(service).environment(|_| None);
    let damper = Damper::connect(options).expect("good options");
    damper.ready(READY).await.expect("rules arrive");
    damper
}

fn proxy_config(language: Language, own: SocketAddr, (callee, to): &(String, SocketAddr)) -> String {
    format!(
        "service: {}\ninbound: {{ listen: '127.0.0.1:0', to: '{own}' }}\n\
         outbound: [{{ callee: {callee}, listen: '127.0.0.1:0', to: '{to}' }}]\nadmin: 127.0.0.1:0\n",
        name(language)
    )
}

/// Returns the name of a language's service.
pub fn name(language: Language) -> String {
    format!("{language:?}").to_lowercase()
}

/// Returns rules with three attempts on every hop. `breaker`: the fields of `retry_breaker`. Attempts that
/// exceed their time are retried too.
pub fn rules(breaker: &str, timeouts: Timeouts<'_>) -> String {
    let rule = |caller: &str, timeout: &str| {
        format!(
            "kind: Rule\nkey: {{ caller_service: '{caller}', caller_cluster: '*', callee_service: '*', \
             callee_method: '*' }}\npolicy:\n  mode: enforce\n  retry: {{ max_attempts: 3, codes: {{ allow: \
             [UNAVAILABLE, DEADLINE_EXCEEDED] }}, backoff: {{ none: {{}} }}{timeout} }}\n  \
             retry_breaker: {{ {breaker} }}\n"
        )
    };
    let impatient = timeouts.iter().map(|(language, timeout)| {
        rule(&name(*language), &format!(", per_attempt_timeout: {}ms", timeout.as_millis()))
    });
    [rule("*", "")].into_iter().chain(impatient).collect::<Vec<_>>().join("---\n")
}
