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
mod gates;
mod guard;
mod hedge;
mod key;
mod kill;
mod policy;
mod retry;
mod rule;
mod waits;

use damper_core::{Faults, Pattern};

pub use self::amount::length;
pub use self::breaker::ADAPTIVE;
pub use self::fate::UnspecifiedFate;
pub use self::guard::{ceiling, distributed_guard, guard};
pub use self::key::{pattern, route_key};
pub use self::kill::{ActiveKill, active_kill};
pub use self::policy::policy;
pub use self::rule::{distributed_rule, rule};
use crate::v1;

/// Reads a part of a message; what is wrong with it is noted below `path`.
fn within<T>(path: &str, faults: &mut Faults, read: impl FnOnce(&mut Faults) -> T) -> T {
    let mut inner = Faults::none();
    let value = read(&mut inner);
    faults.nest(path, inner);
    value
}

/// A part that must be there; `None` was reported.
fn required<W, T>(
    path: &str,
    wire: Option<&W>,
    read: impl FnOnce(&W, &mut Faults) -> Option<T>,
    faults: &mut Faults,
) -> Option<T> {
    within(path, faults, |faults| {
        let Some(wire) = wire else {
            faults.add("", "must be given");
            return None;
        };
        read(wire, faults)
    })
}

/// The key of a rule or guard; `None` was reported.
fn key(wire: Option<&v1::Pattern>, faults: &mut Faults) -> Option<Pattern> {
    let read = |wire: &_, faults: &mut Faults| pattern(wire).map_err(|refused| faults.nest("", refused)).ok();
    required("key", wire, read, faults)
}

/// Adds what the engine found wrong. Where a field was refused in reading, it saw a stand-in: what it says of
/// that field, or of a message for its sake, is left out. A list holds a stand-in for each refused entry, so
/// what is said of a list stands.
fn add_new(found: &Faults, faults: &mut Faults) {
    for fault in found.iter() {
        let refused = faults.iter().any(|known| {
            known.path.strip_prefix(&fault.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        if !refused {
            faults.add(&fault.path, &fault.problem);
        }
    }
}

/// True if the path is `parent` or names a part of it.
#[cfg(feature = "manifest")]
pub(crate) fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
pub(crate) mod tests;
