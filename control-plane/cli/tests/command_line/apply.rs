//! Sets with owners: apply, prune and diff, export and import.

use crate::harness::{Serving, manifest, text};

const OBSERVE: &str = "{ mode: observe, retry: { max_attempts: 3 } }";
const ENFORCE: &str = "{ mode: enforce, retry: { max_attempts: 4 } }";

/// Callers and owners of all rules.
fn owners(server: &Serving) -> Vec<(String, String)> {
    let rules = server.run(&["rules", "list", "-o", "json"]).json();
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let of = |rule: &serde_json::Value| (word(&rule["key"]["caller_service"]), word(&rule["owner"]));
    rules.as_array().unwrap().iter().map(of).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(caller, owner)| ((*caller).to_owned(), (*owner).to_owned())).collect()
}

#[test]
fn a_folder_is_all_that_its_owner_wants() {
    let server = Serving::start();
    server.apply(&manifest("nobodys", OBSERVE));
    let folder = server.folder.path().join("rules");
    std::fs::create_dir_all(folder.join("more")).unwrap();
    std::fs::write(folder.join("a.yaml"), manifest("a", OBSERVE)).unwrap();
    std::fs::write(folder.join("more/b.yaml"), manifest("b", OBSERVE)).unwrap();
    let folder_text = text(&folder);
    let set = ["-f", folder_text, "--owner", "team-a", "--prune"];
    let run = |command: &str, more: &[&str]| server.run(&[&[command], &set[..], more].concat());

    let differs = run("diff", &[]);
    assert!(
        differs.out.contains("+ a * inventory") && differs.out.contains("    owner: team-a\n"),
        "{differs:?}"
    );
    differs.failed(1);
    run("apply", &[]).ok();
    assert_eq!(owners(&server), pairs(&[("a", "team-a"), ("b", "team-a"), ("nobodys", "")]));
    assert_eq!(run("diff", &[]).ok(), "");
    let again = run("apply", &[]);
    assert!(again.err.contains("revision 2: 0 created, 0 updated, 2 unchanged"), "{again:?}");

    std::fs::remove_file(folder.join("more/b.yaml")).unwrap();
    let differs = run("diff", &[]);
    assert!(differs.out.starts_with("- b * inventory inventory.v1.Inventory/Reserve\n"), "{differs:?}");
    differs.failed(1);
    let tried = run("apply", &["--dry-run"]);
    assert!(tried.out.lines().any(|line| line.starts_with("deleted    rule  b ")), "{tried:?}");
    assert_eq!(server.rules(), 3);
    let done = run("apply", &[]);
    assert!(done.out.lines().any(|line| line.starts_with("deleted    rule  b ")), "{done:?}");
    assert!(done.err.contains("revision 3: 0 created, 0 updated, 1 unchanged, 1 deleted"), "{done:?}");

    std::fs::remove_file(folder.join("a.yaml")).unwrap();
    let refused = run("apply", &[]).failed(65);
    assert!(refused.contains("no *.yaml") && refused.contains("add --allow-empty"), "{refused}");
    assert_eq!(server.rules(), 2);
    let gone = run("diff", &["--allow-empty"]);
    assert!(gone.out.starts_with("- a * inventory"), "{gone:?}");
    run("apply", &["--allow-empty"]).ok();
    assert_eq!(owners(&server), pairs(&[("nobodys", "")]));
    for wrong in
        [&["apply", "-f", folder_text, "--prune"][..], &["apply", "-f", folder_text, "--allow-empty"]]
    {
        server.run(wrong).failed(64);
    }
}

#[test]
fn foreign_resources_are_listed_line_by_line() {
    let server = Serving::start();
    let theirs = server.file("theirs.yaml", manifest("a", OBSERVE));
    let mine = server.file("mine.yaml", format!("{}---\n{}", manifest("a", ENFORCE), manifest("b", ENFORCE)));
    server.run(&["apply", "-f", text(&theirs), "--owner", "team-a"]).ok();
    let set = ["-f", text(&mine), "--owner", "team-b"];
    let lines = [
        "error: 2 settings that the set would change belong to team-a",
        "error: a * inventory inventory.v1.Inventory/Reserve (owner team-a): policy.mode: observe -> enforce",
        "error: a * inventory inventory.v1.Inventory/Reserve (owner team-a): policy.retry.max_attempts: 3 -> 4",
        "error: nothing was changed; remove these settings from the set or add --take-over",
    ];
    let refused = server.run(&[&["apply"], &set[..]].concat()).failed(75);
    assert_eq!(refused.lines().collect::<Vec<_>>(), lines);
    assert_eq!(owners(&server), pairs(&[("a", "team-a")]));

    let differs = server.run(&[&["diff"], &set[..]].concat());
    assert!(differs.out.contains("    policy.mode: observe -> enforce\n"), "{differs:?}");
    assert!(differs.out.contains("+ b * inventory"), "{differs:?}");
    assert_eq!(differs.failed(2).lines().collect::<Vec<_>>(), lines);

    let differs = server.run(&[&["diff"], &set[..], &["--take-over"]].concat());
    assert!(differs.out.contains("    owner: team-a -> team-b\n"), "{differs:?}");
    differs.failed(1);
    server.run(&[&["apply"], &set[..], &["--take-over"]].concat()).ok();
    assert_eq!(owners(&server), pairs(&[("a", "team-b"), ("b", "team-b")]));
    // Theirs says as much no longer, and is not theirs.
    server.run(&["apply", "-f", text(&theirs), "--owner", "team-a"]).failed(75);

    let listed = |owner: &str| {
        let rules = server.run(&["rules", "list", "--owner", owner, "-o", "json"]).json();
        rules.as_array().unwrap().len()
    };
    assert_eq!([listed("team-b"), listed("team-a"), listed("")], [2, 0, 0]);
    let table = server.run(&["rules", "list"]).ok();
    assert!(table.contains("OWNER") && table.contains("team-b"), "{table}");
    let explained = server.run(&["explain", "a", "x", "inventory", "inventory.v1.Inventory/Reserve"]).ok();
    assert!(explained.contains("(enforce, revision 2, owner team-b)"), "{explained}");
    let history = server.run(&["history", "--owner", "team-a"]).ok();
    assert_eq!(history.lines().count(), 3, "created, and taken over: {history}");
    assert!(history.lines().next().unwrap().contains("OWNER"), "{history}");
}

#[test]
fn diff_reports_what_a_guard_rejects() {
    let server = Serving::start();
    server.apply(
        "kind: Guard\nkey: { caller_service: '*', caller_cluster: '*', callee_service: inventory, \
         callee_method: '*' }\nceiling: { max_attempts: 2 }\nowner: team-inventory\n",
    );
    let file = server.file("rule.yaml", manifest("a", ENFORCE));
    let refused = server.run(&["diff", "-f", text(&file)]);
    assert!(refused.out.contains("+ a * inventory"), "{refused:?}");
    let said = refused.failed(2);
    assert!(said.contains("rule.yaml:1 (document 1): policy.retry.max_attempts: 4 is more than 2"), "{said}");
}

#[test]
fn single_change_of_a_foreign_resource_warns() {
    let server = Serving::start();
    let file = server.file("rule.yaml", manifest("checkout", OBSERVE));
    server.run(&["apply", "-f", text(&file), "--owner", "team-a"]).ok();
    let promoted = server.run_key(&["rules", "promote"]);
    assert!(promoted.err.contains("owned_by_another"), "its owner does not know of it: {promoted:?}");
    promoted.ok();
    let put = server.run(&["rules", "put", "-f", text(&file)]);
    assert!(
        put.err.contains(
            "the rule is in the set of team-a: the next `damper apply --owner team-a` undoes this change"
        ),
        "{put:?}"
    );
    server.run(&["apply", "-f", text(&file), "--owner", "team-a"]).ok();
    let deleted = server.run_key(&["rules", "delete"]);
    assert!(deleted.err.contains("the rule is in the set of team-a"), "{deleted:?}");
}

/// The comments at the beginning, one of which has the time, and what they stand over.
fn parted(export: &str) -> (Vec<String>, String) {
    let (comments, rest): (Vec<_>, Vec<_>) = export.lines().partition(|line| line.starts_with('#'));
    (comments.into_iter().map(str::to_owned).collect(), rest.join("\n"))
}

#[test]
fn an_export_is_read_back_as_it_is() {
    let server = Serving::start();
    let empty = server.run(&["export"]);
    assert!(empty.err.contains("revision 0: 0 manifests"), "{empty:?}");
    server.apply(&format!("{}---\n{}", manifest("b", OBSERVE), manifest("a", ENFORCE)));
    let file = server.folder.path().join("all.yaml");
    let exported = server.run(&["export", "--file", text(&file)]);
    assert!(exported.err.contains("revision 1: 2 manifests"), "{exported:?}");
    assert_eq!(exported.ok(), "");
    let backup = std::fs::read_to_string(&file).unwrap();
    let (header, backup) = parted(&backup);
    assert!(header[1].starts_with("# Revision 1, exported at 20") && header[1].ends_with("Z."), "{header:?}");
    assert_eq!(parted(&server.run(&["export"]).ok()).1, backup);

    let import = |more: &[&str]| server.run(&[&["import", "-f", text(&file)], more].concat());
    import(&[]).failed(64);
    let refused = import(&["--reason", "restore"]).failed(75);
    assert!(refused.contains("the store contains 2 rules, 0 guards and 0 queues"), "{refused}");
    server.run(&["rules", "delete", "a", "*", "inventory", "inventory.v1.Inventory/Reserve"]).ok();
    server.apply(&manifest("c", OBSERVE));
    let tried = import(&["--reason", "restore", "--replace", "--dry-run"]);
    assert!(tried.err.contains("1 created, 0 updated, 1 unchanged, 1 deleted (dry run"), "{tried:?}");
    import(&["--reason", "restore", "--replace"]).ok();
    assert_eq!(parted(&server.run(&["export"]).ok()).1, backup);
    assert_eq!(parted(&server.run(&["export", "--revision", "1"]).ok()).1, backup);
    server.run(&["export", "--revision", "99"]).failed(65);
}
