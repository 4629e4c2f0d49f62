//! Queues: as resources, from the admin API to the history. They are not sent to services.

use damper_proto::v1::{self, object, object_key, rule_change, rule_result};
use prost::Message as _;
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb};

use crate::access::{Guarded, bearer, reason};
use crate::harness::{
    Agent, Running, header, hello, key, put_change, rule, shop_rule, soon, start, start_in,
};

/// A queue with this name and number of attempts.
fn queue(name: &str, max_attempts: u32) -> v1::Queue {
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), retry: Some(retry), ..Default::default() };
    v1::Queue {
        name: name.to_owned(),
        policy: Some(policy),
        workers: vec!["orders".to_owned()],
        owner: "team-orders".to_owned(),
        ..Default::default()
    }
}

fn later(max_attempts: u32) -> v1::Queue {
    queue("stock-later", max_attempts)
}

fn put(queue: v1::Queue) -> v1::PutQueueRequest {
    v1::PutQueueRequest { queue: Some(queue), ..Default::default() }
}

fn delete(name: &str) -> v1::DeleteQueueRequest {
    v1::DeleteQueueRequest { name: name.to_owned(), ..Default::default() }
}

fn of_queue(name: &str) -> Option<v1::ObjectKey> {
    Some(v1::ObjectKey { kind: Some(object_key::Kind::Queue(name.to_owned())) })
}

async fn put_queue(server: &Running, queue: v1::Queue) -> v1::PutQueueResponse {
    soon(server.queues().put_queue(put(queue))).await.unwrap().into_inner()
}

async fn list(server: &Running, request: v1::ListQueuesRequest) -> v1::ListQueuesResponse {
    soon(server.queues().list_queues(request)).await.unwrap().into_inner()
}

async fn get(server: &Running, name: &str) -> Result<v1::Queue, Status> {
    let request = v1::GetQueueRequest { name: name.to_owned(), min_revision: 0 };
    soon(server.queues().get_queue(request)).await.map(tonic::Response::into_inner)
}

/// Returns the attempts of the queues in the store, by name.
async fn stored(server: &Running) -> Vec<(String, u32)> {
    let listed = list(server, v1::ListQueuesRequest { page_size: 1000, ..Default::default() }).await;
    listed.queues.iter().map(|queue| (queue.name.clone(), attempts(queue))).collect()
}

fn attempts(queue: &v1::Queue) -> u32 {
    queue.policy.as_ref().unwrap().retry.as_ref().unwrap().max_attempts.unwrap()
}

fn change(kind: rule_change::Kind) -> v1::ApplyRulesRequest {
    let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
    v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(change)) }
}

fn put_in_set(queue: v1::Queue) -> v1::ApplyRulesRequest {
    change(rule_change::Kind::PutQueue(queue))
}

async fn apply(
    server: &Running,
    options: v1::WriteOptions,
    changes: Vec<v1::ApplyRulesRequest>,
) -> Result<v1::ApplyRulesResponse, Status> {
    let requests: Vec<_> = std::iter::once(header(options)).chain(changes).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.map(tonic::Response::into_inner)
}

fn violations(status: &Status) -> Vec<String> {
    let violations = status.get_details_bad_request().unwrap().field_violations;
    violations.into_iter().map(|violation| violation.field).collect()
}

fn detail<T: prost::Message + Default>(status: &Status, name: &str) -> T {
    let details = pb::Status::decode(status.details()).unwrap().details;
    let packed = details.iter().find(|any| any.type_url.ends_with(&format!("/{name}"))).unwrap();
    T::decode(&*packed.value).unwrap()
}

#[tokio::test]
async fn queue_reads_back_as_written_also_after_a_restart() {
    let server = start().await;
    let first = put_queue(&server, later(3)).await;
    assert!(first.changed);
    let mut request = put(later(4));
    request.options = Some(v1::WriteOptions { author: "ann".to_owned(), ..Default::default() });
    let second = server.queues().put_queue(request).await.unwrap().into_inner();
    assert_eq!(second.revision, first.revision + 1, "queues count on the revisions of rules");
    let again = put_queue(&server, later(4)).await;
    assert!(!again.changed);
    assert_eq!((again.revision, &again.queue), (second.revision, &second.queue));

    let server = start_in(server.stop().await, |_| {}).await;
    let read = get(&server, "stock-later").await.unwrap();
    let v1::Queue { revision, updated_at, updated_by, .. } = read.clone();
    assert_eq!((revision, updated_by.as_str()), (second.revision, "ann"));
    assert!(updated_at.is_some());
    let written = v1::Queue { revision: 0, updated_at: None, updated_by: String::new(), ..read };
    assert_eq!(written, later(4), "without the defaults that were left out");
    let gone = server.queues().delete_queue(delete("stock-later")).await.unwrap().into_inner();
    assert_eq!(gone.revision, second.revision + 1);
    assert_eq!(get(&server, "stock-later").await.unwrap_err().code(), Code::NotFound);
    let missing = server.queues().delete_queue(delete("stock-later")).await.unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "there is no queue stock-later"));
    server.stop().await;
}

#[tokio::test]
async fn queue_conflict_has_the_current_queue_and_repeat_its_answer() {
    let server = start().await;
    let id = |queue| v1::PutQueueRequest {
        options: Some(v1::WriteOptions { request_id: "q-1".to_owned(), ..Default::default() }),
        ..put(queue)
    };
    let first = server.queues().put_queue(id(later(3))).await.unwrap().into_inner();
    let wrong = Some(first.revision + 7);
    let stale = v1::PutQueueRequest { expected_revision: wrong, ..put(later(5)) };
    let refused = server.queues().put_queue(stale).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    assert_eq!(Some(detail::<v1::Queue>(&refused, "damper.v1.Queue")), first.queue);
    let exists = v1::PutQueueRequest { expected_revision: Some(0), ..put(later(5)) };
    assert_eq!(server.queues().put_queue(exists).await.unwrap_err().code(), Code::Aborted);
    let stale = v1::DeleteQueueRequest { expected_revision: wrong, ..delete("stock-later") };
    assert_eq!(server.queues().delete_queue(stale).await.unwrap_err().code(), Code::Aborted);

    let again = server.queues().put_queue(id(later(3))).await.unwrap().into_inner();
    assert_eq!((again.revision, again.queue), (first.revision, first.queue));
    let other = server.queues().put_queue(id(later(4))).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(stored(&server).await, [("stock-later".to_owned(), 3)]);
    server.stop().await;
}

#[tokio::test]
async fn dry_run_of_a_queue_answers_and_writes_nothing() {
    let server = start().await;
    let dry = || Some(v1::WriteOptions { validate_only: true, ..Default::default() });
    let tried = v1::PutQueueRequest { options: dry(), ..put(later(3)) };
    let tried = server.queues().put_queue(tried).await.unwrap().into_inner();
    assert_eq!((tried.changed, tried.revision), (true, 0));
    assert_eq!(tried.findings[0].code, "queue_gives_up_early");
    assert_eq!(tried.findings[0].subject, "stock-later");
    let missing = v1::DeleteQueueRequest { options: dry(), ..delete("stock-later") };
    assert_eq!(server.queues().delete_queue(missing.clone()).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(stored(&server).await, []);
    put_queue(&server, later(3)).await;
    server.queues().delete_queue(missing).await.unwrap();
    assert_eq!(stored(&server).await, [("stock-later".to_owned(), 3)]);
    server.stop().await;
}

#[tokio::test]
async fn bad_queue_is_refused_with_all_its_faults() {
    let server = start().await;
    let mut bad = queue("Stock", 1001);
    bad.lease = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    bad.methods = vec!["stock".to_owned()];
    let options = v1::WriteOptions { author: "x".repeat(256), ..Default::default() };
    let request = v1::PutQueueRequest { options: Some(options), ..put(bad.clone()) };
    let refused = server.queues().put_queue(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let fields = ["methods[0]", "name", "policy.retry.max_attempts", "lease"];
    let at = |path: &str| fields.map(|field| format!("{path}.{field}")).to_vec();
    let expected = [at("queue"), vec!["options.author".to_owned()]].concat();
    assert_eq!(violations(&refused), expected);
    let refused = apply(&server, Default::default(), vec![put_in_set(bad)]).await.unwrap_err();
    assert_eq!(violations(&refused), at("changes[0].put_queue"));
    let refused = server.queues().put_queue(v1::PutQueueRequest::default()).await.unwrap_err();
    assert_eq!(violations(&refused), ["queue"]);
    assert_eq!(violations(&get(&server, "a b").await.unwrap_err()), ["name"]);
    let refused = server.queues().delete_queue(delete("")).await.unwrap_err();
    assert_eq!(violations(&refused), ["name"]);
    let large =
        v1::Queue { workers: vec!["w".repeat(255); 256], methods: vec!["* *".to_owned(); 256], ..later(3) };
    let refused = server.queues().put_queue(put(large)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn queues_are_listed_in_pages_and_by_text() {
    let server = start().await;
    for n in 0..7 {
        let owner = if n % 2 == 0 { "team-even" } else { "team-odd" };
        put_queue(&server, v1::Queue { owner: owner.to_owned(), ..queue(&format!("q{n}"), 25) }).await;
    }
    let (mut seen, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListQueuesRequest { page_size: 3, page_token, ..Default::default() };
        let page = list(&server, request).await;
        assert_eq!(page.total, 7);
        seen.extend(page.queues.into_iter().map(|queue| queue.name));
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
        let text = "q".to_owned();
        let other = v1::ListQueuesRequest { text, page_token: page_token.clone(), ..Default::default() };
        let refused = server.queues().list_queues(other).await.unwrap_err();
        assert_eq!(violations(&refused), ["page_token"]);
    }
    assert_eq!(seen, (0..7).map(|n| format!("q{n}")).collect::<Vec<_>>());
    for (text, total) in [("q3", 1), ("team-odd", 3), ("none", 0)] {
        let request = v1::ListQueuesRequest { text: text.to_owned(), ..Default::default() };
        assert_eq!(list(&server, request).await.total, total, "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn set_with_rules_guards_and_queues_is_one_revision() {
    let server = start().await;
    let ceiling = v1::Ceiling { max_attempts: Some(3), ..Default::default() };
    let guard = v1::Guard { key: Some(key("*", "stock", "*")), ceiling: Some(ceiling), ..Default::default() };
    let set = vec![
        put_in_set(later(25)),
        put_change(shop_rule(2)),
        change(rule_change::Kind::PutGuard(guard)),
        put_in_set(queue("mail", 1)),
    ];
    let applied = apply(&server, Default::default(), set.clone()).await.unwrap();
    assert_eq!((applied.revision, applied.created, applied.results.len()), (1, 4, 4));
    let names: Vec<(&str, bool)> =
        applied.results.iter().map(|result| (result.queue.as_str(), result.key.is_some())).collect();
    assert_eq!(names, [("stock-later", false), ("", true), ("", true), ("mail", false)]);
    assert!(applied.results[0].findings.is_empty() && applied.results[0].reach.is_none());
    assert_eq!(applied.results[3].findings[0].code, "queue_gives_up_early");
    assert_eq!(apply(&server, Default::default(), set).await.unwrap().unchanged, 4);

    let twice = vec![put_in_set(later(25)), put_in_set(later(4))];
    let twice = apply(&server, Default::default(), twice).await.unwrap_err();
    assert_eq!(
        twice.get_details_bad_request().unwrap().field_violations[0].description,
        "stock-later is also the key of changes[0]"
    );
    let gone = change(rule_change::Kind::DeleteQueue("mail".to_owned()));
    let options = v1::WriteOptions { owner: "team-orders".to_owned(), ..Default::default() };
    let applied = apply(&server, options, vec![gone, put_in_set(later(30))]).await.unwrap();
    let changes: Vec<_> = applied.results.iter().map(|result| result.change()).collect();
    assert_eq!(changes, [rule_result::Change::Deleted, rule_result::Change::Updated]);
    assert_eq!(stored(&server).await, [("stock-later".to_owned(), 30)]);
    server.stop().await;
}

#[tokio::test]
async fn owner_of_a_queue_is_respected_and_prune_deletes_only_its_own() {
    let server = start().await;
    let of = |owner: &str| v1::WriteOptions { owner: owner.to_owned(), ..Default::default() };
    let unowned = |queue| v1::Queue { owner: String::new(), ..queue };
    apply(
        &server,
        of("team-a"),
        vec![put_in_set(unowned(later(25))), put_in_set(unowned(queue("mail", 25)))],
    )
    .await
    .unwrap();
    put_queue(&server, queue("other", 25)).await;
    let changed = vec![put_in_set(unowned(later(30)))];
    let refused = apply(&server, of("team-b"), changed.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    let conflicts: v1::Conflicts = detail(&refused, "damper.v1.Conflicts");
    let expected = v1::Conflict {
        owner: "team-a".to_owned(),
        field: "policy.retry.max_attempts".to_owned(),
        current: "25".to_owned(),
        wanted: "30".to_owned(),
        queue: "stock-later".to_owned(),
        ..Default::default()
    };
    assert_eq!((conflicts.total, conflicts.conflicts), (1, vec![expected]));

    // Written-out defaults are no change of another owner's queue.
    let same = v1::Queue { max_in_flight: Some(100), lease: None, ..unowned(later(25)) };
    assert_eq!(apply(&server, of("team-b"), vec![put_in_set(same)]).await.unwrap().unchanged, 1);
    let single = put_queue(&server, v1::Queue { owner: "team-a".to_owned(), ..later(26) }).await;
    let found = single.findings.iter().find(|found| found.code == "owned_by_another").unwrap();
    assert_eq!(found.subject, "stock-later");
    assert!(found.message.starts_with("the queue is in the set of team-a:"), "{found:?}");

    let prune = v1::WriteOptions { prune: v1::Prune::Owned.into(), ..of("team-a") };
    let applied = apply(&server, prune, changed).await.unwrap();
    assert_eq!((applied.updated, applied.deleted), (1, 1));
    assert_eq!(applied.results[1].queue, "mail");
    assert_eq!(stored(&server).await, [("other".to_owned(), 25), ("stock-later".to_owned(), 30)]);
    let everything =
        v1::WriteOptions { prune: v1::Prune::Everything.into(), take_over: true, ..Default::default() };
    assert_eq!(apply(&server, everything, Vec::new()).await.unwrap().deleted, 2);
    assert_eq!(stored(&server).await, []);
    server.stop().await;
}

#[tokio::test]
async fn there_are_no_more_queues_than_allowed() {
    let server = start().await;
    let set = (0..1000).map(|n| put_in_set(queue(&format!("q{n:04}"), 25))).collect();
    apply(&server, Default::default(), set).await.unwrap();
    for validate_only in [false, true] {
        let options = v1::WriteOptions { validate_only, ..Default::default() };
        let request = v1::PutQueueRequest { options: Some(options.clone()), ..put(later(25)) };
        let refused = server.queues().put_queue(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.metadata().get("damper-limit").unwrap(), "queues");
        let refused = apply(&server, options, vec![put_in_set(later(25))]).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    let too_many = (0..1001).map(|n| put_in_set(queue(&format!("r{n:04}"), 25))).collect();
    let refused = apply(&server, Default::default(), too_many).await.unwrap_err();
    assert_eq!(refused.message(), "the set has more than 1000 changes of queues");
    assert!(put_queue(&server, queue("q0000", 26)).await.changed, "a change is no growth");
    server.stop().await;
}

#[tokio::test]
async fn history_shows_queues_and_restores_them() {
    let server = start().await;
    put_queue(&server, later(3)).await;
    put_queue(&server, later(5)).await;
    server.put(shop_rule(2)).await;
    server.queues().delete_queue(delete("stock-later")).await.unwrap();
    let listed = |filter| {
        let history = server.history();
        async move {
            let request = v1::ListChangesRequest { filter: Some(filter), ..Default::default() };
            let listed = soon(history.clone().list_changes(request)).await.unwrap().into_inner();
            listed.changes.iter().map(|change| change.revision).collect::<Vec<_>>()
        }
    };
    let kind = v1::ObjectKind::Queue.into();
    assert_eq!(listed(v1::ChangeFilter { kind, ..Default::default() }).await, [4, 2, 1]);
    let text = |text: &str| v1::RuleFilter { text: text.to_owned(), ..Default::default() };
    let named = |names| v1::ChangeFilter { names: Some(names), ..Default::default() };
    assert_eq!(listed(named(text("later"))).await, [4, 2, 1]);
    let callee = v1::RuleFilter { callee_service: Some("stock".to_owned()), ..Default::default() };
    assert_eq!(listed(named(callee)).await, [3], "a queue has no callee");
    let owner = v1::RuleFilter { owner: Some("team-orders".to_owned()), ..Default::default() };
    assert_eq!(listed(named(owner)).await, [4, 2, 1]);

    let at = |revision| v1::GetObjectRequest { key: of_queue("stock-later"), revision: Some(revision) };
    let then = server.history().get_object(at(2)).await.unwrap().into_inner();
    let Some(object::Kind::Queue(then)) = then.kind else { panic!("{then:?}") };
    assert_eq!((attempts(&then), then.revision, then.name.as_str()), (5, 2, "stock-later"));
    assert_eq!(server.history().get_object(at(4)).await.unwrap_err().code(), Code::NotFound);

    let diff =
        v1::DiffRevisionsRequest { from_revision: Some(1), to_revision: Some(2), ..Default::default() };
    let diff = server.history().diff_revisions(diff).await.unwrap().into_inner();
    assert_eq!((diff.total, diff.objects[0].key.clone()), (1, of_queue("stock-later")));

    let back = |to| v1::RollbackRequest {
        key: of_queue("stock-later"),
        to_revision: Some(to),
        ..Default::default()
    };
    let done = server.history().rollback(back(1)).await.unwrap().into_inner();
    assert_eq!((done.created, done.results[0].queue.as_str()), (1, "stock-later"));
    assert_eq!(stored(&server).await, [("stock-later".to_owned(), 3)]);
    let options = Some(v1::WriteOptions { reason: "incident 7".to_owned(), ..Default::default() });
    let all =
        |to| v1::RollbackAllRequest { to_revision: Some(to), options: options.clone(), ..Default::default() };
    let done = server.history().rollback_all(all(2)).await.unwrap().into_inner();
    assert_eq!((done.updated, done.deleted), (1, 1), "the queue and the rule");
    assert_eq!(stored(&server).await, [("stock-later".to_owned(), 5)]);
    let done = server.history().rollback_all(all(0)).await.unwrap().into_inner();
    assert_eq!((done.deleted, stored(&server).await.len()), (1, 0));
    let missing = v1::RollbackRequest { key: of_queue("never"), ..back(1) };
    assert_eq!(server.history().rollback(missing).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn export_has_queues_after_guards_at_each_revision() {
    let server = start().await;
    put_queue(&server, later(3)).await;
    put_queue(&server, queue("mail", 5)).await;
    server.put(rule(key("a", "b", "*"), 2)).await;
    put_queue(&server, later(9)).await;
    let export = |revision| {
        let mut history = server.history();
        async move {
            let stream = soon(history.export(v1::ExportRequest { revision })).await.unwrap().into_inner();
            let pages: Vec<_> = soon(stream.collect::<Result<Vec<_>, _>>()).await.unwrap();
            assert!(
                pages
                    .iter()
                    .all(|page| page.total == pages.iter().map(|p| p.objects.len() as u64).sum::<u64>())
            );
            pages
                .into_iter()
                .flat_map(|page| page.objects)
                .filter_map(|object| object.kind)
                .collect::<Vec<_>>()
        }
    };
    let now = export(None).await;
    let of_rule = v1::Rule { revision: 0, ..rule(key("a", "b", "*"), 2) };
    let expected =
        [object::Kind::Rule(of_rule), object::Kind::Queue(queue("mail", 5)), object::Kind::Queue(later(9))];
    assert_eq!(now, expected, "in order, without fields set by the server");
    assert_eq!(export(Some(1)).await, [object::Kind::Queue(later(3))]);
    server.stop().await;
}

#[tokio::test]
async fn queues_are_not_sent_to_services() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (first, _) = shop.snapshot().await;
    shop.ack(&first, Vec::new()).await;
    put_queue(&server, later(3)).await;
    let rule = server.put(shop_rule(2)).await;
    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta.changed.len()), (rule.revision, 1), "the rule alone");
    let request = v1::WatchConvergenceRequest { revision: 1, ..Default::default() };
    let mut stream = soon(server.fleet().watch_convergence(request)).await.unwrap().into_inner();
    let counted = soon(stream.message()).await.unwrap().unwrap();
    assert_eq!((counted.waiting, counted.acknowledged), (0, 0), "{counted:?}");
    server.stop().await;
}

#[tokio::test]
async fn scoped_editor_writes_no_queue_in_any_way() {
    let guarded = Guarded::start().await;
    let server = &guarded.server;
    let editor = guarded.token(v1::Role::Editor, &[], &[]).await;
    let scoped = guarded.token(v1::Role::Operator, &["*"], &["*"]).await;
    let channel = server.channel();
    let queues =
        |token: &str| v1::queues_client::QueuesClient::with_interceptor(channel.clone(), bearer(token));
    queues(&editor).put_queue(put(later(3))).await.unwrap();
    let mut history = v1::history_client::HistoryClient::with_interceptor(channel.clone(), bearer(&scoped));
    let mut rules = v1::rules_client::RulesClient::with_interceptor(channel.clone(), bearer(&scoped));
    let back =
        v1::RollbackRequest { key: of_queue("stock-later"), to_revision: Some(0), ..Default::default() };
    let of_owner = v1::WriteOptions {
        owner: "team-orders".to_owned(),
        prune: v1::Prune::Owned.into(),
        ..Default::default()
    };
    let refused = [
        queues(&scoped).put_queue(put(later(4))).await.unwrap_err(),
        queues(&scoped).delete_queue(delete("stock-later")).await.unwrap_err(),
        history.rollback(back).await.unwrap_err(),
        rules
            .apply_rules(tokio_stream::iter([header(Default::default()), put_in_set(later(4))]))
            .await
            .unwrap_err(),
        rules.apply_rules(tokio_stream::iter([header(of_owner)])).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::PermissionDenied, "SCOPE"),
            "{refused:?}"
        );
    }
    assert_eq!(
        queues(&scoped).list_queues(v1::ListQueuesRequest::default()).await.unwrap().into_inner().total,
        1
    );
    guarded.server.stop().await;
}
