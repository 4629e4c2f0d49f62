//! The latest failed calls of one route, as reported by its processes.
//!
//! Sorted by end time, or by arrival time if the clock of a process is ahead, so that no call stays the
//! latest for ever. Duplicates, as after a lost connection to a peer, are ignored. A call outside the bounds
//! of SDKs is dropped as a whole, not shown in part.
//!
//! Memory: [`MAX_CALLS`] per route, and an eighth of the bytes of all statistics.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use damper_core::{Fate, failed_call};
use damper_proto::convert::length;
use damper_proto::v1;

use crate::stats::Route;

/// The most calls of a route.
const MAX_CALLS: usize = 20;
/// The calls of a route, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    latest: VecDeque<Failure>,
    bytes: usize,
}

#[derive(Debug)]
struct Failure {
    /// By the clock of this machine; never after the arrival.
    at: SystemTime,
    instance: Arc<str>,
    call: v1::FailedCall,
}

impl Failures {
    /// The memory of the calls in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds reported calls; returns the number of dropped ones. `room` is the memory left for all routes.
    pub(crate) fn take(
        &mut self,
        instance: &Arc<str>,
        calls: &[v1::FailedCall],
        reported_at: SystemTime,
        room: &mut usize,
    ) -> u64 {
        let (beyond, latest) = calls.split_at(calls.len().saturating_sub(MAX_CALLS));
        let left_out = latest.iter().filter(|call| !self.put(instance, call, reported_at, room)).count();
        (beyond.len() + left_out) as u64
    }

    /// False if the call is malformed or exceeds the limit.
    fn put(
        &mut self,
        instance: &Arc<str>,
        call: &v1::FailedCall,
        reported_at: SystemTime,
        room: &mut usize,
    ) -> bool {
        let Some(ended_at) = ended_at(call) else { return false };
        if self.latest.iter().any(|known| known.instance == *instance && known.call == *call) {
            return true;
        }
        let at = ended_at.min(reported_at);
        let place = self.latest.partition_point(|known| known.at > at);
        if place >= MAX_CALLS {
            return true;
        }
        let failure = Failure { at, instance: instance.clone(), call: call.clone() };
        let bytes = failure.bytes();
        while self.latest.len() >= MAX_CALLS || *room < bytes {
            // Newer calls are not replaced.
            let Some(oldest) = self.latest.pop_back_if(|oldest| oldest.at <= at) else { return false };
            self.bytes -= oldest.bytes();
            *room += oldest.bytes();
        }
        *room -= bytes;
        self.bytes += bytes;
        self.latest.insert(place.min(self.latest.len()), failure);
        true
    }

    /// Returns all calls, the latest first.
    pub(crate) fn wire(&self, route: &Route) -> Vec<v1::RouteFailure> {
        let wire = |failure: &Failure| v1::RouteFailure {
            client: Some(v1::Identity {
                service: route.caller_service.to_string(),
                cluster: route.caller_cluster.to_string(),
                instance: failure.instance.to_string(),
            }),
            call: Some(failure.call.clone()),
        };
        self.latest.iter().map(wire).collect()
    }

    /// Returns the calls of one process, the latest last, as reported.
    pub(crate) fn reported_by(&self, instance: &str) -> Vec<v1::FailedCall> {
        let of = self.latest.iter().rev().filter(|failure| *failure.instance == *instance);
        of.map(|failure| failure.call.clone()).collect()
    }
}

impl Failure {
    fn bytes(&self) -> usize {
        let v1::FailedCall { attempts, trace_id, call_id, .. } = &self.call;
        let details: usize = attempts.iter().map(|attempt| attempt.detail.capacity()).sum();
        let attempts = attempts.capacity() * size_of::<v1::FailedAttempt>();
        size_of::<Self>() + attempts + details + trace_id.capacity() + call_id.capacity()
    }
}

/// Returns the end of a call; `None` if a field is out of bounds.
fn ended_at(call: &v1::FailedCall) -> Option<SystemTime> {
    let v1::FailedCall { fate, would: _, code, ended_at, latency, attempts, sends: _, trace_id, call_id } =
        call;
    let fate = v1::Fate::try_from(*fate).ok().and_then(|fate| Fate::try_from(fate).ok());
    let is_sound = fate.is_some_and(|fate| !fate.is_ok())
        && v1::Code::try_from(*code).is_ok()
        && latency.and_then(length).is_some()
        && attempts.len() <= failed_call::MAX_ATTEMPTS
        && attempts.iter().all(is_attempt)
        && [trace_id, call_id].into_iter().all(|id| id.is_empty() || failed_call::is_id(id.as_bytes()));
    let ended_at = ended_at.filter(|_| is_sound)?;
    // Times before 1970 and after the end of the calendar are invalid.
    let since = prost_types::Duration { seconds: ended_at.seconds, nanos: ended_at.nanos };
    length(since).and_then(|_| ended_at.try_into().ok())
}

fn is_attempt(attempt: &v1::FailedAttempt) -> bool {
    let v1::FailedAttempt { sent_after, took, code, hedge: _, detail } = attempt;
    sent_after.and_then(length).is_some()
        && took.is_none_or(|took| length(took).is_some())
        && v1::Code::try_from(*code).is_ok()
        && detail.len() <= failed_call::MAX_DETAIL_BYTES
        && !detail.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S)
    }

    fn one() -> Arc<str> {
        "one".into()
    }

    /// A valid call that ended this many seconds before or after the present.
    fn call(ago_s: i64) -> v1::FailedCall {
        let short = Some(prost_types::Duration { seconds: 0, nanos: 5_000_000 });
        v1::FailedCall {
            fate: v1::Fate::AttemptsExhausted.into(),
            code: v1::Code::Unavailable.into(),
            ended_at: Some(prost_types::Timestamp { seconds: NOW_S as i64 - ago_s, nanos: 0 }),
            latency: short,
            attempts: vec![v1::FailedAttempt {
                sent_after: short,
                took: short,
                code: v1::Code::Unavailable.into(),
                hedge: false,
                detail: "not connected".to_owned(),
            }],
            sends: 1,
            ..Default::default()
        }
    }

    fn ages(failures: &Failures) -> Vec<i64> {
        let age = |failure: &Failure| NOW_S as i64 - failure.call.ended_at.unwrap().seconds;
        failures.latest.iter().map(age).collect()
    }

    #[test]
    fn the_latest_twenty_are_kept_in_whatever_order_they_are_told() {
        let (mut failures, mut room) = (Failures::default(), (64 << 20));
        for ago_s in (0..30).chain(10..40).rev() {
            assert_eq!(failures.take(&one(), &[call(ago_s)], now(), &mut room), 0);
        }
        assert_eq!(ages(&failures), (0..20).collect::<Vec<_>>());
        assert_eq!(failures.bytes() + room, (64 << 20));
    }

    #[test]
    fn a_clock_that_is_ahead_makes_nothing_the_latest_for_ever() {
        let (mut failures, mut room) = (Failures::default(), (64 << 20));
        failures.take(&one(), &[call(-1_000_000)], now(), &mut room);
        failures.take(&one(), &[call(-5)], now() + Duration::from_secs(5), &mut room);
        assert_eq!(ages(&failures), [-5, -1_000_000]);
    }

    #[test]
    fn what_is_told_again_is_known_but_two_processes_may_say_the_same() {
        let (mut failures, mut room) = (Failures::default(), (64 << 20));
        for instance in ["one", "two", "one"] {
            assert_eq!(failures.take(&instance.into(), &[call(1), call(2)], now(), &mut room), 0);
        }
        assert_eq!(ages(&failures), [1, 1, 2, 2]);
        assert_eq!(failures.reported_by("one"), [call(2), call(1)]);
    }

    #[test]
    fn what_is_out_of_bounds_is_left_out_whole() {
        let changed = |change: &dyn Fn(&mut v1::FailedCall)| {
            let mut call = call(0);
            change(&mut call);
            call
        };
        let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let wrong: [&dyn Fn(&mut v1::FailedCall); 15] = [
            &|call| call.fate = v1::Fate::Ok.into(),
            &|call| call.fate = 0,
            &|call| call.fate = 9_999,
            &|call| call.code = 17,
            &|call| call.latency = negative,
            &|call| call.latency = None,
            &|call| call.ended_at = None,
            &|call| call.ended_at = at(-1),
            &|call| call.ended_at = at(i64::MIN),
            &|call| call.trace_id = "4BF92F3577B34DA6A3CE929D0E0E4736".to_owned(),
            &|call| call.call_id = "an order's number".to_owned(),
            &|call| call.attempts = vec![call.attempts[0].clone(); 17],
            &|call| call.attempts[0].took = negative,
            &|call| call.attempts[0].sent_after = None,
            &|call| call.attempts[0].detail = "x".repeat(201),
        ];
        let (mut failures, mut room) = (Failures::default(), (64 << 20));
        for (number, change) in wrong.into_iter().enumerate() {
            assert_eq!(failures.take(&one(), &[changed(change)], now(), &mut room), 1, "{number}");
        }
        let escape = changed(&|call| call.attempts[0].detail = "\u{1b}[2J".to_owned());
        assert_eq!(failures.take(&one(), &[escape, call(0)], now(), &mut room), 1, "and the next is taken");
        assert_eq!(ages(&failures), [0]);
    }

    #[test]
    fn ten_thousand_at_once_are_twenty_and_the_rest_is_counted() {
        let (mut failures, mut room) = (Failures::default(), (64 << 20));
        let calls: Vec<_> = (0..10_000).rev().map(call).collect();
        assert_eq!(failures.take(&one(), &calls, now(), &mut room), 10_000 - 20);
        assert_eq!(ages(&failures), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn without_room_the_oldest_of_the_route_give_way_to_what_is_newer() {
        let each = Failure { at: now(), instance: one(), call: call(0) }.bytes();
        let (mut failures, mut room) = (Failures::default(), 3 * each);
        assert_eq!(failures.take(&one(), &[call(9), call(8), call(7), call(6)], now(), &mut room), 0);
        assert_eq!((ages(&failures), room), (vec![6, 7, 8], 0));
        assert_eq!(failures.take(&one(), &[call(9)], now(), &mut room), 1, "it is the oldest");
        let mut none = 0;
        assert_eq!(Failures::default().take(&one(), &[call(0)], now(), &mut none), 1);
    }

    #[test]
    fn no_times_whatever_make_it_panic_or_lose_count_of_its_bytes() {
        const SECONDS: [i64; 8] =
            [i64::MIN, -1, 0, 1, 1_800_000_000, 253_402_300_799, 253_402_300_800, i64::MAX];
        const NANOS: [i32; 6] = [i32::MIN, -1, 0, 999_999_999, 1_000_000_000, i32::MAX];
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let room = rng.usize(..20_000);
            let (mut failures, mut left) = (Failures::default(), room);
            for _ in 0..60 {
                let mut time = || (SECONDS[rng.usize(..SECONDS.len())], NANOS[rng.usize(..NANOS.len())]);
                let (seconds, nanos) = time();
                let mut duration = || {
                    let (seconds, nanos) = time();
                    Some(prost_types::Duration { seconds, nanos })
                };
                let mut call = call(0);
                call.ended_at = Some(prost_types::Timestamp { seconds, nanos });
                call.latency = duration();
                call.attempts[0].took = duration();
                failures.take(&one(), &[call], now(), &mut left);
                assert_eq!(failures.bytes() + left, room, "seed {seed}");
                let held: usize = failures.latest.iter().map(Failure::bytes).sum();
                assert_eq!(held, failures.bytes(), "seed {seed}");
            }
        }
    }
}
