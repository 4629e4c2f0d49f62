//! Damper's control plane as a library: rules and guards in, out to the services, figures back.
//!
//! A write goes admin API (`rules`, `guards`) -> [`writer`] -> [`store`] -> its watch -> `table` -> streams
//! (`distribution`); there is no other way in, on any replica. Reports come back over the same streams into
//! `stats` and are read through `fleet`. [`Server`] ties it to one port; `damper serve` and the tests start
//! it the same way.

mod api;
mod auth;
mod clients;
mod cluster;
mod config;
mod doctor;
mod graph;
mod metrics;
mod push;
mod server;
mod state;
mod stats;
mod telemetry;
mod write;

pub use crate::auth::Auth;
pub use crate::auth::certificate::{ClientIdentity, ClientIdentityError};
pub use crate::auth::origin::{PageOrigin, PageOriginError};
pub use crate::config::{
    AmplificationOutOfRange, MAX_GUARDS, MAX_RULES, MAX_TOKENS, MaxAmplification, REPLICAS, ServerConfig,
};
pub use crate::doctor::diagnosis_codes;
pub use crate::push::convergence::{CONVERGENCE_SHARE, CONVERGENCE_WITHIN};
pub use crate::server::Server;
pub use crate::server::error::{ServeError, StartError};
pub use crate::server::first_token::BootstrapError;
pub use crate::state::retention::{HistoryRetention, RetentionTooShort};
pub use damper_net::limits::{Limits, Rate};
pub use damper_net::tls::{ClientCertificates, Pem, TlsConfig};
pub use damper_store::StoreUrl;
