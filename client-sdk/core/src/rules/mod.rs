//! Rules, guards and kill switches, and the table that finds them for a route.

pub(crate) mod explain;
pub mod guard;
pub mod key;
pub mod kill;
pub(crate) mod pattern;
pub(crate) mod table;
