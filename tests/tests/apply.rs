//! Sets in somebody's name, on every store through the server: what they write, remove, leave alone and are refused
//! for, also while others write.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use damper_proto::v1::rule_result::Change;
use damper_proto::v1::{self, rule_change};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use prost::Message as _;
use tonic::{Code, Status};

const RULES: usize = 5000;
/// How often a prune and a put meet.
const ROUNDS: u32 = 150;

fn key(caller: &str) -> v1::Pattern {
    v1::Pattern {
        caller_service: caller.to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/*".to_owned(),
    }
}

fn rule(caller: &str, owner: &str, max_attempts: u32) -> v1::Rule {
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Observe.into(), retry: Some(retry), ..Default::default() };
    v1::Rule { key: Some(key(caller)), policy: Some(policy), owner: owner.to_owned(), ..Default::default() }
}

fn guard(callee: &str, owner: &str, max_attempts: u32) -> v1::Guard {
    let key = v1::Pattern { callee_service: callee.to_owned(), callee_method: "*".to_owned(), ..key("*") };
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    v1::Guard { key: Some(key), ceiling: Some(ceiling), owner: owner.to_owned(), ..Default::default() }
}

fn put(rule: v1::Rule) -> rule_change::Kind {
    rule_change::Kind::Put(rule)
}

/// In whose name, and what becomes of the rest.
fn options(owner: &str, prune: v1::Prune) -> v1::WriteOptions {
    v1::WriteOptions { owner: owner.to_owned(), prune: prune.into(), ..Default::default() }
}

fn owned(owner: &str) -> v1::WriteOptions {
    options(owner, v1::Prune::Owned)
}

fn counts(response: &v1::ApplyRulesResponse) -> [u32; 4] {
    [response.created, response.updated, response.unchanged, response.deleted]
}

fn conflicts(status: &Status) -> v1::Conflicts {
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    let details = tonic_types::pb::Status::decode(status.details()).unwrap().details;
    let packed = details.iter().find(|any| any.type_url.ends_with("/damper.v1.Conflicts")).unwrap();
    v1::Conflicts::decode(packed.value.as_slice()).unwrap()
}

/// Every rule and guard, by its caller and callee, with its owner.
async fn all(server: &ControlPlane, min_revision: u64) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut request = v1::ListRulesRequest { page_size: 1000, min_revision, ..Default::default() };
    loop {
        let page = server.rules().list_rules(request.clone()).await.unwrap().into_inner();
        found.extend(page.rules.into_iter().map(|rule| (rule.key.unwrap().caller_service, rule.owner)));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let request = v1::ListGuardsRequest { min_revision, ..Default::default() };
    let guards = server.guards().list_guards(request).await.unwrap().into_inner().guards;
    found.extend(guards.into_iter().map(|guard| (guard.key.unwrap().callee_service, guard.owner)));
    found
}

async fn head(server: &ControlPlane) -> u64 {
    server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner().revision
}

/// A set of 5,000 twice, then a smaller one, among what belongs to others and to nobody.
async fn writes_nothing_twice_and_prunes_its_own(one: &ControlPlane, two: &ControlPlane) {
    let mine = |count: usize| (0..count).map(|n| put(rule(&format!("mine-{n:04}"), "", 3)));
    let theirs = (0..100).map(|n| put(rule(&format!("theirs-{n:03}"), "", 4)));
    let guards = |owner| [rule_change::Kind::PutGuard(guard(owner, "", 5))];
    let nobodys = (0..10).map(|n| put(rule(&format!("nobodys-{n}"), "", 2)));
    one.write(owned("team-b"), theirs.chain(guards("b"))).await.unwrap();
    one.write(v1::WriteOptions::default(), nobodys).await.unwrap();
    let first = one.write(owned("team-a"), mine(RULES).chain(guards("a"))).await.unwrap();
    assert_eq!(counts(&first), [5001, 0, 0, 0]);
    assert_eq!(first.revision, 3);

    let again = two.write(owned("team-a"), mine(RULES).chain(guards("a"))).await.unwrap();
    assert_eq!(counts(&again), [0, 0, 5001, 0]);
    assert_eq!((again.revision, head(two).await), (3, 3), "nothing was written");

    let tried = v1::WriteOptions { validate_only: true, ..owned("team-a") };
    let tried = two.write(tried, mine(RULES - 50)).await.unwrap();
    assert_eq!((counts(&tried), head(two).await), ([0, 0, 4950, 51], 3));
    let pruned = two.write(owned("team-a"), mine(RULES - 50)).await.unwrap();
    assert_eq!((counts(&pruned), pruned.revision), ([0, 0, 4950, 51], 4));
    let gone: Vec<_> =
        pruned.results.iter().filter(|result| result.change() == Change::Deleted).cloned().collect();
    assert_eq!(gone.len(), 51, "each is told, however long the set is");
    assert!(gone[..50].iter().all(|result| {
        !result.guard && result.key.as_ref().unwrap().caller_service.starts_with("mine-49")
    }));
    assert!(gone[50].guard);
    assert_eq!(gone, tried.results.into_iter().filter(|r| r.change() == Change::Deleted).collect::<Vec<_>>());

    let left = all(one, 4).await;
    let of = |owner: &str| left.iter().filter(|(_, found)| found == owner).count();
    assert_eq!((of("team-a"), of("team-b"), of("")), (4950, 101, 10));
}

async fn lists_conflicts_by_field(server: &ControlPlane) {
    server.write(owned("team-a"), [put(rule("shop", "", 3)), put(rule("till", "", 3))]).await.unwrap();
    let guards = [rule_change::Kind::PutGuard(guard("stock", "", 5))];
    server.write(owned("team-g"), guards).await.unwrap();
    let at = head(server).await;

    let mut other = rule("shop", "", 4);
    other.policy.as_mut().unwrap().mode = v1::Mode::Enforce.into();
    let mut said = rule("till", "team-b", 3);
    // A default that is written out is no other setting.
    said.policy.as_mut().unwrap().replay_limit_bytes = Some(65_536);
    let changes = || {
        [
            put(other.clone()),
            put(said.clone()),
            put(rule("new", "", 2)),
            rule_change::Kind::DeleteGuard(guard("stock", "", 5).key.unwrap()),
        ]
    };
    for options in [options("team-b", v1::Prune::Unspecified), owned("team-b"), v1::WriteOptions::default()] {
        for validate_only in [false, true] {
            let options = v1::WriteOptions { validate_only, ..options.clone() };
            let refused = server.write(options, changes()).await.unwrap_err();
            let found = conflicts(&refused);
            let told = |conflict: &v1::Conflict| {
                let v1::Conflict { guard, key, owner, field, current, wanted, queue } = conflict.clone();
                assert_eq!(queue, "", "no queue is in the set");
                let key = key.unwrap();
                let name = if guard { key.callee_service } else { key.caller_service };
                [name, owner, field, current, wanted].join("|")
            };
            let told: Vec<String> = found.conflicts.iter().map(told).collect();
            let (mode, till) = ("shop|team-a|policy.mode|observe|enforce", "till|team-a|owner|team-a|team-b");
            assert!(told.contains(&mode.to_owned()), "{told:?}");
            assert!(told.contains(&"shop|team-a|policy.retry.max_attempts|3|4".to_owned()), "{told:?}");
            assert!(told.contains(&till.to_owned()), "{told:?}");
            assert!(told.contains(&"stock|team-g|ceiling.max_attempts|5|".to_owned()), "{told:?}");
            assert!(!told.iter().any(|told| told.contains("replay")), "{told:?}");
            assert_eq!(found.total as usize, told.len());
            assert!(refused.message().contains("team-a, team-g"), "{refused:?}");
        }
    }
    assert_eq!((head(server).await, all(server, 0).await.len()), (at, 3), "nothing was written");

    let take = v1::WriteOptions { take_over: true, ..options("team-b", v1::Prune::Unspecified) };
    let taken = server.write(take, changes()).await.unwrap();
    assert_eq!(counts(&taken), [1, 2, 0, 1]);
    let owner = |name: &str| (name.to_owned(), "team-b".to_owned());
    assert_eq!(all(server, taken.revision).await, ["new", "shop", "till"].map(owner));
}

async fn leaves_what_says_as_much(server: &ControlPlane) {
    server.write(owned("team-a"), [put(rule("shop", "", 3))]).await.unwrap();
    let mut same = rule("shop", "", 3);
    same.policy.as_mut().unwrap().replay_limit_bytes = Some(65_536);
    for options in [owned("team-b"), v1::WriteOptions::default()] {
        let left = server.write(options, [put(same.clone())]).await.unwrap();
        assert_eq!((counts(&left), left.revision), ([0, 0, 1, 0], 1));
    }
    assert_eq!(all(server, 1).await, [("shop".to_owned(), "team-a".to_owned())]);
    // What belongs to nobody is taken without a word.
    server.rules().put_rule(put_request(rule("free", "", 3))).await.unwrap();
    let taken = server.write(owned("team-b"), [put(rule("free", "", 3))]).await.unwrap();
    assert_eq!(counts(&taken), [0, 1, 0, 0]);
    let over = v1::WriteOptions { take_over: true, ..owned("team-b") };
    let taken = server.write(over, [put(rule("shop", "", 3))]).await.unwrap();
    assert_eq!(counts(&taken), [0, 1, 0, 1], "and what it no longer names is pruned");
    assert_eq!(all(server, taken.revision).await, [("shop".to_owned(), "team-b".to_owned())]);
}

fn put_request(rule: v1::Rule) -> v1::PutRuleRequest {
    v1::PutRuleRequest { rule: Some(rule), ..Default::default() }
}

async fn says_what_is_wrong_with_a_claim(server: &ControlPlane) {
    let long = v1::WriteOptions { owner: "x".repeat(256), prune: 7, ..Default::default() };
    let refused = server.write(long, []).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for part in ["header.owner: must have at most 255 bytes, not 256", "header.prune: is not known"] {
        assert!(refused.message().contains(part), "{refused:?}");
    }
    let refused = server.write(owned(""), []).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("header.owner: is required"), "{refused:?}");

    // Everything but the set, which belongs to another: only who takes it over may remove it.
    server.write(owned("team-a"), [put(rule("shop", "", 3))]).await.unwrap();
    server.rules().put_rule(put_request(rule("free", "", 3))).await.unwrap();
    let everything = options("team-b", v1::Prune::Everything);
    let refused = server.write(everything.clone(), [put(rule("mine", "", 3))]).await.unwrap_err();
    assert_eq!(conflicts(&refused).conflicts[0].owner, "team-a");
    let over = v1::WriteOptions { take_over: true, ..everything };
    let done = server.write(over, [put(rule("mine", "", 3))]).await.unwrap();
    assert_eq!(counts(&done), [1, 0, 0, 2]);
}

async fn tells_a_change_by_hand(server: &ControlPlane) {
    let set =
        [put(rule("shop", "", 3)), put(rule("till", "", 3)), rule_change::Kind::PutGuard(guard("g", "", 5))];
    server.write(owned("team-a"), set).await.unwrap();
    let codes = |findings: &[v1::Finding]| -> Vec<String> {
        findings
            .iter()
            .filter(|finding| finding.code == "owned_by_another")
            .map(|f| f.message.clone())
            .collect()
    };
    let told =
        ["the rule is in the set of team-a: the next `damper apply --owner team-a` undoes this change"];
    let named = |owner: &str| Some(v1::WriteOptions { owner: owner.to_owned(), ..Default::default() });
    let table = [
        // Who writes back what was read has not said who is asking.
        (rule("shop", "team-a", 4), None, true),
        (rule("shop", "team-a", 5), named("team-b"), true),
        (rule("shop", "team-a", 5), None, false),
        (rule("shop", "team-a", 6), named("team-a"), false),
        (rule("till", "", 4), None, true),
    ];
    for (rule, options, is_told) in table {
        let request = v1::PutRuleRequest { rule: Some(rule), options, ..Default::default() };
        let done = server.rules().put_rule(request).await.unwrap().into_inner();
        let expected: &[&str] = if is_told { &told } else { &[] };
        assert_eq!(codes(&done.findings), expected);
    }
    let kept = server.rules().get_rule(v1::GetRuleRequest { key: Some(key("till")), min_revision: 0 }).await;
    assert_eq!(kept.unwrap().into_inner().owner, "", "a put replaces the whole rule, its owner too");

    let request = v1::DeleteGuardRequest { key: guard("g", "", 5).key, ..Default::default() };
    let tried = v1::WriteOptions { validate_only: true, ..Default::default() };
    for options in [Some(tried), None] {
        let request = v1::DeleteGuardRequest { options, ..request.clone() };
        let gone = server.guards().delete_guard(request).await.unwrap().into_inner();
        assert_eq!(
            codes(&gone.findings),
            ["the guard is in the set of team-a: the next `damper apply --owner team-a` undoes this change"]
        );
    }
    let mine = v1::PutRuleRequest { rule: Some(rule("shop", "team-a", 3)), ..Default::default() };
    server.rules().put_rule(mine).await.unwrap();
    for (owner, is_told) in [("team-b", true), ("team-a", false)] {
        let options =
            Some(v1::WriteOptions { validate_only: true, owner: owner.to_owned(), ..Default::default() });
        let request = v1::DeleteRuleRequest { key: Some(key("shop")), options, ..Default::default() };
        let gone = server.rules().delete_rule(request).await.unwrap().into_inner();
        assert_eq!(!codes(&gone.findings).is_empty(), is_told, "{owner}");
    }
}

/// A rollback takes back what the owner has applied, as any change by hand does.
async fn tells_a_rollback(server: &ControlPlane) {
    for attempts in [2, 3] {
        let set = [put(rule("shop", "team-a", attempts)), put(rule("till", "team-b", attempts))];
        server.write(v1::WriteOptions::default(), set).await.unwrap();
    }
    let told = |response: &v1::ApplyRulesResponse| -> Vec<(String, bool)> {
        let told = |result: &v1::RuleResult| {
            let told = result.findings.iter().any(|finding| finding.code == "owned_by_another");
            (result.key.as_ref().unwrap().caller_service.clone(), told)
        };
        response.results.iter().map(told).collect()
    };
    let of = |caller: &str| v1::ObjectKey { kind: Some(v1::object_key::Kind::Rule(key(caller))) };
    for (owner, is_told) in [("", true), ("team-b", true), ("team-a", false)] {
        let options = v1::WriteOptions {
            owner: owner.to_owned(),
            reason: "it was better".to_owned(),
            validate_only: true,
            ..Default::default()
        };
        let one = v1::RollbackRequest {
            key: Some(of("shop")),
            to_revision: Some(1),
            options: Some(options.clone()),
            ..Default::default()
        };
        let one = server.history().rollback(one).await.unwrap().into_inner();
        assert_eq!(told(&one), [("shop".to_owned(), is_told)], "{owner:?}");
        let all =
            v1::RollbackAllRequest { to_revision: Some(1), options: Some(options), ..Default::default() };
        let all = server.history().rollback_all(all).await.unwrap().into_inner();
        let till = ("till".to_owned(), owner != "team-b");
        assert_eq!(told(&all), [("shop".to_owned(), is_told), till], "{owner:?}");
    }
    let nothing = v1::RollbackRequest { key: Some(of("shop")), to_revision: Some(2), ..Default::default() };
    let nothing = server.history().rollback(nothing).await.unwrap().into_inner();
    assert_eq!(told(&nothing), [("shop".to_owned(), false)], "nothing was changed");
}

/// A set that is for one revision of the store is written at that one only.
async fn writes_nothing_at_another_revision(one: &ControlPlane, two: &ControlPlane) {
    let for_head =
        |head| v1::WriteOptions { expected_head: Some(head), ..options("", v1::Prune::Everything) };
    let between =
        one.write(v1::WriteOptions::default(), [put(rule("between", "", 3))]).await.unwrap().revision;
    // The other replica may not have seen it yet; the store has.
    for validate_only in [false, true] {
        let options = v1::WriteOptions { validate_only, ..for_head(between - 1) };
        if validate_only {
            all(two, between).await;
        }
        let refused = two.write(options, [put(rule("all", "", 3))]).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    }
    assert_eq!(all(two, between).await, [("between".to_owned(), String::new())]);
    let done = two.write(for_head(between), [put(rule("all", "", 3))]).await.unwrap();
    assert_eq!(counts(&done), [1, 0, 0, 1]);
}

/// A rule passes from one owner to another while the first one prunes it. Whoever is first, it is there afterwards
/// and the other's: a prune never removes what it did not see change hands.
async fn never_removes_what_another_puts(one: &ControlPlane, two: &ControlPlane) {
    let kept = || put(rule("kept", "", 3));
    for round in 0..ROUNDS {
        let contested = rule("contested", "team-a", 2 + round % 2);
        one.write(owned("team-a"), [kept(), put(contested)]).await.unwrap();
        let (mut rules, theirs) = (two.rules(), put_request(rule("contested", "team-b", 4 + round % 2)));
        let prune = one.write(owned("team-a"), [kept()]);
        // In the first round nothing races: the prune is there before the put begins.
        let (pruned, done) = if round == 0 {
            let pruned = prune.await;
            assert_eq!(pruned.as_ref().unwrap().deleted, 1);
            (pruned, rules.put_rule(theirs).await)
        } else {
            tokio::join!(prune, rules.put_rule(theirs))
        };
        let (pruned, done) = (pruned.unwrap(), done.unwrap().into_inner());
        assert_eq!(pruned.deleted == 1, done.revision > pruned.revision, "round {round}: {pruned:?}");
        let at = done.revision.max(pruned.revision);
        let request = v1::GetRuleRequest { key: Some(key("contested")), min_revision: at };
        let there = one.rules().get_rule(request).await.unwrap().into_inner();
        assert_eq!(there.owner, "team-b", "round {round}");
        let gone = v1::DeleteRuleRequest { key: Some(key("contested")), ..Default::default() };
        one.rules().delete_rule(gone).await.unwrap();
    }
}

/// While others write without a pause a prune is written all the same.
async fn prunes_among_busy_writers(server: &ControlPlane) {
    let busy = |n: usize| {
        let mut rules = server.rules();
        async move {
            for round in 0..200 {
                let mine = rule(&format!("busy-{n}"), "team-b", 2 + round % 4);
                rules.put_rule(put_request(mine)).await.unwrap();
            }
        }
    };
    let prunes = async {
        for round in 0..20 {
            let set = (0..10).map(|n| put(rule(&format!("pruned-{}", n + 10 * round), "", 3)));
            let done = server.write(owned("team-p"), set).await.unwrap();
            assert_eq!((done.created, done.deleted), (10, if round == 0 { 0 } else { 10 }));
        }
    };
    tokio::join!(futures_util::future::join_all((0..8).map(busy)), prunes);
    let left = all(server, 0).await;
    assert_eq!(left.iter().filter(|(_, owner)| owner == "team-p").count(), 10);
    assert_eq!(left.iter().filter(|(_, owner)| owner == "team-b").count(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_reapplying_5000_rules_writes_nothing_and_a_prune_touches_only_its_owners() {
    let server = ControlPlane::start().await;
    writes_nothing_twice_and_prunes_its_own(&server, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_reapplying_5000_rules_writes_nothing_and_a_prune_touches_only_its_owners() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    writes_nothing_twice_and_prunes_its_own(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_ownership_conflicts_are_listed_by_field() {
    lists_conflicts_by_field(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_ownership_conflicts_are_listed_by_field() {
    let etcd = Etcd::start().await;
    lists_conflicts_by_field(&ControlPlane::on(&format!("etcd://{}", etcd.endpoint())).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_as_much_stays_with_its_owner() {
    leaves_what_says_as_much(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_an_owner_or_beyond_its_own_is_refused() {
    says_what_is_wrong_with_a_claim(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_hand_of_what_belongs_to_another_is_told() {
    tells_a_change_by_hand(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_a_set_for_one_revision_is_written_at_no_other() {
    let server = ControlPlane::start().await;
    writes_nothing_at_another_revision(&server, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_a_set_for_one_revision_is_written_at_no_other() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    writes_nothing_at_another_revision(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_of_what_belongs_to_another_is_told() {
    tells_a_rollback(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_a_prune_never_removes_what_another_puts_meanwhile() {
    let server = ControlPlane::start().await;
    never_removes_what_another_puts(&server, &server).await;
    prunes_among_busy_writers(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_a_prune_never_removes_what_another_puts_on_another_replica() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    never_removes_what_another_puts(&one, &two).await;
}
