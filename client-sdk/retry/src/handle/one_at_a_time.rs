//! Calls whose attempts run one at a time: bodies that change what they capture, and blocking bodies.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use damper_core::{Finish, Step};

use crate::attempt::{Attempt, Running, Signals, collect};
use crate::error::Error;
use crate::handle::Retry;
use crate::handle::session::{Plan, Session, check_permit};
use crate::handlers::Handlers;
use crate::source::Source;

impl<P, S: Source> Retry<P, S> {
    /// As [`call`](Self::call), for a body that changes what it captures, such as a connection. It never
    /// hedges.
    ///
    /// If the future is spawned, the closure must own what it captures: `async move |attempt| ...`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_mut<T, E>(
        &self,
        mut body: impl AsyncFnMut(Attempt) -> Result<T, E>,
    ) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
    {
        check_permit(self)?;
        let mut session = Session::begin(self, Plan::ONE_AT_A_TIME);
        let mut last = None;
        loop {
            match session.next_step() {
                Step::Send(send) => {
                    let attempt = session.start(&send);
                    let number = send.attempt;
                    let (signals, ended) = {
                        let running = session.enter(number, || Running::new(number, || body(attempt)));
                        let mut running = pin!(running);
                        let ended = poll_fn(|cx| poll_attempt(&mut session, running.as_mut(), cx)).await;
                        (running.signals(), ended)
                    };
                    last = note(&mut session, (number, signals), ended);
                    let work = last.as_ref().and_then(|(_, outcome)| session.before_retry(number, outcome));
                    if let Some(mut work) = work {
                        poll_fn(|cx| session.poll_before_retry(&mut work, cx)).await;
                    }
                }
                Step::Wait { until } => poll_fn(|cx| session.poll_wait(until, cx)).await,
                Step::Cancel { attempt } => session.attempt_timed_out(attempt, Signals::default(), false),
                Step::Finish(finish) => return session.finish(&finish, last),
            }
        }
    }

    /// As [`call`](Self::call), for blocking code on a thread of its own. A limit of time cannot stop a
    /// running attempt: an attempt that fails after its limit counts as timed out when it returns.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_blocking<T, E>(&self, mut body: impl FnMut(Attempt) -> Result<T, E>) -> Result<T, Error<E>>
    where
        P: Handlers<T, E>,
    {
        check_permit(self)?;
        let mut session = Session::begin(self, Plan::ONE_AT_A_TIME);
        let mut last = None;
        loop {
            match session.next_step() {
                Step::Send(send) => {
                    let attempt = session.start(&send);
                    let mut signals = Signals::default();
                    let outcome = session.enter(send.attempt, || collect(&mut signals, || body(attempt)));
                    session.wake();
                    let is_late = outcome.is_err() && matches!(session.next_step(), Step::Cancel { .. });
                    let ended = Some(outcome).filter(|_| !is_late);
                    last = note(&mut session, (send.attempt, signals), ended);
                }
                Step::Wait { until } => {
                    until.map_or_else(std::thread::yield_now, |until| {
                        std::thread::sleep(session.time_until(until));
                    });
                    session.wake();
                }
                Step::Cancel { attempt } => session.attempt_timed_out(attempt, Signals::default(), false),
                Step::Finish(finish) => return session.finish(&finish, last),
            }
        }
    }
}

/// Ready with the outcome of an attempt, or with `None` at its limit.
fn poll_attempt<P, S, F>(
    session: &mut Session<&Retry<P, S>, S>,
    mut running: Pin<&mut Running<F>>,
    cx: &mut Context<'_>,
) -> Poll<Option<F::Output>>
where
    S: Source,
    F: Future,
{
    session.wake();
    loop {
        let number = running.number();
        if let Poll::Ready(outcome) = session.enter(number, || running.as_mut().poll(cx)) {
            return Poll::Ready(Some(outcome));
        }
        match session.next_step() {
            Step::Wait { until } => std::task::ready!(session.poll_wait(until, cx)),
            Step::Cancel { .. } | Step::Finish(Finish { .. }) | Step::Send(_) => return Poll::Ready(None),
        }
    }
}

/// Records the end of an attempt.
fn note<T, E, P, S>(
    session: &mut Session<&Retry<P, S>, S>,
    (number, signals): (u32, Signals),
    ended: Option<Result<T, E>>,
) -> Option<(u32, Result<T, E>)>
where
    P: Handlers<T, E>,
    S: Source,
{
    let Some(outcome) = ended else {
        session.attempt_timed_out(number, signals, false);
        return None;
    };
    session.attempt_ended(number, &outcome, signals);
    Some((number, outcome))
}
