//! A delivery as a handler sees it, and how its handling ended.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use damper_core::classify::StatusFields;
use damper_core::{Code, Failure, Verdict};
use damper_proto::v1;
use tonic::Status;

use super::new_job::pushback;
use crate::context::Context;
use crate::headers;
use crate::options::body_keys::BodyKeys;
use crate::options::body_keys::cipher::{BodyPlace, BodyProblem};
use crate::outcome::verdict;
use crate::record::report;

/// Limit of a text for operators.
const MAX_TEXT_BYTES: usize = 200;

/// A job as delivered to a worker. Its handler runs in a [`Context`]: the time left is that of
/// the delivery, and calls of a repeated delivery are not retried.
#[derive(Clone)]
pub struct Delivery {
    pub(super) wire: v1::Delivery,
    pub(super) body: Bytes,
}

/// Why a handler did not finish a job: a [`Status`], after which the queue's policy decides about the next
/// delivery, or [`NeverAgain`].
#[derive(Debug)]
pub struct HandlerError(Cause);

#[derive(Debug)]
enum Cause {
    Status(Box<Status>, String),
    Never(NeverAgain),
}

/// The job is given up: no delivery can succeed. It is dead, and operators see the reason.
///
/// ```
/// use damper_sdk::queue::{Delivery, HandlerError, NeverAgain};
///
/// async fn send_email(delivery: Delivery) -> Result<(), HandlerError> {
///     let address = std::str::from_utf8(delivery.body()).map_err(|_| NeverAgain::new("no address"))?;
///     send_to(address).await?; // A `tonic::Status` is an error that may pass.
///     Ok(())
/// }
/// # async fn send_to(_: &str) -> Result<(), tonic::Status> { Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("never again: {0}")]
pub struct NeverAgain(String);

/// How a delivery ended, for the control plane.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Handled {
    Done,
    Failed {
        failure: Failure,
        detail: String,
    },
    /// Not tried: uses no attempt.
    Released {
        why: &'static str,
        not_before: Option<Duration>,
    },
    Dead(String),
}

impl Delivery {
    /// Reads a delivery and decrypts its body.
    ///
    /// # Errors
    /// The body cannot be decrypted.
    pub(super) fn read(mut wire: v1::Delivery, keys: Option<&BodyKeys>) -> Result<Self, BodyProblem> {
        let body = std::mem::take(&mut wire.body);
        let body = match keys {
            Some(keys) if wire.body_key_id.is_empty() => keys.admit_plain(body)?,
            Some(keys) => decrypted(&wire, &body, keys)?,
            None if wire.body_key_id.is_empty() => body,
            None => return Err(BodyProblem::NoKeys(wire.body_key_id)),
        };
        Ok(Self { wire, body: body.into() })
    }

    /// Returns the id of the job, equal on all its deliveries. 32 hexadecimal digits.
    #[must_use]
    pub fn job_id(&self) -> &str {
        &self.wire.job_id
    }

    /// Returns the id by which a handler recognises a repeat, equal on all attempts: that of the call which
    /// was handed over, else that of the job.
    #[must_use]
    pub fn call_id(&self) -> &str {
        if self.wire.call_id.is_empty() { &self.wire.job_id } else { &self.wire.call_id }
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.wire.queue
    }

    /// Returns the number of this delivery, from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.wire.number
    }

    /// Returns the attempts before this one, those of the call that was handed over included; 0: never tried.
    #[must_use]
    pub fn attempts_before(&self) -> u32 {
        self.wire.sends_before
    }

    /// Returns the service that submitted the job.
    #[must_use]
    pub fn caller_service(&self) -> &str {
        self.wire.route.as_ref().map_or("", |route| &route.caller_service)
    }

    /// Returns the called service of the job.
    #[must_use]
    pub fn callee_service(&self) -> &str {
        self.wire.route.as_ref().map_or("", |route| &route.callee_service)
    }

    /// Returns the method of the job: `package.Service/Method`.
    #[must_use]
    pub fn callee_method(&self) -> &str {
        self.wire.route.as_ref().map_or("", |route| &route.callee_method)
    }

    /// Returns the content: for a call the encoded message.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns a value of the metadata kept with the job.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.wire.metadata.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Delivery {
    /// Leaves out body and metadata.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("job_id", &self.job_id())
            .field("queue", &self.queue())
            .field("number", &self.number())
            .field("attempts_before", &self.attempts_before())
            .field("callee_service", &self.callee_service())
            .field("callee_method", &self.callee_method())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl NeverAgain {
    /// Returns the error with its reason for operators, of which 200 bytes are kept.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl HandlerError {
    /// Describes the failure for operators, in at most 200 bytes. The message of the status is not sent: it
    /// may be that of another service.
    #[must_use]
    pub fn describe(self, text: impl Into<String>) -> Self {
        Self(match self.0 {
            Cause::Status(status, _) => Cause::Status(status, text.into()),
            never @ Cause::Never(_) => never,
        })
    }
}

impl From<Status> for HandlerError {
    fn from(status: Status) -> Self {
        Self(Cause::Status(Box::new(status), String::new()))
    }
}

impl From<NeverAgain> for HandlerError {
    fn from(never: NeverAgain) -> Self {
        Self(Cause::Never(never))
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Status(status, _) => fmt::Display::fmt(status, f),
            Cause::Never(never) => fmt::Display::fmt(never, f),
        }
    }
}

impl std::error::Error for HandlerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Cause::Status(status, _) => Some(&**status),
            Cause::Never(never) => Some(never),
        }
    }
}

impl Handled {
    /// Returns how a handler ended that ran in this context.
    pub(super) fn by_handler(result: Result<(), HandlerError>, context: &Context) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(HandlerError(Cause::Never(NeverAgain(reason)))) => Self::Dead(reason),
            Err(HandlerError(Cause::Status(status, detail))) => {
                Self::Failed { failure: failure_of(&status, context), detail }
            }
        }
    }

    /// Returns the failure of a handler that ended without a result.
    pub(super) fn failed(code: Code, detail: &str) -> Self {
        Self::Failed { failure: Failure::new(code), detail: detail.to_owned() }
    }

    pub(super) fn into_wire(self, took: Duration) -> v1::settle::How {
        match self {
            Self::Done => v1::settle::How::Done(v1::Done {}),
            Self::Dead(reason) => v1::settle::How::Dead(v1::Dead { reason: shortened(reason) }),
            Self::Released { why, not_before } => v1::settle::How::Release(v1::Release {
                why: why.to_owned(),
                not_before: not_before.and_then(|time| time.try_into().ok()),
            }),
            Self::Failed { failure, detail } => v1::settle::How::Failed(v1::DeliveryFailure {
                code: v1::Code::from(failure.code).into(),
                no_more_retry: failure.no_more_retry,
                pushback: failure.pushback.map(pushback),
                took: took.try_into().ok(),
                detail: shortened(detail),
            }),
        }
    }
}

/// Returns the failure with which a server layer would send this status in this context.
fn failure_of(status: &Status, context: &Context) -> Failure {
    let code = match verdict::code_of(status) {
        Code::Ok => Code::Unknown,
        code => code,
    };
    let mut fields = status.metadata().clone().into_headers();
    let is_final = report::take_no_more_retry(&mut fields, code, context);
    let number = code.number().to_string();
    let fields = StatusFields { grpc_status: Some(number.as_bytes()), ..headers::status_fields(&fields) };
    match fields.verdict_of_trailers() {
        Verdict::Failure(failure) => Failure { no_more_retry: failure.no_more_retry || is_final, ..failure },
        _ => Failure { no_more_retry: is_final, ..Failure::new(code) },
    }
}

/// Returns the plain body of a delivery.
fn decrypted(wire: &v1::Delivery, body: &[u8], keys: &BodyKeys) -> Result<Vec<u8>, BodyProblem> {
    let v1::RouteKey { caller_service, caller_cluster, callee_service, callee_method } =
        &wire.route.clone().unwrap_or_default();
    let place =
        BodyPlace { queue: &wire.queue, caller_service, caller_cluster, callee_service, callee_method };
    let job_id = id_of(&wire.job_id).ok_or(BodyProblem::Foreign)?;
    keys.open(place, &wire.body_key_id, &job_id, body)
}

/// Returns the bytes of a job id.
fn id_of(text: &str) -> Option<Vec<u8>> {
    let digits = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok())??;
    Some(digits.to_be_bytes().to_vec())
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}
