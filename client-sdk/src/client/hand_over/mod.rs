//! Failed calls that become jobs of a durable queue, and repeated deliveries of such jobs.
//!
//! A request with the extension [`HandOver`] is kept until its call has ended. If it failed for a reason that
//! may pass, the call waits until the job is stored, then returns its own error with the job's id. Without
//! the extension a call carries one empty pointer; without the cargo feature `queue` not even that.
//!
//! Limits: unary calls under a rule in `enforce` whose request fits into `replay_limit` and is not
//! compressed.

#[cfg(feature = "queue")]
mod aftermath;
#[cfg(feature = "queue")]
mod options;
#[cfg(not(feature = "queue"))]
mod without;

#[cfg(feature = "queue")]
pub(super) use aftermath::{Aftermath, Wanted};
#[cfg(feature = "queue")]
pub(crate) use aftermath::{Redelivery, SeenCall};
#[cfg(feature = "queue")]
pub use options::{HandOver, handed_over};
#[cfg(not(feature = "queue"))]
pub(super) use without::Aftermath;
