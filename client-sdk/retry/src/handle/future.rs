//! The future of a call: attempts, waits and hedges of a body that makes independent futures.

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use damper_core::{Earlier, Finish, SendAttempt, Step};
use pin_project_lite::pin_project;

use crate::attempt::{Attempt, Running, Signals};
use crate::error::{Error, NotAnswered, Reason};
use crate::handle::Retry;
use crate::handle::session::{Plan, Session, check_permit};
use crate::handlers::{BoxFuture, Handlers};
use crate::source::Source;

/// Makes the future of each attempt. Closures `FnMut(Attempt) -> impl Future` are bodies.
pub trait Body {
    /// Future of an attempt.
    type Future;

    /// Starts an attempt.
    fn start(&mut self, attempt: Attempt) -> Self::Future;

    /// Returns true if an attempt that was cut at its limit may be made again, although the callee may have
    /// processed it.
    fn may_follow_cut(&self) -> bool {
        true
    }
}

impl<F: FnMut(Attempt) -> Fut, Fut> Body for F {
    type Future = Fut;

    fn start(&mut self, attempt: Attempt) -> Fut {
        self(attempt)
    }
}

/// Result of an attempt: its number, what it asked for, and its outcome.
type Ended<T, E> = (u32, Signals, Result<T, E>);

/// Returns true if a retry after the error is left to a later call with the same key.
pub(crate) type LeavesRetry<E> = Arc<dyn Fn(&E) -> bool + Send + Sync>;

pin_project! {
    /// Future of a call, which begins with the first poll.
    #[must_use = "futures do nothing unless polled"]
    pub struct Calling<H, S, B, T, E>
    where
        S: Source,
        B: Body,
    {
        stage: Stage<H, S>,
        body: B,
        #[pin]
        main: Option<Running<B::Future>>,
        hedges: Vec<Pin<Box<Running<B::Future>>>>,
        last: Option<(u32, Result<T, E>)>,
        // Work before the next attempt.
        before_retry: Option<BoxFuture>,
        // Stateful retry: a retry is left to a later call with the same key if this returns true.
        leaves: Option<LeavesRetry<E>>,
    }
}

/// Stage of a call.
#[expect(clippy::large_enum_variant, reason = "most calls begin, and a box would be an allocation")]
enum Stage<H, S: Source> {
    /// Not polled yet.
    New(H, Plan),
    Begun(Session<H, S>),
    /// Not permitted.
    Ended,
}

/// A call that has begun: the parts of its future.
struct Active<'a, H, S: Source, B: Body, T, E> {
    session: &'a mut Session<H, S>,
    body: &'a mut B,
    main: Pin<&'a mut Option<Running<B::Future>>>,
    hedges: &'a mut Vec<Pin<Box<Running<B::Future>>>>,
    last: &'a mut Option<(u32, Result<T, E>)>,
    before_retry: &'a mut Option<BoxFuture>,
    leaves: Option<&'a LeavesRetry<E>>,
}

impl<H, S: Source, B: Body, T, E> Calling<H, S, B, T, E> {
    /// Returns a call that has not begun. `may_hedge`: several attempts may run at once. `replayable`: the
    /// body can run again.
    pub fn new(handle: H, body: B, may_hedge: bool, replayable: bool) -> Self {
        let plan = Plan { may_hedge, replayable, ..Plan::ONE_AT_A_TIME };
        Self {
            stage: Stage::New(handle, plan),
            body,
            main: None,
            hedges: Vec::new(),
            last: None,
            before_retry: None,
            leaves: None,
        }
    }

    /// Continues earlier calls of a stateful retry.
    pub(crate) fn continuing(mut self, earlier: Earlier, leaves: LeavesRetry<E>) -> Self {
        if let Stage::New(_, plan) = &mut self.stage {
            plan.earlier = earlier;
        }
        Self { leaves: Some(leaves), ..self }
    }
}

impl<H, P, S, B, T, E> Calling<H, S, B, T, E>
where
    H: Deref<Target = Retry<P, S>>,
    P: Handlers<T, E>,
    S: Source,
    B: Body,
    B::Future: Future<Output = Result<T, E>>,
{
    /// Cancels the call, and the attempts in flight.
    pub(crate) fn cancel(self: Pin<&mut Self>) -> NotAnswered {
        let mut this = self.project();
        this.main.set(None);
        this.hedges.clear();
        match this.stage {
            Stage::Begun(session) => session.cancel::<T, E>(),
            Stage::New(..) | Stage::Ended => NotAnswered::unmade(Reason::Cancelled),
        }
    }
}

impl<H, P, S, B, T, E> Future for Calling<H, S, B, T, E>
where
    H: Deref<Target = Retry<P, S>>,
    P: Handlers<T, E>,
    S: Source,
    B: Body,
    B::Future: Future<Output = Result<T, E>>,
{
    type Output = Result<T, Error<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Stage::Begun(session) = this.stage {
            session.wake();
        } else if let Stage::New(handle, plan) = std::mem::replace(this.stage, Stage::Ended) {
            check_permit(&*handle)?;
            *this.stage = Stage::Begun(Session::begin(handle, plan));
        }
        let Stage::Begun(session) = this.stage else { return Poll::Pending };
        let (body, main, hedges, last) = (this.body, this.main, this.hedges, this.last);
        let (before_retry, leaves) = (this.before_retry, this.leaves.as_ref());
        Active { session, body, main, hedges, last, before_retry, leaves }.poll(cx)
    }
}

impl<H, P, S, B, T, E> Active<'_, H, S, B, T, E>
where
    H: Deref<Target = Retry<P, S>>,
    P: Handlers<T, E>,
    S: Source,
    B: Body,
    B::Future: Future<Output = Result<T, E>>,
{
    fn poll(mut self, cx: &mut Context<'_>) -> Poll<Result<T, Error<E>>> {
        loop {
            let ended = self.poll_attempts(cx);
            let has_ended = ended.is_some();
            if let Some((number, signals, outcome)) = ended {
                self.attempt_ended(number, signals, outcome);
            }
            if let Some(finish) = self.leave_retry() {
                return Poll::Ready(self.session.finish(&finish, self.last.take()));
            }
            if let Some(work) = self.before_retry {
                ready!(self.session.poll_before_retry(work, cx));
                *self.before_retry = None;
            }
            match self.session.next_step() {
                Step::Send(send) => self.start(&send),
                // Another attempt may be ready too, and its waker is not called again.
                Step::Wait { .. } if has_ended => {}
                Step::Wait { until } => ready!(self.session.poll_wait(until, cx)),
                Step::Cancel { attempt } => {
                    let signals = self.cut(attempt);
                    let never = !self.body.may_follow_cut();
                    self.session.attempt_timed_out(attempt, signals, never);
                    if self.leaves.is_some() {
                        *self.last = None;
                    }
                }
                Step::Finish(finish) => {
                    self.main.set(None);
                    self.hedges.clear();
                    return Poll::Ready(self.session.finish(&finish, self.last.take()));
                }
            }
        }
    }

    fn start(&mut self, send: &SendAttempt) {
        let (number, attempt) = (send.attempt, self.session.start(send));
        let body = &mut *self.body;
        let running = self.session.enter(number, || Running::new(number, || body.start(attempt)));
        if self.main.is_none() {
            self.main.set(Some(running));
        } else {
            self.hedges.push(Box::pin(running));
        }
    }

    /// Records the outcome of an attempt.
    fn attempt_ended(&mut self, number: u32, signals: Signals, outcome: Result<T, E>) {
        self.session.attempt_ended(number, &outcome, signals);
        if self.leaves.is_none() {
            *self.before_retry = self.session.before_retry(number, &outcome);
        }
        *self.last = Some((number, outcome));
    }

    /// Ends the call if its next attempt belongs to a later call of the same key.
    fn leave_retry(&mut self) -> Option<Finish> {
        let leaves = self.leaves.filter(|_| self.session.is_between_attempts())?;
        let is_left = match self.last {
            Some((_, Err(error))) => leaves(error),
            // The attempt was cut.
            None => true,
            Some((_, Ok(_))) => false,
        };
        if is_left { self.session.leave_retry() } else { None }
    }

    /// Returns an attempt that has ended.
    fn poll_attempts(&mut self, cx: &mut Context<'_>) -> Option<Ended<T, E>> {
        if let Some(mut main) = self.main.as_mut().as_pin_mut() {
            let number = main.number();
            if let Poll::Ready(outcome) = self.session.enter(number, || main.as_mut().poll(cx)) {
                let signals = main.signals();
                self.main.set(None);
                return Some((number, signals, outcome));
            }
        }
        for at in 0..self.hedges.len() {
            let Some(hedge) = self.hedges.get_mut(at) else { break };
            let number = hedge.number();
            if let Poll::Ready(outcome) = self.session.enter(number, || hedge.as_mut().poll(cx)) {
                let signals = self.hedges.swap_remove(at).signals();
                return Some((number, signals, outcome));
            }
        }
        None
    }

    /// Drops an attempt.
    fn cut(&mut self, attempt: u32) -> Signals {
        if let Some(main) = self.main.as_ref().as_pin_ref().filter(|main| main.number() == attempt) {
            let signals = main.signals();
            self.main.set(None);
            return signals;
        }
        let at = self.hedges.iter().position(|hedge| hedge.number() == attempt);
        at.map_or(Signals::default(), |at| self.hedges.swap_remove(at).signals())
    }
}
