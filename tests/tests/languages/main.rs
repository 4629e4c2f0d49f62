//! Chains of services in several languages, each with its proxy: Rust, Go, Java, Node, Python, Rust.
//!
//! The services between have OpenTelemetry and nothing of Damper. Each test counts what reaches the last
//! service. The lab runs the same chain under load: `cargo xtask lab --languages`.

mod newcomer;
mod transparency;

use std::time::Duration;

use damper_proto::v1;
use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::Language;
use damper_tests::foreign::chain::{Chain, Fault, NO_BREAKER, Timeouts, Way, rules};
use futures_util::future::join_all;
use tonic::{Code, Status};

const READY: Duration = Duration::from_secs(60);

/// Time limits of one language each, in milliseconds.
const fn limit(language: Language, milliseconds: u64) -> (Language, Duration) {
    (language, Duration::from_millis(milliseconds))
}

/// A chain under rules without a breaker: the flags alone bound the attempts.
async fn chain(way: Way, hosts: [u8; 4]) -> (ControlPlane, Chain) {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(NO_BREAKER, &[])).await;
    let chain = Chain::start(&control_plane, way, &[], hosts).await;
    (control_plane, chain)
}

/// Puts other rules; waits until all proxies have them.
async fn apply(control_plane: &ControlPlane, breaker: &str, timeouts: Timeouts<'_>) {
    control_plane.apply(&rules(breaker, timeouts)).await;
    control_plane.acknowledged_by(&Way::Proxies.governed()).await;
}

/// Sends 50 requests at once; returns how they ended, and how many reached the last service.
async fn fifty(chain: &Chain) -> (Vec<Result<String, Status>>, u64) {
    let before = chain.handled();
    let ended = join_all((0..50).map(|number| chain.request(number))).await;
    (ended, chain.handled() - before)
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

/// Waits until the calls of the service in Go are shown as made outside their requests, and its hop alone as
/// one that multiplies the attempts of the hop before. Each proxy reports its own hop in its own time.
async fn gap_is_shown(control_plane: &ControlPlane) {
    loop {
        let chain = control_plane.fleet().get_chain(v1::GetChainRequest::default()).await;
        let chain = chain.expect("the control plane answers").into_inner();
        let gap = chain.edges.iter().find(|edge| edge.caller_service == "go");
        let worst = chain.worst_possible.unwrap_or_default();
        let multiplying = worst.hops.iter().filter(|hop| hop.multiplies).map(|hop| &hop.caller_service);
        if gap.is_some_and(|edge| edge.chain_coverage <= 0.0) && multiplying.eq(["go"]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_in_six_places_retry_in_one() {
    let (control_plane, chain) = chain(Way::Proxies, [1, 2, 3, 21]).await;
    chain.set(Fault::Errors);
    let failed = chain.request(0).await.expect_err("the last service refuses");
    assert_eq!((failed.code(), failed.message()), (Code::Unavailable, "out of stock"));
    assert_eq!(chain.handled(), 3, "for one request");
    assert_eq!(proxies(&control_plane).await, ["go", "java", "node", "python"]);
    let (failed, handled) = fifty(&chain).await;
    assert!(failed.iter().all(Result::is_err));
    assert_eq!(handled, 3 * 50, "for 50 requests at once");
}

/// At first the last service answers. Then it does not: Python gives an attempt up, and Go one of its own
/// before it learns of that. Two hops lose answers, so the last service sees at most 2 x 3 - 1 requests.
/// Without flags each of Go's attempts would have three there, and so would those of the first service.
#[tokio::test(flavor = "multi_thread")]
async fn answers_pass_and_lost_ones_do_not_multiply() {
    let (control_plane, chain) = chain(Way::Proxies, [4, 5, 6, 22]).await;
    assert_eq!(chain.request(0).await.expect("it is served"), "0 taken");
    assert_eq!(chain.handled(), 1);
    apply(&control_plane, NO_BREAKER, &[limit(Language::Go, 1_000), limit(Language::Python, 400)]).await;
    chain.set(Fault::Lost);
    let failed = chain.request(1).await.expect_err("the last service never answers");
    assert_eq!(failed.code(), Code::DeadlineExceeded);
    let lost = chain.handled() - 1;
    assert!((1..=5).contains(&lost), "{lost} requests at the last service");
}

/// First Node answers late, and Java's proxy gives up each attempt: it alone retries. Then the last service
/// refuses everything under the default breaker. The successes have earned few retries on each hop, and the
/// flags let one hop use them. Once the last service recovers, each request reaches it once.
#[tokio::test(flavor = "multi_thread")]
async fn slow_hop_stays_one_and_healing_ends_retries() {
    let (control_plane, chain) = chain(Way::Proxies, [25, 26, 27, 28]).await;
    assert_eq!(chain.request(0).await.expect("it is served"), "0 taken");
    apply(&control_plane, NO_BREAKER, &[limit(Language::Java, 600)]).await;
    chain.set(Fault::Slow);
    let failed = join_all((1..11).map(|number| chain.request(number))).await;
    let late = |ended: &Result<String, Status>| matches!(ended, Err(status) if status.code() == Code::DeadlineExceeded);
    assert!(failed.iter().all(late), "{failed:?}");
    let most = chain.arrivals().into_iter().max();
    assert!(most <= Some(3), "{most:?} attempts of one request");

    apply(&control_plane, "", &[]).await;
    chain.set(Fault::None);
    let (ended, handled) = fifty(&chain).await;
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(handled, 50, "while all is well");
    chain.set(Fault::Errors);
    let ((first, in_first), (then, in_then)) = (fifty(&chain).await, fifty(&chain).await);
    assert!(first.iter().chain(&then).all(Result::is_err));
    assert!(in_first <= 55 && in_then <= 51, "{in_first} and {in_then} requests at the last service");
    chain.set(Fault::None);
    let (ended, handled) = fifty(&chain).await;
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(handled, 50, "after the recovery");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_propagates_nothing_loses_its_flag_alone() {
    let (control_plane, chain) = chain(Way::Gap, [7, 8, 9, 23]).await;
    chain.set(Fault::Errors);
    chain.request(0).await.expect_err("the last service refuses");
    // Three attempts of the first service, and three in one place behind the gap for each of them.
    assert_eq!(chain.handled(), 9);
    let shown = tokio::time::timeout(READY, gap_is_shown(&control_plane)).await;
    shown.expect("coverage of Go's calls is 0 %, and the worst path multiplies there alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_proxies_own_retries_multiply() {
    let (_control_plane, chain) = chain(Way::OwnRetries, [10, 11, 12, 24]).await;
    chain.set(Fault::Errors);
    chain.request(0).await.expect_err("the last service refuses");
    assert_eq!(chain.handled(), 243, "three attempts on each of five hops");
    chain.set(Fault::None);
    chain.request(1).await.expect("it is served");
    assert_eq!(chain.handled(), 244, "one more once the last service serves");
}
