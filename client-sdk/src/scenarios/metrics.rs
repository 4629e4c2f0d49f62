//! Metrics of calls as a recorder receives them: names, labels, values.

use std::collections::BTreeMap;

use damper_core::{Fate, Hedge, HedgeDelay, RepeatLimit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use super::peer::{Peer, Reply, ScriptedBody, after, begun, data, ok, unavailable};
use super::*;
use crate::control::publish::publish;
use crate::metrics::{self, Detail, OfCallee};

/// Content of a recorder, by `name{label=value,...}` with sorted labels.
struct Recorded {
    counters: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Vec<f64>>,
}

impl Recorded {
    fn of(snapshotter: &Snapshotter) -> Self {
        let (mut counters, mut histograms) = (BTreeMap::new(), BTreeMap::new());
        for (key, _, description, value) in snapshotter.snapshot().into_vec() {
            let mut labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            labels.sort();
            let series = format!("{}{{{}}}", key.key().name(), labels.join(","));
            assert!(description.is_some(), "{series} is described");
            match value {
                DebugValue::Counter(value) => {
                    counters.insert(series, value);
                }
                DebugValue::Histogram(values) => {
                    let values = values.into_iter().map(|value| (value.0 * 1e6).round() / 1e6).collect();
                    histograms.insert(series, values);
                }
                DebugValue::Gauge(_) => panic!("{series} is a gauge"),
            }
        }
        Self { counters, histograms }
    }

    /// The nonzero counters, all of one route, without its labels.
    fn counters(&self) -> Vec<(String, u64)> {
        let (method, target) = ("grpc.method=inventory.v1.Inventory/Reserve", "grpc.target=inventory");
        let short = |series: &str| {
            let (name, labels) = series.strip_suffix('}').unwrap().split_once('{').unwrap();
            let (shared, own): (Vec<_>, Vec<_>) =
                labels.split(',').partition(|label| [method, target].contains(label));
            assert_eq!(shared, [method, target], "{series}");
            if own.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", own.join(",")) }
        };
        let some = self.counters.iter().filter(|(_, value)| **value > 0);
        let some: BTreeMap<_, _> = some.map(|(series, value)| (short(series), *value)).collect();
        some.into_iter().collect()
    }

    #[track_caller]
    fn counted(&self, expected: &[(&str, u64)]) {
        let counters = self.counters();
        let counters: Vec<_> = counters.iter().map(|(series, value)| (series.as_str(), *value)).collect();
        assert_eq!(counters, expected);
    }
}

/// Makes calls under a policy, each to its own peer, and returns the exported series.
async fn play<const N: usize>(policy: impl Into<Option<Policy>>, scripts: [Vec<Reply>; N]) -> Recorded {
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = engine(policy);
    for script in scripts {
        call(&mut governed(&engine, Peer::new(script)), request()).await.unwrap();
    }
    publish(&engine).await;
    Recorded::of(&recorder.snapshotter())
}

const CALL: &str = "damper.call.duration{grpc.target=inventory}";
const ATTEMPT: &str = "grpc.client.attempt.duration{grpc.target=inventory}";
const DELAY: &str = "grpc.client.call.retry_delay{grpc.target=inventory}";

#[tokio::test(start_paused = true)]
async fn retries_are_counted_and_timed() {
    let script = vec![after(3, unavailable()), after(5, unavailable()), after(7, ok())];
    let recorded = play(enforce(), [script, vec![ok()]]).await;
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 2),
        ("damper.attempts{grpc.status=UNAVAILABLE}", 2),
        ("damper.calls.started", 2),
        ("damper.calls{fate=ok,would=false}", 1),
        ("damper.calls{fate=ok_after_retry,would=false}", 1),
        ("grpc.client.attempt.started", 4),
        ("grpc.client.call.retries", 2),
    ]);
    assert_eq!(recorded.histograms[CALL], [0.035, 0.0]);
    assert_eq!(recorded.histograms[ATTEMPT], [0.003, 0.005, 0.007, 0.0]);
    assert_eq!(recorded.histograms[DELAY], [0.02], "a call that waits for nothing has no delay");
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_rule_are_counted_and_timed() {
    let recorded = play(None, [vec![after(3, unavailable())], vec![after(7, ok())]]).await;
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 1),
        ("damper.attempts{grpc.status=UNAVAILABLE}", 1),
        ("damper.calls.started", 2),
        ("damper.calls{fate=ok,would=false}", 1),
        ("damper.calls{fate=policy_off,would=false}", 1),
        ("grpc.client.attempt.started", 2),
    ]);
    assert_eq!(recorded.histograms[CALL], [0.003, 0.007]);
    assert_eq!(recorded.histograms[ATTEMPT], [0.003, 0.007]);
    assert!(recorded.histograms[DELAY].is_empty());
}

#[tokio::test(start_paused = true)]
async fn hedges_are_no_delay_and_losers_take_their_time() {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 };
    let policy = Policy { hedge: Some(hedge), retry: None, ..enforce() };
    let recorded = play(policy, [vec![Reply::Hang, after(20, ok())]]).await;
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 1),
        ("damper.calls.started", 1),
        ("damper.calls{fate=ok_by_hedge,would=false}", 1),
        ("grpc.client.attempt.started", 2),
        ("grpc.client.call.hedges", 1),
    ]);
    assert_eq!(recorded.histograms[CALL], [0.07]);
    assert_eq!(recorded.histograms[ATTEMPT], [0.07, 0.02]);
    assert!(recorded.histograms[DELAY].is_empty());
}

#[tokio::test(start_paused = true)]
async fn transparent_retries_are_counted_apart() {
    let refused = Reply::Error(h2::Error::from(h2::Reason::REFUSED_STREAM).into());
    let recorded = play(enforce(), [vec![refused, ok()]]).await;
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 1),
        ("damper.calls.started", 1),
        ("damper.calls{fate=ok,would=false}", 1),
        ("grpc.client.attempt.started", 2),
        ("grpc.client.call.transparent_retries", 1),
    ]);
    assert!(recorded.histograms[DELAY].is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_deadline_cuts_is_a_delay() {
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = engine(enforce());
    let mut service = governed(&engine, Peer::new([after(2, unavailable())]));
    assert!(tokio::time::timeout(ms(8), call(&mut service, request())).await.is_err());
    publish(&engine).await;
    let recorded = Recorded::of(&recorder.snapshotter());
    assert_eq!((&*recorded.histograms[DELAY], &*recorded.histograms[CALL]), (&[0.006][..], &[0.008][..]));
}

#[tokio::test(start_paused = true)]
async fn a_stalling_answer_that_is_dropped_is_timed_to_that_moment() {
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = engine(None);
    let stalling = begun(ScriptedBody::stalling([data("wor")]));
    let mut service = governed(&engine, Peer::new([after(2, stalling)]));
    assert!(tokio::time::timeout(ms(8), call(&mut service, request())).await.is_err());
    publish(&engine).await;
    let recorded = Recorded::of(&recorder.snapshotter());
    assert_eq!((&*recorded.histograms[ATTEMPT], &*recorded.histograms[CALL]), (&[0.008][..], &[0.008][..]));
    recorded.counted(&[
        ("damper.calls.started", 1),
        ("damper.calls{fate=cancelled,would=false}", 1),
        ("grpc.client.attempt.started", 1),
    ]);
}

#[tokio::test(start_paused = true)]
async fn fates_of_observe_mode_are_distinguished() {
    let recorded = play(observe(), [vec![unavailable()], vec![ok()]]).await;
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 1),
        ("damper.attempts{grpc.status=UNAVAILABLE}", 1),
        ("damper.calls.started", 2),
        ("damper.calls{fate=ok,would=false}", 1),
        ("damper.calls{fate=retry,would=true}", 1),
        ("grpc.client.attempt.started", 2),
    ]);
}

#[tokio::test(start_paused = true)]
async fn fates_sum_to_calls() {
    let scripts = [vec![ok()], vec![unavailable(), ok()], vec![unavailable(), unavailable(), unavailable()]];
    let recorded = play(enforce(), scripts).await;
    let fates: u64 = recorded
        .counters
        .iter()
        .filter(|(series, _)| series.starts_with("damper.calls{"))
        .map(|(_, count)| count)
        .sum();
    let started = recorded.counters.iter().find(|(series, _)| series.starts_with("damper.calls.started{"));
    assert_eq!((fates, started.map(|(_, count)| *count)), (3, Some(3)));
}

#[test]
fn each_fate_is_in_one_row_of_the_resilience4j_table() {
    let text = include_str!("../metrics/mod.rs");
    let rows: Vec<_> = text
        .lines()
        .filter(|line| {
            ["//! | successful with", "//! | failed with"].iter().any(|start| line.starts_with(start))
        })
        .collect();
    assert_eq!(rows.len(), 4);
    for fate in Fate::ALL {
        let row = rows.iter().filter(|row| row.contains(&format!("`{}`", fate.name())));
        let row: Vec<_> = row.collect();
        assert_eq!(row.len(), 1, "{}", fate.name());
        assert_eq!(row[0].contains("successful"), fate.is_ok(), "{}", fate.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_may_be_installed_after_the_first_calls() {
    let engine = engine(enforce());
    let mut service = governed(&engine, Peer::new([ok(), ok(), ok()]));
    call(&mut service, request()).await.unwrap();
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    publish(&engine).await;
    call(&mut service, request()).await.unwrap();
    publish(&engine).await;
    let recorded = Recorded::of(&recorder.snapshotter());
    recorded.counted(&[
        ("damper.attempts{grpc.status=OK}", 2),
        ("damper.calls.started", 2),
        ("damper.calls{fate=ok,would=false}", 2),
        ("grpc.client.attempt.started", 2),
    ]);
    assert_eq!(recorded.histograms[CALL].len(), 1, "earlier calls are not timed");
}

#[tokio::test(start_paused = true)]
async fn histograms_are_per_route_if_asked_for_and_bounded() {
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = Runtime::new("orders", "default");
    engine.measure(Detail { per_route: true });
    for path in ["/a.B/M", "/a.B/N", "/a.B/M", "/nothing", "/"] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        call(&mut governed(&engine, Peer::new([ok()])), request).await.unwrap();
        publish(&engine).await;
    }
    let recorded = Recorded::of(&recorder.snapshotter());
    let calls = recorded.histograms.iter().filter(|(series, _)| series.starts_with(metrics::CALL_DURATION));
    let calls: Vec<_> = calls.map(|(series, values)| (series.as_str(), values.len())).collect();
    assert_eq!(
        calls,
        [
            ("damper.call.duration{grpc.method=_OTHER,grpc.target=inventory}", 2),
            ("damper.call.duration{grpc.method=a.B/M,grpc.target=inventory}", 2),
            ("damper.call.duration{grpc.method=a.B/N,grpc.target=inventory}", 1),
        ]
    );
}

#[test]
fn handles_are_taken_with_the_first_call_only() {
    let recorder = DebuggingRecorder::new();
    let series = || recorder.snapshotter().snapshot().into_vec().len();
    ::metrics::with_local_recorder(&recorder, || {
        let histograms = OfCallee::new("stock", Detail::default());
        histograms.take_again();
        assert_eq!(series(), 0);
        drop(histograms.call_begins("a.B/M", damper_core::Time::ZERO));
        assert_eq!(series(), 3);
    });
}

#[tokio::test(start_paused = true)]
async fn what_is_served_is_counted_by_source() {
    use damper_core::chain::Repeater;
    use damper_core::guard::Ceiling;

    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = Runtime::new("orders", "default");
    let guard = |mode, min| {
        let limit = RepeatLimit { mode, min, ..RepeatLimit::default() };
        let ceiling = Ceiling { repeat_limit: Some(limit), ..Ceiling::default() };
        let method = if mode == Mode::Enforce { "*" } else { "a.B/*" };
        let pattern = Pattern::parse("*", "*", "orders", method).unwrap();
        Arc::new(damper_core::Guard::new(pattern, ceiling, String::new(), 1).unwrap())
    };
    let mut table = Table::default();
    table.insert_guard(guard(Mode::Enforce, 3));
    table.insert_guard(guard(Mode::Observe, 1));
    engine.apply(table);
    let now = engine.clock().now();
    // The first request of a method is counted with its response.
    engine.methods().settled("a.B/M", None, now, true);
    for (repeater, times) in [(Repeater::Damper, 2), (Repeater::Grpc, 1), (Repeater::Envoy, 3)] {
        for _ in 0..times {
            engine.methods().arrived("a.B/M", Some(repeater), now);
        }
    }
    publish(&engine).await;
    let counters = Recorded::of(&recorder.snapshotter()).counters;
    let counters: Vec<_> = counters.iter().map(|(series, value)| (series.as_str(), *value)).collect();
    assert_eq!(
        counters,
        [
            ("damper.server.first_sends{grpc.method=a.B/M}", 1),
            ("damper.server.repeats{grpc.method=a.B/M,source=damper}", 2),
            ("damper.server.repeats{grpc.method=a.B/M,source=envoy}", 3),
            ("damper.server.repeats{grpc.method=a.B/M,source=grpc}", 1),
            ("damper.server.shed_repeats{grpc.method=a.B/M}", 3),
            ("damper.server.would_shed_repeats{grpc.method=a.B/M}", 2),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn loops_and_calls_without_a_context_are_counted() {
    let recorder = DebuggingRecorder::new();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let engine = engine(Policy { retry: None, timeout: Some(ms(1_000)), ..enforce() });
    engine.set_serves();
    let mut service = governed(&engine, Peer::new([unavailable(), unavailable(), ok()]));
    let context = crate::Context::new(None, None, engine.clock());
    context
        .scope(async {
            for _ in 0..2 {
                call(&mut service, request()).await.unwrap();
            }
        })
        .await;
    call(&mut service, request()).await.unwrap();
    publish(&engine).await;
    let counters = Recorded::of(&recorder.snapshotter()).counters();
    for name in ["damper.no_context_calls", "damper.outer_loop_calls"] {
        assert!(counters.contains(&(name.to_owned(), 1)), "{counters:?}");
    }
}
