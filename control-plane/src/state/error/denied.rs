//! Why somebody is not let through, in gRPC and in plain HTTP.
//!
//! What was shown is never told back, and one that is wrong is not told from one that does not exist: only who knows
//! a whole token learns that its time is over.

use std::collections::HashMap;

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::state::tokens::role::Role;

/// Whose reasons these are.
const DOMAIN: &str = "damper.v1";

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessDenied {
    #[error("who are you? This server asks for a token: `authorization: Bearer damper_ID_SECRET`")]
    CredentialMissing,
    #[error("the token is not one of this control plane, or it was revoked")]
    TokenInvalid,
    #[error("the time of the token is over")]
    TokenExpired,
    #[error("the session is over; sign in again")]
    SessionOver,
    #[error("the token or session was revoked, or its time is over")]
    Ended,
    #[error("this takes the role {}; {who}", .needed.name())]
    Role { needed: Role, who: String },
    #[error("this is for other replicas of the control plane; {who}")]
    ReplicasOnly { who: String },
    #[error("this is open to nobody")]
    NotOpen,
    #[error("{what} is not within the scope of {who}")]
    Scope { what: String, who: String },
}

impl AccessDenied {
    /// For programs, and the label of a metric: from this list only.
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

    /// Whether another credential could do, rather than another right.
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

    /// As gRPC says it.
    pub(crate) fn status(&self) -> Status {
        let code = if self.is_unknown() { Code::Unauthenticated } else { Code::PermissionDenied };
        let details = ErrorDetails::with_error_info(self.reason(), DOMAIN, HashMap::new());
        Status::with_error_details(code, self.to_string(), details)
    }

    /// The whole answer to a gRPC call.
    pub(crate) fn grpc(&self) -> Response<Body> {
        self.status().into_http()
    }

    /// The whole answer to anything else.
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
