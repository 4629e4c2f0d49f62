//! Queues on the command line.

use crate::harness::{Serving, damper, manifest, run, text};

fn queue(name: &str, settings: &str) -> String {
    format!("kind: Queue\nname: {name}\nowner: team-orders\npolicy: {{ mode: enforce }}\n{settings}\n")
}

#[test]
fn queue_is_put_shown_listed_and_deleted() {
    let server = Serving::start();
    let file = server.file("queue.yaml", queue("stock-later", "workers: [orders]"));
    let tried = server.run(&["queues", "put", "-f", text(&file), "--dry-run"]);
    assert!(tried.err.contains("dry run"), "{tried:?}");
    assert_eq!(tried.ok(), "queue stock-later put\n");
    assert_eq!(server.run(&["queues", "list", "-o", "json"]).json().as_array().unwrap().len(), 0);
    let put = server.run(&["queues", "put", "-f", text(&file), "--reason", "later"]).ok();
    assert_eq!(put, "queue stock-later put\n");
    let again = server.run(&["queues", "put", "-f", text(&file)]).ok();
    assert_eq!(again, "queue stock-later unchanged\n");

    let got = server.run(&["queues", "get", "stock-later"]).ok();
    for part in ["ATTEMPTS", "enforce", "25", "orders", "team-orders", "kim"] {
        assert!(got.contains(part), "{part}: {got}");
    }
    for (text, count) in [("stock", 1), ("team", 1), ("x", 0)] {
        let listed = server.run(&["queues", "list", "-o", "json", "--text", text]).json();
        assert_eq!(listed.as_array().unwrap().len(), count, "{text}");
    }
    for format in ["yaml", "json"] {
        let listed = server.run(&["queues", "list", "-o", format]).ok();
        let applied = server.run_with(&["apply", "-f", "-"], listed.as_bytes());
        assert!(applied.err.contains("0 created, 0 updated, 1 unchanged"), "{applied:?}");
    }
    server.run(&["queues", "delete", "stock-later", "--dry-run"]).ok();
    let stale = server.run(&["queues", "delete", "stock-later", "--expected-revision", "7"]).failed(75);
    assert!(stale.contains("queue stock-later is at revision 1 now, changed by kim"), "{stale}");
    assert_eq!(server.run(&["queues", "delete", "stock-later"]).ok(), "queue stock-later deleted\n");
    server.run(&["queues", "delete", "stock-later"]).failed(66);
    server.run(&["queues", "get", "stock-later"]).failed(66);
    server.run(&["queues", "get", "Stock"]).failed(65);
}

#[test]
fn queue_is_paused_with_a_reason_and_resumed() {
    let server = Serving::start();
    server.apply(&queue("stock-later", "workers: [orders]"));
    server.run(&["queues", "pause", "stock-later"]).failed(64);
    server.run(&["queues", "pause", "other", "--reason", "x"]).failed(66);
    let paused = server.run(&["queues", "pause", "stock-later", "--reason", "incident 7"]);
    assert!(paused.err.contains("warning owned_by_another stock-later owner: "), "{paused:?}");
    assert_eq!(paused.ok(), "queue stock-later paused\n");
    let there = &server.run(&["queues", "get", "stock-later", "-o", "json"]).json()[0];
    assert_eq!((&there["paused"], &there["workers"][0]), (&"incident 7".into(), &"orders".into()));
    let history = server.run(&["history", "--kind", "queue"]).ok();
    assert!(history.contains("QUEUE") && history.contains("incident 7"), "{history}");
    let stale = ["queues", "resume", "stock-later", "--expected-revision", "1"];
    server.run(&stale).failed(75);
    let resumed = server.run(&["queues", "resume", "stock-later"]).ok();
    assert_eq!(resumed, "queue stock-later resumed\n");
    assert_eq!(server.run(&["queues", "resume", "stock-later"]).ok(), "queue stock-later unchanged\n");
    let there = &server.run(&["queues", "get", "stock-later", "-o", "json"]).json()[0];
    assert!(there["paused"].is_null(), "{there}");
}

#[test]
fn set_with_a_queue_is_applied_compared_and_pruned() {
    let server = Serving::start();
    let rule = manifest("checkout", "{ mode: observe }");
    let both = |settings: &str| format!("{rule}---\n{}", queue("stock-later", settings));
    let file = server.file("set.yaml", both(""));
    let args = ["-f", text(&file), "--owner", "team-orders"];
    let new = server.run(&[&["diff"], &args[..]].concat());
    assert!(new.out.contains("+ queue stock-later  ("), "{new:?}");
    assert!(new.out.contains("    policy.retry.max_attempts: 25\n"), "{new:?}");
    new.failed(1);
    let applied = server.run(&[&["apply"], &args[..]].concat());
    assert!(applied.err.contains("revision 1: 2 created"), "{applied:?}");
    let table = applied.ok();
    assert!(table.lines().next().unwrap().contains("METHOD"), "{table}");
    assert!(
        table.lines().any(|line| line.starts_with("created  queue ") && line.contains("stock-later")),
        "{table}"
    );
    assert_eq!(server.run(&[&["diff"], &args[..]].concat()).ok(), "");

    server.file("set.yaml", both("rate: 5"));
    let differs = server.run(&[&["diff", "-o", "json"], &args[..]].concat());
    let found: serde_json::Value = serde_json::from_str(&differs.out).unwrap();
    assert_eq!((&found[0]["kind"], &found[0]["queue"]), (&"queue".into(), &"stock-later".into()));
    assert_eq!(found[0]["fields"][0]["path"], "rate");
    server.run(&[&["apply"], &args[..]].concat()).ok();
    let others = server
        .run_with(
            &["apply", "-f", "-", "--owner", "team-b"],
            queue("stock-later", "").replace("owner: team-orders\n", "").as_bytes(),
        )
        .failed(75);
    assert!(others.contains("queue stock-later (owner team-orders): rate: 5.0 -> unset"), "{others}");

    server.file("set.yaml", &rule);
    let gone = server.run(&[&["diff", "--prune"], &args[..]].concat());
    assert!(gone.out.contains("- queue stock-later\n"), "{gone:?}");
    gone.failed(1);
    let applied = server.run(&[&["apply", "--prune"], &args[..]].concat());
    assert!(applied.err.contains("1 unchanged, 1 deleted"), "{applied:?}");
    server.run(&["queues", "get", "stock-later"]).failed(66);
    let back = server.run(&["rollback", "--queue", "stock-later", "--to", "2"]);
    assert!(back.err.contains("1 created"), "{back:?}");
    back.ok();
    assert_eq!(server.run(&["queues", "get", "stock-later", "-o", "json"]).json()[0]["rate"], 5.0);
    let differs = server.run(&["history", "diff", "1", "--text", "stock-later"]);
    assert!(differs.out.contains("~ queue stock-later\n    rate: unset -> 5.0\n"), "{differs:?}");
}

#[test]
fn bad_queues_are_refused_by_file_and_line() {
    let server = Serving::start();
    let file = server.file("bad.yaml", queue("stock-later", "lease: 1s"));
    let refused = server.run(&["apply", "-f", text(&file)]).failed(65);
    assert!(
        refused.contains("bad.yaml:5 (document 1): lease: must be between 5s and 1h, not 1s"),
        "{refused}"
    );
    let twice = format!("{}---\n{}", queue("a", ""), queue("a", ""));
    let refused = server.run_with(&["apply", "-f", "-"], twice.as_bytes()).failed(65);
    assert!(refused.contains("name: queue a is also the name at standard input:1"), "{refused}");
    let refused = server.run_with(&["rules", "put", "-f", "-"], queue("a", "").as_bytes()).failed(65);
    assert!(refused.contains("is a queue; use damper queues put"), "{refused}");
}

#[test]
fn queues_are_exported_and_imported() {
    let server = Serving::start();
    server.apply(&queue("stock-later", "paused: incident 7\nrate: 0.5"));
    let exported = server.run(&["export"]);
    assert!(exported.err.contains("revision 1: 1 manifest"), "{exported:?}");
    let exported = exported.ok();
    let other = Serving::start();
    other.apply(&queue("old", ""));
    let import = ["import", "-f", "-", "--reason", "restore"];
    let refused = other.run_with(&import, exported.as_bytes()).failed(75);
    assert!(refused.contains("0 rules, 0 guards and 1 queue"), "{refused}");
    other.run_with(&[&import[..], &["--replace"]].concat(), exported.as_bytes()).ok();
    let rest = |text: String| text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rest(other.run(&["export"]).ok()), rest(exported));
}

#[test]
fn lint_finds_a_queue_that_gives_up_early() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queue.yaml");
    let early = "policy: { mode: enforce, retry: { max_attempts: 1 } }\n";
    std::fs::write(&file, format!("kind: Queue\nname: stock-later\n{early}")).unwrap();
    let found = run(damper().args(["lint", "-f", text(&file)]));
    let line = "queue.yaml:3: warning queue_gives_up_early queue stock-later policy.retry.max_attempts: ";
    assert!(found.out.contains(line), "{found:?}");
    found.failed(79);
}
