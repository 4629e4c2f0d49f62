//! What operators are told of a callee's endpoints: a service with a balanced channel to three servers, of which one
//! refuses everything, under a control plane.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::time::Duration;

use damper_proto::v1;
use damper_sdk::balance::{Target, Targets};
use damper_sdk::{Balanced, ClientService, Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::hop::{self, Hop};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const RULE: &str = "kind: Rule
key: { caller_service: shop, caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } } }
";

async fn serving(is_bad: bool) -> Hop {
    Hop::serve(None, move |request: Request<String>| async move {
        if is_bad {
            Err(Status::unavailable("it is broken"))
        } else {
            Ok(Response::new(request.into_inner()))
        }
    })
    .await
}

/// Calls without end; what becomes of a call is nothing here.
async fn calls(channel: ClientService<Balanced>) {
    loop {
        _ = hop::call(channel.clone(), Request::new("one".to_owned())).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn connect(plane: &ControlPlane) -> Damper {
    let damper = Damper::connect(Options::new([plane.url()]).service("shop")).unwrap();
    damper.ready(PATIENCE).await.unwrap();
    damper
}

/// What is told of `stock` once it is as it must become.
async fn endpoints(
    plane: &ControlPlane,
    is_so: impl Fn(Option<&v1::CalleeEndpoints>) -> bool,
) -> Option<v1::CalleeEndpoints> {
    let asking = async {
        loop {
            let request =
                v1::ListEndpointsRequest { callee_service: "stock".to_owned(), ..Default::default() };
            let told = plane.fleet().list_endpoints(request).await.unwrap().into_inner().callees;
            if is_so(told.first()) {
                return told.into_iter().next();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it becomes so")
}

/// The finding with this code, once it is there.
async fn finding(plane: &ControlPlane, code: &str) -> v1::Finding {
    let asking = async {
        loop {
            let diagnosis =
                plane.fleet().diagnose(v1::DiagnoseRequest::default()).await.unwrap().into_inner();
            if let Some(found) = diagnosis.findings.into_iter().find(|finding| finding.code == code) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is found")
}

#[tokio::test]
async fn one_bad_endpoint_of_three_is_named_to_operators() {
    let plane = ControlPlane::start().await;
    plane.apply(RULE).await;
    let damper = connect(&plane).await;
    let hops = [serving(false).await, serving(true).await, serving(false).await];
    let targets = hops.iter().map(|hop| Target::new(hop.address().to_string()).zone("a"));
    let channel = damper_sdk::balanced(Targets::new("http://stock").at(targets)).unwrap();
    let calling = tokio::spawn(calls(damper.client_layer("stock").unwrap().layer(channel)));

    let stock = endpoints(&plane, |told| told.is_some_and(|told| !told.problem.is_empty())).await.unwrap();
    assert_eq!((stock.clients, stock.count, stock.endpoints.len()), (1, 3, 3));
    let worst = &stock.endpoints[0];
    assert_eq!((worst.address.as_str(), worst.zone.as_str()), (&*hops[1].address().to_string(), "a"));
    assert_eq!((worst.clients, worst.ejected, worst.not_connected), (1, 1, 0));
    assert!(worst.recent >= 5 && worst.recent_failures == worst.recent, "{worst:?}");
    assert!(
        stock.endpoints[1..].iter().all(|well| well.recent > 0 && well.recent_failures == 0),
        "{stock:?}"
    );
    let sentence = format!(
        "1 of 3 endpoints of stock fails 100.0% of its last requests: {} (zone a); ejected by 1 of 1 client",
        hops[1].address()
    );
    assert_eq!(stock.problem, sentence);
    assert_eq!(finding(&plane, "endpoint_failing").await.message, sentence);

    calling.abort();
    endpoints(&plane, |told| told.is_none()).await;
    damper.shutdown().await;
}

#[tokio::test]
async fn retries_to_the_only_endpoint_are_a_notice() {
    let plane = ControlPlane::start().await;
    plane.apply(RULE).await;
    let damper = connect(&plane).await;
    let hop = serving(false).await;
    let channel = damper_sdk::balanced(hop.url()).unwrap();
    let calling = tokio::spawn(calls(damper.client_layer("stock").unwrap().layer(channel)));
    let found = finding(&plane, "retries_meet_one_endpoint").await;
    assert_eq!(found.message, "the only client knows one endpoint, and a rule allows 3 attempts");
    assert_eq!(found.severity(), v1::Severity::Hint);
    calling.abort();
    damper.shutdown().await;
}
