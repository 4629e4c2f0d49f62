//! Damper's control plane as a library: rules in, rules out to the services, figures back.
//!
//! A write goes admin API (`rules`) -> [`writer`] -> [`store`] -> its watch -> `table` -> streams
//! (`distribution`); there is no other way in, on any replica. Reports come back over the same streams into
//! `stats` and are read through `fleet`. [`Server`] ties it to one port; `damper serve` and the tests start
//! it the same way.

mod connection;
mod distribution;
mod errors;
mod fleet;
mod follow;
mod history;
mod http;
mod hub;
mod metrics;
mod paging;
mod rules;
mod server;
mod settings;
mod shared;
mod stats;
pub mod store;
mod table;
pub mod writer;

pub use server::{ServeError, Server, StartError};
pub use settings::{HistoryRetention, MAX_RULES, RetentionTooShort, Settings, StoreUrl};
