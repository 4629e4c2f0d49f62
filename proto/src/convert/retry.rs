//! Retry settings of rules and queues, which differ in defaults and ranges.

use std::time::Duration;

use damper_core::fault::Bounds;
use damper_core::policy::TIMEOUT;
use damper_core::{Faults, Retry};

use super::{amount, backoff::backoff, code, within};
use crate::v1;

/// Values for absent settings, and the ranges named in faults.
pub(super) struct RetryDefaults {
    pub(super) retry: Retry,
    pub(super) max_duration: Bounds<Duration>,
    pub(super) attempt: Bounds<Duration>,
}

/// Reads the retry settings of a rule, with the engine's defaults for absent or rejected values.
pub(super) fn retry(wire: &v1::Retry, faults: &mut Faults) -> Retry {
    let defaults = RetryDefaults { retry: Retry::default(), max_duration: TIMEOUT, attempt: TIMEOUT };
    retry_or(wire, defaults, faults)
}

/// Reads retry settings, with these defaults for absent or rejected values.
pub(super) fn retry_or(wire: &v1::Retry, defaults: RetryDefaults, faults: &mut Faults) -> Retry {
    let v1::Retry { max_attempts, max_duration, per_attempt_timeout, codes, backoff: waits } = wire;
    let RetryDefaults { retry: default, max_duration: longest, attempt } = defaults;
    Retry {
        max_attempts: max_attempts.unwrap_or(default.max_attempts),
        max_duration: amount::duration("max_duration", max_duration.as_ref(), longest, faults)
            .or(default.max_duration),
        per_attempt_timeout: amount::duration(
            "per_attempt_timeout",
            per_attempt_timeout.as_ref(),
            attempt,
            faults,
        )
        .or(default.per_attempt_timeout),
        codes: codes
            .as_ref()
            .and_then(|codes| within("codes", faults, |faults| code::codes(codes, faults)))
            .unwrap_or(default.codes),
        backoff: match waits {
            Some(waits) => within("backoff", faults, |faults| backoff(waits, faults)),
            None => default.backoff,
        },
    }
}

impl From<&Retry> for v1::Retry {
    fn from(retry: &Retry) -> Self {
        let Retry { max_attempts, max_duration, per_attempt_timeout, codes, backoff } = retry;
        Self {
            max_attempts: Some(*max_attempts),
            max_duration: max_duration.map(amount::to_wire),
            per_attempt_timeout: per_attempt_timeout.map(amount::to_wire),
            codes: Some((*codes).into()),
            backoff: Some(backoff.into()),
        }
    }
}
