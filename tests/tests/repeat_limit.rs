//! The callee's own limit on repeats, against a fleet of callers that each keep to their rule.

use std::process::{Command, Stdio};
use std::time::Duration;

use damper_sdk::{Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::hop::Hop;
use tonic::Status;

const CALLERS: u64 = 20;
const CALLS: u64 = 20;

const RULE: &str = "
kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: callee, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { fixed: { delay: 20ms } } }, retry_breaker: { enabled: false } }
---
";

fn guard(mode: &str) -> String {
    format!(
        "kind: Guard\nkey: {{ caller_service: '*', caller_cluster: '*', callee_service: callee, callee_method: '*' }}\n\
         ceiling: {{ repeat_limit: {{ mode: {mode}, ratio: 0.1, min: 3 }} }}\n"
    )
}

/// What a fleet did to a callee that fails every call.
#[derive(Debug, Default)]
struct Storm {
    first_sends: u64,
    repeats: u64,
    handled: u64,
    shed: u64,
    would_be_shed: u64,
}

async fn storm(mode: &str) -> Storm {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&(RULE.to_owned() + &guard(mode))).await;
    let damper =
        Damper::connect(Options::new([control_plane.url()]).service("callee")).expect("good options");
    damper.ready(Duration::from_secs(30)).await.expect("the guard arrives");
    let failing = |_| async { Err(Status::unavailable("down")) };
    let callee = Hop::serve(Some(damper.server_layer()), failing).await;

    let mut seen = Storm::default();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            Command::new(env!("CARGO_BIN_EXE_caller"))
                .args([control_plane.url(), &callee.url(), &CALLS.to_string(), "100"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a caller can be started")
        })
        .collect();
    let ended = tokio::task::spawn_blocking(|| {
        callers.into_iter().map(|caller| caller.wait_with_output().expect("it ends")).collect::<Vec<_>>()
    });
    for output in ended.await.expect("waiting does not panic") {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("numbers");
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [calls, repeats] = numbers.as_slice() else { panic!("{text:?}") };
        seen.first_sends += calls;
        seen.repeats += repeats;
    }
    seen.handled = callee.handled();
    damper.for_each_served(|_, served| {
        seen.shed += served.shed();
        seen.would_be_shed += served.would_be_shed();
    });
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_within_their_own_breakers_do_not_overrun_a_failing_callee() {
    let storm = storm("enforce").await;
    assert_eq!(storm.first_sends, CALLERS * CALLS);
    assert!(storm.handled * 100 <= storm.first_sends * 115, "{storm:?}");
    assert!(storm.shed > 0, "{storm:?}");
    assert_eq!(storm.handled + storm.shed, storm.first_sends + storm.repeats, "{storm:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observed_limit_serves_them_all_and_says_what_it_would_have_refused() {
    let storm = storm("observe").await;
    assert_eq!(storm.handled, storm.first_sends + storm.repeats, "{storm:?}");
    assert!(
        storm.handled * 100 > storm.first_sends * 115,
        "each breaker alone lets too many through: {storm:?}"
    );
    assert!(storm.shed == 0 && storm.would_be_shed > 0, "{storm:?}");
}
