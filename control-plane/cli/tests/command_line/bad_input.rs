//! Input that must be refused: by its field, all faults at once, nothing stored.

use crate::harness::{Serving, manifest, text};

fn with_key(key: &str) -> String {
    format!("kind: Rule\nkey: {key}\npolicy: {{ mode: observe }}\n")
}

fn with_method(method: &str) -> String {
    with_key(&format!(
        "{{ caller_service: a, caller_cluster: \"*\", callee_service: b, callee_method: {method} }}"
    ))
}

/// What is written, and what must be answered.
fn table() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let policy = |policy: &str| manifest("a", policy).into_bytes();
    let long = "x".repeat(1 << 20);
    vec![
        ("unknown field", policy("{ mode: observe, timeot: 1s }"), "policy.timeot"),
        ("missing mode", policy("{ timeout: 1s }"), "policy.mode: required"),
        ("unknown mode", policy("{ mode: on }"), "policy.mode"),
        ("NaN", policy("{ mode: observe, retry_breaker: { ratio: .nan } }"), "policy.retry_breaker.ratio"),
        (
            "negative time",
            policy("{ mode: observe, timeout: -1s }"),
            "policy.timeout: must be between 1ms and 1h, not -1s",
        ),
        (
            "negative count",
            policy("{ mode: observe, retry: { max_attempts: -1 } }"),
            "policy.retry.max_attempts",
        ),
        (
            "over range",
            policy("{ mode: observe, retry: { max_attempts: 11 } }"),
            "policy.retry.max_attempts: must be between 1 and 10, not 11",
        ),
        ("no unit", policy("{ mode: observe, timeout: 5 }"), "policy.timeout"),
        (
            "duplicate key",
            [manifest("a", "{ mode: off }"), manifest("a", "{ mode: observe }")].join("---\n").into_bytes(),
            "(document 2): key: ",
        ),
        ("method without its service", with_method("/Reserve").into_bytes(), "key.callee_method"),
        ("method without a slash", with_method("Reserve").into_bytes(), "key.callee_method"),
        (
            "1 MiB name",
            with_method(&format!("{long}/M")).into_bytes(),
            "has 1048578 bytes, at most 255 are allowed",
        ),
        ("empty name", with_method("\"\"").into_bytes(), "key.callee_method: must not be empty"),
        ("no key", b"kind: Rule\npolicy: { mode: off }\n".to_vec(), "key: required"),
        ("no kind", b"policy: { mode: off }\n".to_vec(), "kind"),
        ("unknown kind", b"kind: Rul\n".to_vec(), "kind"),
        ("not UTF-8", b"kind: Rule\nkey: \xff\xfe\n".to_vec(), ":2: byte 6 of the line is not UTF-8"),
        ("empty", Vec::new(), "no document"),
        ("broken YAML", b"kind: [Rule\n".to_vec(), "(document 1)"),
    ]
}

#[test]
fn bad_manifests_are_rejected_by_field_and_not_stored() {
    let server = Serving::start();
    for (name, bytes, expected) in table() {
        let file = server.file("bad.yaml", bytes);
        for command in [&["apply"][..], &["rules", "put"]] {
            let said = server.run(&[command, &["-f", text(&file)]].concat()).failed(65);
            assert!(said.contains("bad.yaml") && said.contains(expected), "{name}: {said}");
            assert!(
                said.lines().all(|line| line.starts_with("error: ") && line.len() < 1_000),
                "{name}: {said}"
            );
        }
        server.run(&["diff", "-f", text(&file)]).failed(2);
    }
    assert_eq!(server.rules(), 0);
}

#[test]
fn one_bad_document_keeps_the_good_ones_out_and_is_named() {
    let server = Serving::start();
    let good = manifest("good", "{ mode: observe }");
    let bad = manifest("bad", "{ mode: observe, timeout: 2h, retry: { max_attempts: 11 } }");
    let file = server.file("rules.yaml", format!("{good}---\n{bad}"));
    let said = server.run(&["apply", "-f", text(&file)]).failed(65);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("(document 2): policy.timeout: must be between 1ms and 1h, not 2h"), "{said}");
    assert!(
        said.contains("(document 2): policy.retry.max_attempts: must be between 1 and 10, not 11"),
        "{said}"
    );
    assert_eq!(server.rules(), 0);
}

#[test]
fn too_many_rules_are_rejected_before_they_are_parsed() {
    let server = Serving::start();
    let limit = 111_000;
    // Each of them is bad: who reads them first tells so many faults instead.
    let half = "---\nkind: Rul\n".repeat(limit / 2);
    let first = server.file("a.yaml", &half);
    let second = server.file("b.yaml", format!("{half}---\nkind: Rul\n"));
    let whole = server.file("whole.yaml", "---\nkind: Rul\n".repeat(2 * limit));
    let said = server.run(&["apply", "-f", text(&whole)]).failed(65);
    assert!(said.contains("whole.yaml: 222000 documents, at most 111000 rules, guards and queues"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let said = server.run(&["apply", "-f", text(&first), "-f", text(&second)]).failed(65);
    assert!(said.contains("b.yaml: 111001 documents with those before it"), "{said}");
    assert_eq!(server.rules(), 0);
}

#[test]
fn bad_key_on_the_command_line_names_its_word() {
    let server = Serving::start();
    for command in ["get", "delete", "promote"] {
        let said = server.run(&["rules", command, "a", "*", "b", "/Reserve"]).failed(65);
        assert!(said.contains("callee_method: "), "{command}: {said}");
    }
    let said = server.run(&["explain", "a b", "*", "b", "p.S/M"]).failed(65);
    assert!(said.contains("caller_service: ") && said.contains("caller_cluster: "), "{said}");
}

#[test]
fn server_faults_name_the_option() {
    let server = Serving::start();
    let reason = "x".repeat(1_025);
    let rule = manifest("a", "{ mode: observe }");
    for command in [&["apply"][..], &["rules", "put"]] {
        let args = [command, &["-f", "-", "--reason", &reason]].concat();
        let said = server.run_with(&args, rule.as_bytes()).failed(65);
        assert!(said.contains("--reason: "), "{said}");
    }
    assert_eq!(server.rules(), 0);
}
