//! A connected client: its group, which decides what it is sent, and its session.

pub(crate) mod group;
pub(crate) mod session;
