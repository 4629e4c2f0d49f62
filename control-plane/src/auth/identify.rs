//! Identifies the caller of a request by its token, else its browser session, else the connection's client
//! certificate.

use std::sync::Arc;
use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderMap, header};

use crate::auth::caller::{Caller, PresentedToken};
use crate::auth::certificate::ClientCertificate;
use crate::auth::origin::RequestOrigin;
use crate::auth::{Authenticator, session};
use crate::state::error::denied::AccessDenied;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::StoredToken;
use crate::state::tokens::secret::{BearerToken, claims_to_be_replica};
use damper_net::connection::ConnectionInfo;

/// Returns the caller, unauthenticated without a credential. An invalid credential is an error, even if
/// another one would suffice.
pub(crate) fn caller(
    access: &Authenticator,
    parts: &Parts,
    table: &Snapshot,
    now: SystemTime,
) -> Result<Caller, AccessDenied> {
    if !access.required {
        return Ok(Caller::AuthDisabled);
    }
    let names = parts.extensions.get::<ConnectionInfo>().and_then(|peer| peer.certificate.as_ref());
    let certificate =
        names.and_then(|names| ClientCertificate::read(names, &access.identities)).map(Arc::new);
    let site = parts.extensions.get::<RequestOrigin>().copied().unwrap_or_default();
    if let Some(bearer) = bearer(&parts.headers)? {
        if claims_to_be_replica(bearer) {
            let is_replica = table.tokens().cluster_key().is_some_and(|key| key.is_replica(bearer));
            return if is_replica { Ok(Caller::Replica) } else { Err(AccessDenied::TokenInvalid) };
        }
        let token = token(bearer, table, now)?;
        return Ok(Caller::Token(Arc::new(PresentedToken { token, session: None, certificate })));
    }
    if let Some(shown) = session::shown(&parts.headers, site, table.tokens().cluster_key(), now)? {
        let token = table.tokens().stored(&shown.id).filter(|token| !token.is_over(now));
        let token = token.ok_or(AccessDenied::SessionOver)?.clone();
        return Ok(Caller::Token(Arc::new(PresentedToken { token, session: Some(shown.end), certificate })));
    }
    // The handshake may be long ago.
    let in_force = |certificate: &Arc<ClientCertificate>| {
        !certificate.services().is_empty() && !certificate.is_over(now)
    };
    match certificate.filter(in_force) {
        Some(certificate) => Ok(Caller::Certificate(certificate)),
        None => Ok(Caller::Unauthenticated),
    }
}

/// Returns the token after `Bearer`; `None` for other schemes.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, AccessDenied> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => {
            let (kind, token) =
                one.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(AccessDenied::TokenInvalid)?;
            if kind.eq_ignore_ascii_case("bearer") {
                Ok(Some(token.trim()))
            } else {
                Err(AccessDenied::TokenInvalid)
            }
        }
        (Some(_), Some(_)) => Err(AccessDenied::TokenInvalid),
    }
}

/// Returns the stored token of a bearer.
pub(crate) fn token(
    bearer: &str,
    table: &Snapshot,
    now: SystemTime,
) -> Result<Arc<StoredToken>, AccessDenied> {
    let bearer = BearerToken::parse(bearer).ok_or(AccessDenied::TokenInvalid)?;
    let token = table.tokens().stored(&bearer.id).filter(|token| token.hash.is_of(&bearer));
    match token {
        None => Err(AccessDenied::TokenInvalid),
        Some(token) if token.is_over(now) => Err(AccessDenied::TokenExpired),
        Some(token) => Ok(token.clone()),
    }
}
