//! A control plane as the commands use it: connection, calls, errors.

pub(crate) mod change_set;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod probe;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod wait;
pub(crate) mod write;
