//! The admin API, one folder per service. Reads use [`crate::cluster`] and [`crate::state`], writes use
//! [`crate::write`].

pub(crate) mod filter;
pub(crate) mod fleet;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod kills;
pub(crate) mod page;
pub(crate) mod queues;
pub(crate) mod response_stream;
pub(crate) mod rules;
pub(crate) mod tokens;
