//! 10,000 connections of callers to one proxy, half of them in each direction.

use damper_tests::hop::Hop;
use damper_tests::peer::channel;
use futures_util::stream::{self, StreamExt as _};
use tonic::transport::Channel;
use tonic::{Request, Response};

use crate::{ANY_PORT, NOWHERE, Proxy, ended};

const CONNECTIONS: usize = 10_000;
/// Connections after which memory is measured first: what the first calls need is there then.
const FIRST: usize = 200;
/// Connections that are opened at a time, each with its call.
const AT_A_TIME: usize = 200;
/// Files that this process and the proxy open each: one for each connection, a second one for those with a
/// connection to the service, and those of concurrent tests.
const FILES: u64 = CONNECTIONS as u64 * 3 / 2 + 2_000;
/// Limit of an idle connection, as in docs/benchmarks.
const MOST_KIB: u64 = 40;

/// Opens connections in both directions, and makes one call on each.
async fn called(proxy: &Proxy, count: usize) -> Vec<Channel> {
    let directions = [proxy.addresses.inbound(), proxy.addresses.outbound()];
    let calls = (0..count).map(|number| async move {
        let channel = channel(directions[number % 2]);
        let answer = ended(channel.clone(), &number.to_string()).await;
        assert_eq!(answer.expect("the proxy serves"), number.to_string());
        channel
    });
    stream::iter(calls).buffer_unordered(AT_A_TIME).collect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_are_served_and_stay_small() {
    let limit = rlimit::increase_nofile_limit(u64::MAX).expect("the system has a limit of open files");
    assert!(limit >= FILES, "the limit of open files is {limit}, {FILES} are needed: raise ulimit -Hn");
    let service =
        Hop::serve(None, |request: Request<String>| async { Ok(Response::new(request.into_inner())) }).await;
    let proxy = Proxy::start(NOWHERE, ANY_PORT, service.address(), service.address());
    let mut idle = called(&proxy, FIRST).await;
    let before = proxy.process.memory_kib();
    idle.extend(called(&proxy, CONNECTIONS - FIRST).await);
    let each = proxy.process.memory_kib().saturating_sub(before) / (CONNECTIONS - FIRST) as u64;
    assert!(each <= MOST_KIB, "{each} KiB for each connection");
    // Each caller is served again.
    let calls = idle.iter().map(|channel| ended(channel.clone(), "again"));
    let answers: Vec<_> = stream::iter(calls).buffer_unordered(AT_A_TIME).collect().await;
    assert!(answers.iter().all(Result::is_ok), "{:?}", answers.iter().find(|answer| answer.is_err()));
    assert_eq!(service.handled(), 2 * CONNECTIONS as u64);
}
