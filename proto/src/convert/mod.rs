//! The wire's messages to the engine's types and back: the only place where the two meet.
//!
//! Reading takes each message apart by naming every field, so that a field added to the wire does not compile
//! until it is dealt with here. All faults of an input come out at once, each with the path of its field as
//! the .proto names it. Reading refuses by itself only what the engine's types cannot hold (no mode, an
//! unknown number, NaN, a negative time); ranges are the engine's and are checked by it.
//!
//! Writing says every default, so that a reader of another version understands the same.

mod amount;
mod backoff;
mod breaker;
mod code;
mod fate;
mod key;
mod policy;
mod retry;
mod rule;

use damper_core::Faults;

pub use self::fate::UnspecifiedFate;
pub use self::key::{pattern, route_key};
pub use self::policy::policy;
pub use self::rule::{distributed_rule, rule};

/// Reads a part of a message; what is wrong with it is noted below `path`.
fn within<T>(path: &str, faults: &mut Faults, read: impl FnOnce(&mut Faults) -> T) -> T {
    let mut inner = Faults::none();
    let value = read(&mut inner);
    faults.nest(path, inner);
    value
}

/// True if the path is `parent` or names a part of it.
pub(crate) fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
pub(crate) mod tests;
