//! The timeline before a watch begins: complete spans, gaps without a connected process, limits.

use crate::stats::tests::*;

fn taken() -> Route {
    let [caller_service, caller_cluster, callee_service, callee_method] =
        ["shop", "default", "stock", "p.S/M"].map(Arc::from);
    Route { caller_service, caller_cluster, callee_service, callee_method }
}

fn seconds(at: Option<prost_types::Timestamp>) -> f64 {
    at.map(|at| at.seconds as f64 + f64::from(at.nanos) / 1e9).unwrap()
}

/// The end of each span before now.
fn ago(past: &[v1::Past]) -> Vec<u64> {
    let now = seconds(Some(SystemTime::now().into()));
    past.iter().map(|span| (now - seconds(span.until)).round() as u64).collect()
}

/// Ten calls a second, one of which fails and is retried, until a process has made the calls of this many
/// seconds.
async fn run(stats: &Stats, session: &ClientSession, seconds: std::ops::Range<u64>) {
    for at in seconds.skip(4).step_by(5) {
        pass(5).await;
        let calls = (at + 1) * 10;
        assert_eq!(stats.report(session, &report("p.S/M", calls, calls + calls / 10, calls / 10)), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_is_told_in_full_spans_up_to_where_all_have_reported() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    run(&stats, &one, 0..300).await;
    let past = stats.past_of(&taken());
    let ends: Vec<u64> = (1..30).rev().map(|span| span * 10).collect();
    assert_eq!(ago(&past), ends, "the last span is not over for all");
    for span in &past {
        assert!(about(span.calls_per_s, 10.0) && about(span.attempts_per_s, 11.0), "{span:?}");
        assert!(about(span.hedges_per_s, 1.0) && about(span.failed_per_s, 1.0), "{span:?}");
        assert!(span.p50.is_some() && span.p99.is_some(), "{span:?}");
        assert_eq!(span.span, prost_types::Duration::try_from(Duration::from_secs(10)).ok());
    }
    let unknown = Route { callee_method: "p.S/Other".into(), ..taken() };
    assert!(stats.past_of(&unknown).is_empty());
}

#[tokio::test(start_paused = true)]
async fn all_routes_together_are_the_sum_of_each() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=60 {
        pass(5).await;
        stats.report(&one, &report("p.S/M", n * 50, n * 50, 0));
        stats.report(&one, &report("p.S/N", n * 100, n * 150, n * 10));
    }
    let past = stats.past_of_all();
    assert_eq!(past.len(), 29);
    for span in &past {
        assert!(about(span.calls_per_s, 30.0) && about(span.attempts_per_s, 40.0), "{span:?}");
        assert!(about(span.failed_per_s, 2.0) && span.p50.is_none() && span.p99.is_none(), "{span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_was_heard_is_a_gap_and_where_nothing_was_called_is_nothing() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    run(&stats, &one, 0..100).await;
    // The process makes no calls, then disconnects, and another one replaces it.
    pass(100).await;
    stats.disconnected(&one);
    pass(100).await;
    let two = session("two");
    stats.connected(&two);
    run(&stats, &two, 0..100).await;
    for past in [stats.past_of(&taken()), stats.past_of_all()] {
        let mut ends: Vec<u64> = (20..40).rev().map(|span| span * 10).collect();
        ends.extend((1..10).rev().map(|span| span * 10));
        assert_eq!(ago(&past), ends);
        let calls: Vec<u64> = past.iter().map(|span| span.calls_per_s.round() as u64).collect();
        assert_eq!(calls, [[10; 10].as_slice(), &[0; 10], &[10; 9]].concat());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_process_did_while_it_was_cut_off_is_known_once_it_is_back() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    run(&stats, &one, 0..100).await;
    stats.disconnected(&one);
    pass(55).await;
    stats.connected(&one);
    assert_eq!(stats.past_of(&taken()).len(), 10, "nothing has been told of that time yet");
    run(&stats, &one, 155..200).await;
    let past = stats.past_of(&taken());
    assert_eq!(past.len(), 19);
    assert!(past.iter().all(|span| about(span.calls_per_s, 10.0)), "{past:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quarter_of_an_hour_is_kept_in_few_bytes_and_an_idle_route_takes_none() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    run(&stats, &one, 0..1_500).await;
    let past = stats.past_of(&taken());
    assert_eq!((past.len(), ago(&past)[0]), (90, 900));
    assert!(past.iter().all(|span| about(span.calls_per_s, 10.0)), "{past:?}");
    let bytes = |stats: &Stats| stats.books().routes[&taken()].past.bytes();
    println!("bytes of a busy route's past: {}", bytes(&stats));
    assert!(bytes(&stats) <= 2_800, "{}", bytes(&stats));
    for _ in 0..50 {
        pass(20).await;
        stats.rows_over(RateWindow::default(), &table());
    }
    assert_eq!(bytes(&stats), 0);
    let past = stats.past_of(&taken());
    assert!(past.len() == 90 && past.iter().all(|span| span.calls_per_s == 0.0), "{past:?}");
}
