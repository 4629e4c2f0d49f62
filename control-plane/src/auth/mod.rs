//! Who asks, and what they may do.
//!
//! `site` refuses what browsers send from elsewhere; `layer` finds the caller (`identify`), asks `methods` what the
//! call needs, and ends what was opened by a credential with it (`ending`). What is written is looked at again where
//! writes go through (see `requests`): only there is known what that is. `bootstrap` makes the first token, and the key
//! that the replicas share. Tokens themselves are entries of the store: see `table` and `tokens`.

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

/// What the layers around the services use.
pub(crate) struct AuthContext {
    pub(crate) state: Arc<State>,
    pub(crate) access: Arc<Authenticator>,
    pub(crate) limiter: Limiter,
    pub(crate) metrics: Metrics,
    pub(crate) started_at: SystemTime,
}

/// Whom a server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everybody, whatever they ask for.
    #[default]
    None,
    /// Whoever shows a token, a session or a client certificate, as far as its role goes.
    Tokens,
}

/// How a server finds out who asks.
#[derive(Debug)]
pub(crate) struct Authenticator {
    /// Everybody must show something.
    pub(crate) required: bool,
    page_origins: Vec<PageOrigin>,
    identities: Vec<ClientIdentity>,
    lives: crate::auth::expiry::OpenCredentials,
    /// Services that were not let in.
    pub(crate) turned_away: RejectedClients,
}

impl Authenticator {
    pub(crate) fn new(auth: Auth, page_origins: Vec<PageOrigin>, identities: Vec<ClientIdentity>) -> Self {
        Self {
            required: auth == Auth::Tokens,
            page_origins,
            identities,
            lives: crate::auth::expiry::OpenCredentials::default(),
            turned_away: RejectedClients::default(),
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
            turned_away: RejectedClients::default(),
        }
    }

    /// What this replica shows another as `authorization`; none where replicas ask for nothing.
    pub(crate) fn peer_credential(&self, table: &Snapshot) -> Option<HeaderValue> {
        let key = table.tokens().cluster_key().filter(|_| self.required)?;
        let mut value =
            HeaderValue::try_from(format!("Bearer {}", key.replica())).expect("it is visible ASCII");
        value.set_sensitive(true);
        Some(value)
    }
}
