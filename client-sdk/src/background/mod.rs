//! Work off the calls' path: threads for blocking work, name lookups, waits between connection attempts. And
//! the clock of all calls.

pub(crate) mod clock;
pub(crate) mod names;
pub(crate) mod reconnect_backoff;
pub(crate) mod turns;
pub(crate) mod worker;
