//! Chains of services in several languages, each with its proxy: Rust, Go, Java, Node, Python, Rust.
//!
//! The services between have OpenTelemetry and nothing of Damper. Each test counts what reaches the last
//! service, which refuses everything or never answers.

mod newcomer;
mod transparency;

use std::net::SocketAddr;
use std::time::Duration;

use damper_proto::v1;
use damper_sdk::{ClientService, Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::{Habit, Language, Process, free_address};
use damper_tests::hop::{Hop, call};
use futures_util::future::join_all;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const READY: Duration = Duration::from_secs(60);
const LANGUAGES: [Language; 4] = [Language::Go, Language::Java, Language::Node, Language::Python];
/// A request that the last service never answers.
const LOST: &str = "lost";
/// Three attempts on every hop, and no breaker: the flags alone bound the attempts.
const RULES: &str = "
kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }
policy:
  mode: enforce
  retry: { max_attempts: 3, backoff: { none: {} } }
  retry_breaker: { enabled: false }
";

async fn damper(control_plane: &ControlPlane, service: &str) -> Damper {
    let damper = Damper::connect(Options::new([control_plane.url()]).service(service)).expect("good options");
    damper.ready(READY).await.expect("rules arrive");
    damper
}

/// The last service, in Rust with the SDK.
async fn bottom(control_plane: &ControlPlane, refuses: bool) -> Hop {
    let damper = damper(control_plane, "bottom").await;
    Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
        let damper = damper.clone();
        async move {
            drop(damper);
            if refuses {
                return Err(Status::unavailable("out of stock"));
            }
            if request.get_ref() == LOST {
                return std::future::pending().await;
            }
            Ok(Response::new(format!("{} taken", request.into_inner())))
        }
    })
    .await
}

/// The first service, in Rust with the SDK, and what runs behind it.
struct Chain {
    front: ClientService<Channel>,
    bottom: Hop,
    _processes: Vec<Process>,
    _folders: Vec<TempDir>,
}

impl Chain {
    /// A chain of services with proxies; `habit` is that of the service in Go.
    async fn governed(control_plane: &ControlPlane, habit: Habit, refuses: bool, hosts: [u8; 4]) -> Self {
        let bottom = bottom(control_plane, refuses).await;
        let (mut processes, mut folders) = (Vec::new(), Vec::new());
        let mut callee = ("bottom".to_owned(), bottom.address());
        for (language, host) in LANGUAGES.into_iter().zip(hosts).rev() {
            let (folder, own) = (tempfile::tempdir().expect("a temporary folder"), free_address(host));
            let name = name(language);
            let config = proxy_config(&name, own, &callee);
            let (proxy, addresses) = Process::proxy(control_plane.url(), &config, folder.path());
            let habit = if language == Language::Go { habit } else { Habit::Propagates };
            processes.extend([proxy, Process::service(language, own, addresses.outbound(), habit)]);
            folders.push(folder);
            callee = (name, addresses.inbound());
        }
        control_plane.acknowledged_by(&LANGUAGES.map(name)).await;
        let front = front(control_plane, &callee.0, callee.1).await;
        Self { front, bottom, _processes: processes, _folders: folders }
    }

    /// The same services without proxies; their gRPC clients retry on their own.
    async fn ungoverned(control_plane: &ControlPlane, hosts: [u8; 4]) -> Self {
        let bottom = bottom(control_plane, true).await;
        let mut processes = Vec::new();
        let mut callee = bottom.address();
        for (language, host) in LANGUAGES.into_iter().zip(hosts).rev() {
            let own = free_address(host);
            processes.push(Process::service(language, own, callee, Habit::OwnRetries));
            callee = own;
        }
        let front = front(control_plane, "go", callee).await;
        Self { front, bottom, _processes: processes, _folders: Vec::new() }
    }

    async fn request(&self, text: &str) -> Result<String, Status> {
        call(self.front.clone(), Request::new(text.to_owned())).await.map(Response::into_inner)
    }
}

fn proxy_config(name: &str, own: SocketAddr, (callee, to): &(String, SocketAddr)) -> String {
    format!(
        "service: {name}\ninbound: {{ listen: '127.0.0.1:0', to: '{own}' }}\n\
         outbound: [{{ callee: {callee}, listen: '127.0.0.1:0', to: '{to}' }}]\nadmin: 127.0.0.1:0\n"
    )
}

/// Returns the services that the control plane shows as proxies.
async fn proxies(control_plane: &ControlPlane) -> Vec<String> {
    let listed = control_plane.fleet().list_clients(v1::ListClientsRequest::default()).await;
    let clients = listed.expect("the control plane answers").into_inner().clients;
    let proxies = clients.into_iter().filter(|client| client.via() == v1::Via::Proxy);
    let mut names: Vec<_> = proxies.filter_map(|client| Some(client.identity?.service)).collect();
    names.sort();
    names
}

/// Returns the rules with another code that is retried, and for two services a time for each attempt.
fn impatient(services: [(&str, u32); 2]) -> String {
    let codes = "max_attempts: 3, codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }";
    let all = RULES.replace("max_attempts: 3", codes);
    let of = |(service, milliseconds): (&str, u32)| {
        let timeout = format!("max_attempts: 3, per_attempt_timeout: {milliseconds}ms");
        let caller = format!("caller_service: {service}");
        all.replace("caller_service: '*'", &caller).replace("max_attempts: 3", &timeout)
    };
    format!("{all}---{}---{}", of(services[0]), of(services[1]))
}

fn name(language: Language) -> String {
    format!("{language:?}").to_lowercase()
}

async fn front(control_plane: &ControlPlane, callee: &str, address: SocketAddr) -> ClientService<Channel> {
    let damper = damper(control_plane, "front").await;
    let layer = damper.client_layer(callee).expect("a good name");
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("a URL");
    layer.layer(endpoint.connect().await.expect("the service listens"))
}

#[tokio::test(flavor = "multi_thread")]
async fn services_in_six_places_retry_in_one() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(RULES).await;
    let chain = Chain::governed(&control_plane, Habit::Propagates, true, [1, 2, 3, 21]).await;
    let failed = chain.request("first").await.expect_err("the last service refuses");
    assert_eq!((failed.code(), failed.message()), (Code::Unavailable, "out of stock"));
    assert_eq!(chain.bottom.handled(), 3, "for one request");
    assert_eq!(proxies(&control_plane).await, ["go", "java", "node", "python"]);
    let failed = join_all((0..50).map(|_| chain.request("again"))).await;
    assert!(failed.iter().all(Result::is_err));
    assert_eq!(chain.bottom.handled(), 3 * 51, "for 51 requests, 50 of them at once");
}

/// At first the last service answers. Then it does not: Python gives an attempt up, and Go one of its own
/// before it learns of that. Two hops lose answers, so the last service sees at most 2 x 3 - 1 requests.
/// Without flags each of Go's attempts would have three there, and so would those of the first service.
#[tokio::test(flavor = "multi_thread")]
async fn answers_pass_and_lost_ones_do_not_multiply() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(RULES).await;
    let chain = Chain::governed(&control_plane, Habit::Propagates, false, [4, 5, 6, 22]).await;
    assert_eq!(chain.request("pear").await.expect("it is served"), "pear taken");
    assert_eq!(chain.bottom.handled(), 1);
    control_plane.apply(&impatient([("go", 1_000), ("python", 400)])).await;
    control_plane.acknowledged_by(&LANGUAGES.map(name)).await;
    let failed = chain.request(LOST).await.expect_err("the last service never answers");
    assert_eq!(failed.code(), Code::DeadlineExceeded);
    let lost = chain.bottom.handled() - 1;
    assert!((1..=5).contains(&lost), "{lost} requests at the last service");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_propagates_nothing_loses_its_flag_alone() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(RULES).await;
    let chain = Chain::governed(&control_plane, Habit::PropagatesNothing, true, [7, 8, 9, 23]).await;
    chain.request("first").await.expect_err("the last service refuses");
    // Three attempts of the first service, and three in one place behind the gap for each of them.
    assert_eq!(chain.bottom.handled(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_proxies_own_retries_multiply() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(RULES).await;
    let chain = Chain::ungoverned(&control_plane, [10, 11, 12, 24]).await;
    chain.request("first").await.expect_err("the last service refuses");
    assert_eq!(chain.bottom.handled(), 243, "three attempts on each of five hops");
}
