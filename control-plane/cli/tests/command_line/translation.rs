//! `damper rules to` and `rules from`: documents on stdout, the report on stderr, and the exit status.

use crate::harness::{Serving, damper, manifest, run, text};

/// Every caller, quoted for YAML.
const ANY: &str = "'*'";
const RETRIED: &str =
    "{ mode: enforce, timeout: 2s, retry: { max_attempts: 3, codes: { allow: [UNAVAILABLE] } } }";
const PLAIN: &str = "{ mode: enforce, timeout: 2s }";

/// `damper rules` with these arguments and a file of this text, without a server.
fn offline(args: &[&str], input: &str) -> crate::harness::Ended {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.yaml");
    std::fs::write(&file, input).unwrap();
    let mut command = damper();
    command.arg("rules").args(args).args(["-f", text(&file)]).env("DAMPER_SERVER", "http://127.0.0.1:1");
    run(&mut command)
}

#[test]
fn losses_are_reported_next_to_the_documents() {
    let rule = manifest(ANY, RETRIED);
    let ended = offline(&["to", "istio"], &rule);
    assert!(ended.out.starts_with("---\n") && ended.out.contains("kind: VirtualService"), "{ended:?}");
    assert!(ended.err.contains("  lost    policy.retry_breaker"), "{ended:?}");
    assert!(ended.err.contains("  kept    ") && ended.err.contains("policy.timeout"), "{ended:?}");
    ended.failed(1);
    offline(&["to", "istio", "--accept", "changed"], &rule).failed(1);
    offline(&["to", "istio", "--accept", "lost"], &rule).ok();
}

#[test]
fn report_is_json_on_request() {
    let ended = offline(&["to", "istio", "-o", "json", "--accept", "lost"], &manifest(ANY, RETRIED));
    let report: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(report["outcome"], "lost");
    assert_eq!(report["rules"][0]["rule"], "* * inventory inventory.v1.Inventory/Reserve");
    assert_eq!(ended.json()["kind"], "VirtualService");
}

#[test]
fn rule_that_its_target_keeps_ends_well() {
    let ended = offline(&["to", "grpc-service-config"], &manifest(ANY, PLAIN));
    assert_eq!(ended.json()["methodConfig"][0]["timeout"], "2s");
}

#[test]
fn language_decides_about_hedging() {
    let rule = manifest(ANY, "{ mode: enforce, hedge: { delay: { fixed: 5ms }, max_hedges: 1 } }");
    let to = ["to", "grpc-service-config", "--accept", "lost", "--language"];
    let hedging = |language| {
        let json = offline(&[&to[..], &[language]].concat(), &rule).json();
        json["methodConfig"][0].get("hedgingPolicy").is_some()
    };
    assert!(hedging("java"));
    assert!(!hedging("go"));
}

#[test]
fn callers_that_differ_must_be_chosen() {
    let rules = format!("{}---\n{}", manifest("checkout", PLAIN), manifest("till", RETRIED));
    let refused = offline(&["to", "grpc-service-config"], &rules).failed(65);
    assert!(refused.contains("add --caller"), "{refused}");
    let chosen = offline(&["to", "grpc-service-config", "--caller", "checkout"], &rules).json();
    assert!(chosen["methodConfig"][0].get("retryPolicy").is_none(), "{chosen}");
    let labels = ["to", "istio", "--caller-label", "app", "--accept", "lost"];
    let routes = offline(&labels, &rules).ok();
    assert!(routes.contains("app: checkout") && routes.contains("app: till"), "{routes}");
}

#[test]
fn option_of_another_target_is_refused() {
    let refused = offline(&["to", "istio", "--port", "80"], &manifest(ANY, PLAIN)).failed(64);
    assert!(refused.contains("--port: is only for linkerd and gateway-api"), "{refused}");
    let refused = offline(&["to", "kitex", "--chain-flag"], &manifest(ANY, RETRIED)).failed(64);
    assert!(refused.contains("--chain-flag: is only for istio and envoy"), "{refused}");
    offline(&["to", "istio", "--callee", "stock"], &manifest(ANY, PLAIN)).failed(66);
}

#[test]
fn check_finds_what_is_deployed_otherwise() {
    let server = Serving::start();
    server.apply(&manifest(ANY, RETRIED));
    let deployed = server.run(&["rules", "to", "istio", "--accept", "lost"]).ok();
    let live = server.file("live.yaml", &deployed);
    let check = ["rules", "to", "istio", "--check", "-f", text(&live)];
    assert_eq!(server.run(&check).ok(), "");
    server.file("live.yaml", deployed.replace("attempts: 2", "attempts: 5"));
    let ended = server.run(&check);
    assert!(ended.out.contains("retries.attempts: would be 2, is 5"), "{ended:?}");
    ended.failed(1);
}

#[test]
fn unsaid_retries_of_istio_become_an_observed_rule() {
    let route =
        "kind: VirtualService\nspec:\n  hosts: [inventory]\n  http:\n  - timeout: 2s\n    route: [{}]\n";
    let ended = offline(&["from", "istio"], route);
    assert!(ended.err.contains("spec.http[0].retries: unsaid: Istio retries 2 times"), "{ended:?}");
    assert!(ended.out.contains("mode: observe") && ended.out.contains("max_attempts: 3"), "{ended:?}");
    let server = Serving::start();
    server.apply(&ended.ok());
    assert_eq!(server.rules(), 1);
}

#[test]
fn bad_source_is_refused_with_its_place() {
    let refused = offline(&["from", "grpc-service-config"], "{ \"methodConfig\": [] }").failed(65);
    assert!(refused.contains("add --callee") && refused.contains("in.yaml:1"), "{refused}");
    offline(&["from", "istio"], "kind: Service\n").failed(65);
}
