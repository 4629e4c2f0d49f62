//! Results of attempts and calls: codes, verdicts and fates.

pub mod classify;
pub(crate) mod code;
pub mod failed_call;
pub(crate) mod fate;
pub mod http;
