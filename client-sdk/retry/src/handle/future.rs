//! The future of a call: attempts, waits and hedges of a body that makes independent futures.

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use damper_core::{Earlier, Finish, Step};
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
        // `None` once the call has begun.
        start: Option<Start<H, B>>,
        // Stateful retry: a retry is left to a later call with the same key if this returns true.
        leaves: Option<LeavesRetry<E>>,
        #[pin]
        active: Option<Active<H, S, B, T, E>>,
    }
}

/// What a call begins with.
struct Start<H, B> {
    handle: H,
    body: B,
    plan: Plan,
}

pin_project! {
    /// A call that has begun.
    struct Active<H, S, B, T, E>
    where
        S: Source,
        B: Body,
    {
        session: Session<H, S>,
        body: B,
        #[pin]
        main: Option<Running<B::Future>>,
        hedges: Vec<Pin<Box<Running<B::Future>>>>,
        last: Option<(u32, Result<T, E>)>,
        // Work before the next attempt.
        before_retry: Option<BoxFuture>,
    }
}

impl<H, S: Source, B: Body, T, E> Calling<H, S, B, T, E> {
    /// Returns a call that has not begun. `may_hedge`: several attempts may run at once. `replayable`: the
    /// body can run again.
    pub fn new(handle: H, body: B, may_hedge: bool, replayable: bool) -> Self {
        let plan = Plan { may_hedge, replayable, ..Plan::ONE_AT_A_TIME };
        Self { start: Some(Start { handle, body, plan }), leaves: None, active: None }
    }

    /// Continues earlier calls of a stateful retry.
    pub(crate) fn continuing(mut self, earlier: Earlier, leaves: LeavesRetry<E>) -> Self {
        if let Some(start) = &mut self.start {
            start.plan.earlier = earlier;
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
        let active = self.project().active.as_pin_mut();
        active.map_or(NotAnswered::unmade(Reason::Cancelled), Active::cancel)
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
        let mut this = self.project();
        if let Some(active) = this.active.as_mut().as_pin_mut() {
            active.project().session.wake();
        } else if let Some(Start { handle, body, plan }) = this.start.take() {
            check_permit(&*handle)?;
            this.active.set(Some(Active {
                session: Session::begin(handle, plan),
                body,
                main: None,
                hedges: Vec::new(),
                last: None,
                before_retry: None,
            }));
        }
        this.active.as_pin_mut().map_or(Poll::Pending, |active| active.poll(this.leaves.as_ref(), cx))
    }
}

impl<H, P, S, B, T, E> Active<H, S, B, T, E>
where
    H: Deref<Target = Retry<P, S>>,
    P: Handlers<T, E>,
    S: Source,
    B: Body,
    B::Future: Future<Output = Result<T, E>>,
{
    fn poll(
        mut self: Pin<&mut Self>,
        leaves: Option<&LeavesRetry<E>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, Error<E>>> {
        loop {
            let ended = self.as_mut().poll_attempts(cx);
            let has_ended = ended.is_some();
            if let Some((number, signals, outcome)) = ended {
                self.as_mut().attempt_ended(number, signals, outcome, leaves.is_none());
            }
            if let Some(finish) = leaves.and_then(|leaves| self.as_mut().leave_retry(leaves)) {
                let this = self.project();
                return Poll::Ready(this.session.finish(&finish, this.last.take()));
            }
            let mut this = self.as_mut().project();
            if let Some(work) = this.before_retry {
                ready!(this.session.poll_before_retry(work, cx));
                *this.before_retry = None;
            }
            match this.session.next_step() {
                Step::Send(send) => {
                    let attempt = this.session.start(&send);
                    let body = this.body;
                    let running = this
                        .session
                        .enter(send.attempt, || Running::new(send.attempt, || body.start(attempt)));
                    if this.main.is_none() {
                        this.main.set(Some(running));
                    } else {
                        this.hedges.push(Box::pin(running));
                    }
                }
                // Another attempt may be ready too, and its waker is not called again.
                Step::Wait { .. } if has_ended => {}
                Step::Wait { until } => ready!(this.session.poll_wait(until, cx)),
                Step::Cancel { attempt } => {
                    let signals = self.as_mut().cut(attempt);
                    let this = self.as_mut().project();
                    this.session.attempt_timed_out(attempt, signals);
                    if leaves.is_some() {
                        *this.last = None;
                    }
                }
                Step::Finish(finish) => {
                    this.main.set(None);
                    this.hedges.clear();
                    return Poll::Ready(this.session.finish(&finish, this.last.take()));
                }
            }
        }
    }

    /// Cancels the call.
    fn cancel(self: Pin<&mut Self>) -> NotAnswered {
        let mut this = self.project();
        this.main.set(None);
        this.hedges.clear();
        this.session.cancel::<T, E>()
    }

    /// Records the outcome of an attempt. `retries`: this call makes the next attempt.
    fn attempt_ended(
        self: Pin<&mut Self>,
        number: u32,
        signals: Signals,
        outcome: Result<T, E>,
        retries: bool,
    ) {
        let this = self.project();
        this.session.attempt_ended(number, &outcome, signals);
        if retries {
            *this.before_retry = this.session.before_retry(number, &outcome);
        }
        *this.last = Some((number, outcome));
    }

    /// Ends the call if its next attempt belongs to a later call of the same key.
    fn leave_retry(self: Pin<&mut Self>, leaves: &LeavesRetry<E>) -> Option<Finish> {
        let this = self.project();
        if !this.session.is_between_attempts() {
            return None;
        }
        let is_left = match this.last {
            Some((_, Err(error))) => leaves(error),
            // The attempt was cut.
            None => true,
            Some((_, Ok(_))) => false,
        };
        if is_left { this.session.leave_retry() } else { None }
    }

    /// Returns an attempt that has ended.
    fn poll_attempts(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Option<Ended<T, E>> {
        let mut this = self.project();
        if let Some(main) = this.main.as_mut().as_pin_mut() {
            let number = main.number();
            if let Poll::Ready(outcome) = this.session.enter(number, || main.poll(cx)) {
                let signals =
                    this.main.as_ref().as_pin_ref().map_or(Signals::default(), |main| main.signals());
                this.main.set(None);
                return Some((number, signals, outcome));
            }
        }
        for at in 0..this.hedges.len() {
            let Some(hedge) = this.hedges.get_mut(at) else { break };
            let number = hedge.number();
            if let Poll::Ready(outcome) = this.session.enter(number, || hedge.as_mut().poll(cx)) {
                let signals = this.hedges.swap_remove(at).signals();
                return Some((number, signals, outcome));
            }
        }
        None
    }

    /// Drops an attempt.
    fn cut(self: Pin<&mut Self>, attempt: u32) -> Signals {
        let mut this = self.project();
        if let Some(main) = this.main.as_ref().as_pin_ref().filter(|main| main.number() == attempt) {
            let signals = main.signals();
            this.main.set(None);
            return signals;
        }
        let at = this.hedges.iter().position(|hedge| hedge.number() == attempt);
        at.map_or(Signals::default(), |at| this.hedges.swap_remove(at).signals())
    }
}
