//! Routes, their rules and their counters.

use damper_core::Code;

use super::peer::{Peer, ok, unavailable};
use super::*;

async fn one_call(engine: &Arc<Runtime>, peer: Peer, path: &str) {
    let request = Request::post(path.to_owned()).body(Body::empty()).unwrap();
    call(&mut governed(engine, peer), request).await.unwrap();
}

fn routes(engine: &Runtime) -> Vec<String> {
    let mut routes = Vec::new();
    engine.for_each_route(|callee, method, _| routes.push(format!("{callee} {method}")));
    routes.sort();
    routes
}

#[tokio::test(start_paused = true)]
async fn a_new_table_applies_to_the_next_call_and_keeps_counters() {
    let engine = engine(None);
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    engine.apply(table(enforce()));
    one_call(&engine, Peer::new([unavailable(), ok()]), METHOD).await;
    engine.apply(Table::default());
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    ended(&engine, &[("ok_after_retry", 1), ("policy_off", 2)]);
    assert_eq!(routes(&engine), ["inventory inventory.v1.Inventory/Reserve"]);
}

#[tokio::test(start_paused = true)]
async fn a_local_limit_reduces_every_rule_until_it_is_lifted() {
    let engine = engine(enforce());
    engine.limit_mode(Some(Mode::Observe));
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    engine.limit_mode(Some(Mode::Off));
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    // A later table is reduced too.
    engine.apply(table(enforce()));
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    engine.limit_mode(None);
    one_call(&engine, Peer::new([unavailable(), ok()]), METHOD).await;
    ended(&engine, &[("ok_after_retry", 1), ("policy_off", 2), ("would_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_never_adds_to_a_rule() {
    let engine = engine(observe());
    engine.limit_mode(Some(Mode::Enforce));
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    ended(&engine, &[("would_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn methods_beyond_the_limit_share_the_rule_for_every_method() {
    let engine = engine(enforce());
    for number in 0..1_000 {
        one_call(&engine, Peer::new([ok()]), &format!("/a.B/M{number}")).await;
    }
    one_call(&engine, Peer::new([unavailable(), ok()]), "/a.B/M1000").await;
    one_call(&engine, Peer::new([unavailable(), ok()]), "/a.B/M1001").await;
    one_call(&engine, Peer::new([unavailable(), ok()]), "/a.B/M7").await;
    let routes = routes(&engine);
    assert_eq!(routes.len(), 1_001);
    assert!(routes.contains(&"inventory _OTHER".to_owned()));
    ended_in_sum(&engine, &[("ok", 1_000), ("ok_after_retry", 3)]);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_names_no_method_is_counted_and_passed_on() {
    let engine = engine(enforce());
    one_call(&engine, Peer::new([unavailable(), ok()]), "/nothing").await;
    one_call(&engine, Peer::new([ok()]), "/").await;
    assert_eq!(routes(&engine), ["inventory _OTHER"]);
}

fn ended_in_sum(engine: &Runtime, expected: &[(&str, u64)]) {
    for (name, count) in expected {
        let endings = endings(engine);
        let sum: u64 = endings.iter().filter(|(ending, _)| ending == name).map(|(_, count)| count).sum();
        assert_eq!(sum, *count, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_rule_are_counted_with_their_codes() {
    let engine = engine(None);
    one_call(&engine, Peer::new([unavailable()]), METHOD).await;
    one_call(&engine, Peer::new([ok()]), METHOD).await;
    engine.for_each_route(|_, _, route| {
        let counters = &route.state().counters;
        assert_eq!((counters.calls(), counters.attempts()), (2, 2));
        assert_eq!((counters.code(Code::Ok), counters.code(Code::Unavailable)), (1, 1));
        assert_eq!(counters.latency().counts().map(|(_, count)| count).sum::<u64>(), 2);
    });
}

#[test]
fn a_callee_is_the_same_each_time_and_its_name_is_checked() {
    let engine = engine(None);
    let first = engine.callee("stock").unwrap();
    assert!(Arc::ptr_eq(&first, &engine.callee("stock").unwrap()));
    for bad in ["", "a b", "*", "a/b", "ü"] {
        let faults = engine.callee(bad).unwrap_err();
        assert_eq!(faults.iter().next().unwrap().path, "callee_service", "{bad:?}");
    }
}

#[test]
fn routes_seen_first_by_many_threads_at_once_are_one_route() {
    let engine = engine(enforce());
    let callee = engine.callee("stock").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..300 {
                    let route = engine.route(&callee, &format!("a.B/M{number}"));
                    route.state().counters.count_without_context();
                    assert!(route.rule().is_some());
                }
            });
        }
        for _ in 0..50 {
            engine.apply(table(observe()));
            engine.apply(table(enforce()));
        }
    });
    assert_eq!(routes(&engine).len(), 300);
    assert_eq!(engine.calls_and_without_context().1, 8 * 300);
    engine.for_each_route(|_, _, route| assert_eq!(route.policy(), Some(&enforce())));
}

#[tokio::test(start_paused = true)]
async fn calls_outside_a_context_are_counted_once_it_serves() {
    for rule in [None, Some(observe()), Some(enforce())] {
        let engine = engine(rule);
        one_call(&engine, Peer::new([ok()]), METHOD).await;
        assert_eq!(engine.calls_and_without_context(), (1, 0));
        engine.set_serves();
        one_call(&engine, Peer::new([ok()]), METHOD).await;
        let context = crate::Context::new(None, None, engine.clock());
        context.scope(one_call(&engine, Peer::new([ok()]), METHOD)).await;
        assert_eq!(engine.calls_and_without_context(), (3, 1));
    }
}
