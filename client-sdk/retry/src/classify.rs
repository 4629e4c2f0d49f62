//! What an outcome means for the engine: success, a failure with a code, or an error that is not retried.

use std::io;
use std::time::Duration;

use damper_core::Code;

/// Meaning of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The attempt succeeded.
    Success,
    /// The attempt failed. Retried if the policy retries the code.
    Failed(Code),
    /// An error that shows the callee to be alive, and that a retry would repeat. Never retried.
    NotRetryable,
}

impl Class {
    /// A failure that policies retry by default.
    pub const TRANSIENT: Self = Self::Failed(Code::Unavailable);
}

/// An error type that knows which of its values are transient. Calls without any predicate use it.
pub trait Retryable {
    /// Returns the meaning of the error.
    fn class(&self) -> Class;

    /// Returns the wait that the callee asked for.
    fn wait_hint(&self) -> Option<Duration> {
        None
    }
}

impl Retryable for io::Error {
    /// Lost and refused connections are UNAVAILABLE, timeouts DEADLINE_EXCEEDED.
    fn class(&self) -> Class {
        use io::ErrorKind as Kind;
        match self.kind() {
            Kind::TimedOut => Class::Failed(Code::DeadlineExceeded),
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::ResourceBusy
            | Kind::Interrupted
            | Kind::WouldBlock
            | Kind::UnexpectedEof => Class::TRANSIENT,
            _ => Class::NotRetryable,
        }
    }
}
