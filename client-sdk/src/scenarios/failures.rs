//! Failed calls in reports, compared with the counters.

use std::collections::BTreeMap;

use damper_core::{Code, Counters, Hedge, HedgeDelay};

use super::peer::{Peer, Reply, ScriptedBody, after, begun, data, ok, trailers, trailers_only, unavailable};
use super::*;
use crate::routes::failed_calls::FailedCall;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A request of a trace.
fn traced() -> Request<Body> {
    let mut request = request();
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01").parse().unwrap();
    request.headers_mut().insert("traceparent", parent);
    request
}

/// Makes a call that the application drops after 10 s, and returns its record.
async fn play(engine: &Arc<Runtime>, script: Vec<Reply>) -> Option<FailedCall> {
    let mut service = governed(engine, Peer::new(script));
    // An error is a result too.
    _ = tokio::time::timeout(ms(10_000), call(&mut service, traced())).await;
    left(engine)
}

/// Returns the only recorded call.
fn left(engine: &Runtime) -> Option<FailedCall> {
    let mut all = Vec::new();
    engine.for_each_route(|_, _, route| all.extend(route.failures().take()));
    assert!(all.len() < 2, "{all:?}");
    all.pop()
}

/// Attempts as: start in milliseconds, duration, code, detail.
fn attempts_of(call: &FailedCall) -> Vec<(u128, Option<u128>, Code, &str)> {
    let attempts = call.attempts.iter().map(|attempt| {
        let took = attempt.took.map(|took| took.as_millis());
        (attempt.sent_after.as_millis(), took, attempt.code, &*attempt.detail)
    });
    attempts.collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_out_of_attempts_leaves_each_of_them() {
    let engine = engine(Policy { call_id: true, ..enforce() });
    let script = vec![after(3, unavailable()), after(5, unavailable()), after(7, unavailable())];
    let failed = play(&engine, script).await.unwrap();
    let (down, none) = (Code::Unavailable, "");
    assert_eq!(
        attempts_of(&failed),
        [(0, Some(3), down, none), (13, Some(5), down, none), (28, Some(7), down, none)]
    );
    assert_eq!((failed.ending.to_string(), failed.code), ("attempts_exhausted".to_owned(), down));
    assert_eq!((failed.latency, failed.sends), (ms(35), 3));
    let ids = failed.ids.as_ref().unwrap();
    assert_eq!(ids.trace.unwrap().as_str(), TRACE);
    assert!(ids.call.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_successful_call_leaves_no_record() {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 });
    for policy in [None, Some(enforce()), Some(observe()), Some(Policy { hedge, ..enforce() })] {
        let engine = engine(policy.clone());
        assert!(play(&engine, vec![ok()]).await.is_none());
        if policy.is_some_and(|policy| policy.mode == Mode::Enforce) {
            assert!(play(&engine, vec![unavailable(), ok()]).await.is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_rule_records_no_text_of_the_peer() {
    let engine = engine(None);
    let secret = ("grpc-message", "card 4711 is refused");
    let failed = play(&engine, vec![trailers_only(&[("grpc-status", "9"), secret])]).await.unwrap();
    assert_eq!(failed.ending.to_string(), "policy_off");
    assert_eq!(attempts_of(&failed), [(0, Some(0), Code::FailedPrecondition, "")]);
    let refused = std::io::Error::from_raw_os_error(111);
    let words = refused.to_string();
    let failed = play(&engine, vec![Reply::Error(refused.into())]).await.unwrap();
    assert_eq!(attempts_of(&failed), [(0, Some(0), Code::Unavailable, &*words)]);
    assert!(!format!("{failed:?}").contains("4711"));
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_at_the_end_are_recorded() {
    // Dropped by the application while a hedge is in flight.
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 });
    let hedging = engine(Policy { retry: None, hedge, ..enforce() });
    let failed = play(&hedging, vec![Reply::Hang, Reply::Hang]).await.unwrap();
    assert_eq!((failed.ending.to_string(), failed.code), ("cancelled".to_owned(), Code::Cancelled));
    assert_eq!(attempts_of(&failed), [(0, None, Code::Cancelled, ""), (50, None, Code::Cancelled, "")]);
    assert_eq!(failed.attempts.iter().map(|attempt| attempt.hedge).collect::<Vec<_>>(), [false, true]);

    // Ended by its own time limit.
    let limited = engine(Policy { timeout: Some(ms(20)), ..enforce() });
    let failed = play(&limited, vec![Reply::Hang]).await.unwrap();
    assert_eq!((failed.ending.to_string(), failed.code), ("deadline".to_owned(), Code::DeadlineExceeded));
    let over = "no answer within its time limit";
    assert_eq!(attempts_of(&failed), [(0, Some(20), Code::DeadlineExceeded, over)]);

    // Dropped by a timer of the application at that limit.
    let mut service = governed(&limited, Peer::new([Reply::Hang]));
    assert!(tokio::time::timeout(ms(18), call(&mut service, request())).await.is_err());
    let failed = left(&limited).unwrap();
    assert_eq!(attempts_of(&failed), [(0, Some(18), Code::DeadlineExceeded, over)]);
    assert!(failed.ids.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_never_sent_has_no_attempt() {
    let engine = engine(Policy { timeout: Some(ms(20)), ..enforce() });
    let mut late = request();
    late.headers_mut().insert("grpc-timeout", "0m".parse().unwrap());
    call(&mut governed(&engine, Peer::new([])), late).await.unwrap();
    let failed = left(&engine).unwrap();
    assert_eq!((failed.sends, failed.attempts.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_transparent_resend_is_recorded_as_such() {
    let unseen = || Reply::Error(h2::Error::from(h2::Reason::REFUSED_STREAM).into());
    let engine = engine(with_retry(|retry| retry.max_attempts = 2));
    let failed = play(&engine, vec![unseen(), after(4, unavailable()), unavailable()]).await.unwrap();
    assert_eq!(failed.sends, 3);
    let words: Vec<_> =
        failed.attempts.iter().map(|attempt| attempt.detail.contains("did not process")).collect();
    assert_eq!(words, [true, false, false]);
    assert_eq!(failed.attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_a_response_is_described() {
    let engine = engine(enforce());
    let lost: Result<_, BoxError> = Err(h2::Error::from(h2::Reason::INTERNAL_ERROR).into());
    let failed = play(&engine, vec![begun(ScriptedBody::over([data("half"), lost]))]).await.unwrap();
    assert_eq!(failed.ending.to_string(), "not_retryable");
    assert_eq!(attempts_of(&failed)[0].3, "stream reset by this process, INTERNAL_ERROR");
    let bare = begun(ScriptedBody::over([data("whole")]));
    let failed = play(&engine, vec![bare]).await.unwrap();
    assert_eq!(attempts_of(&failed)[0].3, "the response ended without a status");
}

/// Changes of the counters by one call.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    endings: BTreeMap<String, u64>,
    codes: BTreeMap<u32, u64>,
    sends: u64,
}

impl Counted {
    fn of(engine: &Runtime) -> Self {
        let mut all = Self::default();
        engine.for_each_route(|_, _, route| all = Self::read(&route.state().counters));
        all
    }

    fn read(counters: &Counters) -> Self {
        let endings = counters.endings().map(|(ending, count)| (ending.to_string(), count)).collect();
        let codes = Code::ALL.into_iter().map(|code| (code.number(), counters.code(code)));
        Self { endings, codes: codes.filter(|(_, count)| *count > 0).collect(), sends: counters.attempts() }
    }

    fn since(&self, before: &Self) -> Self {
        fn less<K: Ord + Clone>(now: &BTreeMap<K, u64>, before: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
            let less = now.iter().map(|(key, n)| (key.clone(), n - before.get(key).copied().unwrap_or(0)));
            less.filter(|(_, count)| *count > 0).collect()
        }
        let (endings, codes) = (less(&self.endings, &before.endings), less(&self.codes, &before.codes));
        Self { endings, codes, sends: self.sends - before.sends }
    }
}

/// Any result.
fn any(rng: &mut fastrand::Rng) -> Reply {
    let reply = match rng.u32(..8) {
        0 => ok(),
        1 => trailers_only(&[("grpc-status", "9")]),
        2 => trailers_only(&[("grpc-status", "14"), ("damper-no-more-retry", "1")]),
        3 => trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "5")]),
        4 => Reply::Hang,
        5 => Reply::Error(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
        6 => begun(ScriptedBody::over([data("half"), trailers(&[("grpc-status", "14")])])),
        _ => unavailable(),
    };
    after(rng.u64(..80), reply)
}

fn any_policy(rng: &mut fastrand::Rng) -> Option<Policy> {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(30)), max_hedges: rng.u32(1..4) };
    let policy = Policy {
        timeout: rng.bool().then(|| ms(rng.u64(20..200))),
        hedge: rng.bool().then_some(hedge),
        ..if rng.bool() { enforce() } else { observe() }
    };
    let limit = rng.bool().then(|| ms(rng.u64(10..100)));
    let retry = policy.retry.clone().map(|retry| Retry { per_attempt_timeout: limit, ..retry });
    (rng.u32(..5) > 0).then_some(Policy { retry, ..policy })
}

/// Ended attempts by code, as counted: one that the server did not process is none.
fn codes(call: &FailedCall) -> BTreeMap<u32, u64> {
    let mut codes = BTreeMap::new();
    for attempt in call.attempts.iter().filter(|attempt| attempt.took.is_some()) {
        *codes.entry(attempt.code.number()).or_default() += 1;
    }
    codes
}

#[tokio::test(start_paused = true)]
async fn what_is_left_agrees_with_what_is_counted_whatever_happens() {
    for seed in 0..400 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let engine = engine(any_policy(rng));
        for _ in 0..4 {
            let before = Counted::of(&engine);
            let script = (0..12).map(|_| any(rng)).collect();
            let failed = play(&engine, script).await;
            let counted = Counted::of(&engine).since(&before);
            let ended_well = counted.endings.keys().any(|ending| ending.starts_with("ok"));
            let Some(failed) = failed else {
                assert!(ended_well, "seed {seed}: {counted:?}");
                continue;
            };
            let mut recorded =
                Counted { sends: failed.sends.into(), codes: codes(&failed), ..Counted::default() };
            recorded.endings.insert(failed.ending.to_string(), 1);
            assert_eq!(recorded, counted, "seed {seed}: {failed:?}");
            assert_eq!(failed.attempts.len() as u64, counted.sends, "seed {seed}: {failed:?}");
            for attempt in &failed.attempts {
                let ended = attempt.sent_after + attempt.took.unwrap_or_default();
                assert!(ended <= failed.latency, "seed {seed}: {failed:?}");
            }
            // No second records more than the limit.
            tokio::time::sleep(ms(1_000)).await;
        }
    }
}
