//! What follows a failed call: its hand-over, or the report of a repeated delivery to its worker.
//!
//! The plan is made when the call begins and carries the last failure.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use damper_core::{Code, Ending, Failure, Fate, Finish, Mode, Policy, Verdict};
use http::{HeaderMap, HeaderValue, Request};
use tokio::sync::oneshot;
use tonic::body::Body;

use super::HandOver;
use crate::context::Context;
use crate::headers;
use crate::outcome::cause::{self, Cause};
use crate::routes::failed_calls::HexId;
use crate::routes::kept_calls::{self, KeptCall};
use crate::routes::{Callee, Runtime, method_of};

/// Longest wait for the queue.
const WAIT: Duration = Duration::from_secs(1);
/// Time left to the application to return its error.
const SPARE: Duration = Duration::from_millis(10);

/// What follows the failure of a call; nothing for most calls.
#[derive(Debug, Default)]
pub(in crate::client) struct Aftermath(Option<Box<Plan>>);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed")]
enum Plan {
    HandOver(Wanted),
    Redelivery(Redelivery),
}

/// A hand-over, if the call fails.
#[derive(Debug)]
pub(in crate::client) struct Wanted {
    hand_over: HandOver,
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    method: String,
    metadata: Vec<(String, String)>,
    call_id: Option<HexId>,
    failure: Failure,
    took: Duration,
    sends: u32,
}

/// One delivery of a job, sent as a call.
#[derive(Clone, Debug)]
pub(crate) struct Redelivery {
    /// Attempts before this delivery; if not 0 the call is a retry and is sent once.
    pub(crate) sends_before: u32,
    pub(crate) seen: Arc<Mutex<SeenCall>>,
}

/// How the call of a delivery ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenCall {
    /// Failure of the last attempt, before the layer removed its hints.
    pub(crate) failure: Option<Failure>,
    /// Description of the failure, without text of the peer.
    pub(crate) detail: Cow<'static, str>,
    /// `None` while the call is in flight.
    pub(crate) ending: Option<Ending>,
    /// Attempts sent.
    pub(crate) sends: u32,
}

impl Aftermath {
    /// Reads the application's wish. Within a retried request nothing is handed over: the layer above that
    /// retries does it.
    #[inline]
    pub(in crate::client) fn of(
        request: &mut Request<Body>,
        engine: &Arc<Runtime>,
        callee: &Arc<Callee>,
        context: Option<&Context>,
    ) -> Self {
        let wanted = request.extensions_mut().remove::<HandOver>();
        let wanted = wanted.filter(|_| !context.is_some_and(Context::is_retry));
        Self(
            wanted.map(|hand_over| Box::new(Plan::HandOver(Wanted::new(hand_over, request, engine, callee)))),
        )
    }

    /// Returns the plan of a delivery.
    pub(in crate::client) fn of_delivery(redelivery: Redelivery) -> Self {
        Self(Some(Box::new(Plan::Redelivery(redelivery))))
    }

    /// Returns the attempts of the request before this call.
    #[inline]
    pub(in crate::client) fn sends_before(&self) -> u32 {
        match self.0.as_deref() {
            Some(Plan::Redelivery(redelivery)) => redelivery.sends_before,
            Some(Plan::HandOver(_)) | None => 0,
        }
    }

    /// Returns true if the request must be kept even if the rule does not retry it.
    #[inline]
    pub(in crate::client) fn keeps_request(&self) -> bool {
        matches!(self.0.as_deref(), Some(Plan::HandOver(_)))
    }

    /// Takes the plan to hand over the call, if there is one.
    #[inline]
    pub(in crate::client) fn take_wanted(&mut self) -> Option<Wanted> {
        match *self.0.take()? {
            Plan::HandOver(wanted) => Some(wanted),
            Plan::Redelivery(_) => None,
        }
    }

    /// Records a failed attempt.
    #[inline]
    pub(in crate::client) fn attempt_failed(
        &mut self,
        code: Code,
        verdict: &Verdict,
        cause: Cause<'_>,
        took: Duration,
    ) {
        let Some(plan) = self.0.as_deref_mut().filter(|_| *verdict != Verdict::Success) else { return };
        let failure = match verdict {
            Verdict::Failure(failure) => Failure { code, ..*failure },
            _ => Failure::new(code),
        };
        match plan {
            Plan::HandOver(wanted) => {
                (wanted.failure, wanted.took) = (failure, took);
            }
            Plan::Redelivery(redelivery) => {
                let mut seen = redelivery.seen();
                (seen.failure, seen.detail) = (Some(failure), cause::detail(verdict, cause));
            }
        }
    }

    /// Records the end of the call, after this number of attempts.
    #[inline]
    pub(in crate::client) fn ended(&mut self, finish: &Finish, sends: u32) {
        match self.0.as_deref_mut() {
            None => {}
            Some(Plan::HandOver(wanted)) => wanted.sends = sends,
            Some(Plan::Redelivery(redelivery)) => {
                let mut seen = redelivery.seen();
                (seen.ending, seen.sends) = (Some(finish.ending), sends);
            }
        }
    }
}

impl Redelivery {
    pub(crate) fn seen(&self) -> MutexGuard<'_, SeenCall> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted {
    fn new(
        hand_over: HandOver,
        request: &Request<Body>,
        engine: &Arc<Runtime>,
        callee: &Arc<Callee>,
    ) -> Self {
        let headers = request.headers();
        Self {
            metadata: metadata(&hand_over.metadata, headers),
            call_id: headers::bytes(headers, &headers::CALL_ID).and_then(HexId::read),
            engine: Arc::clone(engine),
            callee: Arc::clone(callee),
            method: method_of(request).to_owned(),
            failure: Failure::new(Code::Unavailable),
            took: Duration::ZERO,
            sends: 0,
            hand_over,
        }
    }

    /// Returns the time to wait for the queue; `None` if there is none.
    fn limit(&self, time_left: Option<Duration>) -> Option<Duration> {
        match time_left {
            _ if self.hand_over.even_late => Some(WAIT),
            None => Some(WAIT),
            Some(left) => left.checked_sub(SPARE).filter(|left| !left.is_zero()).map(|left| left.min(WAIT)),
        }
    }

    /// Returns true if a call that ended so may become a job.
    pub(in crate::client) fn applies(finish: &Finish, code: Code, policy: Option<&Policy>) -> bool {
        let Ending { fate, would } = finish.ending;
        let excluded =
            matches!(fate, Fate::Cancelled | Fate::Committed | Fate::NotRetryable | Fate::ChainRetryFlag);
        !would
            && !fate.is_ok()
            && !excluded
            && policy.is_some_and(|policy| policy.mode == Mode::Enforce && policy.retryable().contains(code))
    }

    /// Begins the hand-over; `None` if there is no time or no queue.
    pub(in crate::client) fn begin(
        self,
        code: Code,
        body: Bytes,
        time_left: Option<Duration>,
    ) -> Option<oneshot::Receiver<Option<HeaderValue>>> {
        let begun = self.limit(time_left).zip(self.engine.keeper().map(Arc::clone));
        let Some((limit, keeper)) = begun else {
            self.engine.hand_overs().count_failed();
            return None;
        };
        let Self { hand_over, callee, method, metadata, call_id, failure, took, sends, .. } = self;
        let HandOver { queue, key, order_key, .. } = hand_over;
        Some(keeper.keep(KeptCall {
            queue,
            key,
            order_key,
            callee: callee.name().to_owned(),
            method,
            body: kept_calls::Body(body),
            metadata,
            failure: Failure { code, ..failure },
            took,
            sends,
            call_id,
            limit,
        }))
    }
}

/// Returns the text values of these headers, the first of each.
fn metadata(names: &[String], headers: &HeaderMap) -> Vec<(String, String)> {
    let value = |name: &String| {
        let value = headers.get(name.as_str())?.to_str().ok()?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    names.iter().filter(|name| !name.ends_with("-bin")).filter_map(value).collect()
}
