//! Who asks, and what they may do.
//!
//! `site` refuses what browsers send from elsewhere; `layer` finds the caller (`identify`), asks `methods` what the
//! call needs, and ends what was opened by a credential with it (`ending`). What is written is looked at again where
//! writes go through (see `requests`): only there is known what that is. `bootstrap` makes the first token, and the key
//! that the replicas share. Tokens themselves are entries of the store: see `table` and `tokens`.

mod bootstrap;
mod caller;
mod certificate;
mod denied;
pub(crate) mod ending;
mod identify;
pub(crate) mod layer;
pub(crate) mod methods;
mod role;
mod scope;
mod secret;
pub(crate) mod session;
mod site;
mod turned_away;

use http::HeaderValue;

pub use self::bootstrap::BootstrapError;
pub(crate) use self::bootstrap::ensure;
pub(crate) use self::caller::{Caller, misplaced};
pub use self::certificate::{ClientIdentity, ClientIdentityError};
pub(crate) use self::denied::AccessDenied;
pub(crate) use self::role::Role;
pub(crate) use self::scope::Scope;
pub(crate) use self::secret::{BearerToken, ClusterKey, TokenHash, TokenId};
pub(crate) use self::site::own_site_only;
pub use self::site::{PageOrigin, PageOriginError};
pub(crate) use self::turned_away::{RejectedClient, RejectedClients};
use crate::settings::{Auth, ServerConfig};
use crate::table::Snapshot;

/// How a server finds out who asks.
#[derive(Debug)]
pub(crate) struct Authenticator {
    /// Everybody must show something.
    pub(crate) required: bool,
    page_origins: Vec<PageOrigin>,
    identities: Vec<ClientIdentity>,
    lives: ending::OpenCredentials,
    /// Services that were not let in.
    pub(crate) turned_away: RejectedClients,
}

impl Authenticator {
    pub(crate) fn new(settings: &ServerConfig) -> Self {
        Self {
            required: settings.auth == Auth::Tokens,
            page_origins: settings.page_origins.clone(),
            identities: settings.client_identities.clone(),
            lives: ending::OpenCredentials::default(),
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
            lives: ending::OpenCredentials::default(),
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
