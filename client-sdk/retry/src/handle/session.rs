//! One call: drives the engine's [`Call`] and passes events on. It decides nothing.

use std::ops::Deref;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use damper_core::{
    Answer, AttemptKind, Call, CallStart, ClassCount, Code, Earlier, Ending, Failure, Fate, Finish, Hints,
    Pushback, SendAttempt, Step, Time, Verdict, deadline,
};

use crate::attempt::{Attempt, Signals};
use crate::classify::Class;
use crate::clock::Clock;
use crate::error::{Error, Failed, NotAnswered, Reason};
use crate::events::{AttemptEnded, CallEnded, EventKind};
use crate::handle::Retry;
use crate::handlers::{Assessment, BoxFuture, Handlers};
use crate::source::{Begun, Source, Watch};
use crate::timer::Timer;

/// How a call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) earlier: Earlier,
    /// Several attempts may run at once.
    pub(crate) may_hedge: bool,
    /// The body can run again.
    pub(crate) replayable: bool,
}

impl Plan {
    /// One attempt at a time, as often as allowed.
    pub(crate) const ONE_AT_A_TIME: Self = Self {
        earlier: Earlier { attempts: 0, elapsed: Duration::ZERO, blocked: false },
        may_hedge: false,
        replayable: true,
    };
}

/// One call of a handle.
pub(crate) struct Session<H, S: Source> {
    handle: H,
    clock: Clock,
    watch: S::Call,
    call: Call,
    began: Time,
    /// Time of the last event. A clock is read once per event.
    now: Time,
    earlier: Duration,
    attempts: u32,
    last_code: Option<Code>,
    /// Failures by class of errors with a limit.
    failures: Vec<u32>,
    timer: Timer,
    has_ended: bool,
}

impl<H, P, S> Session<H, S>
where
    H: Deref<Target = Retry<P, S>>,
    S: Source,
{
    /// Begins a call.
    #[inline]
    pub(crate) fn begin(handle: H, Plan { earlier, may_hedge, replayable }: Plan) -> Self {
        let clock = handle.source().clock();
        let now = clock.now();
        let Begun { call: watch, deadline, flag } = handle.source().begin(now);
        let options = handle.options();
        let deadline = deadline::earliest([deadline, options.deadline(now)]);
        let start = CallStart { now, deadline, flag, replayable, sends_before: 0 };
        let mut call = Call::begin(watch.route(), start);
        call.limit_attempts(options.attempts());
        call.resume(watch.route(), earlier, watch.stop(), now);
        if !may_hedge {
            call.forbid_hedges();
        }
        Self {
            handle,
            clock,
            watch,
            call,
            began: now,
            now,
            earlier: earlier.elapsed,
            attempts: earlier.attempts,
            last_code: None,
            failures: Vec::new(),
            timer: Timer::default(),
            has_ended: false,
        }
    }

    /// Cancels the call.
    pub(crate) fn cancel<T, E>(&mut self) -> NotAnswered
    where
        P: Handlers<T, E>,
    {
        self.wake();
        if let Some(finish) = self.call.dropped(self.watch.route(), self.now) {
            self.end::<T, E>(&finish);
        }
        self.not_answered(Reason::Cancelled)
    }

    /// Reads the clock after a pause.
    pub(crate) fn wake(&mut self) {
        self.now = self.clock.now();
    }

    /// Returns the work before the next attempt.
    pub(crate) fn before_retry<T, E>(&self, attempt: u32, outcome: &Result<T, E>) -> Option<BoxFuture>
    where
        P: Handlers<T, E>,
    {
        let error = outcome.as_ref().err().filter(|_| self.call.is_between_attempts())?;
        self.handle.handlers().before_retry(attempt, error)
    }

    /// Returns the engine's next step.
    pub(crate) fn next_step(&mut self) -> Step {
        self.watch.listen_for_kills(self.call.is_between_attempts());
        self.call.next_step(self.watch.route(), self.now)
    }

    /// Returns true while the call waits for its next attempt.
    pub(crate) fn is_between_attempts(&self) -> bool {
        self.call.is_between_attempts()
    }

    /// Starts the attempt of the last step.
    pub(crate) fn start(&mut self, send: &SendAttempt) -> Attempt {
        self.attempts = self.attempts.max(send.attempt);
        self.watch.sent(send, self.now);
        Attempt {
            number: send.attempt,
            elapsed: self.elapsed(),
            deadline: send.limit.and_then(|limit| self.clock.instant(self.now + limit)),
            last_code: self.last_code,
            is_hedge: send.kind == AttemptKind::Hedge,
            flag: send.flag,
        }
    }

    /// Runs a part of an attempt.
    pub(crate) fn enter<R>(&mut self, attempt: u32, run: impl FnOnce() -> R) -> R {
        self.watch.enter(attempt, run)
    }

    /// Ready at `until`, or when a kill ends the wait for the next attempt.
    pub(crate) fn poll_wait(&mut self, until: Option<Time>, cx: &mut Context<'_>) -> Poll<()> {
        if self.call.is_between_attempts() && self.watch.poll_kill(cx).is_ready() {
            return Poll::Ready(());
        }
        ready!(self.timer.poll(until, self.clock, cx));
        self.wake();
        Poll::Ready(())
    }

    /// Polls the work before the next attempt: ready when it ends, when the call's deadline passes, or when a
    /// kill stops the call.
    pub(crate) fn poll_before_retry(&mut self, work: &mut BoxFuture, cx: &mut Context<'_>) -> Poll<()> {
        if work.as_mut().poll(cx).is_pending() {
            ready!(self.poll_wait(self.call.deadline(), cx));
        }
        self.wake();
        Poll::Ready(())
    }

    /// Returns how long to wait until a time.
    pub(crate) fn time_until(&self, until: Time) -> Duration {
        until.since(self.clock.now())
    }

    /// Records the outcome of an attempt.
    pub(crate) fn attempt_ended<T, E>(&mut self, attempt: u32, outcome: &Result<T, E>, signals: Signals)
    where
        P: Handlers<T, E>,
    {
        self.wake();
        let now = self.now;
        let assessment = self.handle.handlers().assess(outcome.as_ref(), attempt);
        let verdict = self.watch.classify(attempt, verdict(&assessment));
        let (is_success, code) = (verdict == Verdict::Success, verdict.code());
        self.handle.handlers().attempt_ended(&AttemptEnded {
            name: self.handle.name(),
            attempt,
            elapsed: self.elapsed(),
            outcome: outcome.as_ref(),
            is_success,
        });
        self.last_code = Some(code);
        self.emit(EventKind::Attempt { attempt, code });
        self.watch.attempt_ended(attempt, Some(&verdict), now);
        if signals.progressed {
            self.failures.clear();
        }
        let class = assessment.limit.and_then(|(place, max_attempts)| {
            self.failures.resize(self.failures.len().max(place + 1), 0);
            let failures = self.failures.get_mut(place)?;
            *failures += 1;
            Some(ClassCount { failures: *failures, max_attempts })
        });
        let hints = Hints {
            never: assessment.never || assessment.class == Class::NotRetryable,
            exhausted: signals.exhausted,
            progressed: signals.progressed,
            wait: assessment.wait,
            spread: assessment.spread,
            class,
            stop: self.watch.stop(),
            earlier: self.earlier,
        };
        // Only waits are random.
        let random = if is_success { 0 } else { fastrand::u64(..) };
        self.call.attempt_ended_with(self.watch.route(), attempt, verdict, &hints, now, random);
    }

    /// Records that an attempt was cut at its limit. `never`: it must not be made again.
    pub(crate) fn attempt_timed_out(&mut self, attempt: u32, signals: Signals, never: bool) {
        self.wake();
        let now = self.now;
        let code = Code::DeadlineExceeded;
        self.last_code = Some(code);
        self.emit(EventKind::Attempt { attempt, code });
        self.watch.attempt_ended(attempt, None, now);
        let hints = Hints {
            never,
            exhausted: signals.exhausted,
            progressed: signals.progressed,
            stop: self.watch.stop(),
            earlier: self.earlier,
            ..Hints::default()
        };
        let random = fastrand::u64(..);
        self.call.attempt_timed_out_with(self.watch.route(), attempt, &hints, now, random);
    }

    /// Leaves the planned retry to a later call of the same key.
    pub(crate) fn leave_retry(&mut self) -> Option<Finish> {
        self.call.leave_retry(self.watch.route(), self.now)
    }

    /// Ends the call, and returns its result from the last attempt that ended.
    pub(crate) fn finish<T, E>(
        &mut self,
        finish: &Finish,
        last: Option<(u32, Result<T, E>)>,
    ) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
    {
        self.end::<T, E>(finish);
        let (attempts, elapsed) = (self.attempts, self.elapsed());
        let last = last.filter(|(number, _)| finish.answer == Answer::Attempt(*number));
        match last {
            Some((_, Ok(value))) if finish.ending.fate.is_ok() || !self.handle.fails_on_value() => Ok(value),
            Some((_, Err(last))) => {
                Err(Error::Failed(Failed { last, ending: finish.ending, attempts, elapsed }))
            }
            _ => Err(Error::NotAnswered(self.not_answered(Reason::Ended(finish.ending)))),
        }
    }

    fn end<T, E>(&mut self, finish: &Finish)
    where
        P: Handlers<T, E>,
    {
        self.has_ended = true;
        self.watch.ended(finish, self.now);
        let (attempts, elapsed, ending) = (self.attempts, self.elapsed(), finish.ending);
        self.emit(EventKind::Ended { attempts, ending });
        let event = CallEnded { name: self.handle.name(), attempts, elapsed, ending };
        self.handle.handlers().call_ended(&event);
    }

    fn emit(&self, kind: EventKind) {
        self.handle.emit(|| self.elapsed(), kind);
    }
}

impl<H, S: Source> Session<H, S> {
    /// Returns the failure of a call without an answer.
    fn not_answered(&self, reason: Reason) -> NotAnswered {
        NotAnswered { reason, attempts: self.attempts, elapsed: self.elapsed() }
    }

    /// Returns the time since the call began, or the first call with the same key.
    fn elapsed(&self) -> Duration {
        self.now.since(self.began).saturating_add(self.earlier)
    }
}

impl<H, S: Source> Drop for Session<H, S> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let now = self.clock.now();
        if let Some(finish) = self.call.dropped(self.watch.route(), now) {
            self.watch.ended(&finish, now);
        }
    }
}

/// Errors if a listener does not permit the call.
pub(crate) fn check_permit<T, E, P, S>(handle: &Retry<P, S>) -> Result<(), Error<E>>
where
    P: Handlers<T, E>,
    S: Source,
{
    let (handlers, name) = (handle.handlers(), handle.name());
    if handlers.permits(name) {
        return Ok(());
    }
    let (attempts, elapsed, ending) = (0, Duration::ZERO, Ending::real(Fate::Cancelled));
    handlers.call_ended(&CallEnded { name, attempts, elapsed, ending });
    Err(Error::NotAnswered(NotAnswered::unmade(Reason::NotPermitted)))
}

fn verdict(assessment: &Assessment) -> Verdict {
    if let Some(verdict) = assessment.verdict {
        return verdict;
    }
    let code = match assessment.class {
        Class::Success => return Verdict::Success,
        Class::Failed(code) => code,
        // The callee is alive: no failure for the breaker.
        Class::NotRetryable => Code::FailedPrecondition,
    };
    let pushback = assessment.hint.map(Pushback::After);
    Verdict::Failure(Failure { pushback, ..Failure::new(code) })
}
