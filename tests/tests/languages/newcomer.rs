//! The first ten minutes: two stock services in Go, each started behind `damper proxy try`.
//!
//! They have no configuration. By the variable that they find, the routes page shows their calls, and their
//! retries are bounded.

use std::collections::BTreeSet;
use std::time::Duration;

use damper_proto::v1;
use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::chain::{NO_BREAKER, rules};
use damper_tests::foreign::{Language, Process, free_address};
use damper_tests::hop::call;
use damper_tests::peer::{Peer, Reply};
use tokio::task::spawn_blocking;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::READY;

#[tokio::test(flavor = "multi_thread")]
async fn pair_is_on_the_routes_page_by_one_variable_each() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(NO_BREAKER, &[])).await;
    let bottom = Peer::by(|_| Reply::unavailable()).await;
    let (url, bottom_address) = (control_plane.url().to_owned(), bottom.address());
    let started = spawn_blocking(move || {
        let tried = |name, callee| Process::tried(&url, name, Language::Go, free_address(15), callee);
        let (back, address) = tried("back", ("bottom.test:50051", bottom_address));
        let (front, address) = tried("front", ("back.test:50051", address));
        ([front, back], address)
    });
    let (_processes, front) = started.await.expect("both start");
    control_plane.acknowledged_by(&["front", "back"]).await;

    let channel = Channel::from_shared(format!("http://{front}")).expect("a URL").connect_lazy();
    let failed = call(channel, Request::new("pear".to_owned())).await.expect_err("the last service refuses");
    assert_eq!(failed.code(), Code::Unavailable);
    assert_eq!(bottom.seen().len(), 3, "three attempts on one hop, not on both");
    let expected =
        BTreeSet::from(["front back test.Hop/Call", "back bottom test.Hop/Call"].map(str::to_owned));
    let shown = async {
        while routes(&control_plane).await != expected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(READY, shown).await.expect("both routes are shown");
}

async fn routes(control_plane: &ControlPlane) -> BTreeSet<String> {
    let listed = control_plane.fleet().list_routes(v1::ListRoutesRequest::default()).await;
    let routes = listed.expect("the control plane answers").into_inner().routes;
    let text =
        |key: v1::RouteKey| format!("{} {} {}", key.caller_service, key.callee_service, key.callee_method);
    routes.into_iter().filter_map(|route| Some(text(route.key?))).collect()
}
