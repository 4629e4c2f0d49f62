//! Whatever a client sends to the control plane: the bytes of a message of the admin API or of a stream.
//!
//! Checked: nothing panics; a policy, rule, guard, ceiling, pattern or route key that is accepted is written and
//! read again as itself, also in the text form, and a rule that is accepted is one for the engine.

use arbitrary::Unstructured;
use damper_core::{Guard, Rule, Table};
use damper_proto::manifest::Manifest;
use damper_proto::{convert, manifest, v1};
use prost::Message;

use crate::{any, seed};

/// Runs one case: the first byte says which message the others are.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 13 {
        0 => with(bytes, |sent: v1::PutRuleRequest| {
            printed(&sent);
            sent.rule.iter().for_each(rule);
        }),
        1 => with(bytes, |sent: v1::ApplyRulesRequest| {
            printed(&sent);
            if let Some(v1::apply_rules_request::Kind::Change(sent)) = sent.kind {
                change(&sent);
            }
        }),
        2 => with(bytes, |sent: v1::PutGuardRequest| {
            printed(&sent);
            sent.guard.iter().for_each(guard);
        }),
        3 => with(bytes, |sent: v1::ClientMessage| {
            printed(&sent);
            if let Some(v1::client_message::Kind::Hello(hello)) = &sent.kind {
                hello.refused.iter().flat_map(|refusal| &refusal.key).for_each(pattern);
            }
        }),
        4 => with(bytes, |sent: v1::Policy| policy(&sent)),
        5 => with(bytes, |sent: v1::Rule| rule(&sent)),
        6 => with(bytes, |sent: v1::Guard| guard(&sent)),
        7 => with(bytes, |sent: v1::ExplainRequest| explain(&sent)),
        8 => with(bytes, |sent: v1::DistributedRule| {
            if let Ok(rule) = convert::distributed_rule(&sent) {
                written_rule(&rule);
            }
        }),
        9 => with(bytes, |sent: v1::DistributedGuard| {
            if let Ok(guard) = convert::distributed_guard(&sent) {
                let again = v1::DistributedGuard::from(&guard);
                assert_eq!(convert::distributed_guard(&again), Ok(guard));
            }
        }),
        10 => with(bytes, |sent: v1::ListRulesRequest| printed(&sent)),
        // Bytes that do not make a rule and a guard are nothing to send.
        11 => _ = made(&mut Unstructured::new(bytes)),
        _ => with(bytes, |sent: v1::DeleteRuleRequest| sent.key.iter().for_each(pattern)),
    }
}

/// Inputs that bytes alone would hardly find.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for manifest in seed::manifests() {
        let mut add = |kind: u8, message: Vec<u8>| seeds.push([vec![kind], message].concat());
        match manifest {
            Manifest::Rule(rule) => {
                add(4, rule.policy.iter().flat_map(Message::encode_to_vec).collect());
                add(5, rule.encode_to_vec());
                let kind = Some(v1::rule_change::Kind::Put(rule.clone()));
                let change = v1::RuleChange { kind, expected_revision: Some(3) };
                let kind = Some(v1::apply_rules_request::Kind::Change(change));
                add(1, v1::ApplyRulesRequest { kind }.encode_to_vec());
                let kind = rule.policy.clone().map(v1::distributed_rule::Kind::Policy);
                add(8, v1::DistributedRule { key: rule.key.clone(), revision: 7, kind }.encode_to_vec());
                add(0, v1::PutRuleRequest { rule: Some(rule), ..Default::default() }.encode_to_vec());
            }
            Manifest::Guard(guard) => {
                add(6, guard.encode_to_vec());
                let (key, ceiling) = (guard.key.clone(), guard.ceiling);
                add(9, v1::DistributedGuard { key, revision: 7, ceiling: ceiling.clone() }.encode_to_vec());
                let guard = v1::Guard { ceiling, ..guard };
                add(2, v1::PutGuardRequest { guard: Some(guard), ..Default::default() }.encode_to_vec());
            }
            _ => {}
        }
    }
    seeds
}

fn with<M: Message + Default>(bytes: &[u8], check: impl FnOnce(M)) {
    if let Ok(message) = M::decode(bytes) {
        check(message);
    }
}

/// What the engine accepts is read as it was written.
fn made(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let rule = any::rule(u, "stock", "a.B/C")?;
    let bytes = v1::Rule::from(&rule).encode_to_vec();
    let sent = v1::Rule::decode(bytes.as_slice()).expect("it was written as one");
    assert_eq!(convert::rule(&sent).as_ref(), Ok(&rule));
    let guard = any::guard(u, "stock")?;
    let bytes = v1::Guard::from(&guard).encode_to_vec();
    let sent = v1::Guard::decode(bytes.as_slice()).expect("it was written as one");
    assert_eq!(convert::guard(&sent).as_ref(), Ok(&guard));
    Ok(())
}

/// Every message has a text form.
fn printed(message: &impl serde::Serialize) {
    _ = manifest::json(message);
    _ = manifest::yaml(message);
}

fn change(sent: &v1::RuleChange) {
    use v1::rule_change::Kind;
    match &sent.kind {
        Some(Kind::Put(sent)) => rule(sent),
        Some(Kind::PutGuard(sent)) => guard(sent),
        Some(Kind::Delete(sent) | Kind::DeleteGuard(sent)) => pattern(sent),
        Some(Kind::PutQueue(sent)) => queue(sent),
        Some(Kind::DeleteQueue(_)) | None => {}
    }
}

fn policy(sent: &v1::Policy) {
    if let Ok(policy) = convert::policy(sent) {
        let wire = v1::Policy::from(&policy);
        assert_eq!(convert::policy(&wire), Ok(policy));
        let bytes = wire.encode_to_vec();
        assert_eq!(v1::Policy::decode(bytes.as_slice()), Ok(wire));
    }
}

fn rule(sent: &v1::Rule) {
    if let Ok(rule) = convert::rule(sent) {
        written_rule(&rule);
    }
}

fn written_rule(rule: &Rule) {
    let wire = v1::Rule::from(rule);
    assert_eq!(convert::rule(&wire).as_ref(), Ok(rule));
    // What was accepted is within the engine's bounds.
    let made = Rule::new(rule.pattern().clone(), rule.policy().clone(), rule.revision());
    assert_eq!(made.as_ref(), Ok(rule));
    let text = manifest::to_yaml(std::slice::from_ref(&wire));
    let documents = manifest::parse(&text).unwrap_or_else(|error| panic!("{error}\nof {text}"));
    let checked = manifest::check(&documents).unwrap_or_else(|error| panic!("{error}\nof {text}"));
    // When a rule was last changed is not for its text to say.
    let read = checked.rules.first().map(|rule| (rule.pattern(), rule.policy()));
    assert_eq!(read, Some((rule.pattern(), rule.policy())), "{text}");
}

fn guard(sent: &v1::Guard) {
    let Ok(guard) = convert::guard(sent) else { return };
    let wire = v1::Guard::from(&guard);
    assert_eq!(convert::guard(&wire).as_ref(), Ok(&guard));
    let made =
        Guard::new(guard.pattern().clone(), *guard.ceiling(), guard.owner().to_owned(), guard.revision());
    assert_eq!(made.as_ref(), Ok(&guard));
    let ceiling = wire.ceiling.as_ref().map(|ceiling| convert::ceiling(ceiling, guard.pattern()));
    assert_eq!(ceiling, Some(Ok(*guard.ceiling())));
}

fn queue(sent: &v1::Queue) {
    if let Ok(queue) = convert::queue(sent) {
        let wire = v1::Queue::from(&queue);
        assert_eq!(convert::queue(&wire).as_ref(), Ok(&queue));
    }
}

fn pattern(sent: &v1::Pattern) {
    if let Ok(pattern) = convert::pattern(sent) {
        assert_eq!(convert::pattern(&(&pattern).into()), Ok(pattern.clone()));
        assert_eq!(v1::Pattern::from(&pattern), *sent, "a pattern is kept as it was written");
    }
}

fn explain(sent: &v1::ExplainRequest) {
    if let Some(Ok(route)) = sent.route.as_ref().map(convert::route_key) {
        assert!(Table::default().in_force(&route).is_none());
        assert_eq!(convert::route_key(&(&route).into()), Ok(route));
    }
}
