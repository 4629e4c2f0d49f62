//! Passes the endpoints that a call has tried between the client layer and the channel.
//!
//! The client layer polls the channel on the same thread, with any layers between, so a thread-local cell
//! carries the set without an allocation. A layer that sends from another task, such as a buffer, loses it.
//! An attempt may then go to an endpoint that was tried before.

use std::cell::Cell;

use damper_core::endpoints::Tried;

thread_local! {
    /// `None` outside calls under a rule.
    static TRIED: Cell<Option<Tried>> = const { Cell::new(None) };
}

/// Runs `send` for a call that has tried these endpoints.
pub(crate) fn with<T>(tried: &mut Tried, send: impl FnOnce() -> T) -> T {
    let outer = Outer(TRIED.replace(Some(*tried)));
    let sent = send();
    *tried = so_far();
    drop(outer);
    sent
}

/// Restores the previous value of the cell, also on panic.
struct Outer(Option<Tried>);

impl Drop for Outer {
    fn drop(&mut self) {
        TRIED.set(self.0);
    }
}

/// Returns the endpoints that the current call has tried.
pub(super) fn so_far() -> Tried {
    TRIED.get().unwrap_or(Tried::NONE)
}

/// Adds an endpoint to those that the current call has tried.
pub(super) fn now(slot: u32) {
    if let Some(mut tried) = TRIED.get() {
        tried.insert(slot);
        TRIED.set(Some(tried));
    }
}
