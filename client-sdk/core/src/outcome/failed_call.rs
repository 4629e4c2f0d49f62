//! Limits for examples of failed calls in reports. Clients keep them, and the control plane enforces them.
//!
//! The examples are for operators. Nothing depends on them and some may be lost; the counts are the route's
//! [`Counters`](crate::Counters).

/// Maximum number of calls per route and report.
pub const MAX_CALLS: usize = 5;
/// Maximum number of attempts per call, the first ones.
pub const MAX_ATTEMPTS: usize = 16;
/// Maximum length of an attempt's detail, in bytes.
pub const MAX_DETAIL_BYTES: usize = 200;
/// Length of a trace id and of a call id: 128 bits in lower-case hexadecimal digits.
pub const ID_DIGITS: usize = 32;

/// Returns true if these are the digits of an id.
#[must_use]
pub fn is_id(digits: &[u8]) -> bool {
    digits.len() == ID_DIGITS && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}
