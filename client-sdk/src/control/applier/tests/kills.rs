//! Kills in responses: full sets, single rejections, countdown, storage on disk.

use damper_core::kill::MAX_KILLS;

use super::super::Response;
use super::*;

fn kill(name: &str, revision: u64, seconds: i64) -> v1::ActiveKill {
    v1::ActiveKill {
        key: Some(key(name)),
        revision,
        calls: true,
        reason: "an incident".to_owned(),
        remaining: Some(prost_types::Duration { seconds, nanos: 0 }),
        expires_at: None,
    }
}

/// A kill with a time left beyond any clock.
fn unreadable(name: &str, revision: u64) -> v1::ActiveKill {
    kill(name, revision, i64::MAX)
}

fn message(kills: Vec<v1::ActiveKill>) -> Option<KillMessage> {
    message_at(0, kills)
}

fn message_at(seconds: u64, kills: Vec<v1::ActiveKill>) -> Option<KillMessage> {
    Some(KillMessage { set: v1::KillSet { kills, ..Default::default() }, at: present(seconds).time })
}

/// Callee, revision and expiry in seconds of the kills held.
fn held(applier: &Applier) -> Vec<(String, u64, u64)> {
    let parts = |held: &TimedKill| {
        let until = held.until.as_micros() / 1_000_000;
        (held.kill.pattern().callee_service.to_string(), held.kill.revision(), until)
    };
    applier.kills.held().map(parts).collect()
}

#[test]
fn added_kills_keep_the_others_except_ended_ones() {
    let mut applier = holding(vec![]);
    applier.bookmark(at(11), message(vec![kill("a", 11, 60), kill("b", 11, 60), kill("c", 11, 60)]));
    let set =
        v1::KillSet { kills: vec![kill("c", 12, 90), kill("d", 12, 90)], adds: true, ended: vec![key("a")] };
    applier.bookmark(at(12), Some(KillMessage { set, at: present(0).time }));
    assert_eq!(held(&applier), [entry("b", 11, 60), entry("c", 12, 90), entry("d", 12, 90)]);
    let all = (0..MAX_KILLS).map(|number| kill(&format!("e{number}"), 13, 90)).collect();
    let set = v1::KillSet { kills: all, adds: true, ended: vec![] };
    applier.bookmark(at(13), Some(KillMessage { set, at: present(0).time }));
    assert_eq!(held(&applier).len(), MAX_KILLS, "added kills replace held ones at the limit");
    let ended = vec![key("x"); MAX_KILLS + 1];
    let too_many =
        KillMessage { set: v1::KillSet { adds: true, ended, ..Default::default() }, at: present(0).time };
    assert!(matches!(applier.bookmark(at(14), Some(too_many)), ApplyOutcome::OutOfStep(_)));
}

fn entry(name: &str, revision: u64, until: u64) -> (String, u64, u64) {
    (name.to_owned(), revision, until)
}

#[test]
fn a_set_names_all_kills_and_without_one_they_stay() {
    let mut applier = holding(vec![]);
    assert_eq!(applier.thrown(), None);
    applier.delta(at(11), change(vec![], &[]), message_at(5, vec![kill("a", 11, 60), kill("b", 11, 1)]));
    assert_eq!(held(&applier), [entry("a", 11, 65), entry("b", 11, 6)]);
    assert_eq!(applier.thrown().map(|kills| kills.len()), Some(2));
    assert_eq!(applier.thrown(), None, "reported once");
    applier.delta(at(12), change(vec![good("x", 12, 2)], &[]), None);
    applier.bookmark(at(13), None);
    assert_eq!(held(&applier).len(), 2);
    assert_eq!(applier.thrown(), None);
    applier.snapshot(at(14), page(vec![], true), message_at(7, vec![kill("c", 14, 10)]));
    assert_eq!(held(&applier), [entry("c", 14, 17)]);
    applier.bookmark(at(15), message(vec![]));
    assert_eq!((held(&applier), applier.thrown()), (vec![], Some(vec![])));
}

#[test]
fn kills_with_a_page_apply_at_once_and_are_acked_at_the_end() {
    let mut applier = Applier::default();
    applier.snapshot(at(10), page(vec![], false), message(vec![kill("a", 1, 60), unreadable("b", 1)]));
    assert_eq!(applier.thrown().map(|kills| kills.len()), Some(1));
    assert_eq!(held(&applier), [entry("a", 1, 60)]);
    let outcome = applier.snapshot(at(10), page(vec![], true), None);
    let ApplyOutcome::Applied { refused, whole: true } = outcome else { panic!("{outcome:?}") };
    assert_eq!(refused.iter().map(|refusal| refusal.key.clone()).collect::<Vec<_>>(), [Some(key("b"))]);
    assert_eq!((held(&applier), applier.thrown()), (vec![entry("a", 1, 60)], None));
    // An incomplete snapshot is dropped with its stream; its kills stay.
    applier.snapshot(at(20), page(vec![], false), message(vec![unreadable("c", 20)]));
    applier.begin_stream();
    assert_eq!(held(&applier), []);
    let outcome = applier.snapshot(at(20), page(vec![], true), None);
    assert_eq!(outcome, ApplyOutcome::Applied { refused: vec![], whole: true });
    // Also of another store, but not if older than the state held.
    applier.snapshot(in_epoch("f", 1), page(vec![], false), message(vec![kill("d", 1, 60)]));
    assert_eq!(held(&applier), [entry("d", 1, 60)]);
    applier.begin_stream();
    applier.snapshot(at(19), page(vec![], false), message(vec![]));
    assert_eq!(held(&applier), [entry("d", 1, 60)]);
}

#[test]
fn a_stale_response_changes_no_kill() {
    let mut applier = holding(vec![]);
    applier.delta(at(12), change(vec![], &[]), message(vec![kill("a", 12, 60)]));
    assert_eq!(applier.delta(at(11), change(vec![], &[]), message(vec![])), ApplyOutcome::Stale);
    assert_eq!(applier.bookmark(at(11), message(vec![])), ApplyOutcome::Stale);
    assert_eq!(applier.snapshot(at(11), page(vec![], true), message(vec![])), ApplyOutcome::Stale);
    assert_eq!(held(&applier).len(), 1);
    let mut fresh = Applier::default();
    assert_eq!(fresh.bookmark(at(11), message(vec![kill("a", 11, 60)])), ApplyOutcome::Incomplete);
    assert_eq!(held(&fresh), []);
}

#[test]
fn an_unreadable_kill_is_rejected_alone() {
    let mut applier = holding(vec![bad("rule", 9)]);
    let nameless = v1::ActiveKill { key: None, ..kill("c", 11, 60) };
    let set = vec![kill("a", 11, 60), unreadable("b", 11), nameless];
    let outcome = applier.apply(at(11), Response::Delta(v1::Delta::default()), message(set));
    let ApplyOutcome::Applied { refused, whole: false } = outcome else { panic!("{outcome:?}") };
    assert!(refused.iter().all(|refusal| refusal.kill && !refusal.guard && refusal.revision == 11));
    assert_eq!((refused[0].key.clone(), refused[1].key.clone()), (Some(key("b")), None));
    assert!(refused[0].reason.starts_with("remaining: "), "{}", refused[0].reason);
    assert_eq!(held(&applier), [entry("a", 11, 60)]);
    assert_eq!((applier.refused_count(), applier.refused().count()), (3, 3), "the hello names them");
    applier.delta(at(12), change(vec![], &[]), None);
    assert_eq!(applier.refused_count(), 3);
    applier.delta(at(13), change(vec![], &[]), message(vec![kill("a", 11, 59)]));
    assert_eq!(applier.refused_count(), 1, "only the rule");
}

#[test]
fn a_kill_with_an_unreadable_change_stays_until_it_expires() {
    let mut applier = holding(vec![]);
    applier.delta(at(11), change(vec![], &[]), message(vec![kill("a", 11, 60), kill("b", 11, 60)]));
    applier.delta(at(12), change(vec![], &[]), message_at(30, vec![unreadable("a", 12)]));
    assert_eq!(held(&applier), [entry("a", 11, 60)]);
}

#[test]
fn kills_with_the_same_key_are_one() {
    let mut applier = holding(vec![]);
    let set = || {
        let readable = (0..500).map(|n| kill("a", n, 60));
        let spoilt = (0..500).map(|n| unreadable("a", n));
        message(readable.chain(spoilt).collect())
    };
    for _ in 0..3 {
        applier.apply(at(11), Response::Bookmark, set());
        assert_eq!(held(&applier), [entry("a", 499, 60)], "the last readable one");
    }
    let spoilt = message((0..1_000).map(|n| unreadable("a", n)).collect());
    applier.apply(at(12), Response::Bookmark, spoilt);
    assert_eq!((held(&applier).len(), applier.refused_count()), (1, 1_000));
}

#[test]
fn too_many_kills_end_the_stream_and_change_nothing() {
    let mut applier = holding(vec![]);
    applier.delta(at(11), change(vec![], &[]), message(vec![kill("a", 11, 60)]));
    let many = |count: usize| message((0..count).map(|n| kill(&format!("k{n}"), 12, 60)).collect());
    let long = || {
        let reason = "x".repeat(5 << 20);
        message(vec![v1::ActiveKill { reason, ..kill("a", 12, 60) }])
    };
    for kills in [many(1001), long()] {
        let outcome = applier.apply(at(12), Response::Bookmark, kills);
        assert_eq!(outcome, ApplyOutcome::OutOfStep("too many kills"));
        assert_eq!((held(&applier), applier.position()), (vec![entry("a", 11, 60)], Some(&at(11))));
    }
    applier.apply(at(12), Response::Bookmark, many(1000));
    assert_eq!(held(&applier).len(), 1000);
}

#[test]
fn after_a_restart_a_kill_has_the_smaller_remaining_time() {
    let mut applier = holding(vec![]);
    let set = vec![kill("a", 11, 60), kill("b", 11, 10), unreadable("c", 11)];
    applier.delta(at(11), change(vec![], &[]), message_at(100, set));
    // Stored 20 s later, when `b` has expired.
    let image = applier.image(present(120)).unwrap();
    let after = |seconds: u64, wall: u64| {
        let mut restored = Applier::default();
        let present = Present { wall: present(wall).wall, ..present(seconds) };
        restored.restore(image.clone(), present);
        assert_eq!(restored.thrown().map(|kills| kills.len()), Some(restored.kills.held().count()));
        assert_eq!(restored.refused_count(), 1, "still rejected");
        held(&restored)
    };
    assert_eq!(after(0, 120), [entry("a", 11, 40)]);
    assert_eq!(after(5, 130), [entry("a", 11, 35)], "30 s are left");
    assert_eq!(after(0, 159), [entry("a", 11, 1)]);
    assert_eq!(after(0, 160), []);
    assert_eq!(after(0, 1_000_000), []);
    assert_eq!(after(0, 0), [entry("a", 11, 40)], "a clock set back does not extend it");
}

#[test]
fn a_response_with_kills_alone_processes_no_table() {
    let applier = holding((0..2_000).map(|n| good(&format!("r{n}"), 1, 2)).collect());
    let kills = message(vec![kill("a", 11, 60)]);
    let effort = |response| applier.effort(&response, kills.as_ref());
    assert_eq!(effort(Response::Delta(v1::Delta::default())), 10);
    assert_eq!(effort(Response::Bookmark), 10);
    assert!(!Response::Delta(v1::Delta::default()).is_about_rules());
    assert!(effort(Response::Delta(change(vec![], &["r1"]))) > 2_000);
}
