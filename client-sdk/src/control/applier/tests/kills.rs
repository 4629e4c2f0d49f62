//! Kills beside responses: all of them at once, refused one by one, counted down, kept on disk.

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

/// One that no clock can have meant.
fn unreadable(name: &str, revision: u64) -> v1::ActiveKill {
    kill(name, revision, i64::MAX)
}

fn told(kills: Vec<v1::ActiveKill>) -> Option<Told> {
    told_at(0, kills)
}

fn told_at(seconds: u64, kills: Vec<v1::ActiveKill>) -> Option<Told> {
    Some(Told { set: v1::KillSet { kills, ..Default::default() }, at: present(seconds).time })
}

/// The kills held: callee, revision, and the second at which each is over.
fn held(applier: &Applier) -> Vec<(String, u64, u64)> {
    let parts = |held: &TimedKill| {
        let until = held.until.as_micros() / 1_000_000;
        (held.kill.pattern().callee_service.to_string(), held.kill.revision(), until)
    };
    applier.kills.held().map(parts).collect()
}

#[test]
fn added_kills_leave_the_others_but_for_those_that_ended() {
    let mut applier = holding(vec![]);
    applier.bookmark(at(11), told(vec![kill("a", 11, 60), kill("b", 11, 60), kill("c", 11, 60)]));
    let set =
        v1::KillSet { kills: vec![kill("c", 12, 90), kill("d", 12, 90)], adds: true, ended: vec![key("a")] };
    applier.bookmark(at(12), Some(Told { set, at: present(0).time }));
    assert_eq!(held(&applier), [entry("b", 11, 60), entry("c", 12, 90), entry("d", 12, 90)]);
    let all = (0..MAX_KILLS).map(|number| kill(&format!("e{number}"), 13, 90)).collect();
    let set = v1::KillSet { kills: all, adds: true, ended: vec![] };
    applier.bookmark(at(13), Some(Told { set, at: present(0).time }));
    assert_eq!(held(&applier).len(), MAX_KILLS, "added kills have the room of those that were held");
    let ended = vec![key("x"); MAX_KILLS + 1];
    let too_many = Told { set: v1::KillSet { adds: true, ended, ..Default::default() }, at: present(0).time };
    assert!(matches!(applier.bookmark(at(14), Some(too_many)), ApplyOutcome::OutOfStep(_)));
}

fn entry(name: &str, revision: u64, until: u64) -> (String, u64, u64) {
    (name.to_owned(), revision, until)
}

#[test]
fn a_set_names_all_there_are_and_without_one_they_stay() {
    let mut applier = holding(vec![]);
    assert_eq!(applier.thrown(), None);
    applier.delta(at(11), change(vec![], &[]), told_at(5, vec![kill("a", 11, 60), kill("b", 11, 1)]));
    assert_eq!(held(&applier), [entry("a", 11, 65), entry("b", 11, 6)]);
    assert_eq!(applier.thrown().map(|kills| kills.len()), Some(2));
    assert_eq!(applier.thrown(), None, "it is told once");
    applier.delta(at(12), change(vec![good("x", 12, 2)], &[]), None);
    applier.bookmark(at(13), None);
    assert_eq!(held(&applier).len(), 2);
    assert_eq!(applier.thrown(), None);
    applier.snapshot(at(14), page(vec![], true), told_at(7, vec![kill("c", 14, 10)]));
    assert_eq!(held(&applier), [entry("c", 14, 17)]);
    applier.bookmark(at(15), told(vec![]));
    assert_eq!((held(&applier), applier.thrown()), (vec![], Some(vec![])));
}

#[test]
fn kills_beside_a_page_are_thrown_at_once_and_answered_with_the_last() {
    let mut applier = Applier::default();
    applier.snapshot(at(10), page(vec![], false), told(vec![kill("a", 1, 60), unreadable("b", 1)]));
    assert_eq!(applier.thrown().map(|kills| kills.len()), Some(1));
    assert_eq!(held(&applier), [entry("a", 1, 60)]);
    let outcome = applier.snapshot(at(10), page(vec![], true), None);
    let ApplyOutcome::Applied { refused, whole: true } = outcome else { panic!("{outcome:?}") };
    assert_eq!(refused.iter().map(|refusal| refusal.key.clone()).collect::<Vec<_>>(), [Some(key("b"))]);
    assert_eq!((held(&applier), applier.thrown()), (vec![entry("a", 1, 60)], None));
    // Half a snapshot is of no use to the next stream; what it said of kills holds.
    applier.snapshot(at(20), page(vec![], false), told(vec![unreadable("c", 20)]));
    applier.begin_stream();
    assert_eq!(held(&applier), []);
    let outcome = applier.snapshot(at(20), page(vec![], true), None);
    assert_eq!(outcome, ApplyOutcome::Applied { refused: vec![], whole: true });
    // Of another store, too; but not what is older than what is held.
    applier.snapshot(in_epoch("f", 1), page(vec![], false), told(vec![kill("d", 1, 60)]));
    assert_eq!(held(&applier), [entry("d", 1, 60)]);
    applier.begin_stream();
    applier.snapshot(at(19), page(vec![], false), told(vec![]));
    assert_eq!(held(&applier), [entry("d", 1, 60)]);
}

#[test]
fn what_is_older_than_what_is_held_changes_no_kill() {
    let mut applier = holding(vec![]);
    applier.delta(at(12), change(vec![], &[]), told(vec![kill("a", 12, 60)]));
    assert_eq!(applier.delta(at(11), change(vec![], &[]), told(vec![])), ApplyOutcome::Stale);
    assert_eq!(applier.bookmark(at(11), told(vec![])), ApplyOutcome::Stale);
    assert_eq!(applier.snapshot(at(11), page(vec![], true), told(vec![])), ApplyOutcome::Stale);
    assert_eq!(held(&applier).len(), 1);
    let mut fresh = Applier::default();
    assert_eq!(fresh.bookmark(at(11), told(vec![kill("a", 11, 60)])), ApplyOutcome::Incomplete);
    assert_eq!(held(&fresh), []);
}

#[test]
fn a_kill_that_cannot_be_read_is_refused_by_name_and_the_others_are_in_force() {
    let mut applier = holding(vec![bad("rule", 9)]);
    let nameless = v1::ActiveKill { key: None, ..kill("c", 11, 60) };
    let set = vec![kill("a", 11, 60), unreadable("b", 11), nameless];
    let outcome = applier.apply(at(11), Response::Delta(v1::Delta::default()), told(set));
    let ApplyOutcome::Applied { refused, whole: false } = outcome else { panic!("{outcome:?}") };
    assert!(refused.iter().all(|refusal| refusal.kill && !refusal.guard && refusal.revision == 11));
    assert_eq!((refused[0].key.clone(), refused[1].key.clone()), (Some(key("b")), None));
    assert!(refused[0].reason.starts_with("remaining: "), "{}", refused[0].reason);
    assert_eq!(held(&applier), [entry("a", 11, 60)]);
    assert_eq!((applier.refused_count(), applier.refused().count()), (3, 3), "the hello names them");
    applier.delta(at(12), change(vec![], &[]), None);
    assert_eq!(applier.refused_count(), 3);
    applier.delta(at(13), change(vec![], &[]), told(vec![kill("a", 11, 59)]));
    assert_eq!(applier.refused_count(), 1, "only the rule");
}

#[test]
fn a_kill_whose_change_cannot_be_read_stays_for_the_time_it_has() {
    let mut applier = holding(vec![]);
    applier.delta(at(11), change(vec![], &[]), told(vec![kill("a", 11, 60), kill("b", 11, 60)]));
    applier.delta(at(12), change(vec![], &[]), told_at(30, vec![unreadable("a", 12)]));
    assert_eq!(held(&applier), [entry("a", 11, 60)]);
}

#[test]
fn kills_with_the_same_key_are_one_however_often_they_are_said() {
    let mut applier = holding(vec![]);
    let set = || {
        let readable = (0..500).map(|n| kill("a", n, 60));
        let spoilt = (0..500).map(|n| unreadable("a", n));
        told(readable.chain(spoilt).collect())
    };
    for _ in 0..3 {
        applier.apply(at(11), Response::Bookmark, set());
        assert_eq!(held(&applier), [entry("a", 499, 60)], "the last that can be read");
    }
    let spoilt = told((0..1_000).map(|n| unreadable("a", n)).collect());
    applier.apply(at(12), Response::Bookmark, spoilt);
    assert_eq!((held(&applier).len(), applier.refused_count()), (1, 1_000));
}

#[test]
fn more_kills_than_there_can_be_give_the_stream_up_and_change_nothing() {
    let mut applier = holding(vec![]);
    applier.delta(at(11), change(vec![], &[]), told(vec![kill("a", 11, 60)]));
    let many = |count: usize| told((0..count).map(|n| kill(&format!("k{n}"), 12, 60)).collect());
    let long = || {
        let reason = "x".repeat(5 << 20);
        told(vec![v1::ActiveKill { reason, ..kill("a", 12, 60) }])
    };
    for kills in [many(1001), long()] {
        let outcome = applier.apply(at(12), Response::Bookmark, kills);
        assert_eq!(outcome, ApplyOutcome::OutOfStep("more kills than there can be"));
        assert_eq!((held(&applier), applier.position()), (vec![entry("a", 11, 60)], Some(&at(11))));
    }
    applier.apply(at(12), Response::Bookmark, many(1000));
    assert_eq!(held(&applier).len(), 1000);
}

#[test]
fn after_a_restart_a_kill_has_the_lesser_of_what_it_had_left_and_what_the_clock_leaves_it() {
    let mut applier = holding(vec![]);
    let set = vec![kill("a", 11, 60), kill("b", 11, 10), unreadable("c", 11)];
    applier.delta(at(11), change(vec![], &[]), told_at(100, set));
    // Written 20 s later: `b` is over.
    let image = applier.image(present(120)).unwrap();
    let after = |seconds: u64, wall: u64| {
        let mut restored = Applier::default();
        let present = Present { wall: present(wall).wall, ..present(seconds) };
        restored.restore(image.clone(), present);
        assert_eq!(restored.thrown().map(|kills| kills.len()), Some(restored.kills.held().count()));
        assert_eq!(restored.refused_count(), 1, "what was refused is still");
        held(&restored)
    };
    assert_eq!(after(0, 120), [entry("a", 11, 40)]);
    assert_eq!(after(5, 130), [entry("a", 11, 35)], "30 s are left");
    assert_eq!(after(0, 159), [entry("a", 11, 1)]);
    assert_eq!(after(0, 160), []);
    assert_eq!(after(0, 1_000_000), []);
    assert_eq!(after(0, 0), [entry("a", 11, 40)], "a clock set back gives it no more time");
}

#[test]
fn a_response_that_tells_of_kills_alone_costs_no_table() {
    let applier = holding((0..2_000).map(|n| good(&format!("r{n}"), 1, 2)).collect());
    let kills = told(vec![kill("a", 11, 60)]);
    let effort = |response| applier.effort(&response, kills.as_ref());
    assert_eq!(effort(Response::Delta(v1::Delta::default())), 10);
    assert_eq!(effort(Response::Bookmark), 10);
    assert!(!Response::Delta(v1::Delta::default()).is_about_rules());
    assert!(effort(Response::Delta(change(vec![], &["r1"]))) > 2_000);
}
