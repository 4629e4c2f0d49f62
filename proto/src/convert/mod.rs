//! Converts messages of the wire to the engine's types and back.
//!
//! Reading destructures each message with all fields, so that a field added to the wire does not compile
//! until it is handled here. All faults of an input are returned at once, each with the path of its field in
//! the .proto. Reading rejects only what the engine's types cannot represent (no mode, an unknown number,
//! NaN, a negative time); the engine checks ranges.
//!
//! Writing includes every default, so that a reader of another version gets the same meaning.

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
mod queue;
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
pub use self::queue::queue;
pub use self::rule::{distributed_rule, rule};
use crate::v1;

/// Reads a part of a message; records its faults below `path`.
fn within<T>(path: &str, faults: &mut Faults, read: impl FnOnce(&mut Faults) -> T) -> T {
    let mut inner = Faults::none();
    let value = read(&mut inner);
    faults.nest(path, inner);
    value
}

/// Reads a required part; `None` was reported.
fn required<W, T>(
    path: &str,
    wire: Option<&W>,
    read: impl FnOnce(&W, &mut Faults) -> Option<T>,
    faults: &mut Faults,
) -> Option<T> {
    within(path, faults, |faults| {
        let Some(wire) = wire else {
            faults.add("", "required");
            return None;
        };
        read(wire, faults)
    })
}

/// Reads the key of a rule or guard; `None` was reported.
fn key(wire: Option<&v1::Pattern>, faults: &mut Faults) -> Option<Pattern> {
    let read = |wire: &_, faults: &mut Faults| pattern(wire).map_err(|refused| faults.nest("", refused)).ok();
    required("key", wire, read, faults)
}

/// Adds faults of the engine. If reading rejected a field, the engine saw a stand-in: its faults for that
/// field, or for a message because of it, are dropped. A list contains a stand-in for each rejected entry, so
/// faults of a list stay.
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

#[cfg(test)]
pub(crate) mod tests;
