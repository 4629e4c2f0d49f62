//! Damper's control plane as a library: stores rules and guards, sends them to services, collects their
//! statistics.
//!
//! A write passes through `api`, `write`, [`damper_store::writer`], the store and its watch into the snapshot
//! of every replica (`state`), and from there to client streams (`push`); there is no other path. Reports
//! arrive over the same streams in `stats` and are read through `api::fleet` and `telemetry`. [`Server`]
//! serves all of it on one port; `damper serve` and the tests start it the same way.

mod api;
mod auth;
mod clients;
mod cluster;
mod config;
mod doctor;
mod graph;
mod jobs;
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
pub use crate::jobs::url::{QueuesUrl, QueuesUrlError};
pub use crate::push::convergence::{CONVERGENCE_SHARE, CONVERGENCE_WITHIN};
pub use crate::server::Server;
pub use crate::server::error::{ServeError, StartError};
pub use crate::server::first_token::BootstrapError;
pub use crate::state::retention::{HistoryRetention, RetentionTooShort};
pub use crate::write::MAX_QUEUES;
pub use damper_net::limits::{Limits, Rate};
pub use damper_net::tls::{ClientCertificates, Pem, TlsConfig};
pub use damper_store::StoreUrl;
