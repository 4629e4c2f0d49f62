//! Waits for the queue in place of a call that has ended and is handed over.
//!
//! The task of the hand-over answers within its limit, so this future has no timer. If it is dropped, the job
//! stays: the call had failed before.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context as Task, Poll};

use damper_core::CodeSet;
use http::HeaderValue;
use tokio::sync::oneshot;

use super::ended::EndedCall;
use crate::client::hand_over::Wanted;
use crate::client::response_body::CallResult;
use crate::client::slot::CallState;
use crate::context::Context;
use crate::outcome::BoxError;

/// A call that has ended and waits for the queue.
pub(super) struct Handing<B: http_body::Body>(Option<Box<Waiting<B>>>);

struct Waiting<B: http_body::Body> {
    ended: EndedCall<B>,
    answer: oneshot::Receiver<Option<HeaderValue>>,
    /// Context to mark, with the codes that the application may see.
    context: Option<(Context, CodeSet)>,
}

impl<B: http_body::Body> Handing<B> {
    pub(super) fn none() -> Self {
        Self(None)
    }
}

impl<B> Handing<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Begins to hand over a call that has ended. Returns the call if nothing is handed over.
    #[inline]
    pub(super) fn begin(&mut self, calling: &mut CallState, ended: EndedCall<B>) -> Option<EndedCall<B>> {
        match calling.call.take_wanted() {
            Some(wanted) => self.hand_over(wanted, calling, ended),
            None => Some(ended),
        }
    }

    fn hand_over(
        &mut self,
        wanted: Wanted,
        calling: &mut CallState,
        ended: EndedCall<B>,
    ) -> Option<EndedCall<B>> {
        let CallState { call, requests, .. } = calling;
        let code = call.code_of(&ended.finish);
        if !Wanted::applies(&ended.finish, code, call.policy()) || !ended.can_name_a_job() {
            return Some(ended);
        }
        let Some(body) = requests.message() else { return Some(ended) };
        let Some(answer) = wanted.begin(code, body, call.time_left()) else { return Some(ended) };
        let context = call.context().cloned().map(|context| (context, call.codes_seen(code)));
        self.0 = Some(Box::new(Waiting { ended, answer, context }));
        None
    }

    /// Ready with the response of a call that waits for the queue; `None` if none waits.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Task<'_>) -> Option<Poll<CallResult<B>>> {
        let waiting = self.0.as_deref_mut()?;
        let Poll::Ready(answer) = Pin::new(&mut waiting.answer).poll(cx) else { return Some(Poll::Pending) };
        let Waiting { ended, context, .. } = *self.0.take()?;
        // The sender is dropped with the runtime.
        let Some(job) = answer.ok().flatten() else { return Some(Poll::Ready(ended.answer())) };
        if let Some((context, codes)) = context {
            context.chain().mark_no_more_retry(codes);
        }
        Some(Poll::Ready(ended.answer_as_job(&job)))
    }
}
