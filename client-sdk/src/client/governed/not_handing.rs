//! Without the feature `queue` no call waits for the queue.

use std::marker::PhantomData;
use std::task::{Context as Task, Poll};

use super::ended::EndedCall;
use crate::client::response_body::CallResult;
use crate::client::slot::CallState;

pub(super) struct Handing<B>(PhantomData<fn() -> B>);

impl<B: http_body::Body> Handing<B> {
    pub(super) fn none() -> Self {
        Self(PhantomData)
    }

    #[inline]
    #[expect(clippy::unused_self, reason = "the form with the feature")]
    pub(super) fn begin(&mut self, _: &mut CallState, ended: EndedCall<B>) -> Option<EndedCall<B>> {
        Some(ended)
    }

    #[inline]
    #[expect(clippy::unused_self, reason = "the form with the feature")]
    pub(super) fn poll(&mut self, _: &mut Task<'_>) -> Option<Poll<CallResult<B>>> {
        None
    }
}
