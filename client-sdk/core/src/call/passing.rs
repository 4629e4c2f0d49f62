//! Calls that pass through: no rule applies and no kill rejects them.
//!
//! They need no checks and have one attempt, so they need no state machine and only three words. They are
//! counted and report the same as a [`Call`](super::Call) on such a route; a test below compares the two.
//! Drivers that need cheap calls try this first.

use super::{Answer, AttemptKind, CallStart, Finish, SendAttempt};
use crate::outcome::classify::Verdict;
use crate::outcome::code::Code;
use crate::outcome::fate::{Ending, Fate};
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

/// A call that passes through, while its attempt is in flight.
#[derive(Debug)]
pub struct Passthrough {
    began: Time,
    deadline: Option<Time>,
}

impl Passthrough {
    /// Begins a call and returns its attempt. `None` if there is something to decide, such as a kill; then
    /// nothing is counted, and the driver begins a [`Call`](super::Call).
    #[inline]
    #[must_use]
    pub fn begin(route: &Route, start: &CallStart) -> Option<(Self, SendAttempt)> {
        let &CallStart { now, deadline, flag, replayable: _, sends_before } = start;
        if route.policy().is_some() || route.switch().refuses_calls(now) || sends_before > 0 {
            return None;
        }
        route.state().counters.count_call();
        let limit = deadline.map(|deadline| deadline.since(now));
        let send = SendAttempt { attempt: 1, kind: AttemptKind::First, limit, flag };
        Some((Self { began: now, deadline }, send))
    }

    /// Returns the time when the call began.
    #[must_use]
    pub fn began(&self) -> Time {
        self.began
    }

    /// Records the end of the attempt. Returns how the call ended, and the code that counts for the attempt.
    pub fn ended(self, route: &Route, verdict: &Verdict, now: Time) -> (Finish, Code) {
        let fate = if *verdict == Verdict::Success { Fate::Ok } else { Fate::PolicyOff };
        let marks_context = matches!(verdict, Verdict::Failure(failure) if failure.no_more_retry);
        let code = match verdict.code() {
            // A remote timer on the same limit usually reports its end as a cancellation.
            Code::Cancelled if self.is_over(now) => Code::DeadlineExceeded,
            code => code,
        };
        route.state().counters.count_code(code);
        (self.finished(route, fate, Answer::Attempt(1), marks_context, now), code)
    }

    /// Records that the application dropped the call or a timer ended it.
    pub fn dropped(self, route: &Route, now: Time) -> Finish {
        let fate = if self.is_over(now) { Fate::Deadline } else { Fate::Cancelled };
        if fate == Fate::Deadline {
            route.state().counters.count_code(Code::DeadlineExceeded);
        }
        self.finished(route, fate, Answer::TimedOut, false, now)
    }

    fn is_over(&self, now: Time) -> bool {
        deadline::ended_by(self.deadline, self.began, now)
    }

    fn finished(&self, route: &Route, fate: Fate, answer: Answer, marks_context: bool, now: Time) -> Finish {
        let (ending, counters) = (Ending::real(fate), &route.state().counters);
        counters.count_ending(ending);
        counters.latency().record(now.since(self.began));
        Finish { ending, answer, marks_context }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::{Call, Step};
    use super::*;
    use crate::outcome::classify::{Failure, Pushback};
    use crate::policy::{Mode, Policy};
    use crate::rules::kill::{Kill, TimedKill};
    use crate::rules::pattern::Pattern;
    use crate::rules::table::Rule;

    const BEGAN: Time = Time::from_micros(5_000_000);

    fn any_call() -> Pattern {
        Pattern::parse("*", "*", "*", "*").unwrap()
    }

    fn killed(calls: bool) -> TimedKill {
        let kill = Kill::new(any_call(), calls, "storm".to_owned(), 1).unwrap();
        TimedKill { kill: Arc::new(kill), until: Time::from_micros(u64::MAX) }
    }

    fn start(deadline: Option<Time>, flag: Option<u32>) -> CallStart {
        CallStart { now: BEGAN, deadline, flag, replayable: false, sends_before: 0 }
    }

    /// Returns the counts of a route, and how the call ended.
    fn seen(route: &Route, send: SendAttempt, finish: Finish) -> String {
        let counters = &route.state().counters;
        let took: Vec<_> = counters.latency().counts().filter(|(_, count)| *count > 0).collect();
        let codes = Code::ALL.map(|code| counters.code(code));
        let endings: Vec<_> = counters.endings().collect();
        format!(
            "{send:?} {finish:?} {} {} {endings:?} {codes:?} {took:?}",
            counters.calls(),
            counters.attempts()
        )
    }

    /// `None`: the call is dropped.
    fn as_call(start: CallStart, end: Option<Verdict>, now: Time) -> String {
        let route = Route::new(None);
        let mut call = Call::begin(&route, start);
        let Step::Send(send) = call.next_step(&route, start.now) else { panic!("it is sent") };
        let finish = match end {
            None => call.dropped(&route, now).unwrap(),
            Some(verdict) => {
                call.attempt_ended(&route, 1, verdict, now, 0);
                let Step::Finish(finish) = call.next_step(&route, now) else { panic!("the call has ended") };
                finish
            }
        };
        seen(&route, send, finish)
    }

    fn as_passing(start: CallStart, end: Option<Verdict>, now: Time) -> String {
        let route = Route::new(None);
        let (call, send) = Passthrough::begin(&route, &start).unwrap();
        let finish = match end {
            None => call.dropped(&route, now),
            Some(verdict) => {
                let (finish, code) = call.ended(&route, &verdict, now);
                assert_eq!(route.state().counters.code(code), 1, "the returned code is the counted one");
                finish
            }
        };
        seen(&route, send, finish)
    }

    fn any_end() -> impl Strategy<Value = Option<Verdict>> {
        (0_u32..22, any::<bool>(), any::<bool>()).prop_map(|(code, no_more_retry, pushback)| {
            Some(match Code::from_number(code) {
                None if code == 18 => return None,
                None if code == 19 => Verdict::TimedOut,
                None if code == 20 => Verdict::Unsent,
                None if code == 21 => Verdict::Local,
                None => Verdict::Unprocessed,
                Some(Code::Ok) => Verdict::Success,
                Some(code) => {
                    let pushback = pushback.then_some(Pushback::Stop);
                    Verdict::Failure(Failure { code, no_more_retry, pushback })
                }
            })
        })
    }

    proptest! {
        #[test]
        fn passthrough_equals_a_call_without_a_rule(
            end in any_end(),
            deadline_ms in proptest::option::of(prop_oneof![Just(0_u64), Just(1_000), 0_u64..3_000]),
            flag in proptest::option::of(any::<u32>()),
            took_us in prop_oneof![Just(0_u64), Just(999_999), Just(1_000_000), 0_u64..4_000_000],
        ) {
            let start = start(deadline_ms.map(|ms| BEGAN + Duration::from_millis(ms)), flag);
            let now = BEGAN + Duration::from_micros(took_us);
            prop_assert_eq!(as_passing(start, end, now), as_call(start, end, now));
        }
    }

    #[test]
    fn governed_call_is_not_passed_through_or_counted() {
        let passes = |route: &Route| {
            let passes = Passthrough::begin(route, &start(None, None)).is_some();
            assert_eq!(route.state().counters.calls(), u64::from(passes));
            passes
        };
        let ruled = |mode| Route::new(Some(Arc::new(Rule::new(any_call(), Policy::new(mode), 1).unwrap())));
        assert!(passes(&Route::new(None)) && passes(&ruled(Mode::Off)));
        assert!(!passes(&ruled(Mode::Observe)) && !passes(&ruled(Mode::Enforce)));
        let route = Route::new(None);
        route.switch().obey(&[killed(true)]);
        assert!(!passes(&route), "a kill rejects it");
        route.switch().obey(&[killed(false)]);
        assert!(passes(&route), "there are no retries to stop");
        let repeated = CallStart { sends_before: 1, ..start(None, None) };
        assert!(Passthrough::begin(&route, &repeated).is_none(), "a kill could stop it");
    }
}
