//! What each command does and prints.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use crate::harness::{KEY, Serving, damper, manifest, run, text};

const OBSERVE: &str = "{ mode: observe, retry: { max_attempts: 3 } }";

#[test]
fn rule_is_put_shown_promoted_and_deleted() {
    let server = Serving::start();
    let file = server.file("rule.yaml", manifest("checkout", OBSERVE));
    let put = server.run(&["rules", "put", "-f", text(&file), "--reason", "first try"]);
    assert!(put.err.contains("warning: checkout * inventory"), "{put:?}");
    assert!(put.err.contains("revision 1"), "{put:?}");
    put.ok();

    let got = server.run_key(&["rules", "get"]).ok();
    assert!(got.starts_with("CALLER") && got.contains(" observe ") && got.contains("kim"), "{got}");
    let promoted = server.run_key(&["rules", "promote"]).ok();
    assert!(promoted.contains("observe -> enforce"), "{promoted}");
    let got = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(got[0]["policy"]["mode"], "enforce");
    assert_eq!(got[0]["policy"]["retry"]["max_attempts"], 3);
    let off = server.run_key(&["rules", "promote", "--to", "off", "-o", "json"]).json();
    assert_eq!(off["rule"]["policy"]["mode"], "off");

    server.run_key(&["rules", "delete"]).ok();
    assert_eq!(server.rules(), 0);
    server.run_key(&["rules", "delete"]).failed(66);
    server.run_key(&["rules", "get"]).failed(66);
}

#[test]
fn applied_rules_do_not_differ_until_they_are_changed() {
    let server = Serving::start();
    let both = format!("{}---\n{}", manifest("checkout", OBSERVE), manifest("'*'", "{ mode: off }"));
    let file = server.file("rules.yaml", &both);
    let file = text(&file);
    let new = server.run(&["diff", "-f", file]);
    assert!(new.out.contains("+ checkout * inventory"), "{new:?}");
    new.failed(1);

    let applied = server.run(&["apply", "-f", file]);
    assert!(applied.err.contains("2 created, 0 updated, 0 unchanged"), "{applied:?}");
    let table = applied.ok();
    assert_eq!(table.lines().filter(|line| line.starts_with("created")).count(), 2, "{table}");
    assert_eq!(server.run(&["diff", "-f", file]).ok(), "");
    let again = server.run(&["apply", "-f", file]);
    assert!(again.err.contains("0 created, 0 updated, 2 unchanged"), "{again:?}");

    // A default that is written out is no difference; another value is, and only that.
    server.file(
        "rules.yaml",
        both.replace("max_attempts: 3", "max_attempts: 3, codes: { allow: [UNAVAILABLE] }"),
    );
    server.run(&["diff", "-f", file]).ok();
    server.file("rules.yaml", both.replace("max_attempts: 3", "max_attempts: 5"));
    let differs = server.run(&["diff", "-f", file]);
    assert!(differs.out.contains("    policy.retry.max_attempts: 3 -> 5\n"), "{differs:?}");
    assert_eq!(differs.out.lines().count(), 2, "{differs:?}");
    assert!(!differs.out.contains('\x1b'), "{differs:?}");
    differs.failed(1);
    let json = server.run(&["diff", "-f", file, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json[0]["fields"][0]["path"], "policy.retry.max_attempts");
}

#[test]
fn list_prints_what_apply_reads() {
    let server = Serving::start();
    server.apply(&format!("{}---\n{}", manifest("a", OBSERVE), manifest("b", "{ mode: enforce }")));
    for format in ["yaml", "json"] {
        let listed = server.run(&["rules", "list", "-o", format]).ok();
        let applied = server.run_with(&["apply", "-f", "-"], listed.as_bytes());
        assert!(applied.err.contains("0 created, 0 updated, 2 unchanged"), "{applied:?}");
    }
}

#[test]
fn list_narrows_by_each_part() {
    let server = Serving::start();
    server.apply(&format!("{}---\n{}", manifest("a", OBSERVE), manifest("'*'", "{ mode: enforce }")));
    let count = |args: &[&str]| {
        let listed = server.run(&[&["rules", "list", "-o", "json"], args].concat()).json();
        listed.as_array().unwrap().len()
    };
    let table: [(&[&str], usize); 8] = [
        (&[], 2),
        (&["--caller", "a"], 1),
        (&["--caller", "*"], 1),
        (&["--callee", "inventory"], 2),
        (&["--method", "inventory.v1.Inventory/Other"], 0),
        (&["--mode", "enforce"], 1),
        (&["--text", "Reser"], 2),
        (&["--text", "nothing like it"], 0),
    ];
    for (args, expected) in table {
        assert_eq!(count(args), expected, "{args:?}");
    }
}

#[test]
fn dry_run_answers_and_changes_nothing() {
    let server = Serving::start();
    let rule = manifest("checkout", OBSERVE);
    let tried = server.run_with(&["apply", "-f", "-", "--dry-run"], rule.as_bytes());
    assert!(tried.err.contains("1 created") && tried.err.contains("dry run"), "{tried:?}");
    server.run_with(&["rules", "put", "-f", "-", "--dry-run"], rule.as_bytes()).ok();
    assert_eq!(server.rules(), 0);
    server.apply(&rule);
    let more = "more on this hop: at most 3 attempts per call; 1.02 per call on average while \
                retries fail, plus 1 retry per 10 s in each process (was: 1 attempt per call)";
    let promoted = server.run_key(&["rules", "promote", "--dry-run"]);
    assert!(promoted.err.contains(more), "{promoted:?}");
    promoted.ok();
    let deleted = server.run_key(&["rules", "delete", "--dry-run"]);
    assert!(!deleted.err.contains("on this hop"), "what only observes repeats nothing: {deleted:?}");
    deleted.ok();
    let there = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(there[0]["policy"]["mode"], "observe");
}

#[test]
fn explain_shows_winner_loser_and_bound() {
    let server = Serving::start();
    let enforce = "{ mode: enforce, retry: { max_attempts: 4 } }";
    server.apply(&format!("{}---\n{}", manifest("checkout", enforce), manifest("'*'", "{ mode: off }")));
    let route = ["explain", "checkout", "online", "inventory", "inventory.v1.Inventory/Reserve"];
    let text = server.run(&route).ok();
    for part in
        ["rule    checkout * inventory", "at most 4 attempts", "unused  * * inventory", "max_attempts: 4"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = server.run(&[&route[..], &["-o", "json"]].concat()).json();
    assert_eq!(json["winner"]["key"]["caller_service"], "checkout");
    assert_eq!(json["bound"]["max_attempts"], 4);
    let other = server.run(&["explain", "x", "default", "y", "p.S/M"]).ok();
    assert!(other.contains("no client has reported a call on this route"), "{other}");
    assert!(other.contains("rule    none"), "{other}");
}

#[test]
fn routes_clients_and_stats_are_shown_in_every_format() {
    let server = Serving::start();
    for command in ["routes", "clients", "stats"] {
        let table = server.run(&[command]).ok();
        assert!(table.contains("CLUSTER"), "{command}: {table}");
        assert!(server.run(&[command, "-o", "json"]).json().is_object(), "{command}");
        let yaml = server.run(&[command, "-o", "yaml"]).ok();
        serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap();
    }
}

#[test]
fn stats_go_on_line_by_line() {
    let server = Serving::start();
    let mut watch = server.command(&["stats", "-w", "-o", "json"]);
    let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let messages: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(messages[0]["reset"], true);
    assert_eq!(messages.len(), 2);
}

#[test]
fn long_list_has_all_its_pages_and_may_be_cut_off() {
    let server = Serving::start();
    let rules: Vec<String> = (0..2_100).map(|i| manifest(&format!("caller-{i:04}"), OBSERVE)).collect();
    let applied = server.run_with(&["apply", "-f", "-"], rules.join("---\n").as_bytes());
    assert!(applied.err.contains("2100 created") && applied.err.contains("1100 more"), "{}", applied.err);
    assert_eq!(server.rules(), 2_100);

    let mut list = server.command(&["rules", "list"]);
    let mut child = list.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut heading = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut heading).unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
    assert!(heading.starts_with("CALLER"));
}

#[test]
fn change_made_in_between_is_not_lost() {
    let server = Serving::start();
    server.apply(&manifest("checkout", OBSERVE));
    let read = server.run_key(&["rules", "get", "-o", "yaml"]).ok();
    server.apply(&manifest("checkout", "{ mode: off }"));

    let mine = read.replace("max_attempts: 3", "max_attempts: 4");
    for command in [&["apply", "-f", "-"][..], &["rules", "put", "-f", "-"]] {
        let said = server.run_with(command, mine.as_bytes()).failed(75);
        assert!(said.contains(&KEY.join(" ")) && said.contains("revision 2"), "{said}");
    }
    let there = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(there[0]["policy"]["mode"], "off");
    server.run_with(&["apply", "--overwrite", "-f", "-"], mine.as_bytes()).ok();
    let there = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(there[0]["policy"]["retry"]["max_attempts"], 4);
}

#[test]
fn completion_is_there_for_each_shell() {
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef damper"), ("fish", "complete -c damper")]
    {
        let script = run(damper().args(["completion", shell])).ok();
        assert!(script.contains(part) && script.contains("promote"), "{shell}");
    }
}
