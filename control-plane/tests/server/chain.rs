//! The call graph, its amplification, and writes that are rejected for it.

use damper_proto::v1;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{Agent, Running, header, hello, key, put_change, rule, soon, start, start_with};

/// The reported calls of one service to another.
struct Calls {
    caller: &'static str,
    callee: &'static str,
    calls: u64,
    attempts: u64,
    outside: u64,
    serves: bool,
}

fn calls(caller: &'static str, callee: &'static str, attempts: u64) -> Calls {
    Calls { caller, callee, calls: 100, attempts, outside: 0, serves: true }
}

fn method(callee: &str) -> String {
    format!("{callee}.v1.Api/Get")
}

/// Connects services that report these calls; returns once the server has all of them.
async fn fleet(server: &Running, all: &[Calls]) -> Vec<Agent> {
    let mut agents = Vec::new();
    for Calls { caller, callee, calls, attempts, outside, serves } in all {
        let instance = format!("{caller}-to-{callee}");
        let identity = hello(caller).identity.map(|identity| v1::Identity { instance, ..identity });
        let agent = Agent::connect(server, v1::Hello { identity, serves: *serves, ..hello(caller) }).await;
        let route = v1::RouteReport {
            callee_service: (*callee).to_owned(),
            callee_method: method(callee),
            calls: *calls,
            attempts: *attempts,
            no_context_calls: *outside,
            fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: *calls }],
            ..Default::default()
        };
        agent.report(v1::Report { routes: vec![route], ..Default::default() }).await;
        agents.push(agent);
    }
    soon(async {
        while chain(server, "").await.edges.len() < all.len() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    agents
}

async fn chain(server: &Running, service: &str) -> v1::GetChainResponse {
    let request = v1::GetChainRequest { service: service.to_owned(), ..Default::default() };
    soon(server.fleet().get_chain(request)).await.unwrap().into_inner()
}

fn hop_rule(caller: &str, callee: &str, max_attempts: u32) -> v1::Rule {
    rule(key(caller, callee, &method(callee)), max_attempts)
}

fn ignoring(mut rule: v1::Rule) -> v1::Rule {
    let chain = v1::Chain { ignore_retry_flag: true, ..Default::default() };
    rule.policy.as_mut().unwrap().chain = Some(chain);
    rule
}

fn forced(reason: &str) -> v1::WriteOptions {
    v1::WriteOptions { force: true, reason: reason.to_owned(), ..Default::default() }
}

async fn put(
    server: &Running,
    rule: v1::Rule,
    options: v1::WriteOptions,
) -> Result<v1::PutRuleResponse, tonic::Status> {
    let request = v1::PutRuleRequest { rule: Some(rule), options: Some(options), ..Default::default() };
    soon(server.rules().put_rule(request)).await.map(tonic::Response::into_inner)
}

/// Returns the only field that a write is rejected for, and the reason.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> (String, String) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let mut violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations.len(), 1, "{violations:?}");
    let violation = violations.remove(0);
    (violation.field, violation.description)
}

fn services(bound: &v1::ChainBound) -> Vec<&str> {
    let first = bound.hops.first().map(|hop| hop.caller_service.as_str());
    first.into_iter().chain(bound.hops.iter().map(|hop| hop.callee_service.as_str())).collect()
}

fn has_chain(findings: &[v1::Finding]) -> bool {
    findings.iter().any(|found| found.code == "chain_above_limit")
}

#[tokio::test]
async fn chain_lists_edges_and_worst_paths_measured_and_possible() {
    let server = start().await;
    let reported =
        [calls("shop", "orders", 150), calls("orders", "stock", 200), calls("orders", "till", 100)];
    let _agents = fleet(&server, &reported).await;
    server.put(hop_rule("shop", "orders", 3)).await;
    server.put(hop_rule("orders", "stock", 3)).await;
    let answer = soon(async {
        loop {
            let answer = chain(&server, "").await;
            if answer.edges.iter().all(|edge| edge.calls_per_s > 0.0) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let edges: Vec<_> = answer
        .edges
        .iter()
        .map(|edge| (edge.caller_service.as_str(), edge.callee_service.as_str(), edge.max_attempts))
        .collect();
    assert_eq!(edges, [("orders", "stock", 3), ("orders", "till", 1), ("shop", "orders", 3)]);
    let stock = &answer.edges[0];
    assert!((stock.amplification - 2.0).abs() < 1e-3 && stock.chain_coverage >= 1.0, "{stock:?}");
    assert_eq!((stock.routes, stock.routes_without_rule, answer.edges[1].routes_without_rule), (1, 0, 1));
    let measured = answer.worst_measured.unwrap();
    assert_eq!(measured.services, ["shop", "orders", "stock"]);
    assert!((measured.amplification - 3.0).abs() < 1e-3, "{measured:?}");
    let possible = answer.worst_possible.unwrap();
    assert_eq!((services(&possible), possible.sends), (vec!["shop", "orders", "stock"], 5));
    assert!(!possible.has_circle && possible.hops.iter().all(|hop| !hop.multiplies));

    let till = chain(&server, "till").await;
    assert_eq!(till.edges.len(), 2, "what leads there, and nothing else: {:?}", till.edges);
    assert_eq!(till.worst_possible.unwrap().sends, 3);
    let nobody = v1::GetChainRequest { service: "nobody".to_owned(), ..Default::default() };
    assert_eq!(server.fleet().get_chain(nobody).await.unwrap_err().code(), Code::NotFound);
    let window = Some(prost_types::Duration { seconds: 7, nanos: 0 });
    let odd = v1::GetChainRequest { window, ..Default::default() };
    assert_eq!(refused(server.fleet().get_chain(odd).await).0, "window");
    server.stop().await;
}

#[tokio::test]
async fn attempts_multiply_where_the_flag_is_ignored_or_lost() {
    let server = start().await;
    let outside = Calls { outside: 5, ..calls("b", "c", 100) };
    let no_layer = Calls { serves: false, ..calls("x", "c", 100) };
    let reported = [calls("a", "b", 100), outside, calls("a", "x", 100), no_layer, calls("b", "d", 100)];
    let _agents = fleet(&server, &reported).await;
    for (caller, callee) in [("a", "b"), ("b", "c"), ("a", "x"), ("x", "c")] {
        server.put(hop_rule(caller, callee, 3)).await;
    }
    server.put(ignoring(hop_rule("b", "d", 2))).await;
    let through = async |caller: &str, callee: &str| {
        let route = v1::RouteKey {
            caller_service: caller.to_owned(),
            caller_cluster: "default".to_owned(),
            callee_service: callee.to_owned(),
            callee_method: method(callee),
        };
        let request = v1::ExplainRequest { route: Some(route) };
        soon(server.rules().explain(request)).await.unwrap().into_inner().chain.unwrap()
    };
    for (caller, callee, sends) in [("b", "c", 9), ("x", "c", 9), ("b", "d", 6)] {
        let bound = through(caller, callee).await;
        assert_eq!((bound.sends, bound.hops.len()), (sends, 2), "{caller} {callee}: {bound:?}");
        assert_eq!(bound.hops.iter().map(|hop| hop.multiplies).collect::<Vec<_>>(), [false, true]);
        assert_eq!(bound.hops.last().unwrap().callee_service, callee);
    }
    let unseen = through("c", "far").await;
    assert_eq!((unseen.sends, unseen.hops.len()), (9, 3), "a route without calls: {unseen:?}");
    server.stop().await;
}

#[tokio::test]
async fn write_above_the_chain_limit_is_rejected_unless_forced() {
    let server = start_with(|settings| settings.max_amplification = 4.try_into().unwrap()).await;
    let _agents = fleet(&server, &[calls("shop", "orders", 100), calls("orders", "stock", 100)]).await;
    let below = put(&server, hop_rule("shop", "orders", 3), Default::default()).await.unwrap();
    assert!(!has_chain(&below.findings));

    let worse = || hop_rule("orders", "stock", 3);
    let tried = v1::WriteOptions { validate_only: true, ..Default::default() };
    for options in [v1::WriteOptions::default(), tried] {
        let (field, problem) = refused(put(&server, worse(), options).await);
        assert_eq!(field, "rule.policy");
        let words = "shop -> orders -> stock: at most 5 attempts on the last hop per request to shop, \
                     more than the limit of 4";
        assert!(problem.starts_with(words), "{problem}");
    }
    assert_eq!(refused(put(&server, worse(), forced("")).await).0, "options.reason");

    let written = put(&server, worse(), forced("sale")).await.unwrap();
    assert!(written.changed);
    let found = written.findings.iter().find(|found| found.code == "chain_above_limit").unwrap();
    assert_eq!(found.severity(), v1::Severity::Danger);
    assert!(!found.remedy.is_empty() && found.subject == "orders * stock stock.v1.Api/Get", "{found:?}");

    // The chain is above the limit already: a write that does not raise it has a finding and is accepted.
    let mut same = worse();
    same.policy.as_mut().unwrap().call_id = true;
    let same = put(&server, same, Default::default()).await.unwrap();
    assert!(same.changed && has_chain(&same.findings), "{same:?}");
    let (field, _) = refused(put(&server, hop_rule("shop", "orders", 4), Default::default()).await);
    assert_eq!(field, "rule.policy");
    let better = put(&server, hop_rule("orders", "stock", 2), Default::default()).await.unwrap();
    assert!(better.changed && !has_chain(&better.findings), "{better:?}");
    server.stop().await;
}

#[tokio::test]
async fn sets_rollbacks_and_deletions_are_checked_as_a_whole() {
    let server = start_with(|settings| settings.max_amplification = 4.try_into().unwrap()).await;
    let _agents = fleet(&server, &[calls("shop", "orders", 100), calls("orders", "stock", 100)]).await;
    let apply = async |options: v1::WriteOptions, rules: Vec<v1::Rule>| {
        let changes = rules.into_iter().map(put_change);
        let requests: Vec<_> = std::iter::once(header(options)).chain(changes).collect();
        soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.map(tonic::Response::into_inner)
    };
    let both = |stock| {
        vec![rule(key("x", "y", "*"), 10), hop_rule("orders", "stock", stock), hop_rule("shop", "orders", 3)]
    };
    let (field, problem) = refused(apply(Default::default(), both(3)).await);
    assert_eq!(field, "changes[1].put.policy", "{problem}");
    let applied = apply(forced("load test"), both(3)).await.unwrap();
    assert!(has_chain(&applied.results[1].findings) && !has_chain(&applied.results[2].findings));

    let guard = v1::Guard {
        key: Some(key("*", "stock", "*")),
        ceiling: Some(v1::Ceiling { max_attempts: Some(2), ..Default::default() }),
        ..Default::default()
    };
    let request = v1::PutGuardRequest { guard: Some(guard.clone()), ..Default::default() };
    let cut = soon(server.guards().put_guard(request)).await.unwrap().into_inner();
    assert!(!has_chain(&cut.findings), "what guards leave counts: {cut:?}");
    let delete = |options| v1::DeleteGuardRequest { key: guard.key.clone(), options, ..Default::default() };
    assert_eq!(refused(soon(server.guards().delete_guard(delete(None))).await).0, "key");
    let back = v1::RollbackAllRequest {
        to_revision: Some(applied.revision),
        options: Some(v1::WriteOptions { reason: "back".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let status = soon(server.history().rollback_all(back.clone())).await;
    assert!(refused(status).1.contains("at most 5 attempts"));
    let deleted =
        soon(server.guards().delete_guard(delete(Some(forced("done"))))).await.unwrap().into_inner();
    assert!(has_chain(&deleted.findings), "{deleted:?}");
    server.stop().await;
}

#[tokio::test]
async fn circle_is_reported_and_ends_at_its_start() {
    let server = start().await;
    let circle = [calls("a", "b", 100), calls("b", "c", 100), calls("c", "a", 100)];
    let _agents = fleet(&server, &circle).await;
    server.put(rule(key("*", "*", "*"), 3)).await;
    let bound = chain(&server, "").await.worst_possible.unwrap();
    assert!(bound.has_circle && bound.sends == 7 && bound.hops.len() == 3, "{bound:?}");
    server.stop().await;
}

#[tokio::test]
async fn no_chain_is_raised_in_the_shade_of_one_that_is_worse_already() {
    let server = start_with(|settings| settings.max_amplification = 4.try_into().unwrap()).await;
    let reported = [("shop", "orders"), ("orders", "stock"), ("web", "cart"), ("cart", "till")];
    let reported = reported.map(|(caller, callee)| calls(caller, callee, 100));
    let _agents = fleet(&server, &reported).await;
    put(&server, hop_rule("shop", "orders", 5), forced("sale")).await.unwrap();
    put(&server, hop_rule("orders", "stock", 5), forced("sale")).await.unwrap();
    put(&server, hop_rule("cart", "till", 3), Default::default()).await.unwrap();
    let apply = async |rules: Vec<v1::Rule>| {
        let changes = rules.into_iter().map(put_change);
        let requests: Vec<_> = std::iter::once(header(v1::WriteOptions::default())).chain(changes).collect();
        soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.map(tonic::Response::into_inner)
    };
    let unrelated = ignoring(rule(key("orders", "stock", "stock.v1.Api/Other"), 2));
    for rules in [vec![hop_rule("web", "cart", 7)], vec![unrelated.clone(), hop_rule("web", "cart", 7)]] {
        let (field, problem) = refused(apply(rules.clone()).await);
        assert_eq!(field, format!("changes[{}].put.policy", rules.len() - 1));
        assert!(problem.starts_with("web -> cart -> till: at most 9 attempts"), "{problem}");
    }
    let wide = refused(put(&server, rule(key("*", "*", "*"), 7), Default::default()).await);
    assert!(wide.1.starts_with("web -> cart -> till: at most 9 attempts"), "{}", wide.1);
    // A repair of one chain does not allow another one to get worse.
    let repair = vec![hop_rule("orders", "stock", 2), hop_rule("web", "cart", 7)];
    assert_eq!(refused(apply(repair).await).0, "changes[1].put.policy");
    assert!(apply(vec![unrelated]).await.unwrap().revision > 0, "nothing is raised by a route without calls");
    server.stop().await;
}

#[tokio::test]
async fn service_that_calls_itself_is_held_to_the_limit_too() {
    let server = start_with(|settings| settings.max_amplification = 4.try_into().unwrap()).await;
    let _agents = fleet(&server, &[calls("tree", "tree", 100), calls("shop", "tree", 100)]).await;
    put(&server, hop_rule("shop", "tree", 3), Default::default()).await.unwrap();
    let (_, problem) = refused(put(&server, hop_rule("tree", "tree", 3), Default::default()).await);
    assert!(problem.starts_with("shop -> tree -> tree: at most 5 attempts"), "{problem}");
    server.stop().await;
}

#[tokio::test]
async fn few_calls_outside_of_requests_do_not_make_a_hop_multiply() {
    let server = start().await;
    let most_inside = Calls { calls: 1_000, outside: 9, ..calls("b", "c", 1_000) };
    let _agents = fleet(&server, &[calls("a", "b", 100), most_inside]).await;
    for (caller, callee) in [("a", "b"), ("b", "c")] {
        server.put(hop_rule(caller, callee, 3)).await;
    }
    let bound = chain(&server, "").await.worst_possible.unwrap();
    assert_eq!((bound.sends, bound.hops.iter().any(|hop| hop.multiplies)), (5, false), "{bound:?}");
    server.stop().await;
}

/// Returns attempts on the hop, its long-term factor, and the worst chain with the attempts at its end.
fn amplification(answer: Option<v1::Amplification>) -> (u32, f64, Option<(Vec<String>, u64)>) {
    let v1::Amplification { bound, chain } = answer.expect("a write of a rule reports it");
    let chain = chain.map(|chain| (services(&chain).into_iter().map(str::to_owned).collect(), chain.sends));
    let bound = bound.unwrap();
    (bound.max_attempts, bound.steady_attempts_per_call, chain)
}

fn path(services: &[&str], sends: u64) -> Option<(Vec<String>, u64)> {
    Some((services.iter().map(|service| (*service).to_owned()).collect(), sends))
}

fn trying() -> v1::WriteOptions {
    v1::WriteOptions { validate_only: true, ..Default::default() }
}

#[tokio::test]
async fn write_reports_its_bounds_of_hop_and_chain() {
    let server = start().await;
    let reported = [calls("shop", "cart", 100), calls("cart", "stock", 100), calls("web", "till", 100)];
    let _agents = fleet(&server, &reported).await;
    server.put(hop_rule("shop", "cart", 3)).await;
    server.put(hop_rule("web", "till", 10)).await;
    let way = ["shop", "cart", "stock"];

    let new = put(&server, hop_rule("cart", "stock", 2), trying()).await.unwrap();
    assert_eq!(amplification(new.before), (1, 1.0, path(&way, 3)), "nothing is sent twice there yet");
    assert_eq!(amplification(new.after), (2, 1.02, path(&way, 4)));
    let written = put(&server, hop_rule("cart", "stock", 2), Default::default()).await.unwrap();
    assert_eq!(amplification(written.after), (2, 1.02, path(&way, 4)), "a committed write reports it too");

    let same = put(&server, hop_rule("cart", "stock", 2), trying()).await.unwrap();
    assert_eq!(same.before, same.after);
    let mut observed = hop_rule("cart", "stock", 2);
    observed.policy.as_mut().unwrap().mode = v1::Mode::Observe.into();
    let lower = put(&server, observed, trying()).await.unwrap();
    assert_eq!(amplification(lower.before), (2, 1.02, path(&way, 4)));
    assert_eq!(amplification(lower.after), (1, 1.0, path(&way, 3)), "what only observes sends nothing");

    let delete = v1::DeleteRuleRequest {
        key: hop_rule("cart", "stock", 2).key,
        options: Some(trying()),
        ..Default::default()
    };
    let deleted = soon(server.rules().delete_rule(delete)).await.unwrap().into_inner();
    assert_eq!(amplification(deleted.before), (2, 1.02, path(&way, 4)));
    assert_eq!(amplification(deleted.after), (1, 1.0, path(&way, 3)));
    server.stop().await;
}

#[tokio::test]
async fn bounds_of_a_write_include_guards_and_other_rules() {
    let server = start().await;
    let _agents = fleet(&server, &[calls("shop", "cart", 100), calls("web", "till", 100)]).await;
    server.put(rule(key("*", "*", "*"), 2)).await;
    let guard = v1::Guard {
        key: Some(key("*", "cart", "*")),
        ceiling: Some(v1::Ceiling { max_attempts: Some(3), ..Default::default() }),
        ..Default::default()
    };
    let guard = v1::PutGuardRequest { guard: Some(guard), ..Default::default() };
    soon(server.guards().put_guard(guard)).await.unwrap();

    let narrower = put(&server, hop_rule("shop", "cart", 3), trying()).await.unwrap();
    assert_eq!(amplification(narrower.before).0, 2, "the less specific rule applies there until then");
    server.put(hop_rule("shop", "cart", 3)).await;
    let wide = put(&server, rule(key("*", "*", "*"), 9), trying()).await.unwrap();
    assert_eq!(amplification(wide.before), (2, 1.02, path(&["web", "till"], 2)));
    assert_eq!(
        amplification(wide.after),
        (9, 1.02, path(&["web", "till"], 9)),
        "the other route uses its own rule"
    );
    let cut = put(&server, rule(key("*", "cart", "cart.v1.Api/*"), 9), trying()).await;
    assert_eq!(cut.unwrap_err().code(), Code::InvalidArgument, "a guard around it refuses it");
    let guarded = put(&server, rule(key("*", "cart", "cart.v1.Api/*"), 3), trying()).await.unwrap();
    assert_eq!(amplification(guarded.before), (2, 1.02, None), "no route uses it: no chain");
    assert_eq!(amplification(guarded.after), (3, 1.02, None));
    server.stop().await;
}

#[tokio::test]
async fn worst_chain_of_each_rule_comes_with_the_limit_when_asked_for() {
    let server = start_with(|settings| settings.max_amplification = 4.try_into().unwrap()).await;
    let _agents = fleet(&server, &[calls("shop", "orders", 100), calls("orders", "stock", 100)]).await;
    let (first, second) = (hop_rule("shop", "orders", 3), hop_rule("orders", "stock", 3));
    let unused = hop_rule("nobody", "stock", 3);
    server.put(first.clone()).await;
    put(&server, second.clone(), forced("sale")).await.unwrap();
    server.put(unused).await;
    let request = v1::GetChainRequest { without_edges: true, rules: true, ..Default::default() };
    let answer = soon(async {
        loop {
            let answer = server.fleet().get_chain(request.clone()).await.unwrap().into_inner();
            if answer.rules.len() == 2 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(answer.edges.is_empty());
    assert_eq!((answer.limit, answer.worst_possible.unwrap().sends), (4, 5));
    let bounds: Vec<_> = answer.rules.into_iter().map(|bound| (bound.rule, bound.sends)).collect();
    assert_eq!(bounds, [(second.key, 5), (first.key, 5)]);
    let without = chain(&server, "").await;
    assert_eq!((without.rules.len(), without.edges.len()), (0, 2));
    server.stop().await;
}
