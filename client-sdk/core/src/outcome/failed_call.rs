//! How much is told of a call that did not end well: bounds that whoever tells keeps, and whoever is told enforces.
//!
//! Such calls are examples for operators. Nothing is decided by them, and some may be lost; what counts are the
//! route's [`Counters`](crate::Counters).

/// The most calls of a route in one report.
pub const MAX_CALLS: usize = 5;
/// The most sends of a call, the first ones.
pub const MAX_ATTEMPTS: usize = 16;
/// The most bytes of what is said of an attempt.
pub const MAX_DETAIL_BYTES: usize = 200;
/// The digits of a trace's and of a call's id: 128 bits, in lower-case hexadecimal.
pub const ID_DIGITS: usize = 32;

/// True if these are the digits of an id.
#[must_use]
pub fn is_id(digits: &[u8]) -> bool {
    digits.len() == ID_DIGITS && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}
