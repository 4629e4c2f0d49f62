//! Browser session: a cookie in place of a token.
//!
//! `POST /session` with a token as bearer returns a cookie that scripts cannot read and other sites cannot
//! send; `DELETE /session` removes it. The cookie holds the token's id and the session's end, signed with a
//! key of the control plane. No replica keeps state for it, so a user can sign in to any of them, also while
//! the store is down. The token is checked at every request.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::IntoResponse as _;
use axum::routing::post;
use cookie::{Cookie, CookieJar, SameSite};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::auth::AuthContext;
use crate::auth::identify;
use crate::auth::origin::RequestOrigin;
use crate::state::error::denied::AccessDenied;
use crate::state::tokens::role::Role;
use crate::state::tokens::secret::{ClusterKey, TokenId};

/// Path of sign-in and sign-out.
pub(crate) const PATH: &str = "/session";
/// Length of a session.
const LASTS: Duration = Duration::from_secs(12 * 3600);

/// Cookie name with TLS; browsers bind it to its host and to TLS.
const SECURE_NAME: &str = "__Host-damper-session";
/// Cookie name without TLS.
const PLAIN_NAME: &str = "damper-session";

/// Contents of a cookie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrowserSession {
    pub(crate) id: TokenId,
    pub(crate) end: SystemTime,
}

/// Returns the routes of sign-in and sign-out.
pub(crate) fn routes(auth: Arc<AuthContext>) -> Router {
    Router::new().route(PATH, post(sign_in).delete(sign_out)).with_state(auth)
}

async fn sign_in(State(auth): State<Arc<AuthContext>>, request: Request) -> Response<Body> {
    match begun(&auth, &request) {
        Ok(cookie) => answered(StatusCode::NO_CONTENT, "", Some(&cookie)),
        Err(SignInError::Denied(denied)) => {
            auth.metrics.denied(denied.reason());
            denied.plain()
        }
        Err(SignInError::AuthDisabled) => {
            answered(StatusCode::NOT_FOUND, "this server does not require tokens\n", None)
        }
        Err(SignInError::NoKey) => {
            answered(StatusCode::SERVICE_UNAVAILABLE, "the store has no key to sign sessions with\n", None)
        }
    }
}

async fn sign_out(request: Request) -> Response<Body> {
    let mut over = cookie(site(&request), String::new());
    over.make_removal();
    answered(StatusCode::NO_CONTENT, "", Some(&over))
}

/// Reason of a failed sign-in.
enum SignInError {
    Denied(AccessDenied),
    AuthDisabled,
    NoKey,
}

fn begun(auth: &AuthContext, request: &Request) -> Result<Cookie<'static>, SignInError> {
    if !auth.access.required {
        return Err(SignInError::AuthDisabled);
    }
    let (table, now) = (auth.state.table(), SystemTime::now());
    let bearer = identify::bearer(request.headers()).map_err(SignInError::Denied)?;
    let bearer = bearer.ok_or(SignInError::Denied(AccessDenied::CredentialMissing))?;
    let token = identify::token(bearer, &table, now).map_err(SignInError::Denied)?;
    if !token.role.reaches(Role::Viewer) {
        let who = format!("token {} ({}) has the role {}", token.wire.name, token.id, token.role.name());
        return Err(SignInError::Denied(AccessDenied::Role { needed: Role::Viewer, who }));
    }
    let key = table.tokens().cluster_key().ok_or(SignInError::NoKey)?;
    let end = token.expires_at.map_or(now + LASTS, |end| end.min(now + LASTS));
    Ok(signed(key, site(request), &BrowserSession { id: token.id.clone(), end }, now))
}

fn site(request: &Request) -> RequestOrigin {
    request.extensions().get::<RequestOrigin>().copied().unwrap_or_default()
}

fn signed(
    key: &ClusterKey,
    site: RequestOrigin,
    session: &BrowserSession,
    now: SystemTime,
) -> Cookie<'static> {
    let seconds = session.end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut cookie = cookie(site, format!("{}.{seconds}", session.id));
    let left = session.end.duration_since(now).unwrap_or_default();
    cookie.set_max_age(cookie::time::Duration::try_from(left).unwrap_or_default());
    let (name, mut jar) = (cookie.name().to_owned(), CookieJar::new());
    jar.signed_mut(key.sessions()).add(cookie);
    jar.get(&name).expect("it was just put there").clone()
}

fn cookie(site: RequestOrigin, value: String) -> Cookie<'static> {
    Cookie::build((name(site), value))
        .http_only(true)
        .same_site(SameSite::Strict)
        .path("/")
        .secure(site.is_secure)
        .build()
}

fn name(site: RequestOrigin) -> &'static str {
    if site.is_secure { SECURE_NAME } else { PLAIN_NAME }
}

/// Returns the valid session of a request, if any.
pub(crate) fn shown(
    headers: &HeaderMap,
    site: RequestOrigin,
    key: Option<&Arc<ClusterKey>>,
    now: SystemTime,
) -> Result<Option<BrowserSession>, AccessDenied> {
    if !site.is_own {
        return Ok(None);
    }
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = values.flat_map(|line| Cookie::split_parse(line).filter_map(Result::ok));
    let Some(ours) = cookies.into_iter().find(|cookie| cookie.name() == name(site)) else { return Ok(None) };
    let mut jar = CookieJar::new();
    jar.add_original(ours.into_owned());
    let verified = key.and_then(|key| jar.signed(key.sessions()).get(name(site)));
    let session = verified.and_then(|cookie| read(cookie.value())).ok_or(AccessDenied::SessionOver)?;
    if session.end <= now { Err(AccessDenied::SessionOver) } else { Ok(Some(session)) }
}

fn read(value: &str) -> Option<BrowserSession> {
    let (id, seconds) = value.split_once('.')?;
    let end = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?))?;
    Some(BrowserSession { id: TokenId::parse(id)?, end })
}

fn answered(status: StatusCode, text: &'static str, cookie: Option<&Cookie<'_>>) -> Response<Body> {
    let mut answer = (status, text).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(mut value) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie.to_string()).ok()) {
        value.set_sensitive(true);
        headers.insert(header::SET_COOKIE, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tokens::secret::BearerToken;

    const PLAIN: RequestOrigin = RequestOrigin { is_own: true, is_secure: false };
    const SECURE: RequestOrigin = RequestOrigin { is_own: true, is_secure: true };

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn headers(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(cookie).unwrap())])
    }

    #[test]
    fn cookie_is_bound_to_host_and_hidden_from_scripts() {
        let (key, id) = (ClusterKey::draw(), BearerToken::draw().id);
        let session = BrowserSession { id: id.clone(), end: at(43_300) };
        let plain = signed(&key, PLAIN, &session, at(100)).to_string();
        assert!(plain.starts_with("damper-session="), "{plain}");
        for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
            assert!(plain.split("; ").any(|found| found == part), "{part} is not in {plain}");
        }
        assert!(!plain.contains("Secure") && !plain.contains("Domain"), "{plain}");
        let secure = signed(&key, SECURE, &session, at(100)).to_string();
        assert!(secure.starts_with("__Host-damper-session=") && secure.contains("; Secure"), "{secure}");
    }

    #[test]
    fn cookie_needs_own_signature_time_and_site() {
        let (key, id) = (Arc::new(ClusterKey::draw()), BearerToken::draw().id);
        let session = BrowserSession { id: id.clone(), end: at(200) };
        let made = signed(&key, PLAIN, &session, at(100));
        let (name, value) = made.name_value();
        let good = format!("other=1; {name}={value}");
        let see = |cookie: &str, site, key: &Arc<ClusterKey>, now| {
            shown(&headers(cookie), site, Some(key), at(now))
        };
        assert_eq!(see(&good, PLAIN, &key, 199), Ok(Some(session)));
        assert_eq!(see(&good, PLAIN, &key, 200), Err(AccessDenied::SessionOver));
        assert_eq!(see(&good, RequestOrigin { is_own: false, ..PLAIN }, &key, 100), Ok(None));
        assert_eq!(see(&good, SECURE, &key, 100), Ok(None), "another name");
        assert_eq!(see(&good, PLAIN, &Arc::new(ClusterKey::draw()), 100), Err(AccessDenied::SessionOver));
        let later = value.replace(".200", ".900");
        let unsigned = format!("{}.900", BearerToken::draw().id);
        for bad in [&value[..value.len() - 1], &value[1..], &later, &unsigned, "", "x"] {
            assert_eq!(
                see(&format!("{name}={bad}"), PLAIN, &key, 100),
                Err(AccessDenied::SessionOver),
                "{bad}"
            );
        }
        assert_eq!(shown(&HeaderMap::new(), PLAIN, Some(&key), at(100)), Ok(None));
    }
}
