use crate::state::guards::CeilingExceeded;
use crate::state::kills::StoredKill;
use damper_proto::v1;

use crate::state::snapshot::*;
use damper_store::Edit;

fn pattern(method: &str) -> Pattern {
    Pattern::parse("shop", "*", "stock", method).unwrap()
}

fn words(words: &str) -> Pattern {
    let parts: Vec<&str> = words.split(' ').collect();
    Pattern::parse(parts[0], parts[1], parts[2], parts[3]).unwrap()
}

fn of_rule(pattern: &Pattern) -> ResourceKey {
    ResourceKey::Rule(pattern.clone())
}

fn of_guard(pattern: &Pattern) -> ResourceKey {
    ResourceKey::Guard(pattern.clone())
}

fn change(revision: u64, edits: Vec<(ResourceKey, Option<Vec<u8>>)>) -> Change {
    let edit = |(subject, value): (ResourceKey, Option<Vec<u8>>)| Edit {
        key: subject.key(),
        value: value.map(Into::into),
        before: None,
    };
    Change {
        revision,
        commit: 0,
        at: SystemTime::UNIX_EPOCH,
        author: String::new(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: edits.into_iter().map(edit).collect(),
    }
}

/// A value with a field that this version does not know.
fn of_a_later_version(mut value: Vec<u8>) -> Vec<u8> {
    value.extend([0xa2, 0x06, 0x01, b'x']);
    value
}

#[test]
fn entry_with_unknown_fields_is_unread_and_kept_whole() {
    let pattern = || Pattern::parse("shop", "*", "stock", "*").unwrap();
    let (rule, guard, kill) =
        (ResourceKey::Rule(pattern()), ResourceKey::Guard(pattern()), ResourceKey::Kill(pattern()));
    let rule_value = of_a_later_version(StoredRule::value(&v1::Rule::default()));
    let guard_value = of_a_later_version(StoredGuard::value(&v1::Guard::default()));
    let now = std::time::SystemTime::now();
    let wire = v1::KillSwitch {
        reason: "r".to_owned(),
        updated_at: Some(now.into()),
        expires_at: Some((now + std::time::Duration::from_secs(60)).into()),
        ..v1::KillSwitch::default()
    };
    let kill_value = of_a_later_version(StoredKill::value(&wire));
    let mut view = empty();
    let edits = [(&rule, &rule_value), (&guard, &guard_value), (&kill, &kill_value)];
    view.apply(&change(1, edits.map(|(subject, value)| (subject.clone(), Some(value.clone()))).into()));
    assert!(view.stored(&pattern()).unwrap().rule.is_none());
    assert!(view.guards().stored(&pattern()).unwrap().guard.is_none());
    assert_eq!(view.kills().stored_count(), 0);
    let values: std::collections::BTreeMap<String, bytes::Bytes> = view.values().collect();
    for (subject, value) in edits {
        assert_eq!(values[&subject.key()], value, "{subject}");
    }
    view.apply(&change(2, vec![(kill.clone(), None)]));
    assert!(view.values().all(|(key, _)| key != kill.key()));
}

#[test]
fn queue_is_known_by_name_and_not_among_changes() {
    let queue = |name: &str| ResourceKey::Queue(name.to_owned());
    let value = StoredQueue::value(&v1::Queue {
        policy: Some(v1::Policy { mode: v1::Mode::Enforce.into(), ..Default::default() }),
        ..Default::default()
    });
    let later = of_a_later_version(value.clone());
    let mut view = empty();
    let edits = [("b", &value), ("a", &value), ("c", &later)];
    view.apply(&change(1, edits.map(|(name, value)| (queue(name), Some(value.clone()))).into()));
    assert_eq!(view.changed_since(0), Some(BTreeSet::new()), "clients do not receive queues");
    assert_eq!(view.queues().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let behind: Vec<&str> = view.queues_behind(Some("a")).map(|stored| stored.wire.name.as_str()).collect();
    assert_eq!((behind, view.entries()), (vec!["b", "c"], 3));
    assert!(view.queue("a").unwrap().queue.is_some() && view.queue("c").unwrap().queue.is_none());
    let values: std::collections::BTreeMap<String, bytes::Bytes> = view.values().collect();
    assert_eq!(values[&queue("c").key()], later, "an unreadable queue is kept whole");
    view.apply(&change(2, vec![(queue("a"), None)]));
    assert_eq!((view.revision_of(&queue("a")), view.revision_of(&queue("b"))), (None, Some(1)));
}

fn empty() -> Snapshot {
    Snapshot::of(&StoreContents { epoch: "e".to_owned(), revision: 0, ..StoreContents::default() })
}

fn off() -> Vec<u8> {
    let policy = v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() };
    StoredRule::value(&v1::Rule { policy: Some(policy), ..Default::default() })
}

fn attempts(max_attempts: u32) -> Vec<u8> {
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), retry: Some(retry), ..Default::default() };
    StoredRule::value(&v1::Rule { policy: Some(policy), ..Default::default() })
}

fn ceiling(max_attempts: u32) -> Vec<u8> {
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    StoredGuard::value(&v1::Guard { ceiling: Some(ceiling), ..Default::default() })
}

#[test]
fn what_changed_is_known_from_the_first_change_seen() {
    let (one, two) = (of_rule(&pattern("p.S/A")), of_guard(&pattern("p.S/A")));
    let mut view = empty();
    view.apply(&change(1, vec![(one.clone(), Some(off()))]));
    view.apply(&change(2, vec![(two.clone(), Some(ceiling(2)))]));
    view.apply(&change(3, vec![(one.clone(), None)]));
    assert_eq!(view.changed_since(0), Some([one.clone(), two.clone()].into()));
    assert_eq!(view.changed_since(2), Some([one.clone()].into()));
    assert_eq!(view.changed_since(3), Some(BTreeSet::new()));
    assert_eq!((view.revision_of(&one), view.revision_of(&two)), (None, Some(2)));
    view.apply(&change(4, vec![(two.clone(), None)]));
    assert_eq!((view.len(), view.guards().len(), view.revision_of(&two)), (0, 0, None));
}

#[test]
fn forgotten_changes_are_admitted() {
    let mut view = empty();
    let all: Vec<ResourceKey> =
        (0..REMEMBERED_PATTERNS).map(|n| of_rule(&pattern(&format!("p.S/M{n}")))).collect();
    view.apply(&change(1, all.iter().map(|rule| (rule.clone(), Some(off()))).collect()));
    view.apply(&change(2, vec![(all[0].clone(), None)]));
    assert_eq!(view.changed_since(0), None);
    assert_eq!(view.changed_since(1), Some([all[0].clone()].into()));
    assert_eq!(view.len(), REMEMBERED_PATTERNS - 1);
}

#[test]
fn unreadable_rule_keeps_its_place() {
    let (near, wide) = (pattern("p.S/A"), pattern("*"));
    let mut view = empty();
    view.apply(&change(1, vec![(of_rule(&near), Some(vec![0xff])), (of_rule(&wide), Some(off()))]));
    assert!(view.stored(&near).unwrap().rule.is_none());
    let route = RouteKey::new("shop", "default", "stock", "p.S/A").unwrap();
    assert!(view.winner(&route).is_none());
    let explained = view.explain(&route);
    assert!(explained.explanation.winner.is_none() && explained.explanation.in_force.is_none());
    assert_eq!(explained.unread, Some(of_rule(&near)));
    let other = RouteKey::new("shop", "default", "stock", "p.S/B").unwrap();
    assert_eq!(*view.winner(&other).unwrap().pattern(), wide);
    let explained = view.explain(&other);
    assert_eq!((explained.explanation.winner.unwrap().pattern(), explained.unread), (&wide, None));
}

#[test]
fn every_matching_guard_cuts_the_winning_rule() {
    let route = RouteKey::new("shop", "default", "stock", "p.S/A").unwrap();
    let mut view = empty();
    view.apply(&change(1, vec![(of_rule(&pattern("*")), Some(attempts(9)))]));
    let guards = [("* * stock *", 5), ("shop * stock p.S/*", 3), ("* * * *", 7), ("* * stock p.S/B", 2)];
    let edits = guards.map(|(pattern, most)| (of_guard(&words(pattern)), Some(ceiling(most))));
    view.apply(&change(2, edits.into()));
    let explained = view.explain(&route);
    assert_eq!(explained.explanation.in_force.unwrap().policy().max_attempts(), 3);
    assert!(explained.explanation.cuts.iter().any(|cut| cut.guard.pattern() == &words("shop * stock p.S/*")));
    assert!(!explained.explanation.cuts.iter().any(|cut| cut.guard.pattern() == &words("* * stock p.S/B")));
    assert_eq!(explained.explanation.winner.unwrap().policy().max_attempts(), 9, "the rule stays as written");
}

#[test]
fn unreadable_guard_turns_its_rules_off() {
    let (rule, guard) = (of_rule(&pattern("p.S/A")), of_guard(&words("* * stock *")));
    let route = RouteKey::new("shop", "default", "stock", "p.S/A").unwrap();
    let mut view = empty();
    view.apply(&change(1, vec![(rule.clone(), Some(attempts(3)))]));
    view.apply(&change(2, vec![(guard.clone(), Some(vec![0xff]))]));
    let explained = view.explain(&route);
    assert_eq!((explained.explanation.in_force.is_none(), explained.unread), (true, Some(guard.clone())));
    assert!(!view.guards().all_read());
    view.apply(&change(3, vec![(guard.clone(), Some(ceiling(2)))]));
    assert_eq!(view.explain(&route).explanation.in_force.unwrap().policy().max_attempts(), 2);
    assert!(view.guards().all_read());
    for revision in [1, 2] {
        let changed = view.changed_since(revision).unwrap();
        assert!(changed.contains(&rule), "clients must hear of the rule again: {changed:?}");
    }
}

#[test]
fn overlapping_finds_all_guards_that_share_a_route() {
    let callers = ["* *", "shop *", "shop online", "* online", "other *"];
    let callees =
        ["* *", "* p.S/*", "* p.S/A", "stock *", "stock p.S/*", "stock p.S/A", "stock p.T/A", "till *"];
    let patterns: Vec<Pattern> = callers
        .iter()
        .flat_map(|caller| callees.iter().map(move |callee| words(&format!("{caller} {callee}"))))
        .collect();
    let mut view = empty();
    view.apply(&change(1, patterns.iter().map(|guard| (of_guard(guard), Some(ceiling(2)))).collect()));
    for pattern in &patterns {
        let found: BTreeSet<&Pattern> =
            view.guards().overlapping(pattern).map(|stored| &stored.pattern).collect();
        let expected = patterns.iter().filter(|guard| guard.overlaps(pattern)).collect();
        assert_eq!(found, expected, "{pattern}");
    }
}

#[test]
fn guards_are_listed_once_from_any_place_on() {
    let all = ["* * a *", "x * a *", "* * * *", "* * b p.S/*", "y z b p.S/M"].map(words);
    let mut view = empty();
    view.apply(&change(1, all.iter().map(|guard| (of_guard(guard), Some(ceiling(2)))).collect()));
    let listed: Vec<&Pattern> = view.guards().iter().map(|stored| &stored.pattern).collect();
    assert_eq!(listed.len(), all.len());
    for (n, pattern) in listed.iter().enumerate() {
        let after: Vec<&Pattern> =
            view.guards().behind(Some(pattern)).map(|stored| &stored.pattern).collect();
        assert_eq!(after, listed[n + 1..]);
    }
}

#[test]
fn a_rule_that_is_off_exceeds_nothing() {
    let mut view = empty();
    view.apply(&change(1, vec![(of_guard(&words("* * * *")), Some(ceiling(1)))]));
    let rule = |policy: Vec<u8>| StoredRule::read(&pattern("*"), &policy, 1).rule.unwrap();
    let on = rule(attempts(4));
    let exceeded: Vec<CeilingExceeded> = view.guards().exceeded_by(&on).collect();
    assert_eq!(exceeded[0].excess.field, "retry.max_attempts");
    let off = Rule::new(
        pattern("*"),
        damper_core::Policy { mode: damper_core::Mode::Off, ..on.policy().clone() },
        1,
    );
    assert_eq!(view.guards().exceeded_by(&off.unwrap()).count(), 0);
}
