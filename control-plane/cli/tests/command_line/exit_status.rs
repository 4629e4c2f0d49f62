//! The exit status of each kind of failure, and what is said with it.

use std::time::{Duration, Instant};

use crate::harness::{Serving, damper, manifest, run};

#[test]
fn wrong_call_is_a_usage_error() {
    let table: [&[&str]; 8] = [
        &[],
        &["publish"],
        &["rules", "get", "only", "three", "words"],
        &["rules", "list", "-o", "xml"],
        &["apply"],
        &["completion", "tcsh"],
        &["serve", "--listen", "nowhere"],
        &["--server", "ftp://host", "clients"],
    ];
    for args in table {
        let said = run(damper().args(args)).failed(64);
        assert!(!said.is_empty(), "{args:?}");
    }
}

#[test]
fn help_and_version_are_data() {
    for args in [["--help"], ["--version"]] {
        let printed = run(damper().args(args)).ok();
        assert!(printed.contains("damper") || printed.contains("Usage"), "{printed}");
    }
    let help = run(damper().args(["--help"])).ok();
    assert!(help.contains("Exit status") && help.contains("DAMPER_SERVER"), "{help}");
}

#[test]
fn server_that_is_not_there_is_named() {
    // No server uses this port.
    let free = "127.0.0.1:1";
    for args in [&["rules", "list"][..], &["stats"], &["clients"], &["routes"]] {
        let begun = Instant::now();
        let said = run(damper().args(args).env("DAMPER_SERVER", free)).failed(69);
        assert!(begun.elapsed() < Duration::from_secs(20), "{args:?}");
        assert!(said.contains(free) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

#[test]
fn missing_file_and_missing_rule_have_a_status_of_their_own() {
    let server = Serving::start();
    let said = server.run(&["apply", "-f", "no/such/file.yaml"]).failed(66);
    assert!(said.contains("no/such/file.yaml"), "{said}");
    let said = server.run_key(&["rules", "get"]).failed(66);
    assert!(said.contains("checkout * inventory"), "{said}");
    server.run_key(&["rules", "promote"]).failed(66);
    server.apply(&manifest("checkout", "{ mode: observe }"));
    let near = server.run(&["promote", "checkout", "default", "inventory", "a.B/C"]).failed(66);
    assert!(near.contains("there is: checkout * inventory inventory.v1.Inventory/Reserve"), "{near}");
    server.run(&["diff", "-f", "no/such/file.yaml"]).failed(2);
}

#[test]
fn wrong_revision_is_a_conflict_and_changes_nothing() {
    let server = Serving::start();
    server.apply(&manifest("checkout", "{ mode: observe }"));
    let rule = manifest("checkout", "{ mode: enforce }");
    for revision in ["0", "7"] {
        let args = ["--expected-revision", revision];
        let put = server.run_with(&[&["rules", "put", "-f", "-"][..], &args].concat(), rule.as_bytes());
        put.failed(75);
        server.run_key(&[&["rules", "promote"][..], &args].concat()).failed(75);
        server.run_key(&[&["rules", "delete"][..], &args].concat()).failed(75);
    }
    let there = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(there[0]["policy"]["mode"], "observe");
    assert_eq!(there[0]["revision"], 1);
    server.run_key(&["rules", "promote", "--expected-revision", "1"]).ok();
}
