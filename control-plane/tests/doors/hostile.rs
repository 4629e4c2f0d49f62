//! Oversized, deep and malformed input on every listener, plain and encrypted: a clear rejection or a closed
//! connection, no memory growth, and no secret in the most verbose log.

use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use damper_control_plane::{Auth, Rate};
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tonic::transport::Endpoint;
use tower::{Service as _, ServiceExt as _};
use tracing::subscriber::DefaultGuard;

use crate::certificates::{Authority, Pair};
use crate::harness::{HOUSE, Running, exchange, livez, shake, soon, start, start_alone, with_pair};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const ROUNDS: usize = 60;
const MIB: u64 = 1 << 20;
/// Allowed memory growth after thousands of requests, since allocators keep some memory.
const GROWTH_MIB: u64 = 48;

/// Returns a gRPC-Web request over HTTP/1.1 with one message.
fn grpc_web(method: &str, message: &[u8], flag: u8, declared_length: usize) -> Vec<u8> {
    grpc_web_at(&format!("/damper.v1.{method}"), message, flag, declared_length)
}

fn grpc_web_at(path: &str, message: &[u8], flag: u8, declared_length: usize) -> Vec<u8> {
    let length = 5 + message.len();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc-web+proto\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes();
    request.push(flag);
    request.extend(u32::try_from(declared_length).unwrap().to_be_bytes());
    request.extend(message);
    request
}

/// Returns messages nested in field 2.
fn deep(depth: usize) -> Vec<u8> {
    let mut message = Vec::new();
    for _ in 0..depth {
        let mut outer = vec![0x12];
        let mut length = message.len();
        while length >= 0x80 {
            outer.push((length & 0x7f | 0x80) as u8);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend(&message);
        message = outer;
    }
    message
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Inputs, each with the possible parts of the answer; empty if the connection only has to end.
fn attacks() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let over_head = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(64 << 10));
    let many_heads = format!("GET /livez HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(500));
    let rapid_resets: Vec<u8> = (0..2000)
        .flat_map(|n| {
            let head = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
            [frame(1, 5, 2 * n + 1, &head), frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat()
        })
        .collect();
    let continuations =
        [frame(1, 0, 1, &[0x82]), frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b']).repeat(5000)].concat();
    let big_head: Vec<u8> = frame(1, 0, 1, &[0x82])
        .into_iter()
        .chain((0..64).flat_map(|_| frame(9, 0, 1, &[b'x'; 16 << 10])))
        .collect();
    let h2 = |frames: Vec<u8>| [PREFACE, &frames].concat();
    vec![
        ("head over the limit", over_head.into_bytes(), &["HTTP/1.1 431"]),
        ("too many headers", many_heads.into_bytes(), &["HTTP/1.1 431"]),
        ("no HTTP", vec![0xff; 4096], &[]),
        ("no version", b"GET / HTTP/9.9\r\n\r\n".to_vec(), &["HTTP/1.1 400", ""]),
        (
            "two lengths",
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_vec(),
            &["HTTP/1.1 400"],
        ),
        ("rapid resets", h2(rapid_resets), &[]),
        ("endless head", h2(continuations), &[]),
        ("huge head", h2(big_head), &[]),
        ("bad frame", h2(frame(0, 0, 0, &[1; 100])), &[]),
        ("frame over the limit", h2(frame(0, 0, 1, &[1; 40 << 10])), &[]),
    ]
}

/// The same for the API.
fn messages() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let invalid: &[&str] = &["grpc-status: 3", "grpc-status:3"];
    let exhausted: &[&str] = &["grpc-status: 8", "grpc-status:8"];
    let put = "Rules/PutRule";
    vec![
        ("message over the limit", grpc_web(put, &[0; 32 << 10], 0, 2 << 20), exhausted),
        ("told to be huge", grpc_web(put, &[0; 64], 0, u32::MAX as usize), exhausted),
        ("deep", grpc_web(put, &deep(5000), 0, deep(5000).len()), invalid),
        ("malformed", grpc_web(put, &[0xff; 100], 0, 100), invalid),
        ("compressed by nobody", grpc_web(put, &[0; 10], 1, 10), invalid),
        ("no such flag", grpc_web(put, &[0; 10], 7, 10), invalid),
        ("shorter than told", grpc_web(put, &[0; 10], 0, 100), invalid),
    ]
}

async fn attack(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (name, bytes, expected): &(&'static str, Vec<u8>, &'static [&'static str]),
    place: &str,
) {
    let answer = exchange(stream, bytes).await;
    if expected.is_empty() {
        return;
    }
    let answer = answer.unwrap_or_else(|error| panic!("{name} on {place}: {error}"));
    assert!(expected.iter().any(|part| answer.contains(part)), "{name} on {place}: {answer}");
}

/// Sends everything on all four listeners; TLS rejects other connections than HTTP does.
async fn everything(plain: &Running, tls: &Running, config: &Arc<ClientConfig>) {
    let api = messages();
    for each in attacks().iter().chain(&api) {
        let is_api = api.iter().any(|(name, ..)| *name == each.0);
        for (place, address) in [("the main port", plain.address), ("the metrics port", plain.metrics)] {
            if place == "the main port" || !is_api {
                attack(TcpStream::connect(address).await.unwrap(), each, place).await;
            }
        }
        for (place, address) in
            [("the main port with TLS", tls.address), ("the metrics port with TLS", tls.metrics)]
        {
            if place == "the main port with TLS" || !is_api {
                // A peer that is rejected while it sends may not read the reason.
                let shaken = shake(address, config, "localhost").await.unwrap();
                attack(shaken, each, place).await;
            }
        }
    }
}

async fn two(ours: &Authority, pair: &Pair) -> (Running, Running, Arc<ClientConfig>) {
    let tls = start_alone(|settings| {
        settings.tls = Some(with_pair(pair));
        settings.metrics_plaintext = false;
    });
    (start_alone(|_| {}).await, tls.await, ours.trusting(None, b""))
}

/// Starts a message that never ends; returns the head of the answer.
async fn endless(server: &Running, path: &str, declared_length: u32) -> http::HeaderMap {
    let mut begun = vec![0];
    begun.extend(declared_length.to_be_bytes());
    begun.extend([0; 1000]);
    let begun = futures_util::stream::iter([Ok::<_, io::Error>(Bytes::from(begun))]);
    let body = begun.chain(futures_util::stream::pending());
    let uri = format!("http://{}{path}", server.address);
    let request = http::Request::post(uri).header("content-type", "application/grpc");
    let request = request.body(tonic::body::Body::new(axum::body::Body::from_stream(body))).unwrap();
    let mut channel = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect_lazy();
    soon(channel.ready()).await.unwrap();
    let answer = soon(channel.call(request)).await.unwrap();
    answer.headers().clone()
}

#[tokio::test]
async fn unfinished_messages_without_a_token_end_soon() {
    for (deadline, length, status, limit) in
        [(30_000, (4 << 20) - 5, "8", "message_bytes"), (400, 4 << 10, "4", "unary_deadline")]
    {
        let server = start(|settings| {
            settings.unary_deadline = Duration::from_millis(deadline);
            settings.limits.max_open_requests_per_identity = 100;
        })
        .await;
        let health = "/grpc.health.v1.Health/Check";
        let answers = futures_util::future::join_all((0..100).map(|_| endless(&server, health, length)));
        for answer in answers.await {
            assert_eq!(answer["grpc-status"], status, "{answer:?}");
        }
        server.hits_that(limit, |count| count == 100.0).await;
        server.stop().await;
    }
}

#[tokio::test]
async fn health_has_a_rate_like_every_read() {
    let one = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::MIN };
    let server = start(|settings| settings.limits.reads = one).await;
    let check = "/grpc.health.v1.Health/Check";
    let bytes = grpc_web_at(check, &[], 0, 0);
    let ask = async || exchange(TcpStream::connect(server.address).await.unwrap(), &bytes).await.unwrap();
    let mut refused = String::new();
    while !refused.contains("grpc-status: 8") && !refused.contains("grpc-status:8") {
        refused = soon(ask()).await;
    }
    assert!(refused.contains("makes%20more%20than%201%20reads"), "{refused}");
    server.stop().await;
}

/// Resident memory of this process, which includes the server.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_input_is_rejected_without_memory_growth() {
    let _alone = HOUSE.write().await;
    let ours = Authority::new("ours");
    let (plain, tls, config) = two(&ours, &ours.server("localhost")).await;
    for _ in 0..3 {
        everything(&plain, &tls, &config).await;
    }
    let before = resident();
    for _ in 0..ROUNDS {
        everything(&plain, &tls, &config).await;
    }
    let after = resident();
    println!("{} MiB before, {} MiB after {ROUNDS} more rounds", before / MIB, after / MIB);
    assert!(after < before + GROWTH_MIB * MIB, "{before} to {after}");
    let http1 = ours.trusting(None, b"http/1.1");
    assert!(livez(tls.address, &http1).await.unwrap().starts_with("HTTP/1.1 200"));
    plain.stop().await;
    tls.stop().await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Captures the log of this thread.
    fn begin(level: tracing::Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

#[tokio::test]
async fn floods_of_refused_requests_leave_few_lines_in_the_log() {
    const REQUESTS: usize = 50;
    let _alone = HOUSE.write().await;
    let (log, _guard) = Log::begin(tracing::Level::INFO);
    let folder = tempfile::TempDir::new().unwrap();
    let server = start_alone(|settings| {
        settings.auth = Auth::Tokens;
        settings.bootstrap_token_file = Some(folder.path().join("token"));
    })
    .await;
    let long = "a".repeat(8 << 10);
    let foreign = format!("GET /{long} HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n");
    let refused = [
        grpc_web("Rules/ListRules", &[], 0, 0),
        grpc_web("Distribution/Subscribe", &[], 0, 0),
        foreign.into_bytes(),
    ];
    for request in refused.iter().cycle().take(REQUESTS * refused.len()) {
        exchange(TcpStream::connect(server.address).await.unwrap(), request).await.unwrap();
    }
    let text = log.text();
    for line in ["request denied", "client rejected", "cross-origin request rejected"] {
        let lines = text.matches(line).count();
        assert!((1..REQUESTS / 2).contains(&lines), "{lines} times: {line}");
    }
    assert!(!text.contains(&long), "a peer writes what it likes into the log");
    server.stop().await;
}

#[tokio::test]
async fn the_most_talkative_log_holds_no_key() {
    let _alone = HOUSE.write().await;
    let (log, _guard) = Log::begin(tracing::Level::TRACE);
    let ours = Authority::new("ours");
    let pair = ours.server("localhost");
    let (plain, tls, config) = two(&ours, &pair).await;
    tracing::info!(settings = ?with_pair(&pair), "told");
    everything(&plain, &tls, &config).await;
    plain.stop().await;
    tls.stop().await;
    let text = log.text();
    assert!(text.len() > 10_000 && text.contains("told"), "the log was on: {} bytes", text.len());
    let key: Vec<&str> = pair.key.lines().filter(|line| !line.starts_with("-----")).collect();
    assert!(key.len() > 1);
    for line in key {
        assert!(!text.contains(line), "a line of the key is in the log");
    }
}
