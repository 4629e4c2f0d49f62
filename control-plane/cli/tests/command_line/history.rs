//! History, rollback and the audit log as an operator has them.

use crate::harness::{KEY, Serving, manifest, run};

const GUARD_KEY: [&str; 4] = ["*", "*", "inventory", "*"];
const OBSERVE: &str = "{ mode: observe, retry: { max_attempts: 3 } }";
const ENFORCE: &str = "{ mode: enforce, retry: { max_attempts: 5 } }";

/// Four revisions: a rule, another version of it, a guard with a rule of another caller, the rule removed.
fn serving_four_revisions() -> Serving {
    let server = Serving::start();
    server.apply(&manifest("checkout", OBSERVE));
    let rule = manifest("checkout", ENFORCE);
    server.run_with(&["rules", "put", "-f", "-", "--reason", "peak season"], rule.as_bytes()).ok();
    let guard = "kind: Guard\nkey: { caller_service: \"*\", caller_cluster: \"*\", callee_service: inventory, \
                 callee_method: \"*\" }\nceiling: { max_attempts: 6 }\n";
    server.apply(&format!("{}---\n{guard}", manifest("batch", OBSERVE)));
    let mut delete = server.command(&[&["rules", "delete"][..], &KEY].concat());
    run(delete.env("DAMPER_AUTHOR", "ann")).ok();
    server
}

fn revisions(listed: &serde_json::Value) -> Vec<u64> {
    let changes = listed["changes"].as_array().cloned().unwrap_or_default();
    changes.iter().map(|change| change["revision"].as_u64().unwrap()).collect()
}

#[test]
fn history_lists_author_change_and_reason() {
    let server = serving_four_revisions();
    let table = server.run(&["history"]).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 1 + 5, "{table}");
    let key = "checkout * inventory inventory.v1.Inventory/Reserve";
    assert_eq!(rows[1][2..].join(" "), format!("ann deleted rule {key} - -"));
    assert!(rows[4][2..].join(" ").ends_with(&format!("updated rule {key} - peak season")), "{table}");

    let told = |args: &[&str]| revisions(&server.run(&[&["history", "-o", "json"], args].concat()).json());
    assert_eq!(told(&KEY), [4, 2, 1]);
    assert_eq!(told(&["--limit", "2"]), [4, 3]);
    assert_eq!(told(&["--by", "ann"]), [4]);
    assert_eq!(told(&["--kind", "guard"]), [3]);
    assert_eq!(told(&["--caller", "batch"]), [3]);
    assert_eq!(told(&["--min-revision", "2", "--max-revision", "3"]), [3, 2]);
    assert_eq!(told(&["--since", "1h"]), [4, 3, 2, 1]);
    assert_eq!(told(&["--until", "1h"]), [0; 0]);
    let second = server.run(&["history", "-o", "json"]).json()["changes"][2].clone();
    assert_eq!(second["reason"], "peak season");
    let attempts = |side: &str| second["objects"][0][side]["rule"]["policy"]["retry"]["max_attempts"].clone();
    assert_eq!((attempts("before"), attempts("after")), (3.into(), 5.into()));
    assert!(server.run(&["history", "-o", "yaml"]).ok().contains("reason: peak season"));
    let narrowed = server.run(&["history", "--kind", "guard"]);
    assert!(narrowed.err.contains("revision 3: 1 of 2 changed resources shown"), "{narrowed:?}");

    server.run(&["history", "checkout", "*"]).failed(64);
    server.run(&["history", "--limit", "0"]).failed(64);
    server.run(&["history", "--since", "yesterday"]).failed(64);
    server.run(&["history", "a b", "*", "c", "p.S/M"]).failed(65);
    server.run(&["history", "--min-revision", "3", "--max-revision", "2"]).failed(65);
}

#[test]
fn history_diff_shows_settings_and_ends_as_diff_does() {
    let server = serving_four_revisions();
    let changed = server.run(&["history", "diff", "1", "2"]);
    let expected = "~ checkout * inventory inventory.v1.Inventory/Reserve\n    policy.mode: observe -> enforce\n    \
                    policy.retry.max_attempts: 3 -> 5\n";
    assert_eq!(changed.out, expected);
    changed.failed(1);
    let since = server.run(&["history", "diff", "2"]);
    for part in ["+ batch * inventory", "- checkout * inventory", "+ guard * * inventory *"] {
        assert!(since.out.contains(part), "{part}: {since:?}");
    }
    since.failed(1);
    let narrowed = server.run(&["history", "diff", "2", "--caller", "batch", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&narrowed.out).unwrap();
    assert_eq!((told.as_array().unwrap().len(), &told[0]["change"]), (1, &"created".into()));
    assert_eq!(server.run(&["history", "diff", "2", "2"]).ok(), "");
    let future = server.run(&["history", "diff", "2", "9"]).failed(2);
    assert!(future.contains("to_revision: revision 9 does not exist yet; the newest is 4"), "{future}");
}

#[test]
fn rollback_brings_a_rule_or_guard_back() {
    let server = serving_four_revisions();
    let tried = [&["rollback", "--to", "2", "--dry-run"][..], &KEY].concat();
    let tried = server.run(&tried);
    assert!(tried.err.contains("1 created") && tried.err.contains("dry run"), "{tried:?}");
    let done = server.run_key(&["rollback", "--to", "2"]);
    assert!(done.err.contains("revision 5: 1 created, 0 updated, 0 unchanged"), "{done:?}");
    assert!(done.ok().contains("created  rule  checkout"));
    assert_eq!(server.run_key(&["rules", "get", "-o", "json"]).json()[0]["policy"]["mode"], "enforce");

    let stale = server.run_key(&["rollback", "--to", "1", "--expected-revision", "2"]).failed(75);
    assert!(stale.contains("is at revision 5 now, changed by kim"), "{stale}");
    let guard = [&["rollback", "--to", "0", "--guard"][..], &GUARD_KEY].concat();
    let gone = server.run(&guard);
    assert!(gone.err.contains("revision 6: 0 created, 0 updated, 0 unchanged, 1 deleted"), "{gone:?}");
    server.run(&guard).failed(66);
    server.run(&["rollback", "--to", "1"]).failed(64);
    server.run_key(&["rollback"]).failed(64);
}

#[test]
fn rollback_of_everything_needs_a_reason() {
    let server = serving_four_revisions();
    let before = server.run(&["rules", "list", "-o", "json"]).json().as_array().unwrap().len();
    assert_eq!(before, 1);
    let said = server.run(&["rollback", "--all", "--to", "2"]).failed(64);
    assert!(said.contains("--reason"), "{said}");
    server.run_key(&["rollback", "--all", "--to", "2"]).failed(64);
    let back = |more: &[&str]| {
        server.run(&[&["rollback", "--all", "--to", "2", "--reason", "incident 7"], more].concat())
    };
    let stale = back(&["--expected-revision", "3"]).failed(75);
    assert!(stale.contains("it is at revision 4"), "{stale}");
    let done = back(&["--expected-revision", "4"]);
    assert!(done.err.contains("revision 5: 1 created, 0 updated, 0 unchanged, 2 deleted"), "{done:?}");
    done.ok();
    assert_eq!(server.run(&["history", "diff", "2"]).ok(), "");
    assert_eq!(server.run(&["history", "-o", "json"]).json()["changes"][0]["reason"], "incident 7");
    let nothing = back(&[]);
    assert!(nothing.err.contains("revision 5: 0 created, 0 updated, 0 unchanged"), "{nothing:?}");
}

#[test]
fn audit_log_is_a_line_of_json_for_each_rule_and_guard() {
    let server = serving_four_revisions();
    let lines = |args: &[&str]| -> Vec<serde_json::Value> {
        let out = server.run(&[&["audit", "export"], args].concat()).ok();
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = lines(&[]);
    let told: Vec<u64> = all.iter().map(|line| line["revision"].as_u64().unwrap()).collect();
    assert_eq!(told, [1, 2, 3, 3, 4]);
    assert_eq!(all[4]["author"], "ann");
    assert_eq!(all[4]["objects"][0]["key"]["rule"]["caller_service"], "checkout");
    assert!(all[4]["objects"][0]["after"].is_null());
    assert!(all[0]["at"].as_str().unwrap().ends_with('Z'), "{}", all[0]);
    assert_eq!(lines(&["--kind", "guard"]).len(), 1);
    assert_eq!(lines(&KEY).len(), 3);
}
