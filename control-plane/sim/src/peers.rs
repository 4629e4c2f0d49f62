//! Peers for comparison: what others do around a call. None of this is a retry rule of ours.
//!
//! A peer answers with the engine's own `Step`s, so that one driver serves both. It marks no repeat, heeds no
//! flag, and knows no deadline but the application's and its own timeout of an attempt.
//!
//! The budget is tower's `TpsBudget` in small: a success deposits 1, a retry withdraws `1 / retry_percent`
//! (rounded down), and the balance of the last `ttl`, in ten slots, plus `min_per_sec x ttl` retries must
//! suffice. Slots begin at multiples of `ttl / 10` here; tower begins the next one with the first use after
//! the last one's end.

use std::time::Duration;

use damper_core::{Answer, Code, Ending, Fate, Finish, Send, SendKind, Step, Time, Verdict, deadline};

use crate::random::Random;
use crate::scenario::{Peer, PeerBackoff, PeerBudget};
use crate::spread::us;

const SLOTS: usize = 10;

/// What all calls of one process on one route share.
#[derive(Debug)]
pub(crate) struct PeerRoute {
    peer: Peer,
    /// By slot: its number since the origin, and its balance.
    slots: [(u64, i64); SLOTS],
}

/// One call.
#[derive(Debug)]
pub(crate) struct PeerCall {
    attempts: u32,
    next: Next,
    in_flight: bool,
    deadline: Option<Time>,
    limit: Option<Time>,
    finish: Option<Finish>,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Nothing,
    Send(Time),
}

impl PeerRoute {
    pub(crate) fn new(peer: Peer) -> Self {
        Self { peer, slots: [(0, 0); SLOTS] }
    }

    /// The process has come back without memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.peer);
    }

    fn deposit(&mut self, now: Time) {
        if let Some(budget) = self.peer.budget {
            self.add(budget, 1, now);
        }
    }

    fn withdraw(&mut self, now: Time) -> bool {
        let Some(budget) = self.peer.budget else { return true };
        let price = i64::from(10_000 / budget.retry_percent.bp().max(1));
        let reserve = i64::from(budget.min_per_sec) * (us(budget.ttl) / 1_000_000) as i64 * price;
        let present = slot(budget, now);
        let recent = self.slots.iter().filter(|(number, _)| number + SLOTS as u64 > present);
        let balance: i64 = recent.map(|(_, balance)| balance).sum();
        let enough = balance + reserve >= price;
        if enough {
            self.add(budget, -price, now);
        }
        enough
    }

    fn add(&mut self, budget: PeerBudget, amount: i64, now: Time) {
        let number = slot(budget, now);
        let slot = &mut self.slots[(number % SLOTS as u64) as usize];
        let kept = if slot.0 == number { slot.1 } else { 0 };
        *slot = (number, kept + amount);
    }
}

fn slot(budget: PeerBudget, now: Time) -> u64 {
    now.as_micros() / (us(budget.ttl) / SLOTS as u64)
}

impl PeerCall {
    pub(crate) fn begin(now: Time, deadline: Option<Time>) -> Self {
        Self { attempts: 0, next: Next::Send(now), in_flight: false, deadline, limit: None, finish: None }
    }

    pub(crate) fn next_step(&mut self, route: &PeerRoute, now: Time) -> Step {
        if let Some(finish) = self.finish {
            return Step::Finish(finish);
        }
        match (self.next, self.limit) {
            (Next::Send(at), _) if at <= now => Step::Send(self.send(route, now)),
            (Next::Send(at), _) => Step::Wait { until: Some(at) },
            (Next::Nothing, Some(limit)) if self.in_flight && limit <= now => {
                Step::Cancel { attempt: self.attempts }
            }
            (Next::Nothing, limit) => Step::Wait { until: limit },
        }
    }

    fn send(&mut self, route: &PeerRoute, now: Time) -> Send {
        self.attempts += 1;
        self.next = Next::Nothing;
        self.in_flight = true;
        self.limit = route.peer.per_attempt_timeout.map(|timeout| now + timeout);
        let limit = deadline::earliest([self.limit, self.deadline]);
        let kind = if self.attempts == 1 { SendKind::First } else { SendKind::Retry };
        Send { attempt: self.attempts, kind, limit: limit.map(|limit| limit.since(now)), flag: None }
    }

    pub(crate) fn attempt_ended(
        &mut self,
        route: &mut PeerRoute,
        verdict: Verdict,
        now: Time,
        random: &mut Random,
    ) {
        self.in_flight = false;
        let answer = Answer::Attempt(self.attempts);
        match verdict {
            Verdict::Success => {
                route.deposit(now);
                let fate = if self.attempts == 1 { Fate::Ok } else { Fate::OkAfterRetry };
                self.end(fate, answer);
            }
            Verdict::Failure(failure) => self.failed(route, failure.code, answer, now, random),
            Verdict::Unprocessed => self.failed(route, Code::Unavailable, answer, now, random),
        }
    }

    pub(crate) fn attempt_timed_out(&mut self, route: &mut PeerRoute, now: Time, random: &mut Random) {
        self.in_flight = false;
        self.failed(route, Code::DeadlineExceeded, Answer::TimedOut, now, random);
    }

    fn failed(&mut self, route: &mut PeerRoute, code: Code, answer: Answer, now: Time, random: &mut Random) {
        let Peer { attempts, codes, .. } = route.peer;
        let refusal = match self.attempts {
            _ if attempts == 1 => Some(Fate::PolicyOff),
            _ if !codes.contains(code) => Some(Fate::NotRetryable),
            made if made >= attempts => Some(Fate::AttemptsExhausted),
            _ => (!route.withdraw(now)).then_some(Fate::Budget),
        };
        match refusal {
            Some(fate) => self.end(fate, answer),
            None => {
                let wait = route.peer.backoff.map_or(0, |backoff| wait(backoff, self.attempts, random));
                self.next = Next::Send(now + Duration::from_micros(wait));
            }
        }
    }

    fn end(&mut self, fate: Fate, answer: Answer) {
        self.next = Next::Nothing;
        self.finish = Some(Finish { ending: Ending::real(fate), answer, marks_context: false });
    }

    /// The application has given up.
    pub(crate) fn dropped(&mut self, now: Time) -> Option<Finish> {
        if self.finish.is_some() {
            return None;
        }
        let in_time = !deadline::ended_by(self.deadline, now);
        self.end(if in_time { Fate::Cancelled } else { Fate::Deadline }, Answer::TimedOut);
        self.finish
    }
}

/// Full jitter: any wait up to the ceiling of retry n.
fn wait(backoff: PeerBackoff, retry: u32, random: &mut Random) -> u64 {
    let doubled = us(backoff.base).saturating_mul(1 << retry.saturating_sub(1).min(32));
    random.below(doubled.min(us(backoff.max)) + 1)
}

#[cfg(test)]
mod tests {
    use damper_core::Ratio;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    fn budgeted(min_per_sec: u32, percent_bp: u32) -> PeerRoute {
        let ttl = Duration::from_secs(10);
        let budget = PeerBudget { ttl, min_per_sec, retry_percent: Ratio::from_bp(percent_bp) };
        PeerRoute::new(Peer { budget: Some(budget), ..Peer::naive(3) })
    }

    #[test]
    fn budget_pays_a_retry_for_every_five_successes_and_forgets_them_after_its_time() {
        let mut route = budgeted(0, 2_000);
        (0..14).for_each(|_| route.deposit(at(100)));
        let paid = |route: &mut PeerRoute, ms| (0..10).filter(|_| route.withdraw(at(ms))).count();
        assert_eq!(paid(&mut route, 5_000), 2);
        (0..5).for_each(|_| route.deposit(at(6_000)));
        assert_eq!(paid(&mut route, 15_999), 1);
        (0..5).for_each(|_| route.deposit(at(17_000)));
        assert_eq!(paid(&mut route, 27_000), 0, "all of it is older than 10 s");
    }

    #[test]
    fn budget_has_its_reserve_in_every_span_of_its_time() {
        let mut route = budgeted(10, 2_000);
        let paid = |route: &mut PeerRoute, ms| (0..1_000).filter(|_| route.withdraw(at(ms))).count();
        assert_eq!(paid(&mut route, 0), 100);
        assert_eq!(paid(&mut route, 9_999), 0);
        assert_eq!(paid(&mut route, 10_000), 100);
    }

    #[test]
    fn waits_never_exceed_their_ceiling_and_reach_it() {
        let backoff = PeerBackoff { base: Duration::from_micros(4), max: Duration::from_micros(10) };
        let mut random = Random::new(1, 0);
        let mut longest = |retry| (0..1_000).map(|_| wait(backoff, retry, &mut random)).max().unwrap();
        assert_eq!([1, 2, 3, 9].map(&mut longest), [4, 8, 10, 10]);
    }

    #[test]
    fn naive_peer_sends_at_once_until_its_attempts_are_made() {
        let (mut route, mut random) = (PeerRoute::new(Peer::naive(3)), Random::new(1, 0));
        let mut call = PeerCall::begin(at(0), None);
        for attempt in 1..=3 {
            let Step::Send(send) = call.next_step(&route, at(5)) else { panic!("not sent") };
            assert_eq!((send.attempt, send.flag), (attempt, None));
            let failed = damper_core::Failure::new(Code::Unavailable);
            call.attempt_ended(&mut route, Verdict::Failure(failed), at(5), &mut random);
        }
        let Step::Finish(finish) = call.next_step(&route, at(5)) else { panic!("not finished") };
        assert_eq!(finish.ending.fate, Fate::AttemptsExhausted);
    }
}
