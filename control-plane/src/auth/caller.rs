//! Authenticated caller of a request, and its permissions.

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use tonic::{Extensions, Request};

use crate::auth::certificate::ClientCertificate;
use crate::auth::methods::AccessLevel;
use crate::state::error::denied::AccessDenied;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::StoredToken;
use crate::state::tokens::role::Role;
use crate::state::tokens::scope::Scope;

/// Caller of a request. A clone costs a reference.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Unauthenticated: no permissions. Also the value without an authentication layer.
    Unauthenticated,
    /// Authentication is off: all permissions.
    AuthDisabled,
    /// Holder of a token.
    Token(Arc<PresentedToken>),
    /// Service with a client certificate, as its own agent.
    Certificate(Arc<ClientCertificate>),
    /// Another replica of this control plane.
    Replica,
}

/// Presented token.
#[derive(Debug)]
pub(crate) struct PresentedToken {
    pub(crate) token: Arc<StoredToken>,
    /// End of the browser session that stands for it.
    pub(crate) session: Option<SystemTime>,
    /// Client certificate of the connection.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
}

impl Caller {
    /// Returns the caller of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::found(request.extensions())
    }

    /// Returns the caller in a request's extensions.
    pub(crate) fn found(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or(Self::Unauthenticated)
    }

    /// Returns the principal that is stored with a change: `token NAME (ID)`, `certificate NAME`; empty:
    /// authentication off.
    pub(crate) fn principal(&self) -> String {
        match self {
            Self::Unauthenticated | Self::AuthDisabled => String::new(),
            Self::Token(shown) => format!("token {} ({})", shown.token.wire.name, shown.token.id),
            Self::Certificate(certificate) => format!("certificate {}", certificate.name()),
            Self::Replica => "replica".to_owned(),
        }
    }

    /// Returns the default author of its changes.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Token(shown) => &shown.token.wire.name,
            _ => "",
        }
    }

    /// Returns its role; `None` if it has none.
    pub(crate) fn role(&self) -> Option<Role> {
        match self {
            Self::Unauthenticated | Self::Replica => None,
            Self::AuthDisabled => Some(Role::Admin),
            Self::Token(shown) => Some(shown.token.role),
            Self::Certificate(_) => Some(Role::Agent),
        }
    }

    /// Checks its permission for a method.
    pub(crate) fn permit(&self, need: AccessLevel) -> Result<(), AccessDenied> {
        match (need, self) {
            (AccessLevel::Nothing, _) | (_, Self::AuthDisabled) => Ok(()),
            (_, Self::Unauthenticated) => Err(AccessDenied::CredentialMissing),
            (AccessLevel::Replica, Self::Replica) => Ok(()),
            (AccessLevel::Replica, _) => Err(AccessDenied::ReplicasOnly { who: self.words() }),
            (AccessLevel::Never, _) => Err(AccessDenied::NotOpen),
            (AccessLevel::Known, _) => self.permit_any(),
            (AccessLevel::Role(needed), _) => self.permit_role(needed),
            (AccessLevel::Unscoped(needed), _) => {
                self.permit_role(needed)?;
                self.permit_everything("everything")
            }
        }
    }

    /// Checks that it has at least this role.
    pub(crate) fn permit_role(&self, needed: Role) -> Result<(), AccessDenied> {
        match self.role() {
            Some(role) if role.reaches(needed) || matches!(self, Self::AuthDisabled) => Ok(()),
            None if matches!(self, Self::Unauthenticated) => Err(AccessDenied::CredentialMissing),
            _ => Err(AccessDenied::Role { needed, who: self.words() }),
        }
    }

    /// Checks that it has no scope.
    pub(crate) fn permit_everything(&self, what: &str) -> Result<(), AccessDenied> {
        match self {
            Self::Token(shown) if shown.token.scope.is_limited() && shown.token.role != Role::Admin => {
                Err(self.outside(what))
            }
            _ => Ok(()),
        }
    }

    /// Checks its permission to write or remove an entry.
    pub(crate) fn permit_write(&self, subject: &ResourceKey) -> Result<(), AccessDenied> {
        let needed = match subject {
            ResourceKey::Rule(_) | ResourceKey::Queue(_) => Role::Editor,
            ResourceKey::Guard(_) | ResourceKey::Kill(_) => Role::Operator,
        };
        self.permit_role(needed)?;
        // A queue accepts jobs for any callee, so it is within no scope.
        let Some(pattern) = subject.pattern() else { return self.permit_everything(&subject.to_string()) };
        match self {
            Self::Token(shown) if shown.token.role != Role::Admin && !shown.token.scope.holds(pattern) => {
                Err(self.outside(&subject.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Checks its permission to receive the rules of a service and report for it.
    pub(crate) fn permit_client(&self, service: &str) -> Result<(), AccessDenied> {
        self.permit_role(Role::Agent)?;
        let certificate = match self {
            Self::Token(shown) if !shown.token.scope.holds_caller(service) => {
                return Err(self.outside(&format!("service {service}")));
            }
            Self::Token(shown) => shown.certificate.as_ref(),
            Self::Certificate(certificate) => Some(certificate),
            _ => None,
        };
        match certificate.filter(|certificate| !certificate.is_of(service)) {
            Some(other) => {
                let who = format!("certificate {}", other.name());
                Err(AccessDenied::Scope { what: format!("service {service}"), who })
            }
            None => Ok(()),
        }
    }

    /// Checks that its credential is still valid.
    pub(crate) fn check_in_force(&self, table: &Snapshot, now: SystemTime) -> Result<(), AccessDenied> {
        let is_in_force = match self {
            Self::Token(shown) => {
                let there = table.tokens().stored(&shown.token.id).is_some_and(|stored| !stored.is_over(now));
                there && shown.session.is_none_or(|end| now < end)
            }
            Self::Certificate(certificate) => !certificate.is_over(now),
            Self::Unauthenticated | Self::AuthDisabled | Self::Replica => true,
        };
        if is_in_force { Ok(()) } else { Err(AccessDenied::Ended) }
    }

    /// Returns the token's expiry if that is soon.
    pub(crate) fn ends_soon(&self, now: SystemTime) -> Option<SystemTime> {
        match self {
            Self::Token(shown) => shown.token.ends_soon(now),
            // Certificates of services are renewed by programs, often every hour.
            Self::Certificate(_) | Self::Unauthenticated | Self::AuthDisabled | Self::Replica => None,
        }
    }

    /// Describes its permissions for itself.
    pub(crate) fn described(&self, tokens_required: bool) -> v1::WhoAmIResponse {
        let (scope, expires_at, session) = match self {
            Self::Token(shown) => {
                let end = [shown.token.expires_at, shown.session].into_iter().flatten().min();
                (shown.token.wire.scope.clone(), end.map(Into::into), shown.session.is_some())
            }
            Self::Certificate(certificate) => {
                let callers = certificate.services().to_vec();
                let end = certificate.expires_at().map(Into::into);
                (Some(v1::Scope { callers, callees: Vec::new() }), end, false)
            }
            Self::Unauthenticated | Self::AuthDisabled | Self::Replica => (None, None, false),
        };
        v1::WhoAmIResponse {
            principal: self.principal(),
            role: self.role().map_or(v1::Role::Unspecified, Role::wire).into(),
            scope,
            expires_at,
            tokens_required,
            session,
        }
    }

    fn permit_any(&self) -> Result<(), AccessDenied> {
        match self.role() {
            Some(_) => Ok(()),
            None => Err(AccessDenied::Role { needed: Role::Viewer, who: self.words() }),
        }
    }

    fn outside(&self, what: &str) -> AccessDenied {
        AccessDenied::Scope { what: what.to_owned(), who: self.principal() }
    }

    fn words(&self) -> String {
        match self.role() {
            Some(role) => format!("{} has the role {}", self.principal(), role.name()),
            None => format!("{} has no role", self.principal()),
        }
    }
}

/// Returns the fault of a scope that does not fit the role.
pub(crate) fn misplaced(role: Role, scope: &Scope) -> Option<(&'static str, &'static str)> {
    match role {
        Role::Viewer | Role::Admin if scope.is_limited() => Some((
            "scope",
            "is for editors, operators and agents only: what is read, and who makes tokens, is not limited",
        )),
        Role::Agent if scope.names_callees() => {
            Some(("scope.callees", "are not for agents: an agent is limited by the callers that it may be"))
        }
        _ => None,
    }
}
