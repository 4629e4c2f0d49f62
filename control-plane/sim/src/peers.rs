//! Peers for comparison: retry loops of other libraries.
//!
//! A peer returns the engine's own `Step`s, so that one driver serves both. It sends no retry flag, ignores
//! flags, and knows only the application's deadline and its own timeout of an attempt.
//!
//! Their caps are in `peers::tps` (tower), `peers::throttling` (gRPC) and `peers::quota` (AWS SDKs).

use std::time::Duration;

use damper_core::{
    Answer, AttemptKind, Code, Ending, Fate, Finish, SendAttempt, Step, Time, Verdict, deadline,
};

use self::cap::Cap;
use crate::random::Random;
use crate::scenario::{Peer, PeerBackoff, PeerJitter};
use crate::spread::us;

mod cap;
mod quota;
mod throttling;
mod tps;

/// State shared by all calls of one process on one route.
#[derive(Debug)]
pub(crate) struct PeerRoute {
    peer: Peer,
    cap: Cap,
}

/// One call.
#[derive(Debug)]
pub(crate) struct PeerCall {
    began: Time,
    attempts: u32,
    next: Next,
    in_flight: bool,
    /// Cost of the last retry; `None` without a retry.
    paid: Option<u32>,
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
        let cap = Cap::new(peer.cap);
        Self { peer, cap }
    }

    /// Restarts the process without memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.peer.clone());
    }
}

impl PeerCall {
    pub(crate) fn begin(now: Time, deadline: Option<Time>) -> Self {
        let next = Next::Send(now);
        Self {
            began: now,
            attempts: 0,
            next,
            in_flight: false,
            paid: None,
            deadline,
            limit: None,
            finish: None,
        }
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

    fn send(&mut self, route: &PeerRoute, now: Time) -> SendAttempt {
        self.attempts += 1;
        self.next = Next::Nothing;
        self.in_flight = true;
        self.limit = route.peer.per_attempt_timeout.map(|timeout| now + timeout);
        let limit = deadline::earliest([self.limit, self.deadline]);
        let kind = if self.attempts == 1 { AttemptKind::First } else { AttemptKind::Retry };
        SendAttempt { attempt: self.attempts, kind, limit: limit.map(|limit| limit.since(now)), flag: None }
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
                route.cap.succeeded(self.paid, now);
                let fate = if self.attempts == 1 { Fate::Ok } else { Fate::OkAfterRetry };
                self.end(fate, answer);
            }
            failed => self.failed(route, failed.code(), answer, now, random),
        }
    }

    pub(crate) fn attempt_timed_out(&mut self, route: &mut PeerRoute, now: Time, random: &mut Random) {
        self.in_flight = false;
        self.failed(route, Code::DeadlineExceeded, Answer::TimedOut, now, random);
    }

    fn failed(&mut self, route: &mut PeerRoute, code: Code, answer: Answer, now: Time, random: &mut Random) {
        match self.retry(route, code, now) {
            Err(fate) => self.end(fate, answer),
            Ok(()) => {
                let wait = route.peer.backoff.map_or(0, |backoff| wait(backoff, self.attempts, random));
                self.next = Next::Send(now + Duration::from_micros(wait));
            }
        }
    }

    /// Pays for a retry; errors with the reason if it is blocked.
    fn retry(&mut self, route: &mut PeerRoute, code: Code, now: Time) -> Result<(), Fate> {
        let Peer { attempts, codes, .. } = &route.peer;
        if *attempts == 1 {
            return Err(Fate::PolicyOff);
        }
        if !codes.contains(code) {
            return Err(Fate::NotRetryable);
        }
        route.cap.failed();
        if self.attempts >= *attempts {
            return Err(Fate::AttemptsExhausted);
        }
        self.paid = Some(route.cap.withdraw(code, now).ok_or(Fate::Budget)?);
        Ok(())
    }

    fn end(&mut self, fate: Fate, answer: Answer) {
        self.next = Next::Nothing;
        self.finish = Some(Finish { ending: Ending::real(fate), answer, marks_context: false });
    }

    /// The application cancels the call.
    pub(crate) fn dropped(&mut self, now: Time) -> Option<Finish> {
        if self.finish.is_some() {
            return None;
        }
        let in_time = !deadline::ended_by(self.deadline, self.began, now);
        self.end(if in_time { Fate::Cancelled } else { Fate::Deadline }, Answer::TimedOut);
        self.finish
    }
}

/// The wait before retry n.
fn wait(backoff: PeerBackoff, retry: u32, random: &mut Random) -> u64 {
    let (doubled, max) =
        (us(backoff.base).saturating_mul(1 << retry.saturating_sub(1).min(32)), us(backoff.max));
    let about = doubled.min(max);
    let drawn = random.below(about + 1);
    match backoff.jitter {
        PeerJitter::Full => drawn,
        PeerJitter::Added => (about + drawn).min(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{PeerCap, PeerQuota, PeerThrottling};

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    #[test]
    fn waits_never_exceed_their_ceiling_and_reach_it() {
        let (base, max) = (Duration::from_micros(4), Duration::from_micros(10));
        let mut random = Random::new(1, 0);
        let mut ends = |jitter, retry| {
            let waits = (0..1_000).map(|_| wait(PeerBackoff { base, max, jitter }, retry, &mut random));
            let waits: Vec<_> = waits.collect();
            (*waits.iter().min().unwrap(), *waits.iter().max().unwrap())
        };
        let full = [1, 2, 3, 9].map(|retry| ends(PeerJitter::Full, retry));
        assert_eq!(full, [(0, 4), (0, 8), (0, 10), (0, 10)]);
        let added = [1, 2, 3, 9].map(|retry| ends(PeerJitter::Added, retry));
        assert_eq!(added, [(4, 8), (8, 10), (10, 10), (10, 10)]);
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

    fn capped(cap: PeerCap) -> PeerRoute {
        PeerRoute::new(Peer { cap: Some(cap), ..Peer::naive(3) })
    }

    /// Makes a call whose first attempts fail, so many of them, and tells how many attempts it had.
    fn attempts(route: &mut PeerRoute, failing: u32) -> u32 {
        let (mut call, mut random) = (PeerCall::begin(at(5), None), Random::new(1, 0));
        while let Step::Send(send) = call.next_step(route, at(5)) {
            let failed = Verdict::Failure(damper_core::Failure::new(Code::Unavailable));
            let verdict = if send.attempt <= failing { failed } else { Verdict::Success };
            call.attempt_ended(route, verdict, at(5), &mut random);
        }
        call.attempts
    }

    fn retries_of_failing_calls(cap: PeerCap) -> u32 {
        let mut route = capped(cap);
        (0..1_000).map(|_| attempts(&mut route, 3) - 1).sum()
    }

    #[test]
    fn outage_retries_are_limited_by_tokens_and_quota() {
        let throttling =
            |max_tokens| PeerCap::Throttling(PeerThrottling { max_tokens, ..Default::default() });
        // A call that fails three times takes three tokens for two retries, until half of them are gone.
        assert_eq!([10, 1_000].map(throttling).map(retries_of_failing_calls), [3, 333]);
        assert_eq!(retries_of_failing_calls(PeerCap::Quota(PeerQuota::default())), 100);
    }

    #[test]
    fn quota_has_the_last_retrys_cost_back_when_it_succeeds() {
        let mut route = capped(PeerCap::Quota(PeerQuota { tokens: 10, ..PeerQuota::default() }));
        assert_eq!([1, 1, 1].map(|failing| attempts(&mut route, failing)), [2, 2, 2]);
        assert_eq!(
            [2, 2, 1].map(|failing| attempts(&mut route, failing)),
            [3, 2, 1],
            "the first of two is not"
        );
    }
}
