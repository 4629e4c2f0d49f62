//! Thousands of slow connections: other clients are served meanwhile, and nothing is left of them.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::certificates::Authority;
use crate::harness::{HOUSE, livez, soon, start_alone, with_pair};

const EACH: usize = 2000;
/// Time until the server closes a slow connection: all must be open at once.
const LINGER: Duration = Duration::from_secs(40);

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connects, sends these bytes and waits until the server closes the connection.
async fn linger(address: std::net::SocketAddr, bytes: &'static [u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut sink = Vec::new();
    // The server may close or reset it.
    let _ = stream.read_to_end(&mut sink).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_slow_connections_do_not_delay_others() {
    let _alone = HOUSE.write().await;
    let ours = Authority::new("ours");
    let server = start_alone(|settings| {
        settings.tls = Some(with_pair(&ours.server("localhost")));
        settings.limits.handshake_within = LINGER;
        settings.limits.request_head_within = LINGER;
        settings.limits.max_connections = 2 * EACH + 100;
        settings.limits.max_new_connections_per_address = 2 * EACH + 100;
    })
    .await;
    let plain = start_alone(|settings| {
        settings.limits.request_head_within = LINGER;
        settings.limits.max_connections = EACH + 100;
        settings.limits.max_new_connections_per_address = EACH + 100;
    })
    .await;
    let config = ours.trusting(None, b"http/1.1");
    livez(server.address, &config).await.unwrap();
    let before = descriptors();
    let mut crowd = JoinSet::new();
    for _ in 0..EACH {
        crowd.spawn(linger(server.address, &[0x16, 3, 1, 2, 0, 1, 0]));
        crowd.spawn(linger(plain.address, b"GET /metrics HTTP/1.1\r\nhost: local"));
    }
    let all_open = |open| open >= EACH as f64;
    tokio::join!(
        server.figure_that("damper_connections", all_open),
        plain.figure_that("damper_connections", all_open)
    );
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let began = Instant::now();
        let answer = livez(server.address, &config).await.unwrap();
        slowest = slowest.max(began.elapsed());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let still = crowd.len();
    println!("50 clients came while {still} of {} lingered; the slowest was served in {slowest:?}", 2 * EACH);
    assert!(slowest < LINGER / 2, "{slowest:?}");
    soon(async { while crowd.join_next().await.is_some() {} }).await;
    soon(async {
        while descriptors() > before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    server.hits_that("handshake", |count| count == EACH as f64).await;
    plain.hits_that("request_head", |count| count == EACH as f64).await;
    server.stop().await;
    plain.stop().await;
}
