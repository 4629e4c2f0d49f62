use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use damper_core::{Mode, Pattern, Policy, Retry, Route, RouteKey, Time};
use proptest::prelude::*;
use prost::Message as _;

use super::*;

mod kills;

impl Applier {
    fn apply(
        &mut self,
        position: Position,
        response: super::Response,
        kills: Option<KillMessage>,
    ) -> ApplyOutcome {
        match self.apply_kills(&position, &response, kills) {
            Ok(()) => self.take(position, response),
            Err(problem) => ApplyOutcome::OutOfStep(problem),
        }
    }

    fn snapshot(
        &mut self,
        position: Position,
        page: v1::Snapshot,
        kills: Option<KillMessage>,
    ) -> ApplyOutcome {
        self.apply(position, super::Response::Snapshot(page), kills)
    }

    fn delta(&mut self, position: Position, delta: v1::Delta, kills: Option<KillMessage>) -> ApplyOutcome {
        self.apply(position, super::Response::Delta(delta), kills)
    }

    fn bookmark(&mut self, position: Position, kills: Option<KillMessage>) -> ApplyOutcome {
        self.apply(position, super::Response::Bookmark, kills)
    }
}

fn key(name: &str) -> v1::Pattern {
    (&Pattern::parse("orders", "*", name, "*").unwrap()).into()
}

fn at(revision: u64) -> Position {
    in_epoch("e", revision)
}

fn in_epoch(epoch: &str, revision: u64) -> Position {
    Position { epoch: epoch.to_owned(), revision, commit: 0 }
}

fn good(name: &str, revision: u64, max_attempts: u32) -> v1::DistributedRule {
    let policy =
        Policy { retry: Some(Retry { max_attempts, ..Retry::default() }), ..Policy::new(Mode::Enforce) };
    v1::DistributedRule {
        key: Some(key(name)),
        revision,
        kind: Some(v1::distributed_rule::Kind::Policy((&policy).into())),
    }
}

/// A mode unknown to this client.
fn bad(name: &str, revision: u64) -> v1::DistributedRule {
    let policy = v1::Policy { mode: 77, ..v1::Policy::default() };
    v1::DistributedRule {
        key: Some(key(name)),
        revision,
        kind: Some(v1::distributed_rule::Kind::Policy(policy)),
    }
}

fn withheld(name: &str, revision: u64) -> v1::DistributedRule {
    v1::DistributedRule {
        key: Some(key(name)),
        revision,
        kind: Some(v1::distributed_rule::Kind::NeedsFeature("hedge".to_owned())),
    }
}

fn page(rules: Vec<v1::DistributedRule>, last: bool) -> v1::Snapshot {
    v1::Snapshot { rules, last, ..Default::default() }
}

fn change(changed: Vec<v1::DistributedRule>, removed: &[&str]) -> v1::Delta {
    let removed = removed.iter().map(|name| key(name)).collect();
    v1::Delta { changed, removed, ..Default::default() }
}

fn holding(rules: Vec<v1::DistributedRule>) -> Applier {
    let mut applier = Applier::default();
    let outcome = applier.snapshot(at(10), page(rules, true), None);
    assert!(matches!(outcome, ApplyOutcome::Applied { whole: true, .. }), "{outcome:?}");
    applier
}

/// Both clocks, this many seconds after they began.
fn present(seconds: u64) -> Present {
    let since = Duration::from_secs(seconds);
    Present { time: Time::after_origin(since), wall: SystemTime::UNIX_EPOCH + since }
}

/// The mode and attempts of a call to this callee; `None` without a rule.
fn in_force(applier: &Applier, callee: &str) -> Option<(Mode, Option<u32>)> {
    let route = RouteKey::new("orders", "default", callee, "a.B/C").unwrap();
    let rule = applier.table().winner(&route).cloned()?;
    let attempts = rule.policy().retry.as_ref().map(|retry| retry.max_attempts);
    Some((rule.policy().mode, attempts))
}

fn reasons(outcome: ApplyOutcome) -> Vec<(String, u64, String)> {
    let ApplyOutcome::Applied { refused, .. } = outcome else { panic!("{outcome:?}") };
    let named =
        |refusal: v1::Refusal| (refusal.key.unwrap().callee_service, refusal.revision, refusal.reason);
    refused.into_iter().map(named).collect()
}

/// The rejections, as named in a hello.
fn refusals(applier: &Applier) -> Vec<v1::Refusal> {
    let all: Vec<_> = applier.refused().cloned().collect();
    assert_eq!(all.len(), applier.refused_count());
    all
}

const ENFORCED: fn(u32) -> Option<(Mode, Option<u32>)> = |n| Some((Mode::Enforce, Some(n)));
const OFF: Option<(Mode, Option<u32>)> = Some((Mode::Off, None));

#[test]
fn pages_apply_with_the_last_one() {
    let mut applier = holding(vec![good("old", 9, 2)]);
    assert_eq!(applier.snapshot(at(11), page(vec![good("a", 11, 2)], false), None), ApplyOutcome::Incomplete);
    assert_eq!(in_force(&applier, "a"), None, "an incomplete snapshot is not in force");
    assert_eq!(in_force(&applier, "old"), ENFORCED(2));
    applier.snapshot(at(11), page(vec![good("b", 11, 3)], true), None);
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
    assert_eq!(in_force(&applier, "b"), ENFORCED(3));
    assert_eq!(in_force(&applier, "old"), None, "a snapshot is the whole table");
}

#[test]
fn a_delta_changes_and_removes_only_named_entries() {
    let mut applier = holding(vec![good("a", 1, 2), good("b", 2, 2), good("c", 3, 2)]);
    applier.delta(at(12), change(vec![good("a", 12, 5)], &["b", "never-there"]), None);
    assert_eq!(in_force(&applier, "a"), ENFORCED(5));
    assert_eq!(in_force(&applier, "b"), None);
    assert_eq!(in_force(&applier, "c"), ENFORCED(2));
    assert_eq!(applier.position(), Some(&at(12)));
}

#[test]
fn a_rejected_rule_keeps_its_previous_version() {
    let mut applier = holding(vec![good("a", 1, 2), good("b", 1, 2)]);
    let refused = reasons(applier.delta(at(11), change(vec![bad("a", 11), good("b", 11, 4)], &[]), None));
    assert_eq!(refused, [("a".into(), 11, "policy.mode: must be off, observe or enforce, not 77".into())]);
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
    assert_eq!(in_force(&applier, "b"), ENFORCED(4));
    assert_eq!(refusals(&applier).len(), 1);
    let whole = reasons(applier.snapshot(at(12), page(vec![bad("a", 11), good("b", 11, 4)], true), None));
    assert_eq!(whole.len(), 1, "a snapshot repeats the refusal");
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
}

#[test]
fn a_rejected_rule_without_a_previous_version_is_off() {
    let mut applier = holding(vec![good("*", 1, 9), bad("a", 2)]);
    assert_eq!(in_force(&applier, "a"), OFF);
    assert_eq!(in_force(&applier, "b"), ENFORCED(9));
    applier.delta(at(11), change(vec![bad("a", 11)], &[]), None);
    assert_eq!(in_force(&applier, "a"), OFF, "refused again");
    assert_eq!(refusals(&applier).first().map(|refusal| refusal.revision), Some(11));
    applier.delta(at(12), change(vec![good("a", 12, 2)], &[]), None);
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
    assert_eq!(refusals(&applier), [], "replaced by one that is understood");
    applier.delta(at(13), change(vec![bad("a", 13)], &[]), None);
    applier.delta(at(14), change(vec![], &["a"]), None);
    assert_eq!(in_force(&applier, "a"), ENFORCED(9), "removed: the less specific rule applies");
    assert_eq!(refusals(&applier), []);
}

#[test]
fn a_withheld_rule_is_off_and_not_rejected() {
    let mut applier = holding(vec![good("*", 1, 9), good("a", 1, 2)]);
    let refused = reasons(applier.delta(at(11), change(vec![withheld("a", 11)], &[]), None));
    assert_eq!(refused, []);
    assert_eq!(in_force(&applier, "a"), OFF);
    applier.delta(at(12), change(vec![], &["a"]), None);
    assert_eq!(in_force(&applier, "a"), ENFORCED(9));
}

#[test]
fn a_rule_with_an_unreadable_pattern_is_rejected_and_removable() {
    let mut applier = holding(vec![]);
    let mut unreadable = good("a", 11, 2);
    unreadable.key.as_mut().unwrap().callee_method = "future:pattern".to_owned();
    let keyless = v1::DistributedRule { key: None, ..good("b", 11, 2) };
    let delta = change(vec![unreadable.clone(), keyless], &[]);
    let ApplyOutcome::Applied { refused, .. } = applier.delta(at(11), delta, None) else { panic!() };
    assert_eq!(refused.len(), 2);
    assert!(refused[0].reason.starts_with("key.callee_method: "), "{refused:?}");
    assert_eq!(refused[1].reason, "key: required");
    assert!(applier.table().is_empty());
    let removed = vec![unreadable.key.unwrap(), v1::Pattern::default()];
    applier.delta(at(12), v1::Delta { removed, ..Default::default() }, None);
    assert_eq!(refusals(&applier), []);
}

#[test]
fn an_older_response_changes_nothing() {
    let mut applier = holding(vec![good("a", 10, 2)]);
    assert_eq!(applier.delta(at(9), change(vec![], &["a"]), None), ApplyOutcome::Stale);
    assert_eq!(applier.snapshot(at(9), page(vec![], true), None), ApplyOutcome::Stale);
    assert_eq!(applier.bookmark(at(9), None), ApplyOutcome::Stale);
    assert_eq!(applier.position(), Some(&at(10)));
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
}

#[test]
fn another_epoch_needs_a_snapshot_of_any_revision() {
    let mut applier = holding(vec![good("a", 10, 2)]);
    let other = || in_epoch("other", 3);
    assert!(matches!(applier.delta(other(), change(vec![], &["a"]), None), ApplyOutcome::OutOfStep(_)));
    assert!(matches!(applier.bookmark(other(), None), ApplyOutcome::OutOfStep(_)));
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
    applier.snapshot(other(), page(vec![good("b", 2, 2)], true), None);
    assert_eq!(applier.position(), Some(&other()));
    assert_eq!(in_force(&applier, "a"), None);
}

#[test]
fn a_bookmark_moves_the_position_only_after_a_snapshot() {
    let mut applier = Applier::default();
    assert_eq!(applier.bookmark(at(5), None), ApplyOutcome::Incomplete);
    assert_eq!(applier.position(), None);
    let mut applier = holding(vec![]);
    assert_eq!(applier.bookmark(at(15), None), ApplyOutcome::Confirmed);
    assert_eq!(applier.position(), Some(&at(15)));
}

#[test]
fn an_interrupted_snapshot_is_dropped_with_its_stream() {
    let mut applier = holding(vec![good("a", 10, 2)]);
    applier.snapshot(at(11), page(vec![], false), None);
    assert!(matches!(applier.delta(at(12), change(vec![], &[]), None), ApplyOutcome::OutOfStep(_)));
    assert!(matches!(applier.snapshot(at(12), page(vec![], false), None), ApplyOutcome::OutOfStep(_)));
    applier.snapshot(at(11), page(vec![good("lost", 1, 2)], false), None);
    applier.begin_stream();
    applier.snapshot(at(12), page(vec![], true), None);
    assert!(applier.table().is_empty());
}

#[test]
fn stored_state_restores_rules_stand_ins_and_rejections() {
    let mut before = holding(vec![good("a", 1, 2), good("b", 1, 3), withheld("c", 1)]);
    before.delta(at(11), change(vec![bad("a", 11), bad("new", 11)], &[]), None);
    let mut after = Applier::default();
    after.restore(before.image(present(0)).unwrap(), present(0));
    assert_eq!(after.position(), Some(&at(11)));
    for (callee, expected) in [("a", ENFORCED(2)), ("b", ENFORCED(3)), ("c", OFF), ("new", OFF)] {
        assert_eq!(in_force(&after, callee), expected, "{callee}");
    }
    let sorted = |applier: &Applier| {
        let mut all = refusals(applier);
        all.sort_by_key(|refusal| refusal.key.clone().unwrap().callee_service);
        all
    };
    assert_eq!(sorted(&after), sorted(&before));
}

fn guard(name: &str, revision: u64, max_attempts: u32) -> v1::DistributedGuard {
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..v1::Ceiling::default() };
    v1::DistributedGuard { key: Some(key(name)), revision, ceiling: Some(ceiling) }
}

/// A ratio that is invalid for any guard.
fn bad_guard(name: &str, revision: u64) -> v1::DistributedGuard {
    let ceiling = v1::Ceiling { max_retry_breaker_ratio: Some(f64::NAN), ..v1::Ceiling::default() };
    v1::DistributedGuard { ceiling: Some(ceiling), ..guard(name, revision, 1) }
}

fn change_guards(changed_guards: Vec<v1::DistributedGuard>, removed: &[&str]) -> v1::Delta {
    let removed_guards = removed.iter().map(|name| key(name)).collect();
    v1::Delta { changed_guards, removed_guards, ..Default::default() }
}

/// The attempts that a call to this callee may make.
fn attempts(applier: &Applier, callee: &str) -> u32 {
    let route = RouteKey::new("orders", "default", callee, "a.B/C").unwrap();
    applier.table().in_force(&route).map_or(1, |rule| rule.policy().max_attempts())
}

#[test]
fn guards_come_with_snapshots_and_deltas_and_tighten_the_rules() {
    let mut applier = holding(vec![good("a", 1, 9), good("b", 1, 9)]);
    applier.delta(at(11), change_guards(vec![guard("*", 11, 5), guard("a", 11, 3)], &[]), None);
    assert_eq!((attempts(&applier, "a"), attempts(&applier, "b")), (3, 5));
    applier.delta(at(12), change_guards(vec![guard("*", 12, 4)], &["a"]), None);
    assert_eq!((attempts(&applier, "a"), attempts(&applier, "b")), (4, 4));
    applier.delta(at(13), change(vec![], &["*"]), None);
    assert_eq!(attempts(&applier, "a"), 4, "a rule's removal removes no guard of its pattern");
    let page = |guards, last| v1::Snapshot { rules: vec![good("a", 1, 9)], guards, last };
    applier.snapshot(at(14), page(vec![guard("a", 1, 2)], false), None);
    assert_eq!(attempts(&applier, "a"), 4);
    applier.snapshot(at(14), page(vec![], true), None);
    assert_eq!(attempts(&applier, "a"), 2);
    applier.snapshot(at(15), page(vec![], true), None);
    assert_eq!(attempts(&applier, "a"), 9, "a snapshot is all there is");
}

#[test]
fn a_rejected_guard_keeps_its_previous_version() {
    let mut applier = holding(vec![good("a", 1, 9), good("b", 1, 9)]);
    applier.delta(at(11), change_guards(vec![guard("a", 11, 3)], &[]), None);
    let mut delta = change_guards(vec![bad_guard("a", 12), bad_guard("new", 12), guard("b", 12, 2)], &[]);
    delta.changed = vec![good("a", 12, 8), bad("b", 12)];
    let ApplyOutcome::Applied { refused, .. } = applier.delta(at(12), delta, None) else { panic!() };
    let named = |refusal: &v1::Refusal| (refusal.key.clone().unwrap().callee_service, refusal.guard);
    let expected = [("b", false), ("a", true), ("new", true)].map(|(name, guard)| (name.to_owned(), guard));
    assert_eq!(refused.iter().map(named).collect::<Vec<_>>(), expected);
    assert!(refused[1].reason.starts_with("ceiling.max_retry_breaker_ratio: must be "), "{refused:?}");
    assert_eq!((attempts(&applier, "a"), attempts(&applier, "b")), (3, 2));
    assert_eq!(refusals(&applier).len(), 3);
    applier.delta(at(13), change_guards(vec![guard("a", 13, 4)], &["new"]), None);
    assert_eq!(attempts(&applier, "a"), 4);
    assert_eq!(refusals(&applier).len(), 1, "replaced and removed; the rule is refused still");
}

#[test]
fn guards_are_restored_with_their_rejections() {
    let mut before = holding(vec![good("a", 1, 9)]);
    before.delta(at(11), change_guards(vec![guard("a", 11, 3)], &[]), None);
    before.delta(at(12), change_guards(vec![bad_guard("a", 12), bad_guard("b", 12)], &[]), None);
    let mut after = Applier::default();
    after.restore(before.image(present(0)).unwrap(), present(0));
    assert_eq!(attempts(&after, "a"), 3);
    assert_eq!(refusals(&after).iter().filter(|refusal| refusal.guard).count(), 2);
    after.delta(at(13), change_guards(vec![], &["a", "b"]), None);
    assert_eq!(attempts(&after, "a"), 9);
    assert_eq!(refusals(&after), []);
}

#[test]
fn the_state_held_is_bounded_in_number_and_bytes() {
    let tiny = |count| vec![v1::DistributedRule::default(); count];
    let mut applier = holding(vec![good("a", 1, 2)]);
    let mut pages = 0;
    while applier.snapshot(at(11), page(tiny(10_000), false), None) == ApplyOutcome::Incomplete {
        pages += 1;
        assert!(pages * 10_000 <= MAX_ENTRIES, "endless pages are kept");
    }
    assert!(applier.pages.is_none(), "what is too long is dropped at once");
    assert_eq!(in_force(&applier, "a"), ENFORCED(2), "what was held is still in force");

    // Endless deltas with keys that cannot be read: each long one is kept as a rejection.
    let long = |i: usize| {
        let callee_service = format!("{i}{}", "x".repeat(1_000_000));
        let key = Some(v1::Pattern { callee_service, ..key("x") });
        v1::DistributedRule { key, revision: 11, kind: None }
    };
    let mut kept = 0;
    while let ApplyOutcome::Applied { refused, .. } =
        applier.delta(at(11), change(vec![long(kept)], &[]), None)
    {
        assert!(refused[0].reason.chars().count() <= 500);
        kept += 1;
        assert!(kept * 1_000_000 <= MAX_BYTES, "endless deltas are kept");
    }
    assert_eq!(in_force(&applier, "a"), ENFORCED(2));
    assert_eq!(applier.refused_count(), kept);
    applier.snapshot(at(12), page(vec![good("a", 1, 2)], true), None);
    assert_eq!((applier.refused_count(), applier.guards.len(), applier.rules.len()), (0, 0, 1));
    assert_eq!(applier.rules.bytes(), good("a", 1, 2).encoded_len());
}

#[test]
fn a_long_epoch_is_out_of_step() {
    let mut applier = holding(vec![good("a", 1, 2)]);
    let long = in_epoch(&"e".repeat(256), 11);
    assert!(matches!(applier.snapshot(long.clone(), page(vec![], true), None), ApplyOutcome::OutOfStep(_)));
    assert!(matches!(applier.bookmark(long, None), ApplyOutcome::OutOfStep(_)));
    assert_eq!(applier.position(), Some(&at(10)));
}

#[test]
fn a_pattern_sent_twice_counts_once_and_the_last_applies() {
    let mut applier = holding(vec![good("a", 1, 2), bad("a", 1), good("a", 1, 4), bad("b", 1), bad("b", 1)]);
    assert_eq!(in_force(&applier, "a"), ENFORCED(4));
    assert_eq!(refusals(&applier).len(), 1);
    applier.delta(at(11), change(vec![bad("b", 2), good("b", 3, 7)], &["b", "b"]), None);
    assert_eq!(in_force(&applier, "b"), ENFORCED(7));
    assert_eq!(refusals(&applier), []);
    assert_eq!(applier.rules.bytes(), good("a", 1, 4).encoded_len() + good("b", 3, 7).encoded_len());
}

#[derive(Clone, Debug)]
enum Sent {
    Good(u8, u32),
    Bad(u8),
    Withheld(u8),
    Remove(u8),
}

#[derive(Clone, Debug)]
enum Response {
    Snapshot(Vec<Sent>, bool),
    Delta(Vec<Sent>),
    Bookmark,
    NewStream,
}

fn any_sent() -> impl Strategy<Value = Sent> {
    let name = 0..4_u8;
    prop_oneof![
        3 => (name.clone(), 1..=10_u32).prop_map(|(name, attempts)| Sent::Good(name, attempts)),
        2 => name.clone().prop_map(Sent::Bad),
        1 => name.clone().prop_map(Sent::Withheld),
        2 => name.prop_map(Sent::Remove),
    ]
}

fn any_response() -> impl Strategy<Value = (u8, u64, Response)> {
    let list = || proptest::collection::vec(any_sent(), 0..4);
    let response = prop_oneof![
        2 => (list(), any::<bool>()).prop_map(|(sent, last)| Response::Snapshot(sent, last)),
        4 => list().prop_map(Response::Delta),
        1 => Just(Response::Bookmark),
        1 => Just(Response::NewStream),
    ];
    (0..2_u8, 0..6_u64, response)
}

/// The specified behaviour in its plainest form: the rule in force by name.
#[derive(Default)]
struct Model {
    position: Option<Position>,
    in_force: BTreeMap<u8, Option<u32>>,
    pages: Option<(Position, Vec<Sent>)>,
}

impl Model {
    fn put(&mut self, sent: &[Sent], previous: &BTreeMap<u8, Option<u32>>) {
        for one in sent {
            match one {
                Sent::Good(name, attempts) => drop(self.in_force.insert(*name, Some(*attempts))),
                Sent::Withheld(name) => drop(self.in_force.insert(*name, None)),
                Sent::Bad(name) => {
                    let kept = previous.get(name).copied().unwrap_or(None);
                    self.in_force.entry(*name).or_insert(kept);
                }
                Sent::Remove(_) => {}
            }
        }
    }

    fn step(&mut self, position: Position, response: &Response) {
        let behind = self
            .position
            .as_ref()
            .is_some_and(|held| held.epoch == position.epoch && held.revision > position.revision);
        let same_epoch = self.position.as_ref().is_some_and(|held| held.epoch == position.epoch);
        match response {
            Response::NewStream => self.pages = None,
            Response::Snapshot(sent, last) => {
                let (begun, mut all) = self.pages.take().unwrap_or((position.clone(), vec![]));
                if begun != position {
                    return;
                }
                all.extend(sent.iter().cloned());
                if !last {
                    self.pages = Some((begun, all));
                } else if !behind {
                    let previous = std::mem::take(&mut self.in_force);
                    self.put(&all, &previous);
                    self.position = Some(position);
                }
            }
            Response::Delta(sent) if self.pages.is_none() && same_epoch && !behind => {
                for one in sent {
                    if let Sent::Remove(name) = one {
                        self.in_force.remove(name);
                    }
                }
                let previous = self.in_force.clone();
                self.put(sent, &previous);
                self.position = Some(position);
            }
            Response::Bookmark if self.pages.is_none() && same_epoch && !behind => {
                self.position = Some(position);
            }
            Response::Delta(_) | Response::Bookmark => {}
        }
    }
}

fn feed(applier: &mut Applier, position: Position, response: &Response) {
    let revision = position.revision;
    let rules = |sent: &[Sent]| -> Vec<_> {
        let rule = |one: &Sent| match one {
            Sent::Good(name, attempts) => Some(good(&name.to_string(), revision, *attempts)),
            Sent::Bad(name) => Some(bad(&name.to_string(), revision)),
            Sent::Withheld(name) => Some(withheld(&name.to_string(), revision)),
            Sent::Remove(_) => None,
        };
        sent.iter().filter_map(rule).collect()
    };
    match response {
        Response::NewStream => applier.begin_stream(),
        Response::Snapshot(sent, last) => drop(applier.snapshot(position, page(rules(sent), *last), None)),
        Response::Bookmark => drop(applier.bookmark(position, None)),
        Response::Delta(sent) => {
            let removed = sent.iter().filter_map(|one| match one {
                Sent::Remove(name) => Some(key(&name.to_string())),
                _ => None,
            });
            let removed = removed.collect();
            let delta = v1::Delta { changed: rules(sent), removed, ..Default::default() };
            drop(applier.delta(position, delta, None));
        }
    }
}

proptest! {
    #[test]
    fn any_responses_match_the_model_and_never_go_back(
        responses in proptest::collection::vec(any_response(), 0..30),
    ) {
        let (mut applier, mut model) = (Applier::default(), Model::default());
        for (epoch, revision, response) in &responses {
            let position = in_epoch(&epoch.to_string(), *revision);
            let before = applier.position().cloned();
            feed(&mut applier, position.clone(), response);
            model.step(position, response);
            if let (Some(before), Some(after)) = (&before, applier.position()) {
                prop_assert!(before.epoch != after.epoch || before.revision <= after.revision);
            }
            prop_assert_eq!(applier.position(), model.position.as_ref());
            for name in 0..4_u8 {
                let expected = model.in_force.get(&name).map(|attempts| match attempts {
                    Some(attempts) => (Mode::Enforce, Some(*attempts)),
                    None => (Mode::Off, None),
                });
                prop_assert_eq!(in_force(&applier, &name.to_string()), expected);
            }
        }
        let mut restored = Applier::default();
        if let Some(image) = applier.image(present(0)) {
            restored.restore(image, present(0));
            for name in 0..4_u8 {
                let name = name.to_string();
                prop_assert_eq!(in_force(&restored, &name), in_force(&applier, &name));
            }
        }
    }

    #[test]
    fn any_bytes_that_decode_can_be_applied(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut applier = holding(vec![good("a", 1, 2)]);
        let mut valid = change(vec![good("a", 2, 3), bad("b", 2), withheld("c", 2)], &["d"]);
        valid.changed_guards = vec![guard("a", 2, 3), bad_guard("b", 2)];
        valid.removed_guards = vec![key("c")];
        let mut spoiled = valid.encode_to_vec();
        for (index, byte) in flips {
            let index = index.index(spoiled.len());
            spoiled[index] = byte;
        }
        for bytes in [bytes, spoiled] {
            if let Ok(delta) = v1::Delta::decode(bytes.as_slice()) {
                applier.delta(at(20), delta, None);
            }
            if let Ok(page) = v1::Snapshot::decode(bytes.as_slice()) {
                applier.snapshot(at(20), page, None);
            }
            let route = RouteKey::new("orders", "default", "a", "a.B/C").unwrap();
            let _ = Route::new(applier.table().in_force(&route));
            let mut restored = Applier::default();
            restored.restore(applier.image(present(0)).unwrap(), present(0));
        }
    }
}
