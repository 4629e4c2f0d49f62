//! A control plane as the commands see it: the connection, the calls, and the errors that they return.

pub(crate) mod change_set;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod probe;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod wait;
pub(crate) mod write;
