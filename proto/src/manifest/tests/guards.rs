//! `kind: Guard`

use damper_core::{Ceiling, Code, CodeSet, Mode, Ratio, RepeatLimit};

use super::{KEY, Manifest, check, parse, refused, to_json, to_yaml};

const GUARD: &str = r#"
kind: Guard
key: { caller_service: "*", caller_cluster: "*", callee_service: inventory, callee_method: "*" }
owner: team-inventory
ceiling: { max_attempts: 2, hedge: forbid, codes: { allow: [UNAVAILABLE] }, repeat_limit: { mode: enforce } }
"#;

#[test]
fn guard_text_round_trips() {
    let documents = parse(GUARD).unwrap();
    let guards = check(&documents).unwrap().guards;
    let ceiling = Ceiling {
        max_attempts: Some(2),
        forbid_hedge: true,
        codes: Some(CodeSet::of(&[Code::Unavailable])),
        repeat_limit: Some(RepeatLimit { mode: Mode::Enforce, ..RepeatLimit::default() }),
        ..Ceiling::default()
    };
    assert_eq!((guards[0].ceiling(), guards[0].owner()), (&ceiling, "team-inventory"));
    let manifests: Vec<_> = documents.into_iter().map(|document| document.manifest).collect();
    for text in [to_yaml(&manifests), to_json(&manifests)] {
        assert_eq!(parse(&text).unwrap()[0].manifest, manifests[0], "{text}");
    }
    assert_eq!(
        to_yaml(&manifests),
        "---\nkind: Guard\nkey:\n  caller_service: \"*\"\n  caller_cluster: \"*\"\n  callee_service: inventory\n  \
         callee_method: \"*\"\nceiling:\n  max_attempts: 2\n  hedge: forbid\n  codes:\n    allow:\n    - UNAVAILABLE\n  \
         repeat_limit:\n    mode: enforce\nowner: team-inventory\n"
    );
}

#[test]
fn rules_and_guards_stand_in_one_text() {
    let text = format!("{KEY}policy: {{mode: off}}\n---{GUARD}---\n{KEY}policy: {{mode: off}}\n");
    let text = text.replacen("service: a,", "service: b,", 1);
    let documents = parse(&text).unwrap();
    let kinds: Vec<_> =
        documents.iter().map(|document| matches!(document.manifest, Manifest::Guard(_))).collect();
    assert_eq!(kinds, [false, true, false]);
    let checked = check(&documents).unwrap();
    assert_eq!((checked.rules.len(), checked.guards.len()), (2, 1));
}

#[test]
fn a_rule_and_a_guard_may_have_one_key_but_not_two_guards() {
    let guard = KEY.replace("Rule", "Guard") + "ceiling: {max_retry_breaker_ratio: 0.05}\n";
    let text = format!("{KEY}policy: {{mode: off}}\n---\n{guard}");
    let checked = check(&parse(&text).unwrap()).unwrap();
    assert_eq!(checked.guards[0].ceiling().max_retry_breaker_ratio, Some(Ratio::from_bp(500)));
    assert_eq!(checked.guards[0].pattern(), checked.rules[0].pattern());
    let error = check(&parse(&format!("{text}---\n{guard}")).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "document 3, line 9: key: duplicate key a * c *, as in document 2, line 5");
}

#[test]
fn guards_are_refused_by_line_field_value_and_bound() {
    let text = "kind: Guard\nkey: {callee_service: inventory}\nowner: [me]\nceiling:\n  hedge: never\n  max_attempts: 0\n  \
                codes: { allow: [] }\n  repeat_limit:\n    ratio: 2\n    minimum: 3\n  policy: {}\n";
    let error = refused(text).to_string();
    assert_eq!(
        error.lines().collect::<Vec<_>>(),
        [
            "document 1, line 2: key.caller_service: must not be empty",
            "document 1, line 2: key.caller_cluster: must not be empty",
            "document 1, line 2: key.callee_method: must not be empty",
            "document 1, line 3: owner: must be text, not a list",
            r#"document 1, line 5: ceiling.hedge: must be one of allow, forbid, not "never""#,
            "document 1, line 6: ceiling.max_attempts: must be between 1 and 10, not 0",
            "document 1, line 9: ceiling.repeat_limit.ratio: must be between 0.001 and 1, not 2",
            "document 1, line 10: ceiling.repeat_limit.minimum: unknown field `minimum`, expected one of `mode`, `ratio`, `min`",
            "document 1, line 11: ceiling.policy: unknown field `policy`, expected one of `max_attempts`, `hedge`, \
             `codes`, `max_retry_breaker_ratio`, `min_per_attempt_timeout`, `repeat_limit`",
        ]
    );
    assert_eq!(
        refused("kind: Guard\n").to_string(),
        "document 1, line 1: key: required\ndocument 1, line 1: ceiling: required"
    );
    let rule = GUARD.replace("Guard", "Rule");
    assert!(refused(&rule).to_string().contains("unknown field `ceiling`"), "{}", refused(&rule));
}
