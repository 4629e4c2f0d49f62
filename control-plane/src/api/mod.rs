//! The admin API: one folder per service. Reads come from [`crate::cluster`] and [`crate::state`], writes go through
//! [`crate::write`].

pub(crate) mod filter;
pub(crate) mod fleet;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod kills;
pub(crate) mod page;
pub(crate) mod response_stream;
pub(crate) mod rules;
pub(crate) mod tokens;
