//! What deserves a look: offline by `lint`, with every write, and in `explain` and `chain`.

use std::process::Stdio;

use crate::harness::{Ended, Serving, damper, manifest, run, text};

/// `damper lint` without any server.
fn lint(args: &[&str], input: &str) -> Ended {
    use std::io::Write as _;
    let mut command = damper();
    command.arg("lint").args(args).env("DAMPER_SERVER", "http://127.0.0.1:1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

const GUARD: &str = "kind: Guard\nkey: { caller_service: \"*\", caller_cluster: \"*\", \
                     callee_service: inventory, callee_method: \"*\" }\n";
const UNBOUNDED: &str =
    "\n  mode: observe\n  retry:\n    max_attempts: 3\n  retry_breaker:\n    enabled: false";

#[test]
fn manifests_without_findings_end_well() {
    let clean = manifest("checkout", "{ mode: observe, retry: { max_attempts: 3 } }");
    let ended = lint(&["-f", "-"], &clean);
    assert!(ended.err.contains("1 manifest: 0 critical, 0 warnings, 0 hints"), "{ended:?}");
    assert_eq!(ended.ok(), "");
}

#[test]
fn finding_has_line_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let clean = manifest("shop", "{ mode: observe }");
    std::fs::write(&file, format!("{clean}---\n{}", manifest("checkout", UNBOUNDED))).unwrap();
    let ended = lint(&["-f", text(&file)], "");
    let line = format!(
        "{}:12: critical breaker_off checkout * inventory inventory.v1.Inventory/Reserve \
         policy.retry_breaker.enabled: is false",
        file.display()
    );
    assert!(ended.out.starts_with(&line), "{ended:?}");
    assert!(ended.out.contains("\n  -> Turn the retry breaker of the rule on"), "{ended:?}");
    ended.failed(79);
    assert_eq!(lint(&["-f", text(folder.path()), "--allow", "breaker_off"], "").ok(), "");
}

#[test]
fn severity_decides_exit_status_not_output() {
    let hint = manifest("checkout", "{ mode: enforce, retry: { max_attempts: 3 } }");
    let told = lint(&["-f", "-"], &hint).ok();
    assert!(told.starts_with("standard input:3: hint call_id_missing"), "{told}");
    lint(&["-f", "-", "--min-severity", "hint"], &hint).failed(79);
    let warning = manifest("checkout", "{ mode: observe, retry: { max_attempts: 1 } }");
    lint(&["-f", "-"], &warning).failed(79);
    lint(&["-f", "-", "--min-severity", "danger"], &warning).ok();
}

#[test]
fn guards_of_the_set_are_held_against_its_rules() {
    let set = format!(
        "{}---\n{GUARD}ceiling: {{ max_attempts: 2 }}\nowner: team-inventory\n---\n{}",
        manifest("checkout", "{ mode: observe, retry: { max_attempts: 3 } }"),
        manifest("till", "{ mode: observe, retry: { max_attempts: 2 } }"),
    );
    let found: Vec<serde_json::Value> =
        serde_json::from_str(&lint(&["-f", "-", "-o", "json"], &set).out).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["code"], &found[0]["severity"]), (&"guard_cuts".into(), &"warning".into()));
    let message = found[0]["message"].as_str().unwrap();
    assert!(
        message.contains("3 is more than 2, the ceiling of guard \"* * inventory *\" (owner team-inventory)")
    );
    assert_eq!(found[0]["origin"], "standard input:3");
    let yaml = lint(&["-f", "-", "-o", "yaml"], &set);
    assert!(yaml.out.contains("code: guard_cuts"), "{yaml:?}");
    let guard = lint(&["-f", "-"], &format!("{GUARD}ceiling: {{ max_attempts: 10 }}\n"));
    assert!(
        guard.out.contains("ceiling_limits_nothing guard * * inventory * ceiling.max_attempts"),
        "{guard:?}"
    );
}

#[test]
fn bad_data_and_usage_differ_from_findings() {
    let bad = manifest("checkout", "{ mode: observe, retry: { max_attempts: 11 } }");
    let said = lint(&["-f", "-"], &format!("{bad}---\n{}", manifest("a/b", "{ mode: observe }"))).failed(65);
    assert!(said.contains("policy.retry.max_attempts: must be between 1 and 10, not 11"), "{said}");
    assert!(said.contains("key.caller_service"), "{said}");
    lint(&["-f", "/no/such/file.yaml"], "").failed(66);
    let said = lint(&["-f", "-", "--allow", "braker_off"], "").failed(64);
    assert!(said.contains("unknown code"), "{said}");
    run(damper().arg("lint")).failed(64);
}

/// The code blocks of a page with the heading above each.
fn examples(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut heading = String::new();
    let mut examples = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            Some(block_text) if line == "```" => {
                examples.push((heading.clone(), std::mem::take(block_text)));
                block = None;
            }
            Some(block_text) => block_text.push_str(&format!("{line}\n")),
            None if line.starts_with("```yaml") => block = Some(String::new()),
            None if line.starts_with("```") => block = Some("# not a manifest\n".to_owned()),
            None if line.starts_with('#') => {
                heading = line.trim_start_matches(['#', ' ', '`']).trim_end_matches('`').to_owned()
            }
            None => {}
        }
    }
    examples.retain(|(_, block)| !block.starts_with("# not a manifest"));
    examples
}

#[test]
fn manifests_of_the_readme_have_no_finding() {
    let manifests: Vec<String> = examples("README.md")
        .into_iter()
        .map(|(_, block)| block)
        .filter(|block| block.contains("kind:"))
        .collect();
    assert!(manifests.len() >= 2, "{manifests:?}");
    assert_eq!(lint(&["-f", "-", "--min-severity", "hint"], &manifests.join("---\n")).ok(), "");
}

#[test]
fn every_example_of_the_findings_has_the_finding_that_it_is_for() {
    let examples = examples("docs/findings.md");
    assert!(examples.len() > 25, "{}", examples.len());
    for (code, example) in examples {
        let key = "key: { caller_service: shop, caller_cluster: \"*\", callee_service: stock, \
                   callee_method: stock.v1.Stock/Get }\n";
        let mut set = String::new();
        for document in example.split("---\n") {
            let kind = if document.contains("ceiling:") { "kind: Guard\n" } else { "kind: Rule\n" };
            let key = if document.contains("key: {") || document.contains("kind: Queue") {
                ""
            } else if document.contains("ceiling:") {
                &GUARD["kind: Guard\n".len()..]
            } else {
                key
            };
            let kind = if document.contains("kind:") { "" } else { kind };
            set.push_str(&format!("---\n{kind}{key}{document}"));
        }
        let ended = lint(&["-f", "-", "--min-severity", "hint"], &set);
        assert!(ended.out.contains(&format!(" {code} ")), "{code}: {ended:?}\n{set}");
        ended.failed(79);
    }
}

#[test]
fn writes_tell_severity_code_and_remedy() {
    let server = Serving::start();
    let put = server.run_with(&["rules", "put", "-f", "-"], manifest("checkout", UNBOUNDED).as_bytes());
    let danger = "critical breaker_off checkout * inventory inventory.v1.Inventory/Reserve policy.retry_breaker.enabled: is false";
    assert!(put.err.contains(danger), "{put:?}");
    assert!(
        put.err.contains("\n  -> Turn the retry breaker of the rule on again, or set a budget.\n"),
        "{put:?}"
    );
    put.ok();
    let tried = server.run_with(&["apply", "--dry-run", "-f", "-"], manifest("till", UNBOUNDED).as_bytes());
    assert!(tried.err.contains("critical breaker_off till * inventory"), "{tried:?}");
    let said = server.run_with(&["apply", "--force", "-f", "-"], b"").failed(64);
    assert!(said.contains("--reason"), "{said}");
    server
        .run_with(
            &["apply", "--force", "--reason", "x", "-f", "-"],
            manifest("a", "{ mode: observe }").as_bytes(),
        )
        .ok();

    let route = ["checkout", "default", "inventory", "inventory.v1.Inventory/Reserve"];
    let explained = server.run(&[&["explain"], &route[..]].concat()).ok();
    assert!(explained.contains("found   critical breaker_off "), "{explained}");
    let chain = "chain   checkout -> inventory: at most 1 attempt on the last hop per request to checkout\n";
    assert!(explained.contains(chain), "observe repeats nothing: {explained}");
}

#[test]
fn chain_without_calls_has_no_edge() {
    let server = Serving::start();
    let shown = server.run(&["chain"]).ok();
    assert!(shown.starts_with("CALLER") && shown.lines().count() == 1, "{shown}");
    let json = server.run(&["chain", "-o", "json"]).json();
    assert_eq!(json.get("worst_possible"), None, "{json}");
    server.run(&["chain", "--service", "nobody"]).failed(66);
    server.run(&["chain", "--window", "7s"]).failed(65);
}

#[test]
fn limit_along_the_chain_is_a_setting_with_bounds() {
    let said = run(damper().args(["serve", "--max-amplification", "0"])).failed(64);
    assert!(said.contains("must be between 1 and 1000"), "{said}");
    let said = run(damper().arg("serve").env("DAMPER_MAX_AMPLIFICATION", "many")).failed(78);
    assert!(said.contains("DAMPER_MAX_AMPLIFICATION: \"many\": must be between 1 and 1000"), "{said}");
}
