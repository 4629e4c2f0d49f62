//! The chain over real HTTP/2: four services, three hops that may retry, r = 3.
//!
//! `a` calls `b`, `b` calls `c`, `c` calls `d`; `d` fails. Counted is what reaches each handler per request
//! that a plain client sends to `a`.

use std::sync::Arc;
use std::time::Duration;

use damper_sdk::{ClientService, Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::hop::{Hop, call};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const READY: Duration = Duration::from_secs(10);

/// Rules for every hop: three attempts at once, no breaker.
fn rules(policy: &str) -> String {
    format!(
        "kind: Rule\nkey: {{ caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }}\npolicy: {policy}\n"
    )
}

const FLAGS_ON: &str =
    "{ mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }";
const FLAGS_OFF: &str = "{ mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false }, \
     chain: { ignore_retry_flag: true, ignore_no_more_retry: true } }";

async fn damper(control_plane: &ControlPlane, service: &str) -> Damper {
    let damper = Damper::connect(Options::new([control_plane.url()]).service(service)).expect("good options");
    damper.ready(READY).await.expect("rules arrive");
    damper
}

/// A service that calls the next one and passes its answer on, status and all.
async fn relay(control_plane: &ControlPlane, service: &str, next: &Hop, next_service: &str) -> Hop {
    let damper = damper(control_plane, service).await;
    let layer = damper.client_layer(next_service).expect("a good name");
    let next: ClientService<Channel> = next.governed_channel(&layer).await;
    Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
        let (next, damper) = (next.clone(), damper.clone());
        async move {
            let answer = call(next, Request::new(request.into_inner())).await?;
            drop(damper);
            Ok(answer)
        }
    })
    .await
}

struct Chain {
    a: Hop,
    b: Hop,
    c: Hop,
    d: Hop,
}

impl Chain {
    async fn new(control_plane: &ControlPlane, d: Hop) -> Self {
        let c = relay(control_plane, "c", &d, "d").await;
        let b = relay(control_plane, "b", &c, "c").await;
        let a = relay(control_plane, "a", &b, "b").await;
        Self { a, b, c, d }
    }

    async fn request(&self) -> Result<Response<String>, Status> {
        call(self.a.channel().await, Request::new("hello".to_owned())).await
    }

    fn handled(&self) -> [u64; 4] {
        [&self.a, &self.b, &self.c, &self.d].map(Hop::handled)
    }
}

async fn failing_bottom(control_plane: &ControlPlane) -> Hop {
    let damper = damper(control_plane, "d").await;
    Hop::serve(Some(damper.server_layer()), move |_| {
        let damper = damper.clone();
        async move {
            drop(damper);
            let mut status =
                Status::with_details(Code::Unavailable, "out of stock", b"details".as_slice().into());
            status.metadata_mut().insert("x-shelf", "12".parse().expect("ASCII"));
            Err(status)
        }
    })
    .await
}

/// What reaches each handler for one request while the bottom fails.
async fn handled_per_request(control_plane: &ControlPlane) -> [u64; 4] {
    let chain = Chain::new(control_plane, failing_bottom(control_plane).await).await;
    chain.request().await.expect_err("the bottom fails");
    chain.handled()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_hop_nearest_the_fault_retries() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(FLAGS_ON)).await;
    assert_eq!(handled_per_request(&control_plane).await, [1, 1, 1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_flags_and_breaker_attempts_multiply() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(FLAGS_OFF)).await;
    assert_eq!(handled_per_request(&control_plane).await, [1, 3, 9, 27]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_without_a_rule_in_the_middle_changes_nothing() {
    let control_plane = ControlPlane::start().await;
    let off = "{ mode: off }";
    let middle = format!(
        "---\nkind: Rule\nkey: {{ caller_service: b, caller_cluster: '*', callee_service: c, callee_method: '*' }}\npolicy: {off}\n"
    );
    control_plane.apply(&format!("{}{middle}", rules(FLAGS_ON))).await;
    assert_eq!(handled_per_request(&control_plane).await, [1, 1, 1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_that_no_rule_matches_changes_nothing_either() {
    let control_plane = ControlPlane::start().await;
    let rule = |caller: &str| {
        format!(
            "kind: Rule\nkey: {{ caller_service: {caller}, caller_cluster: '*', callee_service: '*', callee_method: '*' }}\npolicy: {FLAGS_ON}\n"
        )
    };
    control_plane.apply(&format!("{}---\n{}", rule("a"), rule("c"))).await;
    assert_eq!(handled_per_request(&control_plane).await, [1, 1, 1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flag_reaches_the_top_and_the_applications_status_is_unchanged() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&rules(FLAGS_ON)).await;
    let chain = Chain::new(&control_plane, failing_bottom(&control_plane).await).await;
    let status = chain.request().await.expect_err("the bottom fails");
    assert_eq!(
        (status.code(), status.message(), status.details()),
        (Code::Unavailable, "out of stock", b"details".as_slice())
    );
    let values = |name: &str| -> Vec<String> {
        let all = status.metadata().get_all(name);
        all.iter().map(|value| value.to_str().expect("ASCII").to_owned()).collect()
    };
    assert_eq!(values("x-shelf"), ["12"]);
    assert_eq!(values("damper-no-more-retry"), ["1"], "once, by the top itself");
    assert_eq!(values("grpc-retry-pushback-ms"), ["-1"], "a client without Damper is told to stop");
}

/// Every answer of a layer that failed is lost: the layer above times out just before it would come.
#[tokio::test(flavor = "multi_thread")]
async fn with_lost_answers_hop_i_carries_at_most_i_r_less_i_less_1() {
    let control_plane = ControlPlane::start().await;
    let per_hop = [("a", 4800), ("b", 1520), ("c", 400)];
    let manifests = per_hop.map(|(caller, timeout_ms)| {
        format!(
            "kind: Rule\nkey: {{ caller_service: {caller}, caller_cluster: '*', callee_service: '*', callee_method: '*' }}\n\
             policy: {{ mode: enforce, retry_breaker: {{ enabled: false }}, retry: {{ max_attempts: 3, \
             per_attempt_timeout: {timeout_ms}ms, codes: {{ allow: [UNAVAILABLE, DEADLINE_EXCEEDED] }}, backoff: {{ none: {{}} }} }} }}\n"
        )
    });
    control_plane.apply(&manifests.join("---\n")).await;
    let bottom = damper(&control_plane, "d").await;
    let d = Hop::serve(Some(bottom.server_layer()), |_| std::future::pending()).await;
    let c = losing_relay(&control_plane, "c", &d, "d").await;
    let b = losing_relay(&control_plane, "b", &c, "c").await;
    let a = relay(&control_plane, "a", &b, "b").await;
    let chain = Chain { a, b, c, d };
    let status = chain.request().await.expect_err("the bottom does not answer");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    let [a, b, c, d] = chain.handled();
    assert_eq!((a, b), (1, 3));
    // Fewer if a slow machine cuts an attempt off before its callee has sent all of its own.
    assert!((3..=5).contains(&c) && (3..=7).contains(&d), "{:?}", chain.handled());
    drop(bottom);
}

/// A relay whose error answers never arrive: it keeps them until nobody waits any more.
async fn losing_relay(control_plane: &ControlPlane, service: &str, next: &Hop, next_service: &str) -> Hop {
    let damper = Arc::new(damper(control_plane, service).await);
    let layer = damper.client_layer(next_service).expect("a good name");
    let next = next.governed_channel(&layer).await;
    Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
        let (next, damper) = (next.clone(), Arc::clone(&damper));
        async move {
            let answer = call(next, Request::new(request.into_inner())).await;
            drop(damper);
            if answer.is_err() {
                std::future::pending::<()>().await;
            }
            answer
        }
    })
    .await
}
