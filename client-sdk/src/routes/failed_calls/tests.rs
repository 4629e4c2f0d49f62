use std::sync::atomic::AtomicBool;
use std::thread;

use damper_core::Fate;
use damper_core::failed_call::{MAX_ATTEMPTS, MAX_DETAIL_BYTES};
use proptest::prelude::*;

use super::*;

fn attempt(detail: Cow<'static, str>) -> FailedAttempt {
    FailedAttempt {
        number: 1,
        sent_after: Duration::ZERO,
        took: Some(Duration::ZERO),
        code: Code::Unavailable,
        hedge: false,
        detail,
    }
}

/// A call identified by its number.
fn call(number: u64, attempts: Vec<FailedAttempt>) -> FailedCall {
    FailedCall {
        ending: Ending::real(Fate::PolicyOff),
        code: Code::Unavailable,
        ended_at: SystemTime::UNIX_EPOCH,
        latency: Duration::from_micros(number),
        attempts,
        sends: 1,
        ids: None,
    }
}

/// A call of maximum size.
fn biggest(number: u64) -> FailedCall {
    call(number, vec![attempt(Cow::Owned("x".repeat(MAX_DETAIL_BYTES))); MAX_ATTEMPTS])
}

fn numbers(failures: &Failures) -> Vec<u64> {
    let taken = failures.take();
    taken.iter().map(|call| u64::try_from(call.latency.as_micros()).unwrap()).collect()
}

fn at_ms(ms: u64) -> Time {
    Time::from_micros(ms * 1000)
}

#[test]
fn the_latest_five_are_kept_and_reported_once() {
    let failures = Failures::new(Arc::default());
    for number in 0..12 {
        failures.put(at_ms(number * 1000), || call(number, Vec::new()));
    }
    assert_eq!(numbers(&failures), [7, 8, 9, 10, 11]);
    assert!(numbers(&failures).is_empty());
}

#[test]
fn the_first_call_of_a_route_reserves_no_further_space() {
    let failures = Failures::new(Arc::default());
    let places = || failures.latest.lock().unwrap().capacity();
    failures.put(at_ms(0), || call(0, Vec::new()));
    assert_eq!(places(), 1);
    for number in 1..8 {
        failures.put(at_ms(number * 1000), || call(number, Vec::new()));
        assert_eq!(places(), MAX_CALLS);
    }
}

#[test]
fn a_retry_storm_records_five_calls_a_second() {
    let failures = Failures::new(Arc::default());
    let mut built = 0;
    for number in 0..300_000_u64 {
        let now = Time::from_micros(number * 10);
        failures.put(now, || {
            built += 1;
            call(number, Vec::new())
        });
        assert_eq!(failures.has_room_at(now), number % 100_000 < PER_SECOND - 1);
    }
    assert_eq!(built, 3 * PER_SECOND);
    assert_eq!(numbers(&failures), [200_000, 200_001, 200_002, 200_003, 200_004]);
}

#[test]
fn all_routes_share_a_limit_and_drop_their_oldest_calls() {
    let room = Arc::new(FailureQuota::default());
    let routes: Vec<_> = (0..1_000).map(|_| Failures::new(Arc::clone(&room))).collect();
    for round in 0..10 {
        for failures in &routes {
            failures.put(at_ms(round * 1000), || biggest(round));
        }
        assert!(room.0.load(Ordering::Relaxed) <= MAX_BYTES);
    }
    let held: Vec<_> = routes.iter().map(numbers).filter(|held| !held.is_empty()).collect();
    let fits = MAX_BYTES / biggest(0).bytes();
    assert_eq!(held.iter().map(Vec::len).sum::<usize>(), fits);
    // Routes with space have the latest calls.
    assert!(held.iter().all(|held| held.last() == Some(&9)), "{held:?}");
    assert_eq!(room.0.load(Ordering::Relaxed), 0, "reported calls take no space");
}

#[test]
fn concurrent_recording_is_bounded_and_leaks_nothing() {
    let failures = Failures::new(Arc::default());
    let (built, taken, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                taken.fetch_add(failures.take().len() as u64, Ordering::Relaxed);
            }
        });
        let writers = [0, 1, 2, 3].map(|_| {
            scope.spawn(|| {
                for ms in 0..10_000 {
                    failures.put(at_ms(ms), || {
                        built.fetch_add(1, Ordering::Relaxed);
                        biggest(ms)
                    });
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    taken.fetch_add(failures.take().len() as u64, Ordering::Relaxed);
    let (built, taken) = (built.into_inner(), taken.into_inner());
    assert!(taken <= built && built <= 10 * PER_SECOND, "{taken} of {built}");
    assert_eq!(failures.room.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_trace_id_is_read_as_specified() {
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let read = |value: &str| HexId::of_traceparent(value.as_bytes()).map(|id| id.as_str().to_owned());
    for sound in ["00-{}-00f067aa0ba902b7-01", "cc-{}-00f067aa0ba902b7-01-what-is-to-come"] {
        assert_eq!(read(&sound.replace("{}", id)).as_deref(), Some(id));
    }
    let zeros = "0".repeat(32);
    for (template, id) in [
        ("ff-{}-00f067aa0ba902b7-01", id),
        ("00-{}-00f067aa0ba902b7-01", &*zeros),
        ("00-{}-00f067aa0ba902b7-01", "4BF92F3577B34DA6A3CE929D0E0E4736"),
        ("00-{}", id),
        ("00-{}0-00f067aa0ba902b7-01", id),
        ("{}", id),
        ("", id),
    ] {
        assert_eq!(read(&template.replace("{}", id)), None, "{template} {id}");
    }
}

proptest! {
    #[test]
    fn any_header_value_is_read_or_ignored(value in proptest::collection::vec(any::<u8>(), 0..80)) {
        let read = [HexId::read(&value), HexId::of_traceparent(&value)];
        for id in read.into_iter().flatten() {
            prop_assert!(id.as_str().len() == 32 && u128::from_str_radix(id.as_str(), 16).is_ok());
        }
    }
}
