//! Retry settings.

use damper_core::policy::TIMEOUT;
use damper_core::{Backoff, Faults, Retry};

use super::{amount, backoff::backoff, code, within};
use crate::v1;

/// Reads the retry settings, with the engine's defaults for absent or rejected values.
pub(super) fn retry(wire: &v1::Retry, faults: &mut Faults) -> Retry {
    let v1::Retry { max_attempts, max_duration, per_attempt_timeout, codes, backoff: waits } = wire;
    let default = Retry::default();
    Retry {
        max_attempts: max_attempts.unwrap_or(default.max_attempts),
        max_duration: amount::duration("max_duration", max_duration.as_ref(), TIMEOUT, faults),
        per_attempt_timeout: amount::duration(
            "per_attempt_timeout",
            per_attempt_timeout.as_ref(),
            TIMEOUT,
            faults,
        ),
        codes: codes
            .as_ref()
            .and_then(|codes| within("codes", faults, |faults| code::codes(codes, faults)))
            .unwrap_or(default.codes),
        backoff: waits.as_ref().map_or_else(Backoff::default, |waits| {
            within("backoff", faults, |faults| backoff(waits, faults))
        }),
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
