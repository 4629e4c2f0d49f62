//! Damper's control plane as a library: rules and guards in, out to the services, figures back.
//!
//! A write goes admin API (`rules`, `guards`) -> [`writer`] -> [`store`] -> its watch -> `table` -> streams
//! (`distribution`); there is no other way in, on any replica. Reports come back over the same streams into
//! `stats` and are read through `fleet`. [`Server`] ties it to one port; `damper serve` and the tests start
//! it the same way.

mod access;
mod by_hand;
mod chain;
mod class;
mod connection;
mod delivery;
mod distribution;
mod ending;
mod errors;
mod exposition;
mod exposure;
mod figures;
mod filter;
mod fleet;
mod follow;
mod guards;
mod history;
mod http;
mod hub;
mod judgement;
mod kills;
mod limits;
mod metrics;
mod ownership;
mod paging;
mod reach;
mod removal;
mod replicas;
mod requests;
mod rules;
mod server;
mod set;
mod settings;
mod shared;
mod standing;
mod stats;
pub mod store;
mod table;
mod tls;
mod tokens;
mod turn;
mod watching;
pub mod writer;
mod written;

pub use access::{BootstrapError, ClientIdentity, ClientIdentityError, PageOrigin, PageOriginError};
pub use fleet::diagnosis_codes;
pub use limits::{Limits, Rate};
pub use server::{ServeError, Server, StartError};
pub use settings::{
    AmplificationOutOfRange, Auth, CONVERGENCE_SHARE, CONVERGENCE_WITHIN, HistoryRetention, MAX_GUARDS,
    MAX_RULES, MAX_TOKENS, MaxAmplification, REPLICAS, RetentionTooShort, ServerConfig, StoreUrl,
};
pub use tls::{ClientCertificates, Pem, TlsConfig};
