//! Any course of events under any policy: the decision machine itself, several calls of one route at a time,
//! several attempts in flight, a clock that jumps, rules and kills that change meanwhile.
//!
//! Checked:
//! - No step leads in a circle: what is to be waited for is never past.
//! - Every call ends with one fate, which stays; fates sum to calls.
//! - Sends stay within attempts, hedges, five resends, the flag of the request served, the kept request and the
//!   deadline; after an answer has begun nothing is sent, and nothing that a kill stops.
//! - Whenever a repeat was decided on, the retry breaker's ratios admit it on what was counted then (what credit admits has a
//!   property test of its own); the
//!   extra attempts that were decided on never exceed the budget in any window (by a list of our own, while
//!   clock and rule go on evenly).

mod ledger;

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use damper_core::breaker;
use damper_core::kill::TimedKill;
use damper_core::{
    Answer, AttemptKind, Call, CallStart, Code, Counts, Ending, Failure, Fate, Finish, Mode, Policy,
    Pushback, Route, SendAttempt, Step, Time, Verdict,
};

use self::ledger::Ledger;
use crate::any;

const METHOD: &str = "a.B/C";
const MOST_CALLS: usize = 8;
/// A call asks for no more steps at one instant.
const MOST_STEPS: u32 = 64;
/// Far beyond any clock. At the very end of all numbers nothing can be waited for, as nothing comes after.
const FAR_US: u64 = 1 << 62;

struct World {
    route: Route,
    now: Time,
    open: Vec<Open>,
    begun: u64,
    ledger: Ledger,
}

/// A call that has not ended.
struct Open {
    call: Call,
    route: Route,
    start: CallStart,
    sent: u32,
    resent: u32,
    hedged: u32,
    in_flight: Vec<u32>,
    committed: bool,
    /// What the breaker saw when the last attempt failed, and when that was.
    failed: Option<(Time, Counts)>,
    succeeded: bool,
    finish: Option<Finish>,
}

/// Runs one case.
pub fn run(data: &[u8]) {
    // Bytes that do not make a case end it early; what was done until then was checked.
    _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let rule = if u.ratio(1, 20)? { None } else { Some(Arc::new(any::rule(u, "stock", METHOD)?)) };
    let now = match u.int_in_range(0..=9)? {
        0 => Time::ZERO,
        1 => Time::from_micros(FAR_US),
        _ => Time::from_micros(5_000_000),
    };
    let mut world =
        World { route: Route::new(rule), now, open: Vec::new(), begun: 0, ledger: Ledger::default() };
    while !u.is_empty() {
        world.event(u)?;
    }
    world.end();
    Ok(())
}

impl World {
    fn event(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let random = u.arbitrary()?;
        match u.int_in_range(0..=15)? {
            0..=3 => self.begin(u)?,
            4 | 5 => self.pass(Duration::from_micros(u.int_in_range(0..=300_000)?), random),
            6 => self.pass_to_next(random),
            7 => self.jump(u)?,
            8..=12 => {
                let verdict = verdict(u)?;
                self.with_attempt(u, |open, attempt, now| {
                    open.in_flight.retain(|other| *other != attempt);
                    open.succeeded |= verdict == Verdict::Success;
                    open.call.attempt_ended(&open.route, attempt, verdict, now, random);
                    open.note_failure(now);
                })?;
                self.drive(random);
            }
            13 => {
                self.with_attempt(u, |open, attempt, now| {
                    open.call.attempt_committed(&open.route, attempt, || now);
                    open.in_flight = vec![attempt];
                    open.committed = true;
                })?;
                self.drive(random);
            }
            14 => self.drop_one(u)?,
            _ if u.arbitrary()? => self.change_rule(u)?,
            _ => self.throw(u)?,
        }
        Ok(())
    }

    /// Other kills match the route, or none.
    fn throw(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let kills = (0..u.int_in_range(0..=2)?).map(|_| {
            let time_to_live = Duration::from_micros(u.int_in_range(0..=1_000_000)?);
            Ok(TimedKill { kill: Arc::new(any::kill(u, "stock", METHOD)?), until: self.now + time_to_live })
        });
        let kills = kills.collect::<Result<Vec<_>>>()?;
        self.route.switch().obey(&kills);
        self.drive(u.arbitrary()?);
        Ok(())
    }

    fn begin(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.open.len() >= MOST_CALLS {
            return Ok(());
        }
        let deadline = match u.int_in_range(0..=3)? {
            0 => Some(self.now + Duration::from_micros(u.int_in_range(0..=2_000_000)?)),
            _ => None,
        };
        let flag = if u.ratio(1, 10)? { Some(u.arbitrary()?) } else { None };
        let start = CallStart { now: self.now, deadline, flag, replayable: u.ratio(9, 10)?, sends_before: 0 };
        let route = self.route.clone();
        let call = Call::begin(&route, start);
        self.begun += 1;
        self.open.push(Open {
            call,
            route,
            start,
            sent: 0,
            resent: 0,
            hedged: 0,
            in_flight: Vec::new(),
            committed: false,
            failed: None,
            succeeded: false,
            finish: None,
        });
        self.drive(u.arbitrary()?);
        Ok(())
    }

    fn with_attempt(&mut self, u: &mut Unstructured<'_>, f: impl FnOnce(&mut Open, u32, Time)) -> Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let index = u.choose_index(self.open.len())?;
        let open = &mut self.open[index];
        if open.in_flight.is_empty() {
            return Ok(());
        }
        let attempt = *u.choose(&open.in_flight)?;
        f(open, attempt, self.now);
        Ok(())
    }

    fn pass(&mut self, duration: Duration, random: u64) {
        self.now = self.now + duration;
        self.drive(random);
    }

    /// To the instant that some call waits for.
    fn pass_to_next(&mut self, random: u64) {
        let now = self.now;
        let until = |open: &mut Open| match open.call.next_step(&open.route, now) {
            Step::Wait { until } => until,
            other => panic!("{other:?}, but it was asked at this instant before"),
        };
        if let Some(until) = self.open.iter_mut().filter_map(until).min() {
            self.now = until;
            self.drive(random);
        }
    }

    fn jump(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let us = self.now.as_micros();
        self.now = Time::from_micros(match u.int_in_range(0..=3)? {
            0 => us.saturating_sub(u.int_in_range(0..=5_000_000)?),
            1 => u.int_in_range(0..=FAR_US)?,
            _ => us.saturating_add(u.int_in_range(0..=7_200_000_000)?),
        });
        self.ledger.uneven |= self.now.as_micros() < us;
        self.drive(u.arbitrary()?);
        Ok(())
    }

    fn drop_one(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if !self.open.is_empty() {
            let mut open = self.open.swap_remove(u.choose_index(self.open.len())?);
            open.drop_it(self.now);
        }
        Ok(())
    }

    fn change_rule(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let rule = if u.ratio(1, 5)? { None } else { Some(Arc::new(any::rule(u, "stock", METHOD)?)) };
        self.route = self.route.under(rule);
        self.ledger.uneven = true;
        Ok(())
    }

    /// Lets every call do what it wants to do now.
    fn drive(&mut self, random: u64) {
        let (now, ledger) = (self.now, &mut self.ledger);
        for open in &mut self.open {
            open.drive(now, random, ledger);
        }
        self.open.retain(|open| open.finish.is_none());
    }

    fn end(mut self) {
        for mut open in std::mem::take(&mut self.open) {
            open.drop_it(self.now);
        }
        let counters = &self.route.state().counters;
        let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
        assert_eq!((counters.calls(), ended), (self.begun, self.begun), "fates do not sum to calls");
        if let Some(policy) = self.route.policy().filter(|_| !self.ledger.uneven)
            && let Some(cap) = policy.budget
        {
            self.ledger.check(&cap, policy.window_shape());
        }
    }
}

impl Open {
    fn enforced(&self) -> Option<&Policy> {
        self.route.policy().filter(|policy| policy.mode == Mode::Enforce)
    }

    fn note_failure(&mut self, now: Time) {
        self.failed = Some((now, self.route.window().counts(now)));
    }

    fn drive(&mut self, now: Time, random: u64, ledger: &mut Ledger) {
        for _ in 0..MOST_STEPS {
            match self.call.next_step(&self.route, now) {
                Step::Send(send) => self.sends(&send, now, ledger),
                Step::Wait { until } => {
                    assert!(until.is_none_or(|until| until > now), "waits at {now:?} until {until:?}");
                    let waits = until.is_some() || !self.in_flight.is_empty();
                    assert!(waits, "waits for nothing");
                    return;
                }
                Step::Cancel { attempt } => {
                    assert!(self.in_flight.contains(&attempt), "cancels what is not in flight");
                    self.in_flight.retain(|other| *other != attempt);
                    self.call.attempt_timed_out(&self.route, attempt, now, random);
                    self.note_failure(now);
                }
                Step::Finish(finish) => {
                    self.finishes(finish, now);
                    return;
                }
            }
        }
        panic!("{MOST_STEPS} steps at one instant");
    }

    fn sends(&mut self, send: &SendAttempt, now: Time, ledger: &mut Ledger) {
        let switch = self.route.switch();
        assert!(!switch.refuses_calls(now) || send.kind == AttemptKind::Resend, "sent in spite of a kill");
        let is_repeat = matches!(send.kind, AttemptKind::Retry | AttemptKind::Hedge);
        assert!(!is_repeat || !switch.stops_repeats(now), "{:?} in spite of a kill", send.kind);
        assert!(!self.committed, "sent after the answer had begun");
        let deadline = self.call.deadline();
        let policy = self.enforced().cloned();
        assert!(policy.is_none() || deadline.is_none_or(|deadline| deadline > now), "sent too late");
        if let (Some(limit), Some(deadline)) = (send.limit, deadline) {
            assert!(limit <= deadline.since(now), "longer than the deadline");
        }
        self.in_flight.push(send.attempt);
        match send.kind {
            AttemptKind::Resend => self.resent += 1,
            _ => {
                self.sent += 1;
                assert_eq!(send.attempt, self.sent);
            }
        }
        assert_eq!(send.kind == AttemptKind::First, self.sent == 1 && self.resent == 0);
        if send.kind == AttemptKind::First {
            ledger.calls.push(now);
            assert_eq!(send.flag, self.start.flag);
            return;
        }
        let policy = policy.expect("nothing is repeated unless a rule is carried out");
        let most = if self.start.replayable { policy.max_attempts() } else { 1 };
        assert!(self.sent <= most && self.resent <= 5, "{} sends and {}", self.sent, self.resent);
        assert!(policy.repeats() && self.start.replayable);
        assert!(send.attempt == 1 || send.flag.is_some(), "a repeat without the flag");
        if send.kind != AttemptKind::Resend {
            self.repeats(send.kind, &policy, now, ledger);
        }
    }

    /// A retry or a hedge.
    fn repeats(&mut self, kind: AttemptKind, policy: &Policy, now: Time, ledger: &mut Ledger) {
        let allowed = self.start.flag.is_none() || policy.chain.ignore_retry_flag;
        assert!(allowed, "a repeat within a repeat");
        self.hedged += u32::from(kind == AttemptKind::Hedge);
        let hedges = policy.hedge.map_or(0, |hedge| hedge.max_hedges);
        assert!(self.hedged <= hedges, "{} hedges", self.hedged);
        let failed = self.failed;
        // A hedge beside others was decided on just now; what follows a failure was decided on then.
        self.note_failure(now);
        let present = self.failed;
        self.failed = failed;
        let beside = kind == AttemptKind::Hedge && self.in_flight.len() > 1;
        let (at, counts) = if beside { present } else { failed }.expect("a repeat follows something");
        if let Some(settings) = &policy.retry_breaker {
            let admitted = match kind {
                AttemptKind::Hedge => breaker::admits_hedge(settings, counts),
                _ => breaker::is_within_guards(settings, counts),
            };
            assert!(admitted, "{kind:?} in spite of {counts:?}");
        }
        ledger.extra.push(at);
    }

    fn finishes(&mut self, finish: Finish, now: Time) {
        let Finish { ending: Ending { fate, would }, answer, marks_context: _ } = finish;
        match answer {
            Answer::Attempt(attempt) => assert!((1..=self.sent).contains(&attempt), "{attempt} was not sent"),
            Answer::CircuitOpen => {
                assert!(self.sent == 0 && fate == Fate::CircuitOpen);
                assert!(self.enforced().is_some_and(|policy| policy.circuit_breaker.is_some()));
            }
            Answer::Killed => {
                assert!(self.sent == 0 && !would && fate == Fate::Killed);
                assert!(self.route.switch().refuses_calls(now));
            }
            Answer::Blocked => unreachable!("no call begins with a retry"),
            Answer::TimedOut => {}
        }
        if fate == Fate::Killed && answer != Answer::Killed {
            assert!(self.sent > 0 && self.route.policy().is_some_and(Policy::repeats), "nothing to stop");
        }
        let observed = self.route.policy().is_some_and(|policy| policy.mode == Mode::Observe);
        assert!(!would || observed, "{fate:?}");
        assert_eq!(fate.is_ok(), self.succeeded, "{fate:?}");
        assert_eq!(self.call.next_step(&self.route, now), Step::Finish(finish), "it stays");
        assert_eq!(self.call.dropped(&self.route, now), None, "a second fate");
        self.finish = Some(finish);
    }

    fn drop_it(&mut self, now: Time) {
        let finish = self.call.dropped(&self.route, now).expect("it had not ended");
        let Ending { fate, would } = finish.ending;
        assert!(!would && matches!(fate, Fate::Cancelled | Fate::Deadline), "{fate:?}");
        self.finishes(finish, now);
    }
}

fn verdict(u: &mut Unstructured<'_>) -> Result<Verdict> {
    Ok(match u.int_in_range(0..=9)? {
        0..=2 => Verdict::Success,
        3 => *u.choose(&[Verdict::Unprocessed, Verdict::Unsent, Verdict::Local, Verdict::TimedOut])?,
        _ => {
            let code = if u.arbitrary()? { Code::Unavailable } else { *u.choose(&Code::ALL[1..])? };
            let pushback = match u.int_in_range(0..=9)? {
                0 => Some(Pushback::Stop),
                1 => Some(Pushback::After(Duration::from_micros(u.arbitrary()?))),
                2 => Some(Pushback::After(Duration::from_millis(u.int_in_range(0..=61_000)?))),
                _ => None,
            };
            Verdict::Failure(Failure { no_more_retry: u.ratio(1, 12)?, pushback, ..Failure::new(code) })
        }
    })
}
