//! Reasons of denied requests, in gRPC and plain HTTP.
//!
//! The presented credential is never repeated, and a wrong token gets the same answer as an unknown one: only
//! the holder of a whole token learns that it expired.

use std::collections::HashMap;

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::state::tokens::role::Role;

/// Domain of the error reasons.
const DOMAIN: &str = "damper.v1";

/// Reason of a denied request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessDenied {
    #[error("unauthenticated: a token is required; send it as `authorization: Bearer damper_ID_SECRET`")]
    CredentialMissing,
    #[error("unknown token: revoked, or created by another control plane; use a token of this control plane")]
    TokenInvalid,
    #[error("the token expired; use a new one")]
    TokenExpired,
    #[error("the session of the web UI expired; sign in again")]
    SessionOver,
    #[error("the token or the session was revoked or has expired: use a new token, or sign in again")]
    Ended,
    #[error("this request requires the role {role}; {who}", role = .needed.name())]
    Role { needed: Role, who: String },
    #[error("only replicas of the control plane may call this method, and the caller is not one; {who}")]
    ReplicasOnly { who: String },
    #[error("no client may call this method, whatever its role")]
    NotOpen,
    #[error("access denied: {what} is outside the scope (the allowed services) of {who}")]
    Scope { what: String, who: String },
}

impl AccessDenied {
    /// Returns the reason for programs, and the label of a metric; from a fixed list.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::CredentialMissing => "CREDENTIAL_MISSING",
            Self::TokenInvalid => "TOKEN_INVALID",
            Self::TokenExpired => "TOKEN_EXPIRED",
            Self::SessionOver => "SESSION_OVER",
            Self::Ended => "CREDENTIAL_ENDED",
            Self::Role { .. } | Self::ReplicasOnly { .. } | Self::NotOpen => "ROLE",
            Self::Scope { .. } => "SCOPE",
        }
    }

    /// Returns true if another credential could help, rather than another role.
    fn is_unknown(&self) -> bool {
        match self {
            Self::CredentialMissing
            | Self::TokenInvalid
            | Self::TokenExpired
            | Self::SessionOver
            | Self::Ended => true,
            Self::Role { .. } | Self::ReplicasOnly { .. } | Self::NotOpen | Self::Scope { .. } => false,
        }
    }

    /// Returns the gRPC status.
    pub(crate) fn status(&self) -> Status {
        let code = if self.is_unknown() { Code::Unauthenticated } else { Code::PermissionDenied };
        let details = ErrorDetails::with_error_info(self.reason(), DOMAIN, HashMap::new());
        Status::with_error_details(code, self.to_string(), details)
    }

    /// Returns the response to a gRPC call.
    pub(crate) fn grpc(&self) -> Response<Body> {
        self.status().into_http()
    }

    /// Returns the response to any other request.
    pub(crate) fn plain(&self) -> Response<Body> {
        let mut answer = Response::new(Body::from(format!("{self}\n")));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.is_unknown() {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        *answer.status_mut() =
            if self.is_unknown() { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
        answer
    }
}
