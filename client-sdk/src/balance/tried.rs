//! How the layer above says which endpoints a call has tried, and learns which one it tried now.
//!
//! It calls the channel, or polls the attempt, on this thread, with any layers between; so a cell of the thread carries
//! it, without an allocation. A layer that sends from another task, as a buffer does, loses it: then an attempt may go
//! to an endpoint that was tried.

use std::cell::Cell;

use damper_core::endpoints::Tried;

thread_local! {
    /// None outside of calls under a rule.
    static TRIED: Cell<Option<Tried>> = const { Cell::new(None) };
}

/// Does what may send a request of a call that has tried these.
pub(crate) fn with<T>(tried: &mut Tried, send: impl FnOnce() -> T) -> T {
    let outer = Outer(TRIED.replace(Some(*tried)));
    let sent = send();
    *tried = so_far();
    drop(outer);
    sent
}

/// What the cell held before; put back also when sending panics.
struct Outer(Option<Tried>);

impl Drop for Outer {
    fn drop(&mut self) {
        TRIED.set(self.0);
    }
}

/// What the call that a request is sent for has tried.
pub(super) fn so_far() -> Tried {
    TRIED.get().unwrap_or(Tried::NONE)
}

/// The call tries this one as well.
pub(super) fn now(slot: u32) {
    if let Some(mut tried) = TRIED.get() {
        tried.insert(slot);
        TRIED.set(Some(tried));
    }
}
