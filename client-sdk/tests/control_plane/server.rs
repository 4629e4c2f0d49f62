//! A scripted control plane over a real socket.
//!
//! It accepts streams and passes each to the test, which reads the client's messages and sends the server's.
//! It decides nothing, so that a test shows the whole exchange.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use damper_core::{Backoff, Mode, Pattern, Policy, Retry, Waits};
use damper_proto::v1;
use damper_proto::v1::client_message::Kind as FromClient;
use damper_proto::v1::distribution_server::{Distribution, DistributionServer};
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Options, Status};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Streaming};

/// Longer than any step takes on a busy machine; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    streams: mpsc::Receiver<Stream>,
    serving: JoinHandle<()>,
    /// Required token; `None` accepts all.
    pub(crate) asks_for: Arc<Mutex<Option<String>>>,
    refused: Arc<AtomicUsize>,
    scheme: &'static str,
}

pub(crate) struct Stream {
    pub(crate) hello: v1::Hello,
    /// Value of `authorization`.
    pub(crate) shown: Option<String>,
    /// Certificate of the connection.
    pub(crate) certificate: Option<Vec<u8>>,
    from_client: Streaming<v1::ClientMessage>,
    to_client: mpsc::Sender<Result<v1::ServerMessage, tonic::Status>>,
}

struct Service {
    accepted: mpsc::Sender<Stream>,
    asks_for: Arc<Mutex<Option<String>>>,
    refused: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Distribution for Service {
    type SubscribeStream = ReceiverStream<Result<v1::ServerMessage, tonic::Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, tonic::Status> {
        let shown = request.metadata().get("authorization");
        let shown = shown.map(|value| value.to_str().unwrap().to_owned());
        let asked = self.asks_for.lock().unwrap().clone();
        if let Some(token) = asked.filter(|token| shown != Some(format!("Bearer {token}"))) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            drop(token);
            // A server that echoes the token.
            return Err(tonic::Status::unauthenticated(format!("{shown:?} is not known here")));
        }
        let certificates = request.peer_certs();
        let certificate = certificates.and_then(|all| all.first().map(|first| first.to_vec()));
        let mut from_client = request.into_inner();
        let first = from_client.message().await?.and_then(|message| message.kind);
        let Some(FromClient::Hello(hello)) = first else {
            return Err(tonic::Status::invalid_argument("the first message is no hello"));
        };
        let (to_client, answers) = mpsc::channel(64);
        let stream = Stream { hello, shown, certificate, from_client, to_client };
        self.accepted.send(stream).await.map_err(|_| tonic::Status::unavailable("the test has ended"))?;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

impl ControlPlane {
    pub(crate) async fn start() -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn listen(listener: TcpListener) -> Self {
        pace_the_clock();
        Self::serve(listener, tonic::transport::Server::builder(), "http")
    }

    /// With TLS, on the real clock: handshakes and files take time.
    pub(crate) async fn start_tls(config: ServerTlsConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = tonic::transport::Server::builder().tls_config(config).unwrap();
        Self::serve(listener, server, "https")
    }

    fn serve(listener: TcpListener, mut server: tonic::transport::Server, scheme: &'static str) -> Self {
        let address = listener.local_addr().unwrap();
        let (accepted, streams) = mpsc::channel(16);
        let (asks_for, refused) = <(Arc<Mutex<_>>, Arc<AtomicUsize>)>::default();
        let service = Service { accepted, asks_for: Arc::clone(&asks_for), refused: Arc::clone(&refused) };
        let server = server.add_service(DistributionServer::new(service));
        let serving = tokio::spawn(async move {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { address, streams, serving, asks_for, refused, scheme }
    }

    /// Number of streams denied.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Options of a service `orders` that knows only this control plane and no environment.
    pub(crate) fn options(&self) -> Options {
        options([self.url()])
    }

    /// Accepts the next stream.
    pub(crate) async fn accept(&mut self) -> Stream {
        soon(self.streams.recv()).await.unwrap()
    }

    /// Closes the sockets, as if the process were killed.
    pub(crate) async fn kill(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

impl Stream {
    pub(crate) async fn say(&self, revision: u64, nonce: u64, kind: Kind) {
        self.say_in("e", revision, nonce, kind).await;
    }

    pub(crate) async fn say_in(&self, epoch: &str, revision: u64, nonce: u64, kind: Kind) {
        let epoch = epoch.to_owned();
        let message = v1::ServerMessage { epoch, revision, nonce, kind: Some(kind), kills: None, commit: 0 };
        self.to_client.send(Ok(message)).await.unwrap();
    }

    /// Sends a message with the full set of kills.
    pub(crate) async fn say_killing(
        &self,
        revision: u64,
        nonce: u64,
        kind: Kind,
        kills: Vec<v1::ActiveKill>,
    ) {
        let (epoch, kills) = ("e".to_owned(), Some(v1::KillSet { kills, ..Default::default() }));
        let message = v1::ServerMessage { epoch, revision, nonce, kind: Some(kind), kills, commit: 0 };
        self.to_client.send(Ok(message)).await.unwrap();
    }

    /// Sends a response with kills and returns the ack.
    pub(crate) async fn exchange_killing(
        &mut self,
        revision: u64,
        nonce: u64,
        kind: Kind,
        kills: Vec<v1::ActiveKill>,
    ) -> v1::Ack {
        self.say_killing(revision, nonce, kind, kills).await;
        let ack = self.ack().await;
        assert_eq!(ack.nonce, nonce);
        ack
    }

    /// Sends a message if the client still reads.
    pub(crate) async fn try_say(&self, revision: u64, nonce: u64, kind: Kind) -> bool {
        let epoch = "e".to_owned();
        let message = v1::ServerMessage { epoch, revision, nonce, kind: Some(kind), kills: None, commit: 0 };
        soon(self.to_client.send(Ok(message))).await.is_ok()
    }

    /// Ends the stream with this status.
    pub(crate) async fn end_with(self, status: tonic::Status) {
        self.to_client.send(Err(status)).await.unwrap();
    }

    /// Sends a message of a kind that this client does not know.
    pub(crate) async fn say_nothing_known(&self) {
        self.to_client.send(Ok(v1::ServerMessage::default())).await.unwrap();
    }

    /// Returns the next message of the client; `None` once it has closed its half.
    pub(crate) async fn hear(&mut self) -> Option<FromClient> {
        soon(self.from_client.message()).await.ok().flatten().map(|message| message.kind.unwrap())
    }

    /// Returns the next ack; skips reports.
    pub(crate) async fn ack(&mut self) -> v1::Ack {
        loop {
            match self.hear().await {
                Some(FromClient::Ack(ack)) => return ack,
                Some(FromClient::Report(_)) => {}
                other => panic!("expected an ack, received {other:?}"),
            }
        }
    }

    /// Returns the next report.
    pub(crate) async fn report(&mut self) -> v1::Report {
        match self.hear().await {
            Some(FromClient::Report(report)) => report,
            other => panic!("expected a report, received {other:?}"),
        }
    }

    /// Sends a response and returns the ack.
    pub(crate) async fn exchange(&mut self, revision: u64, nonce: u64, kind: Kind) -> v1::Ack {
        self.say(revision, nonce, kind).await;
        let ack = self.ack().await;
        assert_eq!(ack.nonce, nonce);
        ack
    }
}

/// A paused clock jumps to the next timer whenever no task can run, even while bytes are in transit. A
/// blocking task stops it, and this one advances it by 100 ms every 5 ms.
pub(crate) fn pace_the_clock() {
    tokio::spawn(async {
        loop {
            tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(5))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

pub(crate) fn options<const N: usize>(endpoints: [String; N]) -> Options {
    Options::new(endpoints).service("orders").cluster("online").environment(|_| None)
}

/// Waits for an event that must occur.
pub(crate) async fn soon<T>(coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, coming).await.expect("the event did not occur")
}

/// Polls until the status is as expected.
pub(crate) async fn until(damper: &Damper, expected: impl Fn(&Status) -> bool) -> Status {
    soon(async {
        loop {
            let status = damper.status();
            if expected(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

pub(crate) fn pattern(callee: &str) -> v1::Pattern {
    (&Pattern::parse("orders", "*", callee, "*").unwrap()).into()
}

pub(crate) fn policy() -> v1::Policy {
    // Without waits and breaker every failing call makes all its attempts at once.
    let retry = Some(Retry { max_attempts: 3, backoff: Backoff::Always(Waits::None), ..Retry::default() });
    (&Policy { retry, retry_breaker: None, ..Policy::new(Mode::Enforce) }).into()
}

pub(crate) fn rule(callee: &str, revision: u64) -> v1::DistributedRule {
    let kind = Some(v1::distributed_rule::Kind::Policy(policy()));
    v1::DistributedRule { key: Some(pattern(callee)), revision, kind }
}

/// A rule with an unknown mode.
pub(crate) fn unknown_rule(callee: &str, revision: u64) -> v1::DistributedRule {
    let kind = Some(v1::distributed_rule::Kind::Policy(v1::Policy { mode: 77, ..policy() }));
    v1::DistributedRule { key: Some(pattern(callee)), revision, kind }
}

/// A ceiling for all calls of this callee.
pub(crate) fn guard(callee: &str, revision: u64, ceiling: v1::Ceiling) -> v1::DistributedGuard {
    let key = (&Pattern::parse("*", "*", callee, "*").unwrap()).into();
    v1::DistributedGuard { key: Some(key), revision, ceiling: Some(ceiling) }
}

pub(crate) fn at_most(max_attempts: u32) -> v1::Ceiling {
    v1::Ceiling { max_attempts: Some(max_attempts), ..v1::Ceiling::default() }
}

/// A ceiling for served retries: this number, and no share of first attempts.
pub(crate) fn repeats(mode: v1::Mode, min: u32) -> v1::Ceiling {
    let limit = v1::RepeatLimit { mode: mode.into(), ratio: Some(0.001), min: Some(min) };
    v1::Ceiling { repeat_limit: Some(limit), ..v1::Ceiling::default() }
}

pub(crate) fn guarded(rules: Vec<v1::DistributedRule>, guards: Vec<v1::DistributedGuard>) -> Kind {
    Kind::Snapshot(v1::Snapshot { rules, guards, last: true })
}

pub(crate) fn guards_changed(changed_guards: Vec<v1::DistributedGuard>, removed: &[&str]) -> Kind {
    let key = |callee: &&str| (&Pattern::parse("*", "*", callee, "*").unwrap()).into();
    let removed_guards = removed.iter().map(key).collect();
    Kind::Delta(v1::Delta { changed_guards, removed_guards, ..Default::default() })
}

pub(crate) fn snapshot(rules: Vec<v1::DistributedRule>) -> Kind {
    Kind::Snapshot(v1::Snapshot { rules, last: true, ..Default::default() })
}

pub(crate) fn delta(changed: Vec<v1::DistributedRule>, removed: &[&str]) -> Kind {
    let removed = removed.iter().map(|callee| pattern(callee)).collect();
    Kind::Delta(v1::Delta { changed, removed, ..Default::default() })
}
