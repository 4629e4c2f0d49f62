//! Authentication and authorization.
//!
//! [`origin`] rejects cross-origin browser requests. [`layer`] identifies the caller ([`identify`]), checks
//! the access level of the method ([`methods`]) and ends its streams with its credential ([`expiry`]). The
//! write path checks scopes, since only it knows the written entries. Tokens are entries of the store: see
//! `state::tokens`.

pub(crate) mod caller;
pub(crate) mod certificate;
pub(crate) mod expiry;
pub(crate) mod identify;
pub(crate) mod layer;
pub(crate) mod limits;
pub(crate) mod methods;
pub(crate) mod origin;
pub(crate) mod rejected;
pub(crate) mod session;

use http::HeaderValue;

pub(crate) use crate::auth::certificate::ClientIdentity;
pub(crate) use crate::auth::origin::PageOrigin;
pub(crate) use crate::auth::origin::own_site_only;
use crate::auth::rejected::RejectedClients;
use std::sync::Arc;
use std::time::SystemTime;

use damper_net::limits::Limiter;

use crate::metrics::Metrics;
use crate::state::State;
use crate::state::snapshot::Snapshot;

/// Context of the layers around the services.
pub(crate) struct AuthContext {
    pub(crate) state: Arc<State>,
    pub(crate) access: Arc<Authenticator>,
    pub(crate) limiter: Limiter,
    pub(crate) metrics: Metrics,
    pub(crate) started_at: SystemTime,
}

/// Authentication mode of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Off: all callers have all permissions.
    #[default]
    None,
    /// A token, browser session or client certificate is required.
    Tokens,
}

/// Authentication settings and state of a server.
#[derive(Debug)]
pub(crate) struct Authenticator {
    /// True if a credential is required.
    pub(crate) required: bool,
    page_origins: Vec<PageOrigin>,
    identities: Vec<ClientIdentity>,
    lives: crate::auth::expiry::OpenCredentials,
    /// Recently rejected clients.
    pub(crate) rejected: RejectedClients,
}

impl Authenticator {
    pub(crate) fn new(auth: Auth, page_origins: Vec<PageOrigin>, identities: Vec<ClientIdentity>) -> Self {
        Self {
            required: auth == Auth::Tokens,
            page_origins,
            identities,
            lives: crate::auth::expiry::OpenCredentials::default(),
            rejected: RejectedClients::default(),
        }
    }

    #[cfg(test)]
    fn for_pages(origins: &[&str]) -> Self {
        let page_origins = origins.iter().map(|origin| origin.parse().expect("an origin")).collect();
        Self {
            required: true,
            page_origins,
            identities: Vec::new(),
            lives: crate::auth::expiry::OpenCredentials::default(),
            rejected: RejectedClients::default(),
        }
    }

    /// Returns the `authorization` header for peers; `None` without authentication.
    pub(crate) fn peer_credential(&self, table: &Snapshot) -> Option<HeaderValue> {
        let key = table.tokens().cluster_key().filter(|_| self.required)?;
        let mut value =
            HeaderValue::try_from(format!("Bearer {}", key.replica())).expect("it is visible ASCII");
        value.set_sensitive(true);
        Some(value)
    }
}
