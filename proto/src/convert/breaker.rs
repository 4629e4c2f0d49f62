//! Settings of the retry breaker.

use damper_core::policy::{BREAKER_RATIO, BUCKET_LENGTH, EARN};
use damper_core::{BreakerMode, Faults, RetryBreaker, WindowShape};

use super::{amount, code};
use crate::v1;

/// Reads the settings, and whether the breaker is on. The settings of a disabled one are checked too, so that
/// enabling it later cannot fail.
pub(super) fn retry_breaker(wire: &v1::RetryBreaker, faults: &mut Faults) -> (bool, RetryBreaker) {
    let v1::RetryBreaker {
        enabled,
        ratio,
        buckets,
        bucket_length,
        min_failures,
        min_samples,
        failure_codes,
        mode: goes_by,
        earn,
        max_ratio,
    } = wire;
    let default = RetryBreaker::default();
    let breaker = RetryBreaker {
        mode: mode(*goes_by, faults),
        earn: amount::ratio("earn", *earn, EARN, faults).unwrap_or(default.earn),
        max_ratio: amount::ratio("max_ratio", *max_ratio, BREAKER_RATIO, faults),
        ratio: amount::ratio("ratio", *ratio, BREAKER_RATIO, faults).unwrap_or(default.ratio),
        window: WindowShape {
            buckets: buckets.unwrap_or(default.window.buckets),
            bucket_length: amount::duration("bucket_length", bucket_length.as_ref(), BUCKET_LENGTH, faults)
                .unwrap_or(default.window.bucket_length),
        },
        min_failures: min_failures.unwrap_or(default.min_failures),
        min_samples: min_samples.unwrap_or(default.min_samples),
        failure_codes: failure_codes.as_ref().and_then(|codes| code::list("failure_codes", codes, faults)),
    };
    (enabled.unwrap_or(true), breaker)
}

/// Number of a removed mode of the retry breaker; stored rules may contain it, and it is read as credit.
pub const ADAPTIVE: i32 = 2;

fn mode(number: i32, faults: &mut Faults) -> BreakerMode {
    match v1::RetryBreakerMode::try_from(number) {
        Ok(v1::RetryBreakerMode::Ratio) => BreakerMode::Ratio,
        Ok(v1::RetryBreakerMode::Unspecified | v1::RetryBreakerMode::Credit) => BreakerMode::Credit,
        Err(_) => {
            if number != ADAPTIVE {
                faults.add("mode", format!("must be credit or ratio, not {number}"));
            }
            BreakerMode::Credit
        }
    }
}

/// Settings of a disabled breaker.
pub(super) fn off() -> v1::RetryBreaker {
    v1::RetryBreaker { enabled: Some(false), ..v1::RetryBreaker::default() }
}

impl From<&RetryBreaker> for v1::RetryBreaker {
    fn from(breaker: &RetryBreaker) -> Self {
        let RetryBreaker { mode, earn, ratio, max_ratio, window, min_failures, min_samples, failure_codes } =
            breaker;
        let WindowShape { buckets, bucket_length } = *window;
        Self {
            enabled: Some(true),
            ratio: Some(amount::ratio_to_wire(*ratio)),
            buckets: Some(buckets),
            bucket_length: Some(amount::to_wire(bucket_length)),
            min_failures: Some(*min_failures),
            min_samples: Some(*min_samples),
            failure_codes: failure_codes.map(Into::into),
            mode: v1::RetryBreakerMode::from(*mode).into(),
            earn: Some(amount::ratio_to_wire(*earn)),
            max_ratio: max_ratio.map(amount::ratio_to_wire),
        }
    }
}

impl From<BreakerMode> for v1::RetryBreakerMode {
    fn from(mode: BreakerMode) -> Self {
        match mode {
            BreakerMode::Ratio => Self::Ratio,
            BreakerMode::Credit => Self::Credit,
        }
    }
}
