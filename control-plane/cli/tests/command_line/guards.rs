//! Guards, from the command line to a service and back.

use std::time::{Duration, Instant};

use damper_proto::v1;
use damper_proto::v1::rules_client::RulesClient;
use damper_sdk::{Damper, Options};
use tonic::transport::Channel;

use crate::harness::{Serving, manifest, text};

const KEY: [&str; 4] = ["*", "*", "inventory", "*"];
const ENFORCE_5: &str = "{ mode: enforce, retry: { max_attempts: 5 } }";
const CEILING_5: &str = "5 is more than 3, the ceiling of guard \"* * inventory *\" (owner team-inventory)";

fn guard(ceiling: &str) -> String {
    format!(
        "kind: Guard\nkey: {{ caller_service: \"*\", caller_cluster: \"*\", callee_service: inventory, \
         callee_method: \"*\" }}\nceiling: {ceiling}\nowner: team-inventory\n"
    )
}

fn run_key(server: &Serving, args: &[&str]) -> crate::harness::Ended {
    server.run(&[args, &KEY].concat())
}

#[test]
fn guard_is_put_shown_listed_and_deleted() {
    let server = Serving::start();
    let file = server.file("guard.yaml", guard("{ max_attempts: 3, hedge: forbid }"));
    let tried = server.run(&["guards", "put", "-f", text(&file), "--dry-run"]);
    assert!(tried.err.contains("warning: guard * * inventory *: no known route"), "{tried:?}");
    assert!(tried.err.contains("dry run"), "{tried:?}");
    tried.ok();
    assert_eq!(server.run(&["guards", "list", "-o", "json"]).json().as_array().unwrap().len(), 0);
    let put = server.run(&["guards", "put", "-f", text(&file), "--reason", "peak season"]).ok();
    assert_eq!(put, "guard * * inventory * put\n");
    let again = server.run(&["guards", "put", "-f", text(&file)]).ok();
    assert_eq!(again, "guard * * inventory * unchanged\n");

    let got = run_key(&server, &["guards", "get"]).ok();
    for part in ["CEILING", "attempts<=3, no hedges", "team-inventory", "kim"] {
        assert!(got.contains(part), "{part}: {got}");
    }
    for (args, count) in
        [(&["--callee", "inventory"][..], 1), (&["--callee", "x"], 0), (&["--text", "inv"], 1)]
    {
        let listed = server.run(&[&["guards", "list", "-o", "json"], args].concat()).json();
        assert_eq!(listed.as_array().unwrap().len(), count, "{args:?}");
    }
    for format in ["yaml", "json"] {
        let listed = server.run(&["guards", "list", "-o", format]).ok();
        let applied = server.run_with(&["apply", "-f", "-"], listed.as_bytes());
        assert!(applied.err.contains("0 created, 0 updated, 1 unchanged"), "{applied:?}");
    }

    run_key(&server, &["guards", "delete", "--dry-run"]).ok();
    let stale = run_key(&server, &["guards", "delete", "--expected-revision", "7"]).failed(75);
    assert!(stale.contains("guard * * inventory * is at revision 1 now, changed by kim"), "{stale}");
    assert_eq!(run_key(&server, &["guards", "delete"]).ok(), "guard * * inventory * deleted\n");
    run_key(&server, &["guards", "delete"]).failed(66);
    run_key(&server, &["guards", "get"]).failed(66);
}

#[test]
fn change_of_a_guard_made_in_between_is_not_lost() {
    let server = Serving::start();
    server.apply(&guard("{ max_attempts: 3 }"));
    let read = run_key(&server, &["guards", "get", "-o", "yaml"]).ok();
    server.apply(&guard("{ max_attempts: 4 }"));
    let mine = read.replace("max_attempts: 3", "max_attempts: 2");
    for command in [&["apply", "-f", "-"][..], &["guards", "put", "-f", "-"]] {
        let said = server.run_with(command, mine.as_bytes()).failed(75);
        assert!(said.contains("guard * * inventory * is at revision 2 now"), "{said}");
    }
    server.run_with(&["guards", "put", "--overwrite", "-f", "-"], mine.as_bytes()).ok();
    let there = run_key(&server, &["guards", "get", "-o", "json"]).json();
    assert_eq!(there[0]["ceiling"]["max_attempts"], 2);
}

#[test]
fn rule_and_guard_of_one_apply_are_checked_together() {
    let server = Serving::start();
    let tight = format!("{}---\n{}", manifest("checkout", ENFORCE_5), guard("{ max_attempts: 3 }"));
    let file = server.file("both.yaml", &tight);
    let said = server.run(&["apply", "-f", text(&file)]).failed(65);
    assert!(said.contains("both.yaml:1 (document 1): policy.retry.max_attempts: "), "{said}");
    assert!(said.contains(CEILING_5), "{said}");
    assert_eq!(server.rules(), 0);

    let file = server.file("both.yaml", tight.replace("max_attempts: 3", "max_attempts: 5"));
    let applied = server.run(&["apply", "-f", text(&file)]);
    assert!(applied.err.contains("revision 1: 2 created"), "{applied:?}");
    let table = applied.ok();
    assert!(table.lines().any(|line| line.starts_with("created  rule ")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("created  guard ")), "{table}");
    let bad = server.file("bad.yaml", guard("{ max_attempts: 11, hedg: forbid }"));
    let said = server.run(&["guards", "put", "-f", text(&bad)]).failed(65);
    assert!(said.contains("ceiling.hedg"), "{said}");
}

#[test]
fn diff_shows_changes_of_a_guard() {
    let server = Serving::start();
    let file = server.file("guard.yaml", guard("{ max_attempts: 3 }"));
    let new = server.run(&["diff", "-f", text(&file)]);
    assert!(new.out.starts_with("+ guard * * inventory *  ("), "{new:?}");
    new.failed(1);
    server.run(&["apply", "-f", text(&file)]).ok();
    assert_eq!(server.run(&["diff", "-f", text(&file)]).ok(), "");
    server.file("guard.yaml", guard("{ max_attempts: 2, repeat_limit: {} }"));
    let differs = server.run(&["diff", "-f", text(&file)]);
    assert!(differs.out.contains("~ guard * * inventory *"), "{differs:?}");
    assert!(differs.out.contains("    ceiling.max_attempts: 3 -> 2\n"), "{differs:?}");
    assert!(differs.out.contains("    ceiling.repeat_limit.mode: unset -> observe\n"), "{differs:?}");
    differs.failed(1);
}

#[test]
fn each_kind_has_its_own_put() {
    let server = Serving::start();
    let (rule, guard) = (manifest("a", ENFORCE_5), guard("{ max_attempts: 3 }"));
    let said = server.run_with(&["rules", "put", "-f", "-"], guard.as_bytes()).failed(65);
    assert!(said.contains("is a guard; use damper guards put"), "{said}");
    let said = server.run_with(&["guards", "put", "-f", "-"], rule.as_bytes()).failed(65);
    assert!(said.contains("is a rule; use damper rules put"), "{said}");
}

#[test]
fn explain_shows_cuts_and_owner_of_a_guard() {
    let server = Serving::start();
    server.apply(&manifest("checkout", ENFORCE_5));
    let file = server.file("guard.yaml", guard("{ max_attempts: 3 }"));
    let put = server.run(&["guards", "put", "-f", text(&file)]);
    let rule = "checkout * inventory inventory.v1.Inventory/Reserve";
    let warning = format!("warning guard_cuts {rule} policy.retry.max_attempts: {CEILING_5}; cut everywhere");
    assert!(put.err.contains(&warning), "{put:?}");
    put.ok();
    let route = ["explain", "checkout", "online", "inventory", "inventory.v1.Inventory/Reserve"];
    let told = server.run(&route).ok();
    let cut = "cut     policy.retry.max_attempts: 5 is more than 3, the ceiling of guard * * inventory * \
               (owner team-inventory)";
    for part in [cut, "at most 3 attempts per call", "and the limits of guards", "max_attempts: 3"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let json = server.run(&[&route[..], &["-o", "json"]].concat()).json();
    assert_eq!(json["winner"]["policy"]["retry"]["max_attempts"], 5);
    assert_eq!(json["effective"]["retry"]["max_attempts"], 3);
    assert_eq!(json["cuts"][0]["owner"], "team-inventory");
}

/// Waits until the one connected service runs on a revision.
fn until_applied(server: &Serving, revision: u64) {
    let begun = Instant::now();
    loop {
        let clients = server.run(&["clients", "-o", "json"]).json();
        let client = &clients["clients"][0];
        if client["acknowledged_revision"].as_u64().is_some_and(|applied| applied >= revision) {
            assert!(client["refused"].is_null(), "{clients}");
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{clients}");
    }
}

/// Calls somebody who is not there, and counts how often that was tried.
async fn attempts_of_one_call(damper: &Damper) -> u64 {
    let attempts = || {
        let mut sum = 0;
        damper.for_each_route(|_, _, counters| sum += counters.attempts());
        sum
    };
    let before = attempts();
    let channel = Channel::from_static("http://127.0.0.1:1").connect_lazy();
    let channel = damper.client_layer("inventory").unwrap().layer(channel);
    let refused = RulesClient::new(channel).get_rule(v1::GetRuleRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    attempts() - before
}

#[tokio::test(flavor = "multi_thread")]
async fn guard_limits_a_service_until_it_is_deleted() {
    let server = Serving::start();
    let rule = "kind: Rule\nkey: { caller_service: checkout, caller_cluster: '*', callee_service: inventory, \
                callee_method: '*' }\npolicy: { mode: enforce, retry_breaker: { enabled: false }, \
                retry: { max_attempts: 5, backoff: { none: {} } } }\n";
    server.apply(rule);
    let options = Options::new([server.address.clone()]).service("checkout").environment(|_| None);
    let damper = Damper::connect(options).unwrap();
    damper.ready(Duration::from_secs(30)).await.unwrap();
    assert_eq!(attempts_of_one_call(&damper).await, 5);

    server.apply(&guard("{ max_attempts: 2 }"));
    until_applied(&server, 2);
    assert_eq!(attempts_of_one_call(&damper).await, 2);

    run_key(&server, &["guards", "delete"]).ok();
    until_applied(&server, 3);
    assert_eq!(attempts_of_one_call(&damper).await, 5);
    damper.shutdown().await;
}
